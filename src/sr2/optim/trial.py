"""The trial point x + s of one step, and the way back to x."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .proposal import Proposal
from .proximal_step import Parts, Piece, add_parts, move_to_trial, put_back


class Trial:
    """Moves every group to x + s, and keeps x.

    Args:
        proposals: the groups' tensors.
        kept: where x is kept; filled with a buffer for each tensor that has none yet, to be used again at every step.
        flat: lay separable groups out for few passes; else tensor by tensor, the path to read.
        compiled: have torch.compile make one pass of each separable tensor.
    """

    def __init__(
        self, proposals: Sequence[Proposal], kept: dict[Tensor, Tensor], *, flat: bool, compiled: bool = False
    ) -> None:
        self.proposals = proposals
        for p in proposals:
            p.average()
        self._flat, self._compiled = flat, compiled
        for x in (x for p in proposals for x in p.xs):
            if x not in kept or not _as_made_for(kept[x], x):
                kept[x] = torch.empty_like(x)
        self._kept = [[kept[x] for x in p.xs] for p in proposals]
        self._moved: list[Piece] = []

    def move(self, sigma: float | Tensor) -> Parts:
        """x <- x + s with D = sigma + metric; the parts of the model, summed over the groups."""
        parts = []
        for p, kept in zip(self.proposals, self._kept, strict=True):
            steps = [1.0 / sigma] * len(p.xs) if p.diagonal is None else [1.0 / (d + sigma) for d in p.diagonal]
            try:
                piece = Piece(p.xs, kept, p.vs, steps)
                part = move_to_trial(piece, p.regularizer, self._moved, flat=self._flat, compiled=self._compiled)
            except torch.linalg.LinAlgError:  # type: ignore[attr-defined]  # the SVD of what is not finite
                part = Parts(*torch.full((3,), math.nan, dtype=torch.float64, device=p.xs[0].device))
            parts.append(part)
        return add_parts(parts)

    def noise(self) -> Tensor:
        """(g - v)'s, what momentum takes out of this batch."""
        noise = [p.noise(kept) for p, kept in zip(self.proposals, self._kept, strict=True)]
        return torch.stack([n.to(noise[0].device) for n in noise]).sum()

    def put_back(self) -> None:
        """x + s -> x, exactly, as far as it has moved."""
        put_back(self._moved)

    def put_back_unless(self, accepted: Tensor) -> None:
        """`put_back` where the 0-dim tensor is false, without looking at it: a choice, so that no NaN leaks."""
        for p, kept in zip(self.proposals, self._kept, strict=True):
            for x, old in zip(p.xs, kept, strict=True):
                x.copy_(torch.where(accepted, x, old))

    def commit(self) -> None:
        """The new momentum and metric replace the old."""
        for p in self.proposals:
            p.commit()

    def commit_on_device(self, sound: Tensor) -> None:
        """`commit` where the 0-dim tensor is true, without looking at it."""
        for p in self.proposals:
            p.commit_on_device(sound)

    def starts_outside(self) -> bool:
        """Whether R(x) is infinite, x being the point that was left."""
        pairs = zip(self.proposals, self._kept, strict=True)
        return any(bool(p.regularizer.value(kept).isposinf()) for p, kept in pairs)


def _as_made_for(old: Tensor, x: Tensor) -> bool:
    """Whether a buffer made for x is still as one made now: the user may have changed x's dtype, shape or layout."""
    new = torch.empty_like(x, device="meta")
    return (old.shape, old.stride(), old.dtype, old.device) == (new.shape, new.stride(), new.dtype, x.device)
