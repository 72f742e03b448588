"""Numbers that somebody published, to stand beside those of our runs. The report knows no paper: it is given one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..run.config import RunConfig


@dataclass(frozen=True)
class Published:
    """One published row.

    Attributes:
        config: the run that makes it again.
        values: score, percent of zeros, percent of small parameters.
    """

    config: RunConfig
    values: tuple[float, float, float]


def _nothing(config: RunConfig) -> Any:
    return None


@dataclass(frozen=True)
class Reference:
    """What to compare runs with.

    Attributes:
        name: the heading of its columns.
        published: all of its rows.
        find: the row that a run of this configuration belongs to, or None.
        departures: the settings of a run that are not those of its row, None where it has no row.
    """

    name: str = "published"
    published: tuple[Published, ...] = ()
    find: Callable[[RunConfig], Published | None] = _nothing
    departures: Callable[[RunConfig], dict[str, Any] | None] = _nothing


NOTHING = Reference()
