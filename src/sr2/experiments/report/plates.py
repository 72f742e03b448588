"""The parts of a figure, as data: series, panels, legends and plates."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ..run.registry import printed
from ..run.store import RunRecord
from ..tasks import Score
from .axes import Axis, linear, logarithmic
from .groups import BASELINES_FIRST, Group, penalty

Kind = Literal["line", "step", "bar", "point", "dot", "front"]
"""How a series is drawn; dots are small points."""


@dataclass(frozen=True)
class Series:
    """Points (x, y) of one colour and style.

    Attributes:
        label: what a hover says.
        color: the optimizer, or one of RUN_COLORS; "" is neutral.
        style: index of the dash pattern and the marker.
        x, y: of a "step", x are the edges, one more than y; of a "bar", the two sides.
        notes: of each point, for a hover.
    """

    label: str
    color: str
    style: int
    kind: Kind
    x: tuple[float, ...]
    y: tuple[float | None, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Panel:
    """Axes with series in them."""

    title: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]


@dataclass(frozen=True)
class Heat:
    """Percentages by row and column, as shades."""

    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]


@dataclass(frozen=True)
class Key:
    """An entry of a legend: a colour, or a style in a neutral colour."""

    label: str
    color: str
    style: int
    kind: Kind


@dataclass(frozen=True)
class Plate:
    """The panels of one facet, with their legend; `name` is that of its files. Stacked panels share their x."""

    name: str
    title: str
    panels: tuple[Panel | Heat, ...]
    legend: tuple[Key, ...] = ()
    stacked: bool = False


@dataclass(frozen=True)
class Chart:
    """A figure of the report: a plate for each facet."""

    name: str
    title: str
    caption: str
    plates: tuple[Plate, ...]


def plates_of(
    name: str,
    groups: Sequence[Group],
    panels: Callable[[list[Group]], Iterable[Panel | Heat]],
    means: bool = False,
) -> Iterator[Plate]:
    """One plate per data set, network and regularizer, of the panels that its groups have; `means` over seeds."""
    for facet, same in itertools.groupby(groups, key=lambda g: (g.config.data, g.config.model, g.regularizer)):
        members = list(same)
        if drawn := list(panels(members)):
            styles = [Key(strength(g), "", i, "line") for i, g in styled(members)]
            plate = plate_of(name, " ".join(facet), drawn, [*colors(members), *dict.fromkeys(styles)])
            several = means and any(len(g.records) > 1 for g in members)
            yield replace(plate, title=f"{plate.title}, means over seeds") if several else plate


def plate_of(name: str, facet: str, panels: Sequence[Panel | Heat], legend: Sequence[Key]) -> Plate:
    """A plate with the name of its files."""
    return Plate(re.sub(r"\W+", "-", f"{name} {facet}"), facet.replace(" ", " · "), tuple(panels), tuple(legend))


def only_colors(plate: Plate) -> Plate:
    """The plate without the entries of its legend that tell styles."""
    return Plate(plate.name, plate.title, plate.panels, tuple(key for key in plate.legend if key.color))


def colors(members: Iterable[Group]) -> list[Key]:
    """The legend of the optimizers."""
    used = {g.config.optimizer for g in members}
    return [Key(printed(c), c, 0, "bar") for c in [*BASELINES_FIRST, *sorted(used - set(BASELINES_FIRST))] if c in used]


def strength(group: Group) -> str:
    """What tells groups of one panel apart: the penalty and other settings."""
    return " ".join(word for word in (penalty(group.config), group.variant) if word)


def styled(members: Sequence[Group]) -> list[tuple[int, Group]]:
    """Groups with the index of their strength among those of the panel."""
    strengths = list(dict.fromkeys(strength(g) for g in members))
    return [(strengths.index(strength(g)), g) for g in members]


def epochs_axis(records: Iterable[RunRecord]) -> Axis:
    """The axis of epochs."""
    return linear("epoch", [0, max((len(record.metrics) for record in records), default=0) or 1], whole=True)


def panel_of(title: str, x: Axis, series: Sequence[Series], log: bool = False) -> Iterator[Panel]:
    """One panel, or none where there is no series."""
    if series:
        values = [y for line in series for y in line.y if y is not None]
        percent = title.endswith("%")
        y_axis = logarithmic("", values) if log and min(values) > 0 else linear("", values, percent=percent)
        yield Panel(title, x, y_axis, tuple(series))


def titled(score: Score, more: str = "") -> str:
    """The title of a panel of scores: "accuracy, %"."""
    return f"{score.name}{more}, {score.unit}" if score.unit else f"{score.name}{more}"


def mean_line(
    group: Group,
    style: int,
    points: Callable[[RunRecord], Iterable[tuple[float, float | None]]],
) -> Series | None:
    """The mean over seeds at each x; None if there is no number at all."""
    at: dict[float, list[float]] = {}
    for record in group.records:
        for x, y in points(record):
            at.setdefault(x, []).extend([y] if y is not None and math.isfinite(y) else [])
    means = {x: sum(ys) / len(ys) if ys else None for x, ys in sorted(at.items())}
    if all(y is None for y in means.values()):
        return None
    seeds = len(group.records)
    label = group.label + (f", mean of {seeds} seeds" if seeds > 1 else "")
    return Series(label, group.config.optimizer, style, "line", tuple(means), tuple(means.values()))
