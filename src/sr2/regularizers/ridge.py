"""Ridge: lambda / 2 |x|^2, what weight decay is to a plain gradient step, alone or beside another R."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch  # noqa: F401  (the doctest's)
from torch import Tensor

from ..checks import check_number
from ..numerics import like, total, wide
from .base import ZERO, Regularizer, Step, check_regularizer, working_step


@dataclass(frozen=True)
class Ridge(Regularizer):
    """R(x) = lam / 2 * sum x_i^2 + R_1(x).

    prox: that of R_1 at x / (1 + lam step) with steps step / (1 + lam step), entry by entry, since

        lam / 2 z^2 + (z - x)^2 / (2 t)  =  (z - x / (1 + lam t))^2 (1 + lam t) / (2 t)  +  what z does not change.

    So a budget with weight decay is `Ridge(5e-5, L0Ball(density=0.05))`.

    >>> from sr2 import L0Ball
    >>> Ridge(1.0, L0Ball(k=1)).prox(torch.tensor([-2.0, 0.5, 1.0]), 1.0)
    tensor([-1.,  0.,  0.])

    Args:
        lam: lambda >= 0.
        beside: R_1; None is nothing else.
    """

    lam: float
    beside: Regularizer | None = None

    def __post_init__(self) -> None:
        check_number(self, "lam", self.lam, 0)
        check_regularizer(self.beside)
        for name in ("separable", "diagonal", "convex", "strict"):
            object.__setattr__(self, name, getattr(self._other, name))

    @property
    def _other(self) -> Regularizer:
        return self.beside or ZERO

    @property
    def by_tensor(self) -> bool:
        return self._other.by_tensor

    @property
    def coefficients(self) -> tuple[float, float, float] | None:
        of = self._other.coefficients
        return None if of is None else (of[0], of[1], of[2] + self.lam)

    @property
    def chooses(self) -> tuple[Any, float] | None:
        of = self._other.chooses
        return None if of is None else (of[0], of[1] + self.lam)

    def at_strength(self, share: Tensor) -> Regularizer:
        """The ridge has its full strength at once: R_1 is on its way.

        >>> Ridge(1.0).at_strength(torch.tensor(0.5))
        Ridge(lam=1.0, beside=None)
        """
        return self if self.beside is None else Ridge(self.lam, self.beside.at_strength(share))

    def start(self, xs: Sequence[Tensor]) -> Regularizer:
        begun = self._other.start(xs)
        return self if begun is self._other else Ridge(self.lam, begun)

    def terms_of(self, xs: Sequence[Tensor]) -> list[Tensor]:
        own = [self.lam / 2 * x.double().square() for x in xs]
        if self.beside is None:
            return own
        if self.separable:
            return [a + b for a, b in zip(own, self._other.terms_of(xs), strict=True)]
        return [*own, *self._other.terms_of(xs)]

    def prox_of(self, xs: Sequence[Tensor], steps: Sequence[Step]) -> list[Tensor]:
        steps = [working_step(step, x) for step, x in zip(steps, xs, strict=True)]
        shrunk = [1 + self.lam * step for step in steps]
        nearer = [wide(x) / by for x, by in zip(xs, shrunk, strict=True)]  # rounded to x's dtype once, after R_1's prox
        zs = self._other.prox_of(nearer, [step / by for step, by in zip(steps, shrunk, strict=True)])
        return [like(z, x) for z, x in zip(zs, xs, strict=True)]

    def decrease_of(self, xs: Sequence[Tensor], zs: Sequence[Tensor]) -> Tensor:
        pairs = ((x.double(), z.double()) for x, z in zip(xs, zs, strict=True))
        return self.lam / 2 * total([(x - z) * (x + z) for x, z in pairs]) + self._other.decrease_of(xs, zs)
