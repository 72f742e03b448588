from __future__ import annotations

import dataclasses
import itertools
import struct
from pathlib import Path
from xml.etree import ElementTree

import pytest

from sr2.experiments.report import axes, charts, figures
from sr2.experiments.report.groups import group
from sr2.experiments.run.config import RunConfig
from sr2.experiments.run.store import RunRecord
from tests.experiments.tools.synthetic import demo_grid, make_run, seeds


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> list[RunRecord]:
    return demo_grid(tmp_path_factory.mktemp("runs"))


def test_a_grid_has_every_figure_once_per_facet(grid: list[RunRecord]) -> None:
    names = {plate.name for chart in charts.charts(grid) for plate in chart.plates}
    kinds = ("pruning", "trajectory", "layers", "histogram")
    whole = {"pareto-digits-cnn", "sigma-digits-cnn"}
    assert names == whole | {f"{kind}-digits-cnn-{r}" for kind in kinds for r in ("l1", "l0")}


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
    runs = seeds(tmp_path, RunConfig.of(epochs=3), 2)
    runs[0].metrics[1]["objective"] = None
    runs[1].metrics[1]["objective"] = float("inf")
    panel = charts.trajectory(group(runs)).plates[0].panels[0]
    assert isinstance(panel, charts.Panel)
    (line,) = panel.series
    assert panel.title == "objective f + R, while R < ∞"
    assert charts.trajectory(group(runs)).plates[0].title.endswith("means over seeds")
    assert line.y[1] is None
    assert line.y[2] == pytest.approx((runs[0].metrics[2]["objective"] + runs[1].metrics[2]["objective"]) / 2)


def sigma_panels(*runs: RunRecord) -> dict[str, charts.Panel]:
    (plate,) = charts.sigma(group(runs)).plates
    assert plate.stacked
    return {panel.title: panel for panel in plate.panels if isinstance(panel, charts.Panel)}


def test_sigma_is_a_line_for_each_run_of_sr2(tmp_path: Path) -> None:
    runs = [
        *seeds(tmp_path, RunConfig.of(epochs=6), 2),  # the first of them is drawn
        make_run(tmp_path, RunConfig.of(regularizer="l0", epochs=9), stop=3),
        make_run(tmp_path, RunConfig.of(optimizer="proxgen", epochs=12)),
    ]
    panels = sigma_panels(*runs)
    assert [title.split(",")[0] for title in panels] == [
        "σ",
        "ρ",
        "accepted steps",
        "test accuracy",
        "parameters that are zero",
    ]
    assert {panel.x for panel in panels.values()} == {panels["σ, log scale"].x}
    assert panels["σ, log scale"].x.ends == (0, 6)
    lines = [s for s in panels["σ, log scale"].series if s.kind == "line"]
    assert [line.y for line in lines] == [tuple(row["sigma"] for row in run.metrics) for run in (runs[0], runs[2])]
    assert len({(line.color, line.style) for line in lines}) == 2


def test_the_other_methods_have_no_sigma(tmp_path: Path) -> None:
    run = make_run(tmp_path, RunConfig.of(optimizer="proxgen", epochs=3))
    assert charts.sigma(group([run])).plates == ()
    assert "sigma" not in [chart.name for chart in charts.charts([run])]


def test_one_rejection_in_hundreds_has_a_mark_and_many_have_none(tmp_path: Path) -> None:
    run = make_run(tmp_path, RunConfig.of(epochs=100))
    for row in run.metrics:
        row.update(accepted=389, rejected=0)
    run.metrics[41]["rejected"] = 1
    for panel in sigma_panels(run).values():
        (mark,) = [series for series in panel.series if series.kind == "point"]
        assert (mark.x, mark.notes) == ((42,), ("epoch 42: 1 of 390 rejected",))
    legend = charts.sigma(group([run])).plates[0].legend
    assert [key.label for key in legend] == [
        "SR2 l1 1e-3",
        "epoch with a rejected step",
        "in ρ: η₁ = 7.5e-4, η₂ = 0.99",
    ]
    for row in run.metrics:
        row["rejected"] = 1
    assert not any(series.kind == "point" for panel in sigma_panels(run).values() for series in panel.series)
    legend = charts.sigma(group([run])).plates[0].legend
    assert legend[0].label == "SR2 l1 1e-3 (rejects in 100 of 100 epochs, not marked)"
    assert "epoch with a rejected step" not in [key.label for key in legend]


def test_a_rho_that_is_noise_is_a_median_and_the_legend_says_so(tmp_path: Path) -> None:
    run = make_run(tmp_path, RunConfig.of(epochs=100))
    for row in run.metrics:
        row.update(accepted=390, rejected=0, rho=0.5 if row["epoch"] % 5 else 300.0)
    (line,) = [s for s in sigma_panels(run)["ρ, mean of the steps"].series if s.kind == "line"]
    assert set(line.y) == {0.5}
    label = charts.sigma(group([run])).plates[0].legend[0].label
    assert label == "SR2 l1 1e-3 (ρ is noise, drawn as the median of 21 epochs)"


def test_the_caption_of_sigma_is_that_of_the_rules_that_ran(tmp_path: Path) -> None:
    runs = {
        "Algorithm 1 rejects": make_run(tmp_path, RunConfig.of(epochs=3)),
        "The rule Tolerant has no η₁": make_run(tmp_path, RunConfig.of(epochs=3, rule="sr2.rules:Tolerant")),
        "A cooldown raises σ": make_run(tmp_path, RunConfig.of(epochs=3, rule="my:Rule", cooldown=0.2)),
    }
    for words, run in runs.items():
        caption = charts.sigma(group([run])).caption
        assert [other in caption for other in runs] == [other == words for other in runs]
    assert all(words in charts.sigma(group(runs.values())).caption for words in runs)


def test_rho_stands_between_the_thresholds_of_its_runs(tmp_path: Path) -> None:
    run = make_run(tmp_path, RunConfig.of(epochs=4, eta2=0.7))
    panel = sigma_panels(run)["ρ, mean of the steps"]
    assert [(s.label, s.y) for s in panel.series if s.kind == "front"] == [("η₁", (7.5e-4,) * 2), ("η₂", (0.7,) * 2)]
    assert {(7.5e-4, "η₁"), (0.7, "η₂")} < set(panel.y.ticks)
    run.metrics[2]["rho"] = -400.0  # one deep rejection
    assert sigma_panels(run)["ρ, mean of the steps, cut off at −1 and 1.5"].y.ends[0] > -1.2


def test_another_rule_has_no_thresholds(tmp_path: Path) -> None:
    run = make_run(tmp_path, RunConfig.of(epochs=3, rule="sr2.rules:Tolerant"))
    (plate,) = charts.sigma(group([run])).plates
    assert not any("η" in key.label for key in plate.legend)
    assert not any(s.kind == "front" for panel in plate.panels for s in panel.series)  # type: ignore[union-attr]


def test_the_front_is_what_nothing_beats() -> None:
    points = [(0.0, 9.0), (1.0, 8.0), (0.5, 7.0), (2.0, 8.0), (3.0, 1.0), (3.0, 0.5)]
    assert charts._front(points) == [(0.0, 9.0), (2.0, 8.0), (3.0, 1.0)]


def test_an_axis_writes_its_numbers_in_one_way() -> None:
    assert [text for _, text in axes.logarithmic("", [9.0, 2e9]).ticks] == ["1e1", "1e3", "1e5", "1e7", "1e9"]
    assert [text for _, text in axes.logarithmic("", [0.9, 2e4]).ticks] == ["1", "10", "100", "1000", "10000"]


def test_layers_without_a_zero_have_no_picture(tmp_path: Path) -> None:
    run = make_run(tmp_path, RunConfig.of(epochs=2))
    assert run.result is not None
    assert charts.layers(group([run])).plates
    for layer in run.result["layers"]:
        layer["zeros"] = 0
    assert charts.layers(group([run])).plates == ()


def test_titles_stay_inside_their_panels(tmp_path: Path) -> None:
    config = RunConfig.of(epochs=3, regularizer="l0_ball")
    runs = [make_run(tmp_path, config.having(reg=(f"density={d}",))) for d in (0.02, 0.05, 0.1)]
    for name, figure in figures.figures(runs).items():
        figure.draw_without_rendering()
        titles = [ax._left_title.get_window_extent() for ax in figure.axes]  # type: ignore[attr-defined]
        rows = [(one, two) for one, two in itertools.pairwise(titles) if one.y0 == two.y0]
        assert all(one.x1 < two.x0 for one, two in rows), name
        assert all(box.x1 <= figure.bbox.x1 for box in titles), name


def test_zeros_are_a_bar_of_their_own(tmp_path: Path) -> None:
    run = make_run(tmp_path, RunConfig.of(epochs=2))
    panel = charts.histogram(group([run])).plates[0].panels[0]
    assert isinstance(panel, charts.Panel)
    step, bar = panel.series
    assert (step.kind, bar.kind) == ("step", "bar")
    assert bar.x[1] < step.x[0]
    assert sum(y or 0 for y in (*step.y, *bar.y)) == pytest.approx(100)


def test_extreme_runs_are_drawn(tmp_path: Path) -> None:
    """All zero, accuracy 100, constant curves: axes stay sane."""
    run = make_run(tmp_path, RunConfig.of(epochs=3))
    for row in run.metrics:
        row.update(objective=0.0, zero_pct=100.0, test_accuracy=100.0, accepted=0, rejected=0, sigma=1.0)
    assert run.result is not None
    run.result.update(zero_pct=100.0, accuracy=100.0)
    for name, figure in figures.figures([run]).items():
        assert figures.encode(figure)["svg"], name


def test_a_run_that_has_only_begun_draws_nothing(tmp_path: Path) -> None:
    run = make_run(tmp_path, RunConfig.of(epochs=3), stop=1)
    assert charts.charts([dataclasses.replace(run, metrics=[])]) == []


def test_files_are_svg_and_png_and_the_same_each_time(grid: list[RunRecord]) -> None:
    chart = charts.pruning(group(grid))
    first, again = (figures.encode(figures.draw(chart, chart.plates[0])) for _ in range(2))
    assert first == again
    assert ElementTree.fromstring(first["svg"]).tag.endswith("svg")
    assert b"dc:date" not in first["svg"]
    width, height = struct.unpack(">II", first["png"][16:24])
    assert min(width, height) > 300


def test_legends_are_whole_and_inside_the_figure(tmp_path: Path) -> None:
    """Runs of one cell that differ in many settings have long names."""
    config = RunConfig.of(epochs=3, eta2=0.9, gamma3=0.998, momentum=0.9, precision="bf16")
    runs = [make_run(tmp_path, config.having(gamma1=g)) for g in (1.5, 2.0, 5.56)]
    runs += [make_run(tmp_path, config.having(cooldown=0.2, eta2=0.99, gamma3=0.8, momentum=0.0))]
    for name, figure in figures.figures([*runs, *demo_grid(tmp_path / "grid")]).items():
        figure.draw_without_rendering()
        for legend in figure.legends:
            box, page = legend.get_window_extent(), figure.bbox
            assert page.x0 <= box.x0, name
            assert box.x1 <= page.x1, name
            assert page.y0 <= box.y0, name
            assert not any("…" in text.get_text() for text in legend.get_texts()), name


def test_marks_that_would_overlap_have_no_tick() -> None:
    axis = axes.marked([0.2, 0.6], [(0.95, "b"), (7.5e-4, "a"), (0.99, "c")])
    assert [(at, text) for at, text in axis.ticks if text in "abc"] == [(7.5e-4, "a")]
    assert axis.ticks[-1] == (1.0, "1")
    gaps = [y - x for (x, _), (y, _) in zip(axis.ticks, axis.ticks[1:], strict=False)]
    assert min(gaps) > 0.08 * (axis.ends[1] - axis.ends[0])
