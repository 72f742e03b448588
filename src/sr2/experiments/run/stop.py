"""How a run is stopped: by the user's signals, or by a loss that is not finite."""

from __future__ import annotations

import math
import signal
import time
from types import FrameType
from typing import Self

from ..errors import UserError


class StoppedError(Exception):
    """The user asked to stop; everything is saved."""


class DivergedError(UserError):
    """The loss is not finite: this run cannot go on."""


class StopSignals:
    """SIGINT and SIGTERM ask to stop after the current step; the second one stops at once. So does the end of the time.

    >>> with StopSignals() as stop:
    ...     stop.asked
    False

    Args:
        minutes: after so many it is as if a signal had come; None waits for one.
    """

    def __init__(self, minutes: float | None = None) -> None:
        self.told = False
        """Whether a signal came."""
        if minutes is not None and not minutes > 0:
            raise UserError(f"minutes must be above 0, and is {minutes:g}")
        self._end = math.inf if minutes is None else time.monotonic() + 60 * minutes

    @property
    def asked(self) -> bool:
        """Whether to stop after the current step."""
        return self.told or time.monotonic() >= self._end

    def __enter__(self) -> Self:
        self._before = {s: signal.signal(s, self._handle) for s in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.told:
            raise KeyboardInterrupt
        self.told = True
