"""Low rank: the singular values of a weight, seen as the matrix (shape[0], -1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor

from ..checks import check_integer, check_number
from ..numerics import total
from .base import Regularizer, Step, as_matrix
from .budget import Budget, below


@dataclass(frozen=True)
class Nuclear(Regularizer):
    """R(x) = lam * sum of the singular values of the matrix (shape[0], -1).

    prox: soft thresholding of the singular values by t = lam * step, in float64. At a singular value equal to
    t it becomes 0. The step is one number per tensor: in a diagonal metric there is no closed form.

    >>> Nuclear(1.0).prox(torch.tensor([[3.0, 0.0], [0.0, 1.0]]), 1.0)
    tensor([[2., 0.],
            [0., 0.]])
    """

    lam: float
    convex = True

    def __post_init__(self) -> None:
        check_number(self, "lam", self.lam, 0)

    def terms(self, x: Tensor) -> Tensor:
        s: Tensor = torch.linalg.svdvals(as_matrix(x).double())
        return self.lam * s

    def decrease_of(self, xs: Sequence[Tensor], zs: Sequence[Tensor]) -> Tensor:
        return total([self._fall(x, z) for x, z in zip(xs, zs, strict=True)])

    def _fall(self, x: Tensor, z: Tensor) -> Tensor:
        """R(x) - R(z) of one tensor.

        Singular values are known to eps of the largest, in float64: to all digits that a float32 x has, and to too few
        for a float64 one. UV' is a subgradient, at x and at z, so that convexity bounds the fall from both sides; where
        s is short, by numbers that differ by |s|^2 over the singular values.
        """
        if x.dtype != torch.float64:
            return self.terms(x) - self.terms(z)
        x, z = as_matrix(x), as_matrix(z).double()
        (u, of_x, vh), (u_z, of_z, vh_z) = (torch.linalg.svd(a, full_matrices=False) for a in (x, z))
        most, least = (((left.mT @ (x - z)) * right).sum() for left, right in ((u, vh), (u_z, vh_z)))
        fall: Tensor = (of_x - of_z).sum().clamp(least, most)
        return self.lam * fall

    def prox_tensor(self, x: Tensor, step: Step) -> Tensor:
        if self.lam == 0:
            return x.clone()  # the factors would give it back rounded
        u, s, vh = torch.linalg.svd(as_matrix(x).double(), full_matrices=False)
        z: Tensor = (u * (s - self.lam * step).clamp_min(0.0)) @ vh
        return z.view(x.shape).to(x.dtype)


@dataclass(frozen=True)
class Rank(Budget):
    """R(x) = 0 where the matrix (shape[0], -1) has rank at most r, else +inf.

    prox: the r largest singular values are kept, in float64, whatever the step, which is one number per tensor; of
    equal ones the first as the decomposition orders them.

    A matrix of rank r no longer has it once its entries are rounded to their dtype: rounding moves the
    singular values by up to eps(dtype) / 2 * |x|_F. Those up to eps(dtype) * |x|_F (or, where that is more,
    as in float64, what the decomposition itself may err by, max(shape) * eps(float64) * |x|_F) therefore
    count as 0, and what the prox gives is inside in every dtype.

    >>> Rank(1).prox(torch.tensor([[3.0, 0.0], [0.0, 1.0]]), 1.0)
    tensor([[3., 0.],
            [0., 0.]])
    """

    r: int

    def __post_init__(self) -> None:
        check_integer(self, "r", self.r, 0)

    def terms(self, x: Tensor) -> Tensor:
        matrix = as_matrix(x).double()
        s = torch.linalg.svdvals(matrix)
        relative = max(torch.finfo(x.dtype).eps, max(matrix.shape) * torch.finfo(torch.float64).eps)
        within = below(len(s), self._now(self.r, len(s)), x.device)
        outside = ~within & (s > relative * torch.linalg.vector_norm(s))
        return torch.zeros_like(outside, dtype=torch.float64).masked_fill(outside, inf)

    def prox_tensor(self, x: Tensor, step: Step) -> Tensor:
        matrix = as_matrix(x)
        if self.r >= min(matrix.shape):
            return x.clone()  # the factors would give it back rounded
        u, s, vh = torch.linalg.svd(matrix.double(), full_matrices=False)
        if self._share is None:
            z: Tensor = (u[:, : self.r] * s[: self.r]) @ vh[: self.r]
            return z.view(x.shape).to(x.dtype)
        now = self._now(self.r, len(s))
        z = (u * torch.where(below(len(s), now, x.device), s, 0.0)) @ vh
        return torch.where(torch.as_tensor(now >= len(s), device=x.device), x, z.view(x.shape).to(x.dtype))
