"""Which way a step moves: the one place that knows them all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ...numerics import RUN
from .base import ByGroup, Move, Proposal
from .compiled import compiled
from .flat import chunked, joined
from .fused import FusedMove
from .loop import counting, loop, uncounted
from .pieces import Way

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
    ways = [_ways(p, flat=foreach is not False, compile=compile) for p in proposals]
    return ByGroup(ways, [_kept(p.xs, buffers) for p in proposals], capturable)


def _ways(p: Proposal, *, flat: bool, compile: bool) -> list[tuple[Way, list[int]]]:  # noqa: A002
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
    small, large = _apart(p.xs, p.gs)
    return [*((joined, numbers) for numbers in small), *([(chunked, large)] if large else [])]


def _counted_apart(p: Proposal, *, flat: bool, compile: bool) -> list[tuple[Way, list[int]]]:  # noqa: A002
    """The ways of the tensors whose sums this process counts, and of those that another one does."""
    ways: list[tuple[Way, list[int]]] = []
    for counts in (True, False):
        numbers = [i for i, counted in enumerate(p.counted) if counted == counts]
        if not numbers:
            continue
        some = replace(p, xs=[p.xs[i] for i in numbers], gs=[p.gs[i] for i in numbers], counted=[True] * len(numbers))
        for way, among in _ways(some, flat=flat, compile=compile):
            ways.append((way if counts else uncounted(way), [numbers[i] for i in among]))
    return ways


def _apart(xs: Sequence[Tensor], gs: Sequence[Tensor]) -> tuple[list[list[int]], list[int]]:
    """The small tensors, if there are several of one kind, in sets that stay in the cache; and the rest."""
    kind = (xs[0].dtype, xs[0].device)
    sets: list[list[int]] = []
    large: list[int] = []
    room = 0
    for i, (x, g) in enumerate(zip(xs, gs, strict=True)):
        if x.numel() > SMALL or not (x.dtype, x.device) == kind == (g.dtype, g.device):
            large.append(i)
            continue
        room -= x.numel()
        if not sets or room < 0:
            sets.append([])
            room = JOINED - x.numel()
        sets[-1].append(i)
    if sum(map(len, sets)) < 2:
        return [], list(range(len(xs)))
    return sets, large


def _kept(xs: Sequence[Tensor], buffers: dict[Tensor, Tensor]) -> list[Tensor]:
    for x in xs:
        if x not in buffers or not _as_made_for(buffers[x], x):
            buffers[x] = torch.empty_like(x)
    return [buffers[x] for x in xs]


def _as_made_for(old: Tensor, x: Tensor) -> bool:
    """Whether a buffer made for x is still as one made now: the user may have changed x's dtype, shape or layout."""
    new = torch.empty_like(x, device="meta")
    return (old.shape, old.stride(), old.dtype, old.device) == (new.shape, new.stride(), new.dtype, x.device)
