"""Elastic net: lambda1 |x|_1 + lambda2 / 2 |x|^2."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch  # noqa: F401  (the doctest's)
from torch import Tensor

from ..checks import check_number
from ..numerics import total
from .base import Regularizer, Step
from .l1 import soft_threshold


@dataclass(frozen=True)
class ElasticNet(Regularizer):
    """R(x) = lam1 * sum |x_i| + lam2 / 2 * sum x_i^2.

    prox: z = sign(x) max(|x| - lam1 step, 0) / (1 + lam2 step). At |x| = lam1 step exactly, z = 0.

    >>> ElasticNet(0.5, 1.0).prox(torch.tensor([-2.0, 0.25, 1.0]), 1.0)
    tensor([-0.7500,  0.0000,  0.2500])
    """

    lam1: float
    lam2: float
    separable = True
    convex = True

    def __post_init__(self) -> None:
        check_number(self, "lam1", self.lam1, 0)
        check_number(self, "lam2", self.lam2, 0)

    @property
    def coefficients(self) -> tuple[float, float, float]:
        return (self.lam1, 0.0, self.lam2)

    def terms(self, x: Tensor) -> Tensor:
        size = x.double().abs()
        return size * (self.lam1 + self.lam2 / 2 * size)

    def decrease_of(self, xs: Sequence[Tensor], zs: Sequence[Tensor]) -> Tensor:
        pairs = [(x.double().abs(), z.double().abs()) for x, z in zip(xs, zs, strict=True)]
        # |x| - |z| is exact where z is near x; the difference of two squares would not be.
        return total([(a - b) * (self.lam1 + self.lam2 / 2 * (a + b)) for a, b in pairs])

    def prox_tensor(self, x: Tensor, step: Step) -> Tensor:
        return soft_threshold(x, self.lam1 * step) / (1 + self.lam2 * step)
