"""A budget of entries on the CPU, strip by strip: twice, since which entries stay depends on all of them.

The first time every strip moves to x - v / D and scores its entries. Then they are chosen. The second time the others
become zero, and everything is summed; v and D of a strip are made again for that, where the network is large: less than
reading and writing them costs. Of the size of a tensor are the scores alone. `loop` is the oracle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, pairwise
from math import inf
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...numerics import dense, wide
from ...regularizers.base import ZERO, Regularizer, one_per_entry
from ...regularizers.selection import BITS, chosen_here, scaled
from .base import Proposal, forward
from .flat import sums
from .laid import Layout
from .pieces import Keep, Model, Piece, Way, Ways

HELD = 1 << 17
"""Of so many entries or fewer v and D are held in between: there calls cost more than memory."""
_BITS = {**BITS, torch.bfloat16: torch.int16}


def is_budget(p: Proposal) -> bool:
    """Whether R is a budget of entries and nothing else, of dense tensors that can be compared as they are."""
    budget = p.regularizer.chooses is not None and p.regularizer.chooses[1] == 0
    return budget and all(map(dense, p.xs)) and len({_wide(x.dtype) for x in p.xs}) == 1


class Budgeted(Layout):
    """The `Layout` of one group under a budget of entries, the first, and of groups without R."""

    def __init__(
        self,
        groups: Mapping[int, int],
        ps: Sequence[Proposal],
        sets: Sequence[Sequence[int]],
        kept: Mapping[int, Tensor],
        way: Way,
    ) -> None:
        super().__init__(groups, ps, sets, kept, way)
        xs, R = ps[0].xs, ps[0].regularizer
        assert R.chooses is not None
        self._way, self._budget = way, R.chooses[0]
        sizes = [x.numel() for x in xs]
        self._n, self._floors = sum(sizes), self._budget.floors(sizes)
        self._scores = torch.empty(self._n, dtype=_wide(xs[0].dtype), device="cpu")
        self._flags = np.empty(self._n, dtype=bool)  # first which entries of x are nonzero, then which are to be
        # Among the scores strips lie one after the other: those of sets, and then of other tensors.
        members = [[i for i in numbers if i < len(xs)] for numbers in (*sets, kept)]
        order = [i for numbers in members for i in numbers]
        found = dict(zip(order, _end_to_end(sizes[i] for i in order), strict=True))
        self._tensors = [found[i] for i in range(len(xs))]
        self._ranks = [None if x.is_contiguous() or i not in kept else _rank(x) for i, x in enumerate(xs)]
        in_sets = [sum(sizes[i] for i in numbers) for numbers in members[:-1]]
        under = [c for c in self._cuts if c.number < len(xs)]
        cut = [s.kept[0].numel() if s.owner in under else 0 for s in self.strips[len(sets) :]]
        self._strips = _end_to_end([*in_sets, *cut])
        self.strips = [s._replace(ways=[(partial(self._score, k), [0])]) for k, s in enumerate(self.strips)]

    def of(self, ps: Sequence[Proposal]) -> list[Proposal]:
        self._k = int(self._budget.budget(self._n))
        found = super().of(ps)
        for p in found:
            p.held = self._n <= HELD
        return found

    def again(self) -> Iterator[tuple[int, Ways]]:
        """The strips under the budget, now that all are scored."""
        if self._k >= self._n:
            return
        nonzeros = [np.count_nonzero(self._flags[at]) for at in self._tensors]
        outside = sum(map(max, nonzeros, self._floors)) > self._k
        bits = self._scores.view(BITS[self._scores.dtype]).numpy()
        chosen_here(bits, self._tensors, self._floors, self._k, self._flags, self._ranks)
        for k, at in enumerate(self._strips):
            if at.stop > at.start:
                yield k, [(partial(self._remove, at, outside), [0])]
                outside = False  # it is said once

    def _score(self, k: int, piece: Piece, regularizer: Regularizer, keep: Keep) -> Model | None:
        """x - v / D and the scores of what is under the budget; all of the step where that has room for everything."""
        at = self._strips[k]
        if self._k >= self._n or at.stop == at.start:
            return self._way(piece, ZERO, keep)
        keep(piece)
        (x,), (old,), (v,), (step,), *_ = piece
        u = forward(wide(old), wide(v), step)
        x.copy_(u)
        if u.dtype != self._scores.dtype:  # of a metric in float64
            self._scores = self._scores.to(torch.promote_types(u.dtype, self._scores.dtype))
        scores, u = self._scores[at], u.view(-1)[: at.stop - at.start]
        if not one_per_entry(step):
            torch.abs(u, out=scores)
        else:
            step = step.view(-1)[: len(u)]
            if scores.dtype == u.dtype == step.dtype:
                scaled(u, step, out=scores)
            else:
                scores.copy_(scaled(u, step))
            scores.abs_()
        np.not_equal(_numbers(old)[: len(u)], 0, out=self._flags[at])
        return None

    def _remove(self, at: slice, outside: bool, piece: Piece, regularizer: Regularizer, keep: Keep) -> Model:
        """Zeros where nothing was chosen, and the sums. R(x + s) = 0, whatever was chosen."""
        (x,) = piece.xs
        bits = x.view(-1).view(_BITS[x.dtype]).numpy()[: at.stop - at.start]
        np.multiply(bits, self._flags[at], out=bits)  # of the bits, since NaN times 0 is NaN, and -1 times 0 is -0
        model = sums(piece)
        return model._replace(dR=torch.full_like(model.dR, inf)) if outside else model


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype == torch.bfloat16 else dtype


def _numbers(x: Tensor) -> Any:
    """x as a numpy vector."""
    return wide(x).view(-1).numpy()


def _end_to_end(sizes: Iterable[int]) -> list[slice]:
    return [slice(a, b) for a, b in pairwise(accumulate(sizes, initial=0))]


def _rank(x: Tensor) -> Callable[[Any], Any]:
    """From places in the memory of a dense tensor to those in the order of its indices."""
    shape, order = tuple(x.shape), sorted(range(x.dim()), key=x.stride, reverse=True)

    def rank(at: Any) -> Any:
        found = dict(zip(order, np.unravel_index(at, [shape[d] for d in order]), strict=True))
        return np.ravel_multi_index([found[d] for d in range(len(shape))], shape)

    return rank
