"""How a run is stopped: by the user's signals, or by a loss that is not finite."""

from __future__ import annotations

import signal
from types import FrameType

from ..errors import UserError


class StoppedError(Exception):
    """The user asked to stop; everything is saved."""


class DivergedError(UserError):
    """The loss is not finite: this run cannot go on."""


class StopSignals:
    """SIGINT and SIGTERM ask to stop after the current step; the second one stops at once.

    >>> with StopSignals() as stop:
    ...     stop.asked
    False
    """

    def __init__(self) -> None:
        self.asked = False

    def __enter__(self) -> StopSignals:
        self._before = {s: signal.signal(s, self._handle) for s in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
