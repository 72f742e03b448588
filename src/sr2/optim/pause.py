"""A step at which x stays, so that batches are asked for their gradients at one x.

Two of them once per epoch (`parts/heart.py`), the first four at x_0 (`parts/agreement.py`). The batch of a step at
which x stays is not learnt from: neither momentum nor metric take it in, and the step is a null step.
"""

from __future__ import annotations

import math
from collections.abc import MutableMapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..numerics import exact_sum, gradient_of, vector, wide
from .closure.examples import Examples
from .closure.twice import TwoEvaluations
from .closure.watch import ClosureWatch
from .parts.metrics import State
from .parts.schedules import Schedule
from .processes import Processes
from .state import Outcome, SearchState

NAME = "paused"
"""Of the gradient of that batch, in a parameter's state until the next step."""
GRADIENTS, SIGNS = "gradients", "signs"
"""Of the sums of the first gradients, and of their signs."""
SCRIPTED = torch.jit.RecursiveScriptModule  # type: ignore[attr-defined]
States = MutableMapping[Any, State]
Groups = Sequence[dict[str, Any]]


def taken(search: SearchState) -> int:
    """How many steps were taken; not by torch, since every step asks."""
    return sum(search.fates.tolist())


def watched(search: SearchState, module: nn.Module | None, watch: ClosureWatch) -> Examples | None:
    """What sees the examples of a step, where the number of batches of an epoch is to be found, or was.

    Not those of the search for sigma_0, which is no step; not those of one process of several, which are a part; not
    those of a network that torch.compile has made, and would make anew without what sees them; and not those of one
    that torch.jit.script has made, which bears nothing that sees them.
    """
    heart = search.heart
    if heart is None or heart.epoch is None or module is None or isinstance(module, SCRIPTED):
        return None
    t = taken(search)
    if heart.epoch.over and not heart.of_a_pair(t):
        return None
    several = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
    if several or watch.compiled or not search.sigma_known:
        return None

    def then(marks: list[int]) -> None:
        if search.heart is not None and not search.heart.came(marks, t):
            search.heart = None

    return Examples(module, then)


def forget(search: SearchState, states: States) -> None:
    """A kept gradient that no step will ask for, as of a state that was saved where x stayed by one that never does."""
    heart = search.heart is not None and search.heart.batches
    names = ((NAME, heart), (GRADIENTS, search.agreement), (SIGNS, search.agreement))
    for entry in states.values():
        for name in (name for name, asks in names if not asks):
            entry.pop(name, None)


def keep(params: Sequence[Tensor], states: States) -> None:
    """The gradients there are, for the next step."""
    for p in params:
        if p.requires_grad and (g := gradient_of(p)) is not None:
            states[p][NAME] = g.detach().clone(memory_format=torch.preserve_format)


@torch.no_grad()
def compare(params: Sequence[Tensor], kept: Sequence[Tensor | None], together: Processes) -> tuple[float, float]:
    """g_a'g_b and the mean of |g_a|^2 and |g_b|^2, of the kept gradients and those of now."""
    sums = torch.zeros(2, dtype=torch.float64, device="cpu")
    for p, a in zip(params, kept, strict=True):
        b = gradient_of(p) if p.requires_grad else None
        if not together.counts(p):
            continue
        mine = [wide(g.detach()) for g in (a, b) if g is not None]
        product = exact_sum(mine[0] * mine[1]) if len(mine) == 2 else torch.zeros(())
        squares = sum((exact_sum(g.square()) for g in mine), torch.zeros((), dtype=torch.float64, device=p.device))
        sums += torch.stack([product.double().cpu(), squares.double().cpu() / 2])
    product_of_all, square = together.sum(sums).tolist()
    return product_of_all, square


def stays(
    f: TwoEvaluations,
    search: SearchState,
    schedule: Schedule | None,
    groups: Groups,
    states: States,
    together: Processes,
) -> bool:
    """Whether x stays at this step, whose gradients are there; where it stayed at the last one, they are a pair.

    Only where some matrix has a w of "auto", and no group has an R: under a budget nothing is learnt by heart.
    """
    heart, t = search.heart, taken(search)
    if heart is None or not heart.of_a_pair(t):
        return False
    params = [p for group in groups for p in group["params"]]
    kept = [states[p].pop(NAME, None) for p in params]
    if any(g["regularizer"] is not None for g in groups):
        return False
    if heart.epoch is not None:
        if not isinstance(f.around, Examples):
            return False
        if not heart.epoch.goes_on(f.around.marks):  # so it was none, or is none any more
            search.heart = None
            return False
    if heart.stayed == t - 1 and any(g is not None for g in kept):
        heart.take(*compare(params, kept, together))
    decays = (g["weight_decay"] in heart.autos and any(p.dim() > 1 for p in g["params"]) for g in groups)
    if not heart.due(t) or not any(decays):
        return False
    loss = float(together.mean(f.loss.double().reshape(1)))
    if not math.isfinite(loss):  # on any process: for the step to tell
        return False
    keep(params, states)
    heart.stayed = t
    rest(f, loss, search, schedule, groups)
    return True


def rest(f: TwoEvaluations, loss: float, search: SearchState, schedule: Schedule | None, groups: Groups) -> None:
    """The null step."""
    t = taken(search)
    search.counts.null.add_(1)
    seen = (loss, loss, math.nan, float(search.sigma), 0.0, 0.0, 0.0, False, True)  # as in `Figures`
    search.seen.copy_(vector(seen))
    outcome = Outcome(False, True, True, False, math.nan, search.sigma, None, {}, steps=t + 1)
    f.settle(outcome)
    f.leave()
    search.follow(schedule, outcome, groups)


def asks_more(f: TwoEvaluations, search: SearchState, groups: Groups, states: States, together: Processes) -> bool:
    """Whether x stays at this step, one of the first: `search.agreement` has taken its batch, and wants another."""
    agreement = search.agreement
    loss = float(together.mean(f.loss.double().reshape(1)))
    if agreement is None or not math.isfinite(loss):  # for the step to tell
        return False
    params = [p for group in groups for p in group["params"]]
    if not sound(params, together):
        return False
    agreement.take(*confirmed(params, states, together, agreement.asked == 0))
    if not agreement.over:
        rest(f, loss, search, None, groups)  # a cooldown begins with the sigma that batches bear
    return not agreement.over


@torch.no_grad()
def sound(params: Sequence[Tensor], together: Processes) -> bool:
    """Whether these gradients are finite; those that are not are the step's to tell."""
    gs = [g for p in params if p.requires_grad and (g := gradient_of(p)) is not None and g.layout == torch.strided]
    norms = torch._foreach_norm([g for g in gs if g.numel()], math.inf) if any(g.numel() for g in gs) else []
    return together.total(float(not all(math.isfinite(float(norm)) for norm in norms))) == 0


@torch.no_grad()
def confirmed(params: Sequence[Tensor], states: States, together: Processes, first: bool) -> tuple[float, float]:
    """sign(g_i)'g + sign(g)'g_i over the gradients g_i of before, and |g|_1; g is among them from now on."""
    sums = torch.zeros(2, dtype=torch.float64, device="cpu")
    for p in params:
        entry = states[p]
        before = None if first or GRADIENTS not in entry else (entry[GRADIENTS], entry[SIGNS])
        g = gradient_of(p) if p.requires_grad else None
        if g is None or g.layout != torch.strided:
            continue
        g, sign = g.detach(), g.detach().sign()
        if together.counts(p):
            pairs = (
                [] if before is None else [exact_sum(wide(a) * wide(b)) for a, b in zip(before, (sign, g), strict=True)]
            )
            sums += vector([sum(float(pair) for pair in pairs), float(exact_sum(wide(g).abs()))])
        kept = (g, sign) if before is None else (before[0] + g, before[1] + sign)
        entry[GRADIENTS], entry[SIGNS] = (t.clone(memory_format=torch.preserve_format) for t in kept)
    of_all, promised = together.sum(sums).tolist()
    return of_all, promised
