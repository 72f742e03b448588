"""SCAD, the smoothly clipped absolute deviation: l1 up to lambda, constant beyond a lambda."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..checks import check_number
from ..numerics import total
from .base import Regularizer, Step, as_tensor


@dataclass(frozen=True)
class SCAD(Regularizer):
    """R(x) = sum r(|x_i|), r(0) = 0, r'(u) = lam up to lam, (a lam - u) / (a - 1) up to a lam, then 0; a > 2.

    prox, with soft(x) = sign(x) max(|x| - lam step, 0): z = x beyond T, and up to T

        step < a - 1:  T = a lam;  soft(x) for |x| <= lam (1 + step), and above it
                       z = sign(x) (lam + (|x| - lam (1 + step)) / (1 - step / (a - 1)));
        step >= a - 1: soft(x), as the objective is concave between lam and a lam and never least there;
                       T = lam (a + 1 + step) / 2 up to step = a + 1, lam sqrt((a + 1) step) from there on.

    At |x| = T exactly, with step >= a - 1, both are minimizers and z = soft(x), the smaller. At |x| = lam step
    exactly, z = 0.

    >>> SCAD(1.0, 3.0).prox(torch.tensor([-4.0, 1.0, 1.5, 2.5]), 1.0)
    tensor([-4.0000,  0.0000,  0.5000,  2.0000])
    >>> SCAD(1.0, 3.0).prox(torch.tensor([-8.5, 8.0]), 16.0)
    tensor([-8.5000,  0.0000])
    """

    lam: float
    a: float
    separable = True

    def __post_init__(self) -> None:
        check_number(self, "lam", self.lam, 0)
        check_number(self, "a", self.a, 2, open_low=True)

    def terms(self, x: Tensor) -> Tensor:
        lam, a, size = self.lam, self.a, x.double().abs()
        over = (size - lam).clamp(0.0, (a - 1) * lam)
        return lam * size.clamp_max(lam) + over * (lam - over / (2 * (a - 1)))

    def decrease_of(self, xs: Sequence[Tensor], zs: Sequence[Tensor]) -> Tensor:
        return total([self._fall(x.double().abs(), z.double().abs()) for x, z in zip(xs, zs, strict=True)])

    def _fall(self, u: Tensor, w: Tensor) -> Tensor:
        """r(u) - r(w). As in `ElasticNet`, u - w is exact where they are near; the difference of the terms is not."""
        lam, a = self.lam, self.a
        bent, bent_w = u.clamp(lam, a * lam), w.clamp(lam, a * lam)
        slope = (2 * a * lam - (bent + bent_w)) / (2 * (a - 1))  # of r, on the average of the two
        return lam * (u.clamp_max(lam) - w.clamp_max(lam)) + (bent - bent_w) * slope

    def prox_tensor(self, x: Tensor, step: Step) -> Tensor:
        lam, a, s = self.lam, self.a, as_tensor(step, x)
        size, bends = x.abs(), s < a - 1
        far = torch.where(s < a + 1, (a + 1 + s) / 2, ((a + 1) * s).sqrt())
        same = torch.where(bends, size > a * lam, size > lam * far)
        soft = (size - lam * s).clamp_min(0.0)
        # Ill-conditioned where step is just below a - 1: rounding must not carry it past |x|.
        steep = torch.minimum(lam + (size - lam * (1 + s)) / (1 - s / (a - 1)), size)
        near = torch.where(bends & (size > lam * (1 + s)), steep, soft)
        return torch.where(same, x, torch.copysign(near, x))
