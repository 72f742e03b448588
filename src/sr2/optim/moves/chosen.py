"""Budgets inside the fused kernel: it scores the entries, they are chosen, and it moves them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...regularizers.base import Regularizer
from ...regularizers.selection import Search
from .base import Proposal


def known(regularizer: Regularizer) -> tuple[float, float, float] | None:
    """(a, b, c) of the part of R that the kernel computes; None where it cannot serve."""
    if regularizer.coefficients is None and regularizer.chooses is not None:
        return (0.0, 0.0, regularizer.chooses[1])
    return regularizer.coefficients


class Budgets:
    """The groups under a budget, with the scores of their entries and how they are chosen.

    Args:
        groups: of each group under a budget, R and the numbers of its tensors among all.
        xs: all tensors.
    """

    def __init__(self, groups: Sequence[tuple[Regularizer, range]], xs: Sequence[Tensor]) -> None:
        self._groups, device = groups, xs[0].device
        self._budgets: list[Any] = [r.chooses[0] for r, _ in groups if r.chooses is not None]
        sizes = [[xs[i].numel() for i in numbers] for _, numbers in groups]
        self._sums = [sum(of_group) for of_group in sizes]
        floors = [budget.floors(of_group) for budget, of_group in zip(self._budgets, sizes, strict=True)]
        self._search = Search(sizes, floors, device)
        fixed = [0 if b.shrinks else b.budget(n) for b, n in zip(self._budgets, self._sums, strict=True)]
        self._ks = torch.tensor(fixed, device=device)
        slots = {i: slot for slot, i in enumerate(i for _, numbers in groups for i in numbers)}
        self._scores = torch.full((self._search.length,), -1.0, device=device)  # between the tensors as well
        self.nonzeros = self._search.nonzeros
        self.tables = (
            torch.tensor([slots.get(i, -1) for i in range(len(xs))], dtype=torch.int32, device=device),
            torch.tensor(self._search.starts, device=device),
            self.nonzeros,
            self._search.least,
            self._search.ends,
            self._scores,
        )

    @property
    def shrink(self) -> bool:
        """Whether they are on their way to their own."""
        return any(budget.shrinks for budget in self._budgets)

    @staticmethod
    def of(proposals: Sequence[Proposal], xs: Sequence[Tensor], before: Budgets | None) -> Budgets | None:
        """Those of these proposals; the ones of the step before, if they are the same."""
        groups, first = [], 0
        for p in proposals:
            if p.regularizer.coefficients is None and p.regularizer.chooses is not None:
                groups.append((p.regularizer, range(first, first + len(p.xs))))
            first += len(p.xs)
        if not groups:
            return None
        same = before is not None and [id(r) for r, _ in before._groups] == [id(r) for r, _ in groups]
        return before if same else Budgets(groups, xs)

    def choose(self) -> None:
        """From the scores: the least score of each tensor that is chosen, and where equal ones end."""
        for budget, n, k in zip(self._budgets, self._sums, self._ks, strict=True):
            if budget.shrinks:
                k.fill_(budget.budget(n))
        self._search.find(self._scores, self._ks)

    def exceeded(self) -> Tensor:
        """Whether x, as it was when scored, has more than a budget that has shrunk since."""
        found = self._search.exceeded
        return found[0] if len(found) == 1 else found.any()
