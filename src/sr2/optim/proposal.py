"""One group's tensors during a step, and what becomes of its state when the step is decided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..regularizers.base import Regularizer, exact_sum
from .evaluation import capturing
from .metrics import State
from .momentum import direction
from .proximal_step import wide

NEEDS_A_STEP = "momentum and metrics need a step before a CUDA graph is captured"


@dataclass
class Proposal:
    """One group's tensors during a step: x, g, v, the diagonal of the metric, and the states to come.

    v is g until `average` is called; a fused trial takes the average in its own kernel instead.
    """

    group: dict[str, Any]
    regularizer: Regularizer
    xs: list[Tensor]
    gs: list[Tensor]
    vs: list[Tensor]
    diagonal: list[Tensor] | None
    states: list[State]
    news: list[State]
    momentum: float = 0.0

    def average(self) -> None:
        """v <- the average of the gradients, with the states that hold it."""
        if self.momentum:
            self.vs, averages = direction(self.gs, self.states, self.momentum)
            self.news = [{**new, **average} for new, average in zip(self.news, averages, strict=True)]

    def noise(self, kept: Sequence[Tensor]) -> Tensor:
        """(g - v)'s for s = x - kept, summed in float64."""
        gs, vs, xs, olds = ([wide(t) for t in tensors] for tensors in (self.gs, self.vs, self.xs, kept))
        terms = torch._foreach_sub(gs, vs)
        torch._foreach_mul_(terms, torch._foreach_sub(xs, olds))
        if len({t.dtype for t in terms}) == 1 and all(t.is_cuda and t.device == terms[0].device for t in terms):
            terms = (torch.cat([t.reshape(-1) for t in terms]),)  # one launch instead of one a tensor
        return torch.stack([exact_sum(t).to(terms[0].device) for t in terms]).sum()

    def commit(self) -> None:
        """The new momentum and metric replace the old."""
        for state, new in zip(self.states, self.news, strict=True):
            state.update(new)

    def commit_on_device(self, sound: Tensor) -> None:
        """`commit` where `sound`, in place, so that a graph's replay finds its state."""
        for x, state, new in zip(self.xs, self.states, self.news, strict=True):
            for name, value in new.items():
                if not isinstance(value, Tensor):
                    value = torch.full((), value, dtype=torch.float64, device=x.device)
                if name not in state:
                    if capturing():
                        raise RuntimeError(NEEDS_A_STEP)
                    state[name] = torch.zeros_like(value)
                state[name].copy_(torch.where(sound, value, state[name]))
