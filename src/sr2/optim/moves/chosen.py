"""Budgets inside the fused kernel: it scores the entries, they are chosen, and it moves them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...regularizers.base import Regularizer
from .base import Proposal


def known(regularizer: Regularizer) -> tuple[float, float, float] | None:
    """(a, b, c) of the part of R that the kernel computes; None where it cannot serve."""
    if regularizer.coefficients is None and regularizer.chooses is not None:
        return (0.0, 0.0, regularizer.chooses[1])
    return regularizer.coefficients


class Budgets:
    """The groups under a budget, with the scores of their entries and what is chosen, end to end.

    Args:
        groups: of each group under a budget, the budget and the numbers of its tensors among all.
        xs: all tensors.
    """

    def __init__(self, groups: Sequence[tuple[Regularizer, Sequence[int]]], xs: Sequence[Tensor]) -> None:
        self._groups, device = groups, xs[0].device
        offsets, self._parts, total = [-1] * len(xs), [], 0
        for _, numbers in groups:
            for i in numbers:
                offsets[i], total = total, total + xs[i].numel()
            self._parts.append([(offsets[i], xs[i].numel()) for i in numbers])
        self.offsets = torch.tensor(offsets, device=device)
        self.scores = torch.empty(total, dtype=torch.float32, device=device)
        self.chosen = torch.empty(total, dtype=torch.int8, device=device)

    @property
    def shrink(self) -> bool:
        """Whether they are on their way to their own."""
        return any(r.chooses is not None and r.chooses[0].shrinks for r, _ in self._groups)

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
        """From the scores, group by group."""
        for (regularizer, _), parts in zip(self._groups, self._parts, strict=True):
            assert regularizer.chooses is not None
            keep = regularizer.chooses[0].keep([self.scores[a : a + n] for a, n in parts])
            a, (b, n) = parts[0][0], parts[-1]
            self.chosen[a : b + n].copy_(keep)

    def exceeded(self, kept: Sequence[Sequence[Tensor]]) -> Tensor:
        """Whether x, as it was, has more than a budget that has shrunk since."""
        xs = [x for group in kept for x in group]
        found = []
        for regularizer, numbers in self._groups:
            assert regularizer.chooses is not None
            found.append(regularizer.chooses[0].exceeded([xs[i] for i in numbers]))
        return torch.stack(found).any()
