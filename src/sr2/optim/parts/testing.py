"""Which steps are tested: all of them, every k-th, or as many as have turned out to be needed.

A step that is not tested costs one forward and one backward: x + s is kept on trust. What was last seen to pass is kept
beside it, and x goes back there where a later test fails (`optim/trust.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral

LARGEST = "largest_loss"
"""Of the points that passed a test, in the memory of a search."""
FAR = 10.0
"""A loss so many times the largest one at a point that passed a test is a failure, where a step is not tested."""
LATEST = "latest_test"
"""The step of the last test."""


@dataclass
class Pace:
    """Where a search stands between two tests: plain numbers, which the host knows without asking a device."""

    left: int = 0
    """Steps on trust until the next test: the first step is tested."""
    every: int = 1
    """What "auto" has come to."""
    quiet: int = 0
    """Tests since that or since a failure."""
    failures: int = 0
    """Failures that it has seen."""
    fresh: bool = False
    """The last step was a test, and what became of it was not looked at."""
    away: bool = False
    """x has moved on trust; known only where the host decides."""

    def go_on(self, *, tested: bool) -> None:
        """One step was taken."""
        self.left, self.fresh = (self.every - 1, True) if tested else (self.left - 1, False)


class Testing(ABC):
    """Which steps are tested, if not all of them."""

    forced: bool | None = None
    """What kind of step a CUDA graph is to hold while it is captured."""

    def memory(self) -> dict[str, float]:
        """What is remembered from step to step: names and first values."""
        return {LARGEST: 0.0, LATEST: 0.0}

    @abstractmethod
    def due(self, pace: Pace, failures: Callable[[], int]) -> bool:
        """Whether the next step is tested. `failures` counts those so far, and may have to wait for a device."""


@dataclass
class Every(Testing):
    """Every k-th step, beginning with the first, whatever the tests say: no host read.

    >>> pace, seen = Pace(), []
    >>> for _ in range(7):
    ...     seen.append(Every(3).due(pace, lambda: 0))
    ...     pace.go_on(tested=seen[-1])
    >>> seen
    [True, False, False, True, False, False, True]
    """

    k: int

    def due(self, pace: Pace, failures: Callable[[], int]) -> bool:
        pace.every = self.k
        return pace.left <= 0


@dataclass
class Auto(Testing):
    """Every step at first; half as many after each `after` tests without a failure, at least one of `most` steps; all
    again after a failure. After each test one number is read.

    Args:
        most: the most steps per test.
        after: the tests in a row that must pass.
    """

    most: int = 32
    after: int = 20

    def due(self, pace: Pace, failures: Callable[[], int]) -> bool:
        if pace.fresh:
            count, pace.fresh = failures(), False
            pace.quiet = 0 if count > pace.failures else pace.quiet + 1
            if count > pace.failures:
                pace.every = 1
            elif pace.quiet >= self.after:
                pace.every, pace.quiet = min(2 * pace.every, self.most), 0
            pace.failures, pace.left = count, pace.every - 1
        return pace.left <= 0


def as_testing(test_every: object) -> Testing | None:
    """What `test_every=` stands for; None where every step is tested.

    >>> as_testing(1), as_testing(16), as_testing("auto")
    (None, Every(k=16), Auto(most=32, after=20))
    """
    if test_every == "auto":
        return Auto()
    if isinstance(test_every, bool) or not isinstance(test_every, Integral) or test_every < 1:
        raise ValueError(f"SR2: test_every must be a whole number of at least 1, or 'auto', and is {test_every!r}")
    return None if test_every == 1 else Every(int(test_every))
