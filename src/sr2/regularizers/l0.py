"""l0: lambda times the number of nonzeros."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..checks import check_number
from ..numerics import exact_sum
from .base import Regularizer, Step


@dataclass(frozen=True)
class L0(Regularizer):
    """R(x) = lam * #{i : x_i != 0}.

    prox: hard thresholding, z = x where |x| > sqrt(2 lam step), else 0. At |x| = sqrt(2 lam step) exactly x
    and 0 are both minimizers, and z = 0.

    >>> L0(0.5).prox(torch.tensor([-2.0, 0.25, 1.0]), 1.0)
    tensor([-2.,  0.,  0.])
    >>> L0(0.5).value(torch.tensor([-2.0, 0.0, 0.0]))
    tensor(0.5000, dtype=torch.float64)
    """

    lam: float
    separable = True

    def __post_init__(self) -> None:
        check_number(self, "lam", self.lam, 0)

    @property
    def coefficients(self) -> tuple[float, float, float]:
        return (0.0, self.lam, 0.0)

    def terms(self, x: Tensor) -> Tensor:
        return self.lam * (x != 0).double()

    def decrease_of(self, xs: Sequence[Tensor], zs: Sequence[Tensor]) -> Tensor:
        if torch.compiler.is_compiling():  # whole numbers either way, and these are summed in vectors
            counts = [exact_sum((x != 0).float() - (z != 0).float()) for x, z in zip(xs, zs, strict=True)]
        else:
            counts = [torch.count_nonzero(x) - torch.count_nonzero(z) for x, z in zip(xs, zs, strict=True)]
        return self.lam * sum(counts, torch.zeros((), dtype=torch.float64, device=xs[0].device))

    def prox_tensor(self, x: Tensor, step: Step) -> Tensor:
        threshold = (2 * self.lam * step) ** 0.5  # a root of t, never a square of x: x**2 would under- or overflow
        if isinstance(threshold, Tensor):
            return torch.where(x.abs() <= threshold, 0.0, x)
        return F.hardshrink(x, min(threshold, torch.finfo(x.dtype).max))  # one pass; torch rejects a larger threshold
