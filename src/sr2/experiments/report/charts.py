"""The figures as data: panels, axes and series of runs, drawn by `figures.py` for paper and by the report's page.

Colour says the optimizer, dashes and markers the strength of the penalty, and there is one set of panels per data set,
network and regularizer, so that a panel has few lines however many runs there are. Seeds are averaged. The figure of
sigma is the exception: all of it is SR2's, so colours and dashes tell runs apart there.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ..run.config import FIRST_DEFAULTS
from ..run.store import RunRecord
from ..tasks import Score
from .axes import Axis, depth, linear, marked, opening, power
from .groups import Group, group, penalty, short
from .plates import (
    Chart,
    Heat,
    Key,
    Panel,
    Plate,
    Series,
    colors,
    epochs_axis,
    only_colors,
    panel_of,
    plate_of,
    plates_of,
    styled,
)

Pick = Callable[[dict[str, Any]], float | None]
"""A number out of an epoch's metrics."""

RUN_COLORS = ("sr2", "amber", "other")
"""Of runs of one optimizer, where colour need not say which; none is that of another optimizer."""
_REJECTED = 2  # the marker of a rejection, which points up: sigma rises
_MOST_REJECTED = 30  # epochs of a run; where more of them reject, marks would hide the line that shows it


def charts(records: Iterable[RunRecord]) -> list[Chart]:
    """All figures of these runs; a figure for which no run has the numbers is left out."""
    groups = group(records)
    drawn = [build(groups) for build in (pareto, pruning, trajectory, sigma, layers, histogram)]
    return [chart for chart in drawn if chart.plates]


# ---- the figures


def pareto(groups: Sequence[Group]) -> Chart:
    """The score against sparsity: every run and every point of its pruning sweep, and the front of all."""
    plates = []
    for (data, model), same in itertools.groupby(groups, key=lambda g: (g.config.data, g.config.model)):
        members = list(same)
        score = members[0].score
        scale, axis, lost = (depth, opening, 30.0) if score.unit == "%" else (float, linear, 0.3)
        kinds = list(dict.fromkeys(g.regularizer for g in members))
        runs = [(g, record) for g in members for record in g.finished]
        best = max((record.result[score.name] for _, record in runs if record.result), default=0.0)
        reach = scale(best - lost)  # a network that pruning broke is off the map
        series, every = [], []
        for member, record in runs:
            trained, *pruned = _sparse_points(record, scale)
            pruned = [point for point in pruned if point[1] >= reach]
            every += [(x, y) for x, y, _ in (trained, *pruned)]
            style, color = kinds.index(member.regularizer), member.config.optimizer
            label = f"{member.label} seed {record.config.seed}"
            for kind, some in (("dot", pruned), ("point", [trained])):
                x, y, notes = zip(*some, strict=True) if some else ((), (), ())
                series.append(Series(label, color, style, kind, x, y, notes))  # type: ignore[arg-type]
        if not every:
            continue
        front = _front(every)
        front.insert(0, (min(x for x, _ in every), front[0][1]))
        series.insert(0, Series("front", "", 0, "front", tuple(x for x, _ in front), tuple(y for _, y in front)))
        x_axis = opening("parameters that are zero, %", [x for x, _ in every])
        panel = Panel(_titled(score), x_axis, axis("", [y for _, y in every]), tuple(series))
        legend = [*colors(members), *(Key(kind, "", i, "point") for i, kind in enumerate(kinds))]
        plates.append(plate_of("pareto", f"{data} {model}", [panel], [*legend, Key("front", "", 0, "front")]))
    caption = (
        "Large: as trained, counting exact zeros. Small: after pruning |w| ≤ 10⁻ᵏ without retraining, where it costs "
        "less than 30 points of the best accuracy. Both axes open up towards 100 %. "
        "Nothing lies above and to the right of the front."
    )
    return Chart("pareto", "Accuracy against sparsity", caption, tuple(plates))


def pruning(groups: Sequence[Group]) -> Chart:
    """Score and sparsity against the pruning threshold."""
    x_axis = Axis(
        "pruning threshold α", (10**-8.2, 10**-0.8), tuple((10.0**-k, power(-k)) for k in range(8, 0, -1)), True
    )

    def panels(members: list[Group]) -> Iterator[Panel]:
        score = members[0].score
        names = {score.name: _titled(score)}
        if any(_recalibrates(record) for g in members for record in g.records):
            names[f"{score.name}_recalibrated"] = _titled(score, ", batch-norm re-estimated")
        for key, title in {**names, "sparsity_pct": "parameters that are zero, %"}.items():
            lines = [_mean_line(g, i, partial(_swept, key)) for i, g in styled(members)]
            yield from panel_of(title, x_axis, [line for line in lines if line])

    caption = "After training, |w| ≤ α set to zero, without retraining."
    return Chart("pruning", "Pruning", caption, tuple(plates_of("pruning", groups, panels)))


def trajectory(groups: Sequence[Group]) -> Chart:
    """Objective, score and zeros over epochs."""

    def panels(members: list[Group]) -> Iterator[Panel]:
        quantities = [("objective f + R", _pick("objective"), True), *_outcomes(members[0])]
        x_axis = epochs_axis(record for g in members for record in g.records)
        for title, pick, log in quantities:
            lines = [_mean_line(g, i, partial(_course, pick)) for i, g in styled(members)]
            yield from panel_of(title, x_axis, [line for line in lines if line], log)

    return Chart("trajectory", "Training", "After each epoch.", tuple(plates_of("trajectory", groups, panels)))


def sigma(groups: Sequence[Group]) -> Chart:
    """What sigma does over a run, why, and what comes of it: sigma, rho, accepted steps, score and zeros.

    A line is one run and not a mean over seeds: sigma jumps, at other epochs under another seed, and a mean would show
    jumps that no run made.
    """
    plates = []
    for (data, model), same in itertools.groupby(groups, key=lambda g: (g.config.data, g.config.model)):
        members = [g for g in same if any(row["sigma"] is not None for row in g.records[0].metrics)]
        if not members:
            continue
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
            series = [s for look in looks for s in _run_and_rejections(*look, pick)]
            panels += [_with_etas(p, etas) if p.title[0] == "ρ" else p for p in panel_of(title, x_axis, series, log)]
        legend = [Key(g.label, color, style, "line") for g, color, style in looks]
        if any(s.kind == "point" for panel in panels for s in panel.series):
            legend.append(Key("epoch with a rejected step", "", _REJECTED, "point"))
        words = [f"{sign} = {', '.join(map(short, etas))}" for sign, etas in values.items()]
        legend += [Key(", ".join(words), "", 0, "front")] if words else []
        plates.append(replace(plate_of("sigma", f"{data} {model}", panels, legend), stacked=True))
    caption = (
        "One run a line, the first seed of each. σ is the inverse step size, after each epoch. A step that gains less "
        "than η₁ of what its model promised is rejected and raises σ; one that gains η₂ of it or more lowers σ."
    )
    return Chart("sigma", "What σ does", caption, tuple(plates))


def layers(groups: Sequence[Group]) -> Chart:
    """The share of zeros in each weight tensor, from input to output."""

    def panels(members: list[Group]) -> Iterator[Heat]:
        shares = {g.label: _layer_shares(g) for g in members if g.finished}
        columns = tuple(dict.fromkeys(itertools.chain.from_iterable(shares.values())))
        if columns:
            rows = tuple(tuple(share.get(name) for name in columns) for share in shares.values())
            yield Heat("zeros, %", tuple(shares), columns, rows)

    caption = "Weight tensors from input to output; biases and normalization layers are left out."
    plates = plates_of("layers", groups, panels)
    return Chart("layers", "Zeros per layer", caption, tuple(Plate(p.name, p.title, p.panels) for p in plates))


def histogram(groups: Sequence[Group]) -> Chart:
    """How large the weights are: log10 |w|, and the exact zeros as a bar of their own."""

    def panels(members: list[Group]) -> Iterator[Panel]:
        for strength, same in itertools.groupby(members, key=lambda g: penalty(g.config)):
            found = [(g, r.result) for g in same for r in g.finished[:1] if r.result and r.result.get("histogram")]
            series: list[Series] = []
            for place, (g, result) in enumerate(found):
                bins = result["histogram"]
                total = max(bins["zeros"] + sum(bins["counts"]), 1)
                edges, shares = bins["log10_edges"], [100 * count / total for count in bins["counts"]]
                series.append(Series(g.label, g.config.optimizer, 0, "step", tuple(edges), tuple(shares)))
                side = edges[0] - 2 + 1.5 * place / len(found)
                bar = (side, side + 1.5 / len(found))
                note = (f"{100 * bins['zeros'] / total:.4g} % are exactly 0",)
                series.append(Series(g.label, g.config.optimizer, 0, "bar", bar, (100 * bins["zeros"] / total,), note))
            if series:
                lo, hi = series[0].x[0], series[0].x[-1]
                ticks = tuple((float(k), power(k)) for k in range(math.ceil(lo / 2) * 2, int(hi) + 1, 2))
                x_axis = Axis("|w|", (lo - 2.2, hi), ((lo - 1.25, "0"), *ticks))
                y_axis = Axis("", (1e-3, 130.0), tuple((10.0**k, f"{10.0**k:g}") for k in range(-3, 3)), log=True)
                yield Panel(f"{strength}: share of parameters, %", x_axis, y_axis, tuple(series))

    caption = "The bar at the left is the share of exact zeros. The first seed of each run."
    plates = plates_of("histogram", groups, panels)
    return Chart("histogram", "Sizes of the weights", caption, tuple(only_colors(plate) for plate in plates))


# ---- numbers out of runs


def _titled(score: Score, more: str = "") -> str:
    """The title of a panel of scores: "accuracy, %"."""
    return f"{score.name}{more}, {score.unit}" if score.unit else f"{score.name}{more}"


def _pick(name: str) -> Pick:
    return lambda metrics: metrics[name]


def _outcomes(group: Group) -> list[tuple[str, Pick, bool]]:
    """What a run is after: its score on the test, and its zeros."""
    test = _pick(group.records[0].test_score)
    return [(f"test {_titled(group.score)}", test, False), ("parameters that are zero, %", _pick("zero_pct"), False)]


def _sparse_points(record: RunRecord, scale: Callable[[float], float]) -> list[tuple[float, float, str]]:
    """(zeros, score, words) as trained, then over the pruning sweep; zeros as a depth, the score on its scale."""
    result, score = record.result or {}, record.score
    found = [(result["zero_pct"], result[score.name], "as trained")]
    for row in (record.prune or {}).get("rows", []):
        found.append((row["sparsity_pct"], row[score.name], f"pruned at {row['alpha']:g}"))
    return [(depth(z), scale(a), f"{w}: {score.name} {score.text(a)}, {z:.2f} % zeros") for z, a, w in found]


def _front(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points that no other beats in both, from dense to sparse."""
    best: list[tuple[float, float]] = []
    for x, y in sorted(points, reverse=True):
        if not best or y > best[-1][1]:
            best.append((x, y))
    return best[::-1]


def _course(pick: Pick, record: RunRecord) -> list[tuple[float, float | None]]:
    return [(row["epoch"], pick(row)) for row in record.metrics]


def _swept(key: str, record: RunRecord) -> list[tuple[float, float | None]]:
    return sorted((row["alpha"], row.get(key)) for row in (record.prune or {}).get("rows", []))


def _recalibrates(record: RunRecord) -> bool:
    rows, name = (record.prune or {}).get("rows", []), record.score.name
    return any(row.get(f"{name}_recalibrated") not in (None, row[name]) for row in rows)


def _accepted(metrics: dict[str, Any]) -> float | None:
    if metrics["accepted"] is None:
        return None
    steps = metrics["accepted"] + metrics["rejected"]
    return 100 * metrics["accepted"] / steps if steps else None


def _run_and_rejections(group: Group, color: str, style: int, pick: Pick) -> Iterator[Series]:
    """The first run of a group over its epochs; where rejections are rare, marks on the epochs that have one."""
    points = [(m, y) for m in group.records[0].metrics if (y := pick(m)) is not None and math.isfinite(y)]
    rejected = [(m, y) for m, y in points if m["rejected"]]
    notes = tuple(
        f"epoch {m['epoch']}: {m['rejected']} of {m['accepted'] + m['rejected']} rejected" for m, _ in rejected
    )
    for kind, index, some, words in (("line", style, points, ()), ("point", _REJECTED, rejected, notes)):
        if some and (kind == "line" or len(some) <= _MOST_REJECTED):
            x, ys = tuple(m["epoch"] for m, _ in some), tuple(y for _, y in some)
            yield Series(group.label, color, index, kind, x, ys, words)  # type: ignore[arg-type]


def _with_etas(panel: Panel, etas: Sequence[tuple[str, float]]) -> Panel:
    """The panel of rho, with lines at the two thresholds; epochs in which it is noise must not flatten the rest."""
    rules = [Series(sign, "", 0, "front", panel.x.ends, (eta, eta)) for sign, eta in etas]
    least, most = -1.0, 1.5
    lines = [replace(line, y=tuple(y and min(max(y, least), most) for y in line.y)) for line in panel.series]
    values = [y for line in lines for y in line.y if y is not None]
    title = panel.title + (", cut off at −1 and 1.5" if least in values or most in values else "")
    return Panel(title, panel.x, marked(values, [(eta, sign) for sign, eta in etas]), (*rules, *lines))


def _constant(group: Group, name: str) -> float:
    """A constant of Algorithm 1; where the run does not name it, the first version's."""
    return float(group.config.options.get(name, FIRST_DEFAULTS[name]))


def _layer_shares(group: Group) -> dict[str, float]:
    """Percent of zeros by weight tensor, over the seeds together."""
    zeros: dict[str, list[int]] = {}
    for record in group.finished:
        for layer in (record.result or {}).get("layers", []):
            if len(layer["shape"]) > 1:
                tally = zeros.setdefault(layer["name"], [0, 0])
                tally[0] += layer["zeros"]
                tally[1] += layer["total"]
    return {name: 100 * zero / total for name, (zero, total) in zeros.items() if total}


def _mean_line(
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
