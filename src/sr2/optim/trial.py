"""The trial point x + s of one step, and the way back to x."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .proposal import Proposal
from .proximal_step import Parts, move_to_trial


class Trial:
    """Moves every group to x + s, and keeps x.

    Args:
        proposals: the groups' tensors.
        flat: lay separable groups end to end (few launches); else tensor by tensor, the path to read.
    """

    def __init__(self, proposals: Sequence[Proposal], *, flat: bool) -> None:
        self.proposals = proposals
        self._flat = flat
        self._kept: list[list[Tensor]] = []

    def move(self, sigma: float | Tensor) -> Parts:
        """x <- x + s with D = sigma + metric; the parts of the model, summed over the groups."""
        parts = []
        for p in self.proposals:
            steps = [1.0 / sigma] * len(p.xs) if p.diagonal is None else [1.0 / (d + sigma) for d in p.diagonal]
            try:
                kept, part = move_to_trial(p.xs, p.vs, steps, p.regularizer, flat=self._flat)
            except torch.linalg.LinAlgError:  # type: ignore[attr-defined]  # the SVD of what is not finite
                kept = [x.clone() for x in p.xs]
                part = Parts(*torch.full((3,), math.nan, dtype=torch.float64, device=p.xs[0].device))
            self._kept.append(kept)
            parts.append(part)
        columns = zip(*parts, strict=True)
        return Parts(*(torch.stack([t.to(column[0].device) for t in column]).sum() for column in columns))

    def put_back(self) -> None:
        """x + s -> x, exactly."""
        for p, kept in zip(self.proposals, self._kept, strict=False):  # fewer are kept if `move` was interrupted
            torch._foreach_copy_(p.xs, kept)

    def put_back_unless(self, accepted: Tensor) -> None:
        """`put_back` where the 0-dim tensor is false, without looking at it: a choice, so that no NaN leaks."""
        for p, kept in zip(self.proposals, self._kept, strict=True):
            for x, old in zip(p.xs, kept, strict=True):
                x.copy_(torch.where(accepted, x, old))

    def starts_outside(self) -> bool:
        """Whether R(x) is infinite, x being the point that was left."""
        pairs = zip(self.proposals, self._kept, strict=True)
        return any(bool(p.regularizer.value(kept).isposinf()) for p, kept in pairs)
