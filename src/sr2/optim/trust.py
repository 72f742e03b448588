"""Steps that are not tested: x + s is kept on trust; where that was wrong, x goes back to the last point that passed.

It was wrong where the loss at x_t is not finite or more than ten times the largest at a point that passed, where s is
not finite, or where the next test fails; sigma rises as after a rejection. x alone goes back. Momentum and metric have
not learnt from the batch that failed, where the rule forgets; what they learnt on the way there stays, as the running
statistics of the network do.

None of the paper's theorems is claimed for such a run: they need every step of Algorithm 1 to be tested.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..numerics import at_least, capturing, finite, local, where
from .broken import sound_at_x
from .moves.base import Move
from .parts.metrics import State
from .parts.rules import Evidence, Rule, Searched
from .parts.testing import FAR, LARGEST, Pace, Testing
from .processes import Processes
from .state import Outcome, SearchState

NAME = "passed"
"""Of the last point that passed, in a parameter's state."""


def is_tested(testing: Testing, state: SearchState) -> bool:
    """Whether the coming step is tested."""
    if testing.forced is not None:
        return testing.forced
    if capturing():
        raise RuntimeError(
            "with test_every a step is of one of two kinds, and a CUDA graph holds one: capture with "
            "sr2.optim.CapturedStep, which makes a graph of each"
        )
    return testing.due(state.pace, state.failures)


def on_trust(
    evidence: Evidence,
    move: Move,
    rule: Rule,
    state: Searched,
    sigma_min: float,
    together: Processes,
    capturable: bool,
    *,
    away: bool = False,
) -> Outcome:
    """What becomes of a step without a trial; one that fails is to the rule a trial that is not finite.

    away: x has moved on trust since the last test (`Pace`).
    """
    if not capturable and not away and not evidence.all_finite:
        # An error: x is where a test has passed, so this batch is broken.
        sound_at_x(evidence, move, together, capturable=False)
    sound = finite(evidence.loss, evidence.vs, evidence.ss)
    largest = state.memory[LARGEST]
    sound = sound & ((evidence.loss <= FAR * largest) | (largest == 0))  # of 0, as of a hinge, nothing is ten times
    evidence = replace(evidence, f_trial=where(sound, math.nan, math.inf))
    null = (evidence.ss == 0) & sound
    fails = capturable or not sound  # where the host sees that it does not, the rule need not be asked
    higher = at_least(rule.judge(evidence, state).sigma, sigma_min) if fails else state.sigma
    lower = at_least(rule.on_trust(state.sigma), sigma_min)
    return Outcome(
        accepted=sound ^ null,
        null=null,
        sound=sound,
        learns=sound,
        rho=math.nan,
        sigma=where(sound, where(null, state.sigma, lower), higher),
        evidence=evidence,
        memory={},
        tested=False,
        steps=state.steps + 1,
    )


def hold(
    move: Move, outcome: Outcome, params: Sequence[Tensor], states: Mapping[Any, State], pace: Pace, *, capturable: bool
) -> None:
    """After a step: a point that passed is kept, and where the step failed x goes back to it."""
    xs = [local(p) for p in params]
    for p, x in zip(params, xs, strict=True):
        if NAME not in states[p]:
            if capturing():
                raise RuntimeError("test_every needs a step before a CUDA graph is captured")
            states[p][NAME] = x.detach().clone(memory_format=torch.preserve_format)
    points = [states[p][NAME] for p in params]
    failed = (outcome.accepted | outcome.null) ^ True if outcome.failed is None else outcome.failed
    move.take_if(failed, xs, points)
    if outcome.tested:  # x is the point that has passed, or the one that had
        torch._foreach_copy_(points, list(xs))
    pace.go_on(tested=outcome.tested)
    pace.away = not capturable and not outcome.tested and bool(outcome.sound)
