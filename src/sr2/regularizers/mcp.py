"""MCP, the minimax concave penalty: l1 near 0, constant far out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..checks import check_number
from ..numerics import total
from .base import Regularizer, Step, as_tensor


@dataclass(frozen=True)
class MCP(Regularizer):
    """R(x) = sum r(|x_i|), r(u) = lam u - u^2 / (2 gamma) up to u = gamma lam, and gamma lam^2 / 2 beyond.

    prox: where step < gamma the objective is convex on each side of 0 and z is the firm threshold,

        0 for |x| <= lam step,  x for |x| > gamma lam,  sign(x) (|x| - lam step) / (1 - step / gamma) else.

    Where step >= gamma it is concave up to gamma lam, so that only 0 and x can be minimizers: z = x for
    |x| > lam sqrt(gamma step), else 0. On a threshold hit exactly, z = 0.

    >>> MCP(1.0, 2.0).prox(torch.tensor([-3.0, 1.0, 1.5]), 1.0)
    tensor([-3.,  0.,  1.])
    >>> MCP(1.0, 2.0).prox(torch.tensor([-4.5, 4.0]), 8.0)
    tensor([-4.5000,  0.0000])
    """

    lam: float
    gamma: float
    separable = True

    def __post_init__(self) -> None:
        check_number(self, "lam", self.lam, 0)
        check_number(self, "gamma", self.gamma, 0, open_low=True)

    def terms(self, x: Tensor) -> Tensor:
        u = self._bent(x)
        return u * (self.lam - u / (2 * self.gamma))

    def decrease_of(self, xs: Sequence[Tensor], zs: Sequence[Tensor]) -> Tensor:
        pairs = [(self._bent(x), self._bent(z)) for x, z in zip(xs, zs, strict=True)]
        # As in `ElasticNet`: the difference of the terms has few digits where z is near x.
        return total([(a - b) * (self.lam - (a + b) / (2 * self.gamma)) for a, b in pairs])

    def _bent(self, x: Tensor) -> Tensor:
        """|x| as far as r still grows."""
        return x.double().abs().clamp_max(self.gamma * self.lam)

    def prox_tensor(self, x: Tensor, step: Step) -> Tensor:
        lam, gamma, s = self.lam, self.gamma, as_tensor(step, x)
        size = x.abs()
        firm = s < gamma
        zero = lam * torch.where(firm, s, (gamma * s).sqrt())
        same = torch.where(firm, size > gamma * lam, size > zero)
        # Ill-conditioned where step is just below gamma: rounding must not carry it past |x|.
        between = torch.minimum((size - lam * s) / (1 - s / gamma), size)
        return torch.where(size <= zero, 0.0, torch.where(same, x, torch.copysign(between, x)))
