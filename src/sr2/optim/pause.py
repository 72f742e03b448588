"""A step at which x stays, so that two batches can be asked for their gradients at one x (`parts/heart.py`).

The batch of such a step is not learnt from: neither momentum nor metric take it in, and the step is a null step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..numerics import exact_sum, local, vector, wide
from .closure.twice import TwoEvaluations
from .parts.decay import AUTO_DECAY
from .parts.metrics import State
from .parts.schedules import Schedule
from .processes import Processes
from .state import Outcome, SearchState

NAME = "paused"
"""Of the gradient of that batch, in a parameter's state until the next step."""


def keep(params: Sequence[Tensor], states: Mapping[Any, State]) -> None:
    """The gradients there are, for the next step."""
    for p in params:
        if p.grad is not None:
            states[p][NAME] = local(p.grad).detach().clone(memory_format=torch.preserve_format)


@torch.no_grad()
def compare(params: Sequence[Tensor], states: Mapping[Any, State], together: Processes) -> tuple[float, float] | None:
    """g_a'g_b and the mean of |g_a|^2 and |g_b|^2, of the kept gradients, which are dropped, and those of now."""
    kept = [states[p].pop(NAME, None) for p in params]
    if all(g is None for g in kept):
        return None
    sums = torch.zeros(2, dtype=torch.float64, device="cpu")
    for p, a in zip(params, kept, strict=True):
        if not together.counts(p):
            continue
        b = None if p.grad is None else wide(local(p.grad).detach())
        a = None if a is None else wide(a)
        squares = [exact_sum(g.square()) for g in (a, b) if g is not None]
        product = exact_sum(a * b) if a is not None and b is not None else torch.zeros(())
        sums += torch.stack([product.double().cpu(), sum(squares, torch.zeros(())).double().cpu() / 2])
    product, square = together.sum(sums).tolist()
    return product, square


def paused(
    f: TwoEvaluations,
    search: SearchState,
    schedule: Schedule | None,
    groups: Sequence[dict[str, Any]],
    states: Mapping[Any, State],
    together: Processes,
) -> bool:
    """Behind the gradients at x: they are compared with those of a step at which x stayed; and whether it stays now.

    Only where w is "auto", and no group has an R: under a budget nothing is learnt by heart.
    """
    heart = search.heart
    if heart is None or not float(search.memory[AUTO_DECAY]) or any(g["regularizer"] is not None for g in groups):
        return False
    params = [p for group in groups for p in group["params"] if p.requires_grad]
    if (pair := compare(params, states, together)) is not None:
        for name, value in heart.after(search.memory, *pair).items():
            search.memory[name].fill_(value)
    if not heart.due(int(search.steps)):
        return False
    mean = float(together.mean(f.loss.double().reshape(1)))
    if not math.isfinite(mean):  # on any process: for the step to tell
        return False
    keep(params, states)
    search.counts.null.add_(1)
    unknown = (math.nan, math.nan, float(search.sigma), 0.0, 0.0, 0.0, False, True)  # as in `Figures`, behind the loss
    search.seen.copy_(vector((mean, *unknown)))
    outcome = Outcome(False, True, True, False, math.nan, search.sigma, None, {}, steps=int(search.steps))
    f.settle(outcome)
    f.leave()
    search.follow(schedule, outcome, groups)
    return True
