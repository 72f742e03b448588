"""Tables of runs: one model of rows, which `formats.py` prints in four ways."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..run.config import RunConfig
from ..run.store import RunRecord
from ..tasks import Score
from .groups import Group, as_budget, group, in_order, order, penalty, settings_text
from .reference import NOTHING, Published, Reference

ACCURACY = Score()
SHARES = {"zero_pct": "w = 0 %", "small_pct": "|w| ≤ 1e-3 %"}
"""What a table reports beside the score: the keys of `result.json`, with their headings."""


@dataclass(frozen=True)
class Value:
    """A number, its deviation over seeds where there are several, and whether it is the best of its penalty.

    >>> str(Value(93.941, 0.12))
    '93.94 ± 0.12'
    """

    mean: float
    deviation: float | None = None
    best: bool = False
    digits: int = 2

    def __str__(self) -> str:
        shown = f"{self.mean:.{self.digits}f}"
        return shown if self.deviation is None else f"{shown} ± {self.deviation:.{self.digits}f}"

    @property
    def rounded(self) -> float:
        """As it is shown."""
        return round(self.mean, self.digits)


@dataclass(frozen=True)
class Row:
    """One optimizer under one penalty.

    Attributes:
        config: that of the runs, or of those that would be, where there are none.
        status: "run", "unfinished" (values of the last epoch) or "not run".
        score: what the first of the values is.
        values, published: score and shares, ours and the published ones.
        seeds: how many runs the values come from.
        epochs: how long they are; 0 where there are none.
        seconds: mean training time.
        note: what else to know: settings that tell the row apart, unfinished runs.
    """

    config: RunConfig
    status: str
    score: Score = ACCURACY
    values: tuple[Value | None, ...] = (None, None, None)
    published: tuple[Value | None, ...] = (None, None, None)
    seeds: int = 0
    epochs: int = 0
    seconds: float | None = None
    note: str = ""

    @property
    def penalty(self) -> str:
        """The block of the table that the row is in."""
        return penalty(self.config)

    @property
    def runs(self) -> str:
        """How many and how many epochs, such as "3 × 60/300"."""
        if self.status == "not run":
            return self.status
        length = f"{self.epochs}/{self.config.epochs}" if self.status == "unfinished" else f"{self.epochs}"
        return f"{self.seeds} × {length}"


@dataclass(frozen=True)
class Table:
    """The rows of one network on one data set."""

    data: str
    model: str
    rows: tuple[Row, ...]
    reference: str = NOTHING.name

    @property
    def measures(self) -> tuple[str, ...]:
        """The headings of the values."""
        return (self.rows[0].score.heading, *SHARES.values())

    @property
    def title(self) -> str:
        """Data and network."""
        return f"{self.data} · {self.model}"

    @property
    def has_published(self) -> bool:
        """Whether there is a published row among them."""
        return any(row.published[0] is not None for row in self.rows)

    @property
    def blocks(self) -> list[tuple[str, list[Row]]]:
        """Rows by penalty: those to compare with each other."""
        return [(name, list(rows)) for name, rows in itertools.groupby(self.rows, key=lambda row: row.penalty)]


def build(records: Iterable[RunRecord], reference: Reference = NOTHING, *, whole: bool = False) -> list[Table]:
    """Tables of runs: per data set and network, the optimizers under each penalty.

    A combination that others of its table suggest, or that the reference has, and that nobody ran is there as
    "not run". With `whole`, the runs of the reference's rows and all of its rows, and nothing else.
    """
    groups = [found for found in group(records) if not whole or reference.find(found.config)]
    rows = [row for found in groups for row in rows_of(found, reference)]
    rows += _not_run(groups, reference, whole)
    rows.sort(key=lambda row: order(row.config))  # stable: the variants of a row stay in their order
    return [
        Table(data, model, tuple(_mark_best(list(same))), reference.name)
        for (data, model), same in itertools.groupby(rows, key=lambda row: (row.config.data, row.config.model))
    ]


def rows_of(group: Group, reference: Reference = NOTHING) -> list[Row]:
    """The row of runs that differ in their seed, and a second one of their averages, where there are."""
    last, names = row_of(group, reference), (group.score.name, *SHARES)
    found = [[(r.result or {}).get(f"average_{name}") for r in group.finished] for name in names]
    values = tuple(_value(numbers, last.score.digits if i == 0 else 2) for i, numbers in enumerate(found))
    if values[0] is None:
        return [last]
    notes = [f"{last.note}; {which}".removeprefix("; ") for which in ("last iterate", "average of the iterates")]
    nothing = (None, None, None)
    average = dataclasses.replace(last, values=values, published=nothing, note=notes[1])
    return [dataclasses.replace(last, note=notes[0]), average]


def row_of(group: Group, reference: Reference = NOTHING) -> Row:
    """The row of runs that differ in their seed."""
    config, done = group.config, group.finished
    unfinished = len(group.records) - len(done)
    settings, telling = config.flat(), in_order({*group.differs, *(reference.departures(config) or ())})
    notes = [settings_text({name: settings.get(name) for name in telling})]
    if config.hold_out and "hold_out" not in telling:
        notes.append(f"on {config.hold_out} held out")
    if done and unfinished:
        notes.append(f"{unfinished} more unfinished")
    if not done:
        notes.append("unfinished: values of the last epoch")
    measured = [found for record in done or group.records if (found := _measured(record))]
    names = (group.score.name, *SHARES)
    return Row(
        config=config,
        status="run" if done else "unfinished",
        score=group.score,
        values=tuple(
            _value([m.get(name) for m in measured], group.score.digits if name == group.score.name else 2)
            for name in names
        ),
        published=_published(reference.find(config)),
        seeds=len(measured) or len(group.records),
        epochs=min((m["epochs"] for m in measured), default=0),
        seconds=statistics.fmean(m["seconds"] for m in measured) if measured else None,
        note="; ".join(note for note in notes if note),
    )


def _measured(record: RunRecord) -> dict[str, Any]:
    """The result of a run, or the same of its last epoch so far; empty before the first."""
    if record.result is not None or not record.metrics:
        return record.result or {}
    last = record.metrics[-1]
    found = {"epochs": last["epoch"], "seconds": last["seconds"], record.score.name: last[record.test_score]}
    return found | {name: last[name] for name in SHARES}


def _value(numbers: Sequence[float | None], digits: int) -> Value | None:
    known = [number for number in numbers if number is not None]
    if not known:
        return None
    deviation = statistics.stdev(known) if len(known) > 1 else None
    return Value(statistics.fmean(known), deviation, digits=digits)


def _published(row: Published | None) -> tuple[Value | None, ...]:
    return (None, None, None) if row is None else tuple(Value(number) for number in row.values)


def _not_run(groups: list[Group], reference: Reference, whole: bool) -> list[Row]:
    """Rows for what the tables lack: published ones, and gaps in the grid penalty x optimizer."""

    def family(config: RunConfig) -> tuple[str, ...]:
        return config.data, config.model, as_budget(config).regularizer

    there = {order(group.config) for group in groups}
    families = {family(group.config) for group in groups}
    wanted = {order(row.config): row for row in reference.published}
    missing = [
        Row(row.config, "not run", published=_published(row))
        for place, row in wanted.items()
        if place not in there and (whole or family(row.config) in families)
    ]
    grid = {
        order(hole): Row(hole, "not run", a.score)
        for a, b in itertools.product(groups, groups)
        if family(a.config) == family(b.config)
        for hole in [dataclasses.replace(a.config, optimizer=b.config.optimizer)]
    }
    return missing + [row for place, row in grid.items() if place not in there and place not in wanted]


def _mark_best(rows: list[Row]) -> Iterator[Row]:
    """Mark the largest of each column within each penalty, ours and the published apart, where there is a choice."""
    for _, same in itertools.groupby(rows, key=lambda row: row.penalty):
        block = list(same)
        ours = [row.values if row.status == "run" else (None,) * len(row.values) for row in block]
        best, published = _maxima(ours), _maxima([row.published for row in block])
        for row in block:
            values = row.values if row.status != "run" else _marked(row.values, best)
            yield dataclasses.replace(row, values=values, published=_marked(row.published, published))


def _maxima(rows: Sequence[tuple[Value | None, ...]]) -> list[float | None]:
    columns = [[value.rounded for value in column if value] for column in zip(*rows, strict=True)]
    return [max(column) if len(set(column)) > 1 else None for column in columns]


def _marked(values: tuple[Value | None, ...], best: list[float | None]) -> tuple[Value | None, ...]:
    return tuple(
        dataclasses.replace(value, best=value.rounded == top) if value else None
        for value, top in zip(values, best, strict=True)
    )
