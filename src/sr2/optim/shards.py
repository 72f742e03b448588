"""Parameters of which every process has a part: torch's DTensor, as `fully_shard` and tensor parallelism make them.

An optimizer works on what its process has, `local(p)`, as on any tensor. Here is what that leaves: gradients in their
parameter's placement, regularizers that must see whole rows or whole tensors, states as DTensors for a checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..numerics import is_part, like, local
from ..regularizers.base import Regularizer, Step, one_per_entry
from ..telling import tell
from .processes import Processes


def as_part(x: Tensor, p: Tensor) -> Any:
    """x, one process's part, as a DTensor that is spread as p is; x where p is not spread."""
    if not is_part(p) or x.shape != local(p).shape:
        return x
    from torch.distributed.tensor import DTensor

    mesh, placements = p.device_mesh, p.placements  # type: ignore[attr-defined]
    return DTensor.from_local(x, mesh, placements, run_check=False, shape=p.shape, stride=p.stride())


def part_of(z: Tensor, p: Tensor) -> Tensor:
    """The inverse, for a DTensor or for a whole z that every process has: what lies where this one's part of p does."""
    if is_part(z) and is_part(p) and z.placements != p.placements:  # type: ignore[attr-defined]
        z = z.redistribute(placements=p.placements)  # type: ignore[attr-defined]
    if is_part(z) or not is_part(p) or z.shape != p.shape:
        return local(z)
    (chunk,) = p.__create_chunk_list__()  # type: ignore[attr-defined]
    for dim, (start, size) in enumerate(zip(chunk.offsets, chunk.sizes, strict=True)):
        z = z.narrow(dim, start if size else 0, size)
    return z


def bound(regularizer: Regularizer, params: Sequence[Tensor], processes: Processes) -> Regularizer:
    """The regularizer of a run that starts at these tensors, as this process needs it: see `Regularizer.start`."""
    if isinstance(regularizer, InParts):
        regularizer = regularizer.regularizer
    whole = processes.mesh is None or regularizer.separable
    xs = [local(p) for p in params]
    started = regularizer.start(xs) if whole else InParts(regularizer, params, processes).start(xs)
    _say_if_idle(regularizer, started, params, processes)
    return started


def _say_if_idle(before: Regularizer, started: Regularizer, params: Sequence[Tensor], processes: Processes) -> None:
    """Tell where R keeps zeros and there is none: once, since one that was started before has told."""
    kept = getattr(started.regularizer if isinstance(started, InParts) else started, "kept", None)
    if kept is None or getattr(before, "kept", None) is not None or not params or processes.total(kept):
        return
    n = sum(p.numel() for p in params)
    tell(
        f"{started!r} found no zero among {n:,} entries, and keeps nothing: make some first with prune_(model, alpha), "
        "or, where they are in a mask of torch.nn.utils.prune, with its remove(layer, 'weight')"
    )


class InParts(Regularizer):
    """R of tensors of which this process has parts: the prox of the parts, and terms that add up to R over processes.

    A sum over rows is worked out where the rows are. Any other R, and one over rows that are cut, is shown the whole
    tensors, which all processes gather: each then works out all of it and keeps its part.
    """

    def __init__(self, regularizer: Regularizer, params: Sequence[Tensor], processes: Processes) -> None:
        self.regularizer, self._params, self._processes = regularizer, list(params), processes
        for name in ("separable", "diagonal", "convex", "rowwise", "strict", "penalizes"):
            object.__setattr__(self, name, getattr(regularizer, name))
        self._gathered = [is_part(p) and not (regularizer.rowwise and _has_whole_rows(p)) for p in params]
        first = all(at == 0 for at in processes.mesh.get_coordinate())
        self._counted = [
            first if gathered or not regularizer.rowwise else processes.counts(p)
            for p, gathered in zip(params, self._gathered, strict=True)
        ]

    @property
    def by_tensor(self) -> bool:
        return self.regularizer.by_tensor

    def start(self, xs: Sequence[Tensor]) -> Regularizer:
        return InParts(self.regularizer.start(self._seen(xs)), self._params, self._processes)

    def at_strength(self, share: Tensor) -> Regularizer:
        return InParts(self.regularizer.at_strength(share), self._params, self._processes)

    def terms_of(self, xs: Sequence[Tensor]) -> list[Tensor]:
        terms = self.regularizer.terms_of(self._seen(xs))
        counted = self._counted if self.regularizer.rowwise else [all(self._counted)] * len(terms)
        return [t if counts else torch.zeros_like(t) for t, counts in zip(terms, counted, strict=True)]

    def prox_of(self, xs: Sequence[Tensor], steps: Sequence[Step]) -> list[Tensor]:
        shown = [self._shown(s, i) if one_per_entry(s) else s for i, s in enumerate(steps)]
        zs = self.regularizer.prox_of(self._seen(xs), shown)
        rows = zip(zs, xs, self._params, self._gathered, strict=True)
        return [like(part_of(z, p), x) if gathered else z for z, x, p, gathered in rows]

    def _seen(self, xs: Sequence[Tensor]) -> list[Tensor]:
        return [self._shown(x, i) for i, x in enumerate(xs)]

    def _shown(self, x: Tensor, i: int) -> Tensor:
        """Whole where R must see all of it: asked of all processes, in the same order."""
        return as_part(x, self._params[i]).full_tensor() if self._gathered[i] else x

    def __repr__(self) -> str:
        return repr(self.regularizer)  # how it is spread is no part of what is minimized


def _has_whole_rows(p: Any) -> bool:
    return all(place.is_replicate() or getattr(place, "dim", None) == 0 for place in p.placements)


def check_parts(optimizer: Any, processes: Processes) -> None:
    """What couples entries, and does not know that a process has only some of them, is an error before the first
    step."""
    if processes.mesh is None:
        return
    name = type(optimizer).__name__
    for what in ("metric", "direction"):
        part = getattr(optimizer, what, None)
        if part is not None and not part.entrywise:
            raise ValueError(
                f"{what}={part!r} may couple entries, and every process has only a part of each DTensor parameter: use "
                "one that declares `entrywise = True`, as Adam, RMSprop, AdaGrad and Average do"
            )
    if optimizer.capturable:
        raise ValueError(
            f"{name}(..., capturable=True) cannot capture the exchange between the processes that have the parts of "
            "DTensor parameters: leave it out"
        )
    if getattr(optimizer, "batch_growth", None) is not None:
        raise ValueError(
            f"{name}(..., batch_growth=...) must see each part's gradients, and fully_shard adds them up before "
            "anybody sees them: leave it out"
        )
