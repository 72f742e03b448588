"""In few passes, for a separable R, which cannot tell tensors apart.

On an accelerator, tensors are laid end to end: a handful of launches, whatever their number. On the CPU, small ones
are laid end to end, since there calls cost more than the arithmetic, and large ones are cut into chunks that stay in
the cache while a dozen operations pass. `loop` is the oracle.

Where metric and direction go entry by entry too, small tensors on the CPU are one from the start (`EndToEnd`).
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ...numerics import RUN, cut, dense, end_to_end, in_runs
from ...regularizers.base import Blocks, Regularizer
from ..parts.metrics import State
from .base import ByGroup, Proposal, add_models, model_of, proximal_point
from .pieces import Keep, Model, Piece, Way

ROWS = 1024
"""The runs of a chunk: 2 MB of float32 per tensor. Fewer, and Python is what takes the time."""


def joined(group: Piece, regularizer: Regularizer, keep: Keep) -> Model:
    """`loop` with all tensors laid end to end; they must have one dtype and device."""
    keep(group)
    x, v = end_to_end(group.olds), end_to_end(group.vs)
    step = group.steps[0]
    own = [s for s, x in zip(group.steps, group.xs, strict=True) if isinstance(s, Tensor) and s.shape == x.shape]
    if len(own) == len(group.xs):  # a step per entry, also of a parameter that is one number
        step = end_to_end(own)
    (z,) = proximal_point([x], [v], [step], regularizer)
    torch._foreach_copy_(list(group.xs), cut(z, group.xs))
    return model_of([x], [v], [z], [step], regularizer)


def whole(group: Piece, regularizer: Regularizer, keep: Keep) -> Model:
    """`loop` for one tensor."""
    keep(group)
    zs = proximal_point(group.olds, group.vs, group.steps, regularizer)
    group.xs[0].copy_(zs[0])
    return model_of(group.olds, group.vs, zs, group.steps, regularizer)


def chunked(group: Piece, regularizer: Regularizer, keep: Keep) -> Model:
    """`loop` chunk by chunk; for l1 and l0 on the CPU without a new tensor, since fresh memory costs the most there."""
    known, sums, models = _known(group, regularizer), [], []
    for piece in pieces(group, ROWS):
        keep(piece)
        if known and in_runs(piece.xs[0]) and piece.xs[0].numel() <= ROWS * RUN:
            sums.append(_in_place(piece, regularizer))
        else:
            zs = proximal_point(piece.olds, piece.vs, piece.steps, regularizer)
            piece.xs[0].copy_(zs[0])
            models.append(model_of(piece.olds, piece.vs, zs, piece.steps, regularizer))
    if sums:  # of runs, as `exact_sum` takes them
        a, b, _ = regularizer.coefficients or (0.0, 0.0, 0.0)
        vs, dR, norms = (torch.cat(column).double() for column in zip(*sums, strict=True))
        ss = norms.square_().sum()
        models.append(Model(vs.sum(), (a or b) * dR.sum(), ss, ss / group.steps[0]))
    return add_models(models)


def pieces(group: Piece, rows: int | None) -> Iterator[Piece]:
    """Every tensor's memory as matrices with one run per row, of so many rows at most, and what is left of it.

    A tensor that is not dense, or whose v or steps lie otherwise, is one piece.
    """
    for x, old, v, step in zip(*group, strict=True):
        together = [x, old, v, *([step] if isinstance(step, Tensor) and step.dim() > 0 else [])]
        if any(t.stride() != x.stride() for t in together) or not dense(x):
            yield Piece([x], [old], [v], [step])
            continue
        for part in zip(*(_in_runs(t.as_strided((t.numel(),), (1,)), rows) for t in together), strict=True):
            yield Piece([part[0]], [part[1]], [part[2]], [part[3] if len(part) > 3 else step])


def _in_runs(flat: Tensor, rows: int | None) -> list[Tensor]:
    run = _run(flat.numel())
    whole = flat.numel() // run
    matrix, rest = flat[: whole * run].view(-1, run), flat[whole * run :]
    chunks = torch.split(matrix, rows * RUN // run if rows else whole) if whole else ()
    return [*chunks, rest] if rest.numel() or not whole else list(chunks)


@functools.cache
def _run(size: int) -> int:
    """The longest run of whole vectors that leaves no rest; the longest of all where each leaves one."""
    return next((run for run in range(RUN, RUN // 2, -16) if size % run == 0), RUN)


def _known(group: Piece, regularizer: Regularizer) -> bool:
    """Whether `_in_place` can do it: l1 or l0, one number for a step, on the CPU in float32 or float64."""
    a, b, c = regularizer.coefficients or (0.0, 0.0, 1.0)
    return (
        c == 0
        and not (a and b)
        and all(isinstance(step, float) for step in group.steps)
        and all(x.is_cpu and x.dtype == v.dtype != torch.bfloat16 for x, v in zip(group.xs, group.vs, strict=True))
    )


def _in_place(piece: Piece, regularizer: Regularizer) -> tuple[Tensor, Tensor, Tensor]:
    """x <- x + s of one chunk; run by run, v's, the decrease of |x|_1 or |x|_0, and |s|."""
    (x,), (old,), (v,), (step,) = piece
    a, b, _ = regularizer.coefficients or (0.0, 0.0, 0.0)
    assert isinstance(step, float)
    s, t = (buffer[: x.numel()].view(x.shape) for buffer in _scratch.buffers(x.dtype, ROWS * RUN))
    torch.sub(old, torch.mul(v, step, out=t), out=t)
    largest = torch.finfo(x.dtype).max
    if a:
        torch.ops.aten.softshrink.out(t, min(a * step, largest), out=x)
    elif b:
        torch.ops.aten.hardshrink.out(t, min((2 * b * step) ** 0.5, largest), out=x)
    else:
        x.copy_(t)
    torch.sub(x, old, out=s)
    vs, norms = torch.mul(v, s, out=t).sum(1), torch.linalg.vector_norm(s, 2, 1)  # squares of s in one pass, not two
    if a:
        torch.sub(torch.abs(old, out=t), torch.abs(x, out=s), out=t)
    else:
        torch.sub(torch.ne(old, 0, out=t), torch.ne(x, 0, out=s), out=t)
    return vs, t.sum(1), norms


class _Scratch(threading.local):
    """Each thread's own: optimizers that step in two threads would write over each other's. They go with the thread."""

    def __init__(self) -> None:
        self.buffers = functools.cache(_two_buffers)


def _two_buffers(dtype: torch.dtype, size: int) -> tuple[Tensor, Tensor]:
    return torch.empty(size, dtype=dtype, device="cpu"), torch.empty(size, dtype=dtype, device="cpu")


_scratch = _Scratch()


# ---- one tensor from the start


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
