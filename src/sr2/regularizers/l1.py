"""l1: lambda |x|_1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..checks import check_number
from ..numerics import exact_sum, wide
from .base import Regularizer, Step


def soft_threshold(x: Tensor, t: Step) -> Tensor:
    """sign(x) max(|x| - t, 0), for a number t or a tensor of them."""
    if isinstance(t, Tensor):
        return x - torch.clamp(x, -t, t)  # no host read, and 0 stays 0 where t overflowed to inf
    return F.softshrink(x, min(t, torch.finfo(x.dtype).max))  # one pass; torch rejects a t beyond x's range


@dataclass(frozen=True)
class L1(Regularizer):
    """R(x) = lam * sum |x_i|.

    prox: soft thresholding, z = sign(x) max(|x| - t, 0) with t = lam * step. At |x| = t exactly, z = 0.

    >>> L1(0.5).prox(torch.tensor([-2.0, 0.25, 1.0]), 1.0)
    tensor([-1.5000,  0.0000,  0.5000])
    """

    lam: float
    separable = True
    convex = True

    def __post_init__(self) -> None:
        check_number(self, "lam", self.lam, 0)

    @property
    def coefficients(self) -> tuple[float, float, float]:
        return (self.lam, 0.0, 0.0)

    def terms(self, x: Tensor) -> Tensor:
        return self.lam * x.double().abs()

    def decrease_of(self, xs: Sequence[Tensor], zs: Sequence[Tensor]) -> Tensor:
        # |x| - |z| is exact where z is near x, so it need not wait for float64; bfloat16 would round the others.
        sums = [exact_sum(wide(x.abs()).sub_(z.abs())) for x, z in zip(xs, zs, strict=True)]
        return self.lam * sum(sums, torch.zeros((), dtype=torch.float64, device=xs[0].device))

    def prox_tensor(self, x: Tensor, step: Step) -> Tensor:
        return soft_threshold(x, self.lam * step)
