from __future__ import annotations

import dataclasses
import struct
from pathlib import Path
from xml.etree import ElementTree

import pytest

from sr2.experiments import charts, figures
from sr2.experiments.config import RunConfig
from sr2.experiments.groups import group
from sr2.experiments.store import RunRecord
from tests.experiments.synthetic import demo_grid, make_run, seeds


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> list[RunRecord]:
    return demo_grid(tmp_path_factory.mktemp("runs"))


def test_a_grid_has_every_figure_once_per_facet(grid: list[RunRecord]) -> None:
    names = {plate.name for chart in charts.charts(grid) for plate in chart.plates}
    kinds = ("pruning", "trajectory", "layers", "histogram")
    assert names == {"pareto-digits-cnn", *(f"{kind}-digits-cnn-{r}" for kind in kinds for r in ("l1", "l0"))}


def test_no_panel_is_crowded_and_no_legend_long(grid: list[RunRecord]) -> None:
    for chart in charts.charts(grid):
        for plate in chart.plates:
            assert len(plate.legend) <= 8
            for panel in plate.panels:
                if isinstance(panel, charts.Panel):
                    assert sum(series.kind in ("line", "step") for series in panel.series) <= 9


def test_everything_lies_inside_its_axes(grid: list[RunRecord]) -> None:
    panels = [p for chart in charts.charts(grid) for plate in chart.plates for p in plate.panels]
    for panel in panels:
        if isinstance(panel, charts.Panel):
            for axis in (panel.x, panel.y):
                assert 2 <= len(axis.ticks) <= 12, (panel.title, axis)
                assert all(axis.ends[0] <= tick <= axis.ends[1] for tick, _ in axis.ticks)
            for series in panel.series:
                assert all(panel.x.ends[0] <= x <= panel.x.ends[1] for x in series.x), (panel.title, series.label)
                assert all(y is None or y <= panel.y.ends[1] for y in series.y), (panel.title, series.label)


def test_seeds_are_averaged_and_numbers_that_are_not_there_left_out(tmp_path: Path) -> None:
    runs = seeds(tmp_path, RunConfig(epochs=3), 2)
    runs[0].metrics[1]["objective"] = None
    runs[1].metrics[1]["objective"] = float("inf")
    panel = charts.trajectory(group(runs)).plates[0].panels[0]
    assert isinstance(panel, charts.Panel)
    (line,) = panel.series
    assert line.y[1] is None
    assert line.y[2] == pytest.approx((runs[0].metrics[2]["objective"] + runs[1].metrics[2]["objective"]) / 2)


def test_a_long_noisy_curve_is_thinned(tmp_path: Path) -> None:
    run = make_run(tmp_path, RunConfig(epochs=250))
    panels = {p.title: p for p in charts.trajectory(group([run])).plates[0].panels if isinstance(p, charts.Panel)}
    assert len(panels["σ"].series[0].x) == 250
    thin = panels["ρ, mean of the steps"].series[0]
    assert len(thin.x) == 84
    assert (thin.x[0], thin.y[0]) == (2, pytest.approx(sum(m["rho"] for m in run.metrics[:3]) / 3))


def test_only_sr2_has_sigma(tmp_path: Path) -> None:
    run = make_run(tmp_path, RunConfig(optimizer="proxgen", epochs=3))
    assert [panel.title for panel in charts.trajectory(group([run])).plates[0].panels] == [
        "objective f + R",
        "test accuracy, %",
        "parameters that are zero, %",
    ]


def test_the_front_is_what_nothing_beats() -> None:
    points = [(0.0, 9.0), (1.0, 8.0), (0.5, 7.0), (2.0, 8.0), (3.0, 1.0), (3.0, 0.5)]
    assert charts._front(points) == [(0.0, 9.0), (2.0, 8.0), (3.0, 1.0)]


def test_zeros_are_a_bar_of_their_own(tmp_path: Path) -> None:
    run = make_run(tmp_path, RunConfig(epochs=2))
    panel = charts.histogram(group([run])).plates[0].panels[0]
    assert isinstance(panel, charts.Panel)
    step, bar = panel.series
    assert (step.kind, bar.kind) == ("step", "bar")
    assert bar.x[1] < step.x[0]
    assert sum(y or 0 for y in (*step.y, *bar.y)) == pytest.approx(100)


def test_extreme_runs_are_drawn(tmp_path: Path) -> None:
    """All zero, accuracy 100, constant curves: axes stay sane."""
    run = make_run(tmp_path, RunConfig(epochs=3))
    for row in run.metrics:
        row.update(objective=0.0, zero_pct=100.0, test_accuracy=100.0, accepted=0, refused=0, sigma=1.0)
    assert run.result is not None
    run.result.update(zero_pct=100.0, accuracy=100.0)
    for name, figure in figures.figures([run]).items():
        assert figures.encode(figure)["svg"], name


def test_a_run_that_has_only_begun_draws_nothing(tmp_path: Path) -> None:
    run = make_run(tmp_path, RunConfig(epochs=3), stop=1)
    assert charts.charts([dataclasses.replace(run, metrics=[])]) == []


def test_files_are_svg_and_png_and_the_same_each_time(grid: list[RunRecord]) -> None:
    chart = charts.pruning(group(grid))
    first, again = (figures.encode(figures.draw(chart, chart.plates[0])) for _ in range(2))
    assert first == again
    assert ElementTree.fromstring(first["svg"]).tag.endswith("svg")
    assert b"dc:date" not in first["svg"]
    width, height = struct.unpack(">II", first["png"][16:24])
    assert min(width, height) > 300
