"""Which way a step moves: the one place that knows them all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ...numerics import RUN
from ...regularizers.base import ZERO
from .base import ByGroup, Move, Proposal
from .budgeted import Budgeted, is_budget
from .compiled import compiled
from .flat import chunk, chunked, joined
from .fused import FusedMove
from .laid import AsOne, InStrips, Layout, decays_of, past, rows
from .loop import counting, loop, uncounted
from .pieces import Way, Ways

SMALL = 32 * RUN
"""A tensor of so many entries or fewer is laid end to end with others of its kind, on the CPU too."""
JOINED = 256 * RUN
"""And so many at most together, which stay in the cache."""


def choose(
    proposals: Sequence[Proposal],
    buffers: dict[Tensor, Tensor],
    *,
    foreach: bool | None,
    compile: bool,  # noqa: A002 - torch's own word
    capturable: bool,
) -> Move:
    """One kernel for all groups where it fits and nobody asked for another way; else group by group.

    Args:
        proposals: the groups' tensors.
        buffers: where x is kept; filled with a buffer for each tensor that has none yet.
        foreach: False is the loop; True the flat ways; None the kernel, or else the flat ways.
        compile: a compiled pass for every separable group.
        capturable: settle on the device, without looking.
    """
    if foreach is None and all(all(p.counted) for p in proposals) and FusedMove.fits(proposals):
        return FusedMove(capturable=capturable)
    # Where nothing is remembered, `joined` takes fewer calls; but a budget is chosen by it all.
    strips = any(p.metric is not None or p.direction is not None or is_budget(p) for p in proposals)
    if foreach is not False and not capturable and strips:
        way = compiled if compile else chunk
        layouts = [_layout(numbers, [proposals[i] for i in numbers], buffers, way) for numbers in _together(proposals)]
        if any(isinstance(layout, Layout) for layout in layouts):
            return InStrips(layouts)
    ways = [_ways(p, flat=foreach is not False, compile=compile) for p in proposals]
    return ByGroup(ways, [_kept(p.xs, buffers) for p in proposals], capturable)


def _together(proposals: Sequence[Proposal]) -> list[list[int]]:
    """The groups whose tensors are one to metric, direction and R, as long as they have one decay; the others alone.

    What has no R goes with the first budget, whose tensors are gone through twice: two sets would cost more.
    """
    fit = [i for i, p in enumerate(proposals) if p.regularizer.separable and _entrywise(p)]
    budgets = [i for i, p in enumerate(proposals) if is_budget(p) and _entrywise(p)][:1]
    free = [i for i in fit if proposals[i].regularizer is ZERO] if budgets else []
    sets = [budgets + free, [i for i in fit if i not in free]]
    sets = [s if len(decays_of([proposals[i] for i in s])) <= 1 else s[:1] for s in sets]
    known = {i for s in sets for i in s}
    return [*(s for s in sets if s), *([i] for i in range(len(proposals)) if i not in known)]


def _entrywise(p: Proposal) -> bool:
    entrywise = all(part is None or part.entrywise for part in (p.metric, p.direction))
    return entrywise and all(p.counted) and all(x.is_cpu for x in p.xs)


def _layout(numbers: Sequence[int], ps: Sequence[Proposal], buffers: dict[Tensor, Tensor], way: Way) -> Layout | AsOne:
    """How the tensors of groups that take the same step are laid out: in sets, what decays first; and the others."""
    xs, gs, states, decaying, budgeted = rows(ps)
    budget = is_budget(ps[0])
    if not (budget or ps[0].regularizer.separable) or not _entrywise(ps[0]):
        return AsOne(numbers[0], _kept(xs, buffers), _ways(ps[0], flat=True, compile=way is compiled))
    alone = ps[0].metric is None  # one number is then the decay of a whole tensor
    # What decays and what is under a budget are both first: so nothing else beside a budget may decay.
    kinds = [
        (alone and n > 0, budget and n > m, past(x, state))
        for n, m, x, state in zip(decaying, budgeted, xs, states, strict=True)
    ]
    sets, others = _apart(xs, gs, kinds)
    sets = [sorted(numbers, key=lambda i: (not decaying[i], not budgeted[i])) for numbers in sets]
    groups = {i: len(p.xs) for i, p in zip(numbers, ps, strict=True)}
    kept = dict(zip(others, _kept([xs[i] for i in others], buffers), strict=True))
    return (Budgeted if budget else Layout)(groups, ps, sets, kept, way)


def _ways(p: Proposal, *, flat: bool, compile: bool) -> Ways:  # noqa: A002
    """The ways of one group, with the numbers of the tensors that go each of them."""
    everything = list(range(len(p.xs)))
    if not p.regularizer.separable:
        return [(loop if all(p.counted) else counting(p.counted), everything)]
    if not all(p.counted):
        return _counted_apart(p, flat=flat, compile=compile)
    if compile:
        return [(compiled, everything)]
    if not flat:
        return [(loop, everything)]
    if all(x.is_cuda for x in p.xs) and len({(x.dtype, x.device) for x in p.xs}) == 1:
        return [(joined, everything)]
    small, large = _apart(p.xs, p.gs, [None] * len(p.xs))
    return [*((joined, numbers) for numbers in small), *([(chunked, large)] if large else [])]


def _counted_apart(p: Proposal, *, flat: bool, compile: bool) -> Ways:  # noqa: A002
    """The ways of the tensors whose sums this process counts, and of those that another one does."""
    ways: list[tuple[Way, Sequence[int]]] = []
    for counts in (True, False):
        numbers = [i for i, counted in enumerate(p.counted) if counted == counts]
        if not numbers:
            continue
        some = replace(p, xs=[p.xs[i] for i in numbers], gs=[p.gs[i] for i in numbers], counted=[True] * len(numbers))
        for way, among in _ways(some, flat=flat, compile=compile):
            ways.append((way if counts else uncounted(way), [numbers[i] for i in among]))
    return ways


def _apart(xs: Sequence[Tensor], gs: Sequence[Tensor], kinds: Sequence[Any]) -> tuple[list[list[int]], list[int]]:
    """The small tensors, where there are several of one kind, in sets that stay in the cache; and the rest."""
    sets: dict[Any, list[list[int]]] = {}
    for i, (x, g, kind) in enumerate(zip(xs, gs, kinds, strict=True)):
        if x.numel() <= SMALL and (x.dtype, x.device) == (g.dtype, g.device):
            alike = sets.setdefault((x.dtype, x.device, kind), [[]])
            if sum(xs[j].numel() for j in alike[-1]) + x.numel() > JOINED:
                alike.append([])
            alike[-1].append(i)
    several = [numbers for alike in sets.values() for numbers in alike if sum(map(len, alike)) > 1]
    chosen = {i for numbers in several for i in numbers}
    return several, [i for i in range(len(xs)) if i not in chosen]


def _kept(xs: Sequence[Tensor], buffers: dict[Tensor, Tensor]) -> list[Tensor]:
    for x in xs:
        if x not in buffers or not _as_made_for(buffers[x], x):
            buffers[x] = torch.empty_like(x)
    return [buffers[x] for x in xs]


def _as_made_for(old: Tensor, x: Tensor) -> bool:
    """Whether a buffer made for x is still as one made now: the user may have changed x's dtype, shape or layout."""
    new = torch.empty_like(x, device="meta")
    return (old.shape, old.stride(), old.dtype, old.device) == (new.shape, new.stride(), new.dtype, x.device)
