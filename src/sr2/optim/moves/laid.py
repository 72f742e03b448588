"""Small tensors on the CPU, laid end to end once: metric, direction, prox and sums see one tensor with one state.

There calls cost more than the arithmetic. `loop` is the oracle; where a state is not as it was left (a parameter missed
a step, a state was loaded or edited), the tensors are laid anew.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ...numerics import cut, end_to_end
from ...regularizers.base import Blocks, Regularizer
from ..parts.metrics import State
from .base import ByGroup, Proposal
from .flat import whole
from .pieces import Model, Way


class EndToEnd(ByGroup):
    """`ByGroup` with small tensors laid end to end, as one tensor with one state: what is remembered of each is a view
    of what is remembered of all.

    Args:
        layouts: of the groups, each of one or of several.
        kept: of each layout, where x is kept of the tensors that stay as they are.
    """

    def __init__(self, layouts: Sequence[Layout], kept: Sequence[Sequence[Tensor]]) -> None:
        room = [[torch.empty_like(s.x) for s in layout.sets] for layout in layouts]
        together = [[*ours, *theirs] for ours, theirs in zip(room, kept, strict=True)]
        super().__init__([layout.ways for layout in layouts], together, capturable=False)
        self._layouts = layouts

        found: dict[int, list[Tensor]] = {}
        for layout, row in zip(layouts, together, strict=True):
            tensors = iter(layout.taken_apart(row))
            found |= {i: list(itertools.islice(tensors, n)) for i, n in layout.groups.items()}
        self._apart = [found[i] for i in range(len(found))]

    @property
    def kept(self) -> Sequence[Sequence[Tensor]]:
        return self._apart

    def use(self, proposals: Sequence[Proposal]) -> bool:
        parts = [[proposals[i] for i in layout.groups] for layout in self._layouts]
        if not all(layout.fits(ps) for layout, ps in zip(self._layouts, parts, strict=True)):
            return False
        super().use([layout.of(ps) for layout, ps in zip(self._layouts, parts, strict=True)])
        self.proposals = proposals
        return True

    def to_trial(self, *, tested: bool = True) -> Model:
        model = super().to_trial(tested=tested)
        self._give()
        return model

    def put_back(self) -> None:
        super().put_back()
        if self._moved:
            self._give()

    def commit(self, sound: Tensor | None) -> None:
        for layout, p in zip(self._layouts, self._groups, strict=True):
            for s, new in zip(layout.sets, p.news, strict=False):
                s.commit(new)
            for state, new in zip(p.states[len(layout.sets) :], p.news[len(layout.sets) :], strict=True):
                state.update(new)

    def _give(self) -> None:
        """The tensors become what they are in their sets."""
        for layout in self._layouts:
            for s in layout.sets:
                torch._foreach_copy_(s.xs, s.parts)


class Layout:
    """The tensors of a group, or of several that take the same step: some laid end to end in sets, and the others.

    Args:
        groups: the numbers of the groups, each with that of its tensors.
        ps: those groups.
        sets: the numbers of the tensors of each set, counted over the groups: they have the same past (see `past`), and
            what decays is first.
        others: those of the tensors that stay as they are.
        ways: of the others, as they are numbered there.
    """

    def __init__(
        self,
        groups: Mapping[int, int],
        ps: Sequence[Proposal],
        sets: Sequence[Sequence[int]],
        others: Sequence[int],
        ways: Sequence[tuple[Way, Sequence[int]]],
    ) -> None:
        xs, _, states, _ = rows(ps)
        self.groups, self.others = groups, others
        self.sets = [_Set(xs, states, numbers) for numbers in sets]
        owners = [p.regularizer for p in ps for _ in p.xs]
        mine = [_one([(owners[i], xs[i].numel()) for i in numbers]) for numbers in sets]
        self.ways = [(under(R, whole), [k]) for k, R in enumerate(mine)]
        self.ways += [(way, [len(sets) + i for i in numbers]) for way, numbers in ways]

    def fits(self, ps: Sequence[Proposal]) -> bool:
        """Whether what is remembered is as it was left, and the groups still take one step."""
        if len(ps) > 1 and len(decays_of(ps)) > 1:
            return False
        states = [state for p in ps for state in p.states]
        return all(s.knows(states) for s in self.sets)

    def of(self, ps: Sequence[Proposal]) -> Proposal:
        """The groups as one, as they are laid out: the sets, and then the others."""
        if not self.sets:
            return ps[0]
        for s in self.sets:
            torch._foreach_copy_(s.parts, s.xs)
        xs, gs, states, decaying = rows(ps)
        return replace(
            ps[0],
            xs=[s.x for s in self.sets] + [xs[i] for i in self.others],
            gs=[end_to_end([gs[i] for i in s.numbers]) for s in self.sets] + [gs[i] for i in self.others],
            states=[s.state for s in self.sets] + [states[i] for i in self.others],
            decay=next(iter(decays_of(ps)), 0.0),
            decaying=[sum(decaying[i] for i in s.numbers) for s in self.sets] + [decaying[i] for i in self.others],
            counted=[],
        )

    def taken_apart(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Tensors that are laid out so, in the order and the shapes of the groups'."""
        parts = [part for s, flat in zip(self.sets, tensors, strict=False) for part in cut(flat, s.xs)]
        numbers = [*(i for s in self.sets for i in s.numbers), *self.others]
        found = dict(zip(numbers, [*parts, *tensors[len(self.sets) :]], strict=True))
        return [found[i] for i in range(len(found))]


def rows(ps: Sequence[Proposal]) -> tuple[list[Tensor], list[Tensor], list[State], list[int]]:
    """x, g, the states and what decays, of all tensors of the groups."""
    if len(ps) == 1:
        return ps[0].xs, ps[0].gs, ps[0].states, list(ps[0].decaying)
    xs, gs = [x for p in ps for x in p.xs], [g for p in ps for g in p.gs]
    return xs, gs, [state for p in ps for state in p.states], [n for p in ps for n in p.decaying]


def decays_of(ps: Sequence[Proposal]) -> set[Any]:
    """The decays of those groups of which some entries decay."""
    return {p.decay for p in ps if any(p.decaying)}


def _one(blocks: Sequence[tuple[Regularizer, int]]) -> Regularizer:
    """The R of tensors of so many entries that are laid end to end."""
    return blocks[0][0] if all(R is blocks[0][0] for R, _ in blocks) else Blocks(blocks)


def under(regularizer: Regularizer, way: Way) -> Way:
    """A way of tensors that have an R of their own."""
    return lambda piece, _, keep: way(piece, regularizer, keep)


class _Set:
    """Tensors laid end to end in `x`, with their state; `parts` are the views of it that belong to each."""

    def __init__(self, xs: Sequence[Tensor], states: Sequence[State], numbers: Sequence[int]) -> None:
        self.numbers, self.xs = numbers, [xs[i] for i in numbers]
        self.x = end_to_end(self.xs)
        self.parts = cut(self.x, self.xs)
        self.state: State = {}
        self._states = [states[i] for i in numbers]
        self._views: dict[str, list[Tensor]] = {}
        for name, value in self._states[0].items():
            of_entries = _fits(value, self.xs[0])
            self._remember(name, end_to_end([state[name] for state in self._states]) if of_entries else value)

    def knows(self, states: Sequence[State]) -> bool:
        """Whether the tensors' states, among these, are as they were left."""
        for k, i in enumerate(self.numbers):
            if states[i] is not self._states[k]:
                return False
            for name, value in self.state.items():
                left, found = self._views[name][k] if name in self._views else value, states[i].get(name)
                if found is not left and (isinstance(found, Tensor) or found != left):
                    return False
        return True

    def commit(self, new: State) -> None:
        """What is remembered from now on; in place, so that the views stay."""
        for name, value in new.items():
            if name in self._views and self.state[name].dtype == value.dtype:
                self.state[name].copy_(value)
            else:
                self._remember(name, value)

    def _remember(self, name: str, value: Any) -> None:
        self.state[name] = value
        each: Sequence[Any] = [value] * len(self._states)
        if _fits(value, self.x):
            each = self._views[name] = cut(value, self.xs)
        for state, own in zip(self._states, each, strict=True):
            state[name] = own


def past(x: Tensor, state: State) -> tuple[Any, ...]:
    """What tensors must have in common to be one: the entries of their states, and the weights of averages."""
    return tuple((name, value.dtype if _fits(value, x) else value) for name, value in state.items())


def _fits(value: object, x: Tensor) -> bool:
    return isinstance(value, Tensor) and value.shape == x.shape
