"""The figures as data: panels, axes and series of runs, drawn by `figures.py` for paper and by the report's page.

Colour says the optimizer, dashes and markers the strength of the penalty, and there is one set of panels per data set,
network and regularizer, so that a panel has few lines however many runs there are. Seeds are averaged. The figure of
sigma is the exception: all of it is SR2's, so colours and dashes tell runs apart there. Those over epochs are in
`courses.py`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from ..run.store import RunRecord
from .axes import Axis, depth, linear, opening, power
from .courses import sigma, trajectory
from .groups import Group, group, penalty
from .plates import (
    Chart,
    Heat,
    Key,
    Panel,
    Plate,
    Series,
    colors,
    mean_line,
    only_colors,
    panel_of,
    plate_of,
    plates_of,
    styled,
    titled,
)


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
        panel = Panel(titled(score), x_axis, axis("", [y for _, y in every]), tuple(series))
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
        names = {score.name: titled(score)}
        if any(_recalibrates(record) for g in members for record in g.records):
            names[f"{score.name}_recalibrated"] = titled(score, ", batch-norm re-estimated")
        for key, title in {**names, "sparsity_pct": "parameters that are zero, %"}.items():
            lines = [mean_line(g, i, partial(_swept, key)) for i, g in styled(members)]
            yield from panel_of(title, x_axis, [line for line in lines if line])

    caption = (
        "After training, |w| ≤ α set to zero, without retraining; where there are several seeds, a line is their mean."
    )
    return Chart("pruning", "Pruning", caption, tuple(plates_of("pruning", groups, panels, means=True)))


def layers(groups: Sequence[Group]) -> Chart:
    """The share of zeros in each weight tensor, from input to output."""

    def panels(members: list[Group]) -> Iterator[Heat]:
        shares = {g.label: _layer_shares(g) for g in members if g.finished}
        columns = tuple(dict.fromkeys(itertools.chain.from_iterable(shares.values())))
        if any(share for of_run in shares.values() for share in of_run.values()):  # else it would be blank
            rows = tuple(tuple(share.get(name) for name in columns) for share in shares.values())
            yield Heat("zeros, %", tuple(shares), columns, rows)

    caption = (
        "Weight tensors from input to output, all seeds together; biases and normalization layers are left out. "
        "Where no run has a zero, there is no picture."
    )
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


def _swept(key: str, record: RunRecord) -> list[tuple[float, float | None]]:
    return sorted((row["alpha"], row.get(key)) for row in (record.prune or {}).get("rows", []))


def _recalibrates(record: RunRecord) -> bool:
    rows, name = (record.prune or {}).get("rows", []), record.score.name
    return any(row.get(f"{name}_recalibrated") not in (None, row[name]) for row in rows)


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
