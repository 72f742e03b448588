"""On the CPU, where metric, direction and R go entry by entry: in strips of the size of the cache.

A strip is one tensor to them, with one state. Small tensors are laid end to end once, since there calls cost more than
the arithmetic; large ones are cut, since there memory does. v, the steps, x + s and the sums of a strip are made while
it is in the cache, and nothing is made that is as large as a tensor but what is kept of it. `loop` is the oracle.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...numerics import RUN, cut, dense, end_to_end, in_order_of
from ...regularizers.base import Blocks, Regularizer
from ..parts.metrics import State
from .base import ByGroup, Proposal
from .flat import runs_of
from .pieces import Model, Way, Ways

STRIP = 512 * RUN
"""The entries of a strip of a large tensor: 1 MB of float32 for each of about ten tensors. With fewer, calls are what
takes the time."""


class InStrips(ByGroup):
    """`ByGroup` strip by strip.

    Args:
        layouts: of the groups, each of one or of several.
    """

    def __init__(self, layouts: Sequence[Layout | AsOne]) -> None:
        strips = [strip for layout in layouts for strip in layout.strips]
        super().__init__([s.ways for s in strips], [s.kept for s in strips], capturable=False)
        self._layouts, self._strips = layouts, strips
        found: dict[int, list[Tensor]] = {}
        for layout in layouts:
            tensors = iter(layout.kept)
            found |= {i: list(itertools.islice(tensors, n)) for i, n in layout.groups.items()}
        self._apart = [found[i] for i in range(len(found))]

    @property
    def kept(self) -> Sequence[Sequence[Tensor]]:
        return self._apart

    def use(self, proposals: Sequence[Proposal]) -> bool:
        parts = [[proposals[i] for i in layout.groups] for layout in self._layouts]
        if not all(layout.fits(ps) for layout, ps in zip(self._layouts, parts, strict=True)):
            return False
        super().use([p for layout, ps in zip(self._layouts, parts, strict=True) for p in layout.of(ps)])
        self.proposals = proposals
        return True

    def to_trial(self, *, tested: bool = True, of_batch: bool = True) -> Model:
        model = super().to_trial(tested=tested, of_batch=of_batch)
        self._give()
        return model

    def put_back(self) -> None:
        super().put_back()
        if self._moved:
            self._give()

    def commit(self, sound: Tensor | None) -> None:
        for layout in self._layouts:
            for owner in layout.owners:
                owner.commit()

    def _unfinished(self) -> Iterator[tuple[int, Ways]]:
        first = 0
        for layout in self._layouts:
            yield from ((first + k, ways) for k, ways in layout.again())
            first += len(layout.strips)

    def _turned(self, number: int) -> None:
        strip = self._strips[number]
        strip.owner.note(strip.number, self._groups[number])

    def _give(self) -> None:
        """The tensors become what they are in their sets."""
        for layout in self._layouts:
            for s in layout.sets:
                torch._foreach_copy_(s.xs, s.parts)


class Strip(NamedTuple):
    """What is worked on at a time: a set, a part of a tensor, or a group that is one."""

    owner: _Set | _Cut | AsOne
    number: int
    """Among its owner's."""
    kept: list[Tensor]
    ways: Ways


class AsOne:
    """A group that R, metric or direction couples.

    Args:
        number: of the group.
        kept: where x is kept.
        ways: of its tensors.
    """

    sets: Sequence[_Set] = ()

    def __init__(self, number: int, kept: list[Tensor], ways: Ways) -> None:
        self.groups, self.kept = {number: len(kept)}, kept
        self.owners: Sequence[AsOne] = [self]
        self.strips = [Strip(self, 0, kept, ways)]

    def fits(self, ps: Sequence[Proposal]) -> bool:
        return True

    def of(self, ps: Sequence[Proposal]) -> list[Proposal]:
        return list(ps)

    def again(self) -> Iterable[tuple[int, Ways]]:
        return ()

    def note(self, _: int, p: Proposal) -> None:
        self._turned = p

    def commit(self) -> None:
        self._turned.commit(None)


class Layout:
    """How the tensors of groups that take the same step are laid out: some end to end in sets, and the others cut.

    Args:
        groups: the numbers of the groups, each with that of its tensors.
        ps: those groups.
        sets: the numbers of the tensors of each set, counted over the groups: they have the same past (see `past`), and
            what decays is first, as is what is under a budget.
        kept: where x is kept of all other tensors, by their numbers.
        way: of a strip.
    """

    def __init__(
        self,
        groups: Mapping[int, int],
        ps: Sequence[Proposal],
        sets: Sequence[Sequence[int]],
        kept: Mapping[int, Tensor],
        way: Way,
    ) -> None:
        xs, _, states, *_ = rows(ps)
        Rs = [p.regularizer for p in ps for _ in p.xs]
        self.groups = groups
        self.sets = [_Set(xs, Rs, states, numbers) for numbers in sets]
        self._cuts = [_Cut(i, xs[i], Rs[i]) for i in kept]
        self.owners: Sequence[_Set | _Cut] = [*self.sets, *self._cuts]
        olds, ways = [torch.empty_like(s.x) for s in self.sets], [(way, [0])]
        self.strips = [Strip(s, 0, [old], ways) for s, old in zip(self.sets, olds, strict=True)]
        self.strips += [Strip(c, k, [t], ways) for c in self._cuts for k, t in enumerate(c.parts(kept[c.number]))]
        found = {
            i: t for s, old in zip(self.sets, olds, strict=True) for i, t in zip(s.numbers, cut(old, s.xs), strict=True)
        }
        found |= kept
        self.kept = [found[i] for i in range(len(found))]

    def fits(self, ps: Sequence[Proposal]) -> bool:
        """Whether what is remembered is as it was left, and the groups still take one step."""
        if len(ps) > 1 and len(decays_of(ps)) > 1:
            return False
        states = [state for p in ps for state in p.states]
        return all(s.knows(states) for s in self.sets)

    def of(self, ps: Sequence[Proposal]) -> list[Proposal]:
        """The groups, strip by strip."""
        xs, gs, states, decaying, budgeted = rows(ps)
        decay = next(iter(decays_of(ps)), 0.0)

        def one(R: Regularizer, x: Tensor, g: Tensor, state: State, decays: int, budget: int) -> Proposal:
            p = replace(ps[0], regularizer=R, xs=[x], gs=[g], states=[state], counted=[])
            p.decay, p.decaying, p.budgeted = decay, [decays], [budget]
            return p

        found = []
        for s in self.sets:
            torch._foreach_copy_(s.parts, s.xs)
            g = end_to_end([gs[i] for i in s.numbers])
            first = (sum(of[i] for i in s.numbers) for of in (decaying, budgeted))
            found.append(one(s.regularizer, s.x, g, s.state, *first))
        for c in self._cuts:
            parts = c.strips(xs[c.number], gs[c.number], states[c.number])
            of_all = [bool(of[c.number]) for of in (decaying, budgeted)]
            found += [one(c.regularizer, *part, *(all_ * part[0].numel() for all_ in of_all)) for part in parts]
        return found

    def again(self) -> Iterable[tuple[int, Ways]]:
        """The strips to go through again once all have been gone through, and how: none."""
        return ()


def rows(ps: Sequence[Proposal]) -> tuple[list[Tensor], list[Tensor], list[State], list[int], list[int]]:
    """x, g, the states, what decays and what is under a budget, of all tensors of the groups."""
    if len(ps) == 1:
        return ps[0].xs, ps[0].gs, ps[0].states, list(ps[0].decaying), list(ps[0].budgeted)
    xs, gs = [x for p in ps for x in p.xs], [g for p in ps for g in p.gs]
    first = ([n for p in ps for n in p.decaying], [n for p in ps for n in p.budgeted])
    return xs, gs, [state for p in ps for state in p.states], *first


def decays_of(ps: Sequence[Proposal]) -> set[Any]:
    """The decays of those groups of which some entries decay."""
    return {p.decay for p in ps if any(p.decaying)}


def _one(blocks: Sequence[tuple[Regularizer, int]]) -> Regularizer:
    """The R of tensors of so many entries that are laid end to end."""
    return blocks[0][0] if all(R is blocks[0][0] for R, _ in blocks) else Blocks(blocks)


class _Set:
    """Tensors laid end to end in `x`, with their state: what is remembered of each is a view of what is remembered of
    all. `parts` are the views of x that belong to each."""

    def __init__(
        self, xs: Sequence[Tensor], Rs: Sequence[Regularizer], states: Sequence[State], numbers: Sequence[int]
    ) -> None:
        self.numbers, self.xs = numbers, [xs[i] for i in numbers]
        self.regularizer = _one([(Rs[i], xs[i].numel()) for i in numbers])
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

    def note(self, _: int, p: Proposal) -> None:
        self._turned = p

    def commit(self) -> None:
        """What is remembered from now on; in place, so that the views stay."""
        for name, value in self._turned.news[0].items():
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


class _Cut:
    """A tensor, in parts where it is dense.

    What it will remember is written beside what it remembers, since the step may be called off. There are two rooms for
    that, in turns: fresh memory at every step would cost the most.
    """

    def __init__(self, number: int, x: Tensor, regularizer: Regularizer) -> None:
        self.number, self.regularizer, self._whole = number, regularizer, not dense(x)
        self._like = torch.empty_like(x, device="meta")
        self._rooms: dict[str, list[Tensor]] = {}
        self._at: dict[str, Sequence[Tensor]] = {}
        self._new: State = {}

    def parts(self, t: Tensor) -> Sequence[Tensor]:
        """A tensor of this shape, part by part as this one lies in memory."""
        if self._whole:
            return [t]
        t = t if in_order_of(t, self._like) else torch.empty_like(self._like, dtype=t.dtype, device=t.device).copy_(t)
        return runs_of(t.detach().as_strided((t.numel(),), (1,)), STRIP)  # torch could not swap x where it has views

    def strips(self, x: Tensor, g: Tensor, state: State) -> list[tuple[Tensor, Tensor, State]]:
        """x, g and the state, part by part."""
        self._state, self._new = state, {}
        if self._whole:
            return [(x, g, state)]
        for name, rooms in self._rooms.items():
            self._new[name] = self._room(name, rooms[-1].dtype)
            self._at[name] = self.parts(self._new[name])
        wanted = self._rooms or state  # no point that is kept beside x, once it is known what is remembered
        shaped = {name: self.parts(v) for name, v in state.items() if name in wanted and _fits(v, self._like)}
        numbers = {name: v for name, v in state.items() if not _fits(v, self._like)}
        shaped |= {f"{name}_room": parts for name, parts in self._at.items()}
        return [
            (x, g, {**numbers, **{name: parts[k] for name, parts in shaped.items()}})
            for k, (x, g) in enumerate(zip(self.parts(x), self.parts(g), strict=True))
        ]

    def note(self, k: int, p: Proposal) -> None:
        """What part k will remember."""
        for name, value in p.news[0].items():
            if self._whole or not _fits(value, p.xs[0]):
                self._new[name] = value
                continue
            if name not in self._new or self._new[name].dtype != value.dtype:
                self._new[name] = self._room(name, value.dtype)
                self._at[name] = self.parts(self._new[name])
            if value is not self._at[name][k]:
                self._at[name][k].copy_(value)
        p.news = []

    def commit(self) -> None:
        """What is remembered from now on."""
        self._state.update(self._new)

    def _room(self, name: str, dtype: torch.dtype) -> Tensor:
        rooms = self._rooms.get(name, [])
        free = next((room for room in rooms if room is not self._state.get(name) and room.dtype == dtype), None)
        if free is None:
            free = torch.empty_like(self._like, dtype=dtype, device="cpu")
            self._rooms[name] = [*rooms[-1:], free]  # once it is there: an interrupt leaves no empty list
        return free


def past(x: Tensor, state: State) -> tuple[Any, ...]:
    """What tensors must have in common to be one: the entries of their states, and the weights of averages."""
    return tuple((name, value.dtype if _fits(value, x) else value) for name, value in state.items())


def _fits(value: object, x: Tensor) -> bool:
    return isinstance(value, Tensor) and value.shape == x.shape
