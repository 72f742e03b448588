"""The figures over the epochs of a run, as data: what training does, and what sigma does."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ..run.config import FIRST_DEFAULTS
from ..run.store import RunRecord
from .axes import marked
from .groups import Group, short
from .plates import Chart, Key, Panel, Series, epochs_axis, mean_line, panel_of, plate_of, plates_of, styled, titled

Pick = Callable[[dict[str, Any]], float | None]
"""A number out of an epoch's metrics."""

RUN_COLORS = ("sr2", "amber", "other")
"""Of runs of one optimizer, where colour need not say which; none is that of another optimizer."""
_REJECTED = 2  # the marker of a rejection, which points up: sigma rises
_MOST_REJECTED = 30  # epochs of a run; where more of them reject, marks would hide the line that shows it
_SHOWN_RHO = (-1.0, 1.5)  # epochs in which it is noise must not flatten the rest
_NOISY, _WINDOW = 0.1, 21  # a run with more than this share of its epochs outside is drawn as a median of so many

RATIO = (
    " Algorithm 1 rejects a step that gains less than η₁ of what its model promised, and lowers σ after one that gains "
    "η₂ of it or more."
)
TOLERANT = (
    " The rule Tolerant has no η₁: it rejects a step only where the objective rises by more than three times the "
    "decrease that was promised (rise=3), ρ < −3 for a single step. It lowers σ after a step that gains 0.9 of the "
    "promise or more (eta2), and after every accepted step while σ is still above its warm-up's end."
)
COOLDOWN = (
    " A cooldown raises σ at the end of a run, whatever ρ is: over the last share of the steps (cooldown=0.3: 30 %) "
    "the step size 1/σ goes down along a line to a fiftieth."
)


def trajectory(groups: Sequence[Group]) -> Chart:
    """Objective, score and zeros over epochs."""

    def panels(members: list[Group]) -> Iterator[Panel]:
        objective, records = _pick("objective"), [record for g in members for record in g.records]
        gaps = any(not _known(objective(row)) for record in records for row in record.metrics)
        quantities = [("objective f + R" + (", while R < ∞" if gaps else ""), objective, True)]
        x_axis = epochs_axis(records)
        for title, pick, log in [*quantities, *_outcomes(members[0])]:
            lines = [mean_line(g, i, partial(_course, pick)) for i, g in styled(members)]
            yield from panel_of(title, x_axis, [line for line in lines if line], log)

    caption = (
        "After each epoch; where there are several seeds, a line is their mean. The objective has no line while R is "
        "infinite: SR2's budget shrinks in the course of a run, and until it is met there are too many nonzeros for R. "
        "For an optimizer that prunes by itself R is 0."
    )
    return Chart("trajectory", "Training", caption, tuple(plates_of("trajectory", groups, panels, means=True)))


def sigma(groups: Sequence[Group]) -> Chart:
    """What sigma does over a run, why, and what comes of it: sigma, rho, accepted steps, score and zeros.

    A line is one run and not a mean over seeds: sigma jumps, at other epochs under another seed, and a mean would show
    jumps that no run made.
    """
    plates, drawn = [], []
    for (data, model), same in itertools.groupby(groups, key=lambda g: (g.config.data, g.config.model)):
        members = [g for g in same if any(row["sigma"] is not None for row in g.records[0].metrics)]
        if not members:
            continue
        drawn += members
        quantities = [
            ("σ, log scale", _pick("sigma"), True),
            ("ρ, mean of the steps", _pick("rho"), False),
            ("accepted steps, %", _accepted, False),
            *_outcomes(members[0]),
        ]
        looks = [(g, RUN_COLORS[i % len(RUN_COLORS)], i // len(RUN_COLORS)) for i, g in enumerate(members)]
        signs = {"η₁": "eta1", "η₂": "eta2"}
        by_ratio = [g for g in members if g.config.option("rule") is None]
        values = {sign: sorted({_constant(g, name) for g in by_ratio}) for sign, name in signs.items() if by_ratio}
        etas = [(f"{s} {short(eta)}" if len(v) > 1 else s, eta) for s, v in values.items() for eta in v]
        x_axis, panels = epochs_axis(g.records[0] for g in members), []
        for title, pick, log in quantities:
            is_rho = title[0] == "ρ"
            series = [s for look in looks for s in _run_and_rejections(*look, pick, smooth=is_rho and _noisy(look[0]))]
            panels += [_with_etas(p, etas) if is_rho else p for p in panel_of(title, x_axis, series, log)]
        legend = [Key(g.label + _left_out(g), color, style, "line") for g, color, style in looks]
        if any(s.kind == "point" for panel in panels for s in panel.series):
            legend.append(Key("epoch with a rejected step", "", _REJECTED, "point"))
        words = [f"{sign} = {', '.join(map(short, etas))}" for sign, etas in values.items()]
        legend += [Key(f"in ρ: {', '.join(words)}", "", 0, "front")] if words else []
        plates.append(replace(plate_of("sigma", f"{data} {model}", panels, legend), stacked=True))
    return Chart("sigma", "What σ does", _rules(drawn), tuple(plates))


def _rules(drawn: Sequence[Group]) -> str:
    """What raises and lowers sigma under the rules of these runs."""
    caption = "One run a line, the first seed of each. σ is the inverse step size, after each epoch."
    rules = {g.config.option("rule") for g in drawn}
    caption += RATIO if None in rules else ""
    caption += TOLERANT if any(str(rule).endswith(":Tolerant") for rule in rules) else ""
    caption += " A rejected step raises σ; an accepted one with a smaller gain leaves it as it is."
    return caption + (COOLDOWN if any(g.config.option("cooldown") for g in drawn) else "")


def _pick(name: str) -> Pick:
    return lambda metrics: metrics[name]


def _outcomes(group: Group) -> list[tuple[str, Pick, bool]]:
    """What a run is after: its score on the test, and its zeros."""
    test = _pick(group.records[0].test_score)
    return [(f"test {titled(group.score)}", test, False), ("parameters that are zero, %", _pick("zero_pct"), False)]


def _course(pick: Pick, record: RunRecord) -> list[tuple[float, float | None]]:
    return [(row["epoch"], pick(row)) for row in record.metrics]


def _known(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _accepted(metrics: dict[str, Any]) -> float | None:
    if metrics["accepted"] is None:
        return None
    steps = metrics["accepted"] + metrics["rejected"]
    return 100 * metrics["accepted"] / steps if steps else None


def _rejecting(group: Group) -> int:
    return sum(bool(row["rejected"]) for row in group.records[0].metrics)


def _noisy(group: Group) -> bool:
    """Whether rho is noise: the predicted decrease drowns in rounding."""
    found = [row["rho"] for row in group.records[0].metrics if _known(row["rho"])]
    outside = sum(not _SHOWN_RHO[0] <= rho <= _SHOWN_RHO[1] for rho in found)
    return len(found) > 2 * _WINDOW and outside > _NOISY * len(found)


def _left_out(group: Group) -> str:
    """What the legend says of a run that is not drawn as the others are."""
    some, epochs = _rejecting(group), len(group.records[0].metrics)
    words = [f"rejects in {some} of {epochs} epochs, not marked"] if some > _MOST_REJECTED else []
    words += [f"ρ is noise, drawn as the median of {_WINDOW} epochs"] if _noisy(group) else []
    return f" ({'; '.join(words)})" if words else ""


def _run_and_rejections(group: Group, color: str, style: int, pick: Pick, smooth: bool = False) -> Iterator[Series]:
    """The first run of a group over its epochs; where rejections are rare, marks on the epochs that have one."""
    points = [(m, y) for m in group.records[0].metrics if (y := pick(m)) is not None and math.isfinite(y)]
    if smooth:
        points = [(m, y) for (m, _), y in zip(points, _medians([y for _, y in points]), strict=True)]
    rejected = [(m, y) for m, y in points if m["rejected"]]
    notes = tuple(
        f"epoch {m['epoch']}: {m['rejected']} of {m['accepted'] + m['rejected']} rejected" for m, _ in rejected
    )
    marks = _rejecting(group) <= _MOST_REJECTED
    for kind, index, some, words in (("line", style, points, ()), ("point", _REJECTED, rejected, notes)):
        if some and (kind == "line" or marks):
            x, ys = tuple(m["epoch"] for m, _ in some), tuple(y for _, y in some)
            yield Series(group.label, color, index, kind, x, ys, words)  # type: ignore[arg-type]


def _medians(values: Sequence[float]) -> Iterable[float]:
    half = _WINDOW // 2
    return (statistics.median(values[max(0, i - half) : i + half + 1]) for i in range(len(values)))


def _with_etas(panel: Panel, etas: Sequence[tuple[str, float]]) -> Panel:
    """The panel of rho, with lines at the two thresholds."""
    rules = [Series(sign, "", 0, "front", panel.x.ends, (eta, eta)) for sign, eta in etas]
    least, most = _SHOWN_RHO
    lines = [replace(line, y=tuple(y and min(max(y, least), most) for y in line.y)) for line in panel.series]
    values = [y for line in lines for y in line.y if y is not None]
    title = panel.title + (", cut off at −1 and 1.5" if least in values or most in values else "")
    return Panel(title, panel.x, marked(values, [(eta, sign) for sign, eta in etas]), (*rules, *lines))


def _constant(group: Group, name: str) -> float:
    """A constant of Algorithm 1; where the run does not name it, the first version's."""
    return float(group.config.options.get(name, FIRST_DEFAULTS[name]))
