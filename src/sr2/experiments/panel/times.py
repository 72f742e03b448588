"""Equal time: how many steps SR2 may take in the time that AdamW needs for its own.

The costs of a step are measured within the run, on copies of its network and with its own batches: blocks of steps of
AdamW, of SR2 with a trial and of SR2 on trust, one after the other and again, in CPU seconds of this process. A block
takes AdamW 20 ms or more. There are at least nine of each, and as many more, up to forty, as it takes until the
standard error of each ratio's median is below one percent of it. What the machine does beside falls on all alike.
"""

from __future__ import annotations

import copy
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ...optim import SR2
from ...optim.parts.testing import Pace, as_testing
from ...regularizers import L1
from .tasks import Batch, Problem

BLOCK_SECONDS, LEAST, MOST, STEADY = 0.02, 9, 40, 0.01
NEVER = 10**9
"""A `test_every` that leaves all steps but the first one on trust."""
Step = Callable[[], None]


@dataclass(frozen=True)
class Costs:
    """Of a step of SR2, in steps of AdamW."""

    tested: float
    trusted: float
    first: float
    """Of its first step, in which sigma_0 is found."""
    blocks: int
    """How many of each were timed."""

    def affordable(self, steps: int, test_every: int | str = 1) -> int:
        """How many steps of SR2 cost no more than so many of AdamW, where no test fails.

        >>> Costs(tested=1.5, trusted=1.0, first=4.0, blocks=9).affordable(100)
        65
        """
        testing, pace, taken, spent = as_testing(test_every), Pace(), 0, 0.0
        while True:
            tested = testing is None or testing.due(pace, lambda: 0)
            spent += self.first if taken == 0 else self.tested if tested else self.trusted
            if spent > steps:
                return taken
            taken += 1
            pace.go_on(tested=tested)


def measure(problem: Problem, clock: Callable[[], float] = time.process_time, **options: Any) -> Costs:
    """The costs of SR2 with these options on this problem, which is left as it is."""
    with torch.random.fork_rng(devices=[]):
        adamw = _adamw(problem)
        tested, trusted = (_sr2(problem, **{**options, "test_every": k}) for k in (1, NEVER))
        first = [_spent(clock, _sr2(problem, **options), 1) for _ in range(3)]
        for step in (adamw, tested, trusted):
            _spent(clock, step, 3)
        steps = max(1, math.ceil(BLOCK_SECONDS / max(_spent(clock, adamw, 3) / 3, 1e-9)))
        blocks: list[tuple[float, float, float]] = []
        while len(blocks) < MOST and not (len(blocks) >= LEAST and _steady(blocks)):
            a, t, u = (_spent(clock, step, steps) for step in (adamw, tested, trusted))
            blocks.append((t / a, u / a, a / steps))
        ratios = [statistics.median(column) for column in zip(*blocks, strict=True)]
    return Costs(ratios[0], ratios[1], statistics.median(first) / ratios[2], len(blocks))


def _steady(blocks: list[tuple[float, float, float]]) -> bool:
    """Whether both ratios are known to a percent: 1.25 deviations / sqrt(n) is the standard error of a median."""
    errors: list[float] = []
    for column in list(zip(*blocks, strict=True))[:2]:
        low, middle, high = statistics.quantiles(column, n=4)
        errors.append(1.25 * (high - low) / 1.35 / math.sqrt(len(column)) / middle)
    return max(errors) < STEADY


def _spent(clock: Callable[[], float], step: Step, times: int) -> float:
    started = clock()
    for _ in range(times):
        step()
    return max(clock() - started, 1e-9)


def _endless(problem: Problem) -> Iterator[Batch]:
    return itertools.chain.from_iterable(problem.batches() for _ in itertools.count())


def _adamw(problem: Problem) -> Step:
    model, batches = copy.deepcopy(problem.model).train(), _endless(problem)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step() -> None:
        x, y = next(batches)
        optimizer.zero_grad()
        problem.penalized(model, x, y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def _sr2(problem: Problem, **options: Any) -> Step:
    model, batches = copy.deepcopy(problem.model).train(), _endless(problem)
    optimizer = SR2(model, L1(problem.l1) if problem.l1 else None, **options)

    def step() -> None:
        x, y = next(batches)
        optimizer.step(lambda: problem.loss(model(x), y))

    return step
