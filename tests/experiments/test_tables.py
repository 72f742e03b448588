from __future__ import annotations

import csv
import dataclasses
import io
import statistics
from pathlib import Path

import pytest
from rich.console import Console

from sr2.experiments.paper.recipes import recipe
from sr2.experiments.paper.summary import reference, summary
from sr2.experiments.report import charts, formats, tables
from sr2.experiments.run.config import RunConfig
from sr2.experiments.run.store import RunRecord
from tests.experiments.tools.synthetic import demo_grid, make_run, seeds

NAME = "cifar10-resnet34-sr2-l1-1e-4"


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> list[RunRecord]:
    return demo_grid(tmp_path_factory.mktemp("runs"), epochs=2)


def rows_of(records: list[RunRecord]) -> list[tables.Row]:
    return [row for table in tables.build(records, reference()) for row in table.rows]


def test_seeds_become_mean_and_deviation(tmp_path: Path) -> None:
    runs = seeds(tmp_path, RunConfig.of(epochs=2), 3)
    (row,) = rows_of(runs)
    accuracies = [run.result["accuracy"] for run in runs if run.result]
    assert row.values[0] == tables.Value(statistics.fmean(accuracies), statistics.stdev(accuracies))
    assert (row.seeds, row.runs) == (3, "3 × 2")


def test_one_seed_has_no_deviation_and_one_row_no_best(tmp_path: Path) -> None:
    (row,) = rows_of([make_run(tmp_path, RunConfig.of(epochs=2))])
    assert row.values[0] is not None
    assert (row.values[0].deviation, row.values[0].best) == (None, False)


def test_the_best_of_each_block_is_marked(grid: list[RunRecord]) -> None:
    (table,) = tables.build(grid)
    for _, block in table.blocks:
        for column in zip(*(row.values for row in block), strict=True):
            values = [value for value in column if value]
            top = max(round(value.mean, 2) for value in values)
            assert [value.best for value in values] == [round(value.mean, 2) == top for value in values]


def test_other_settings_are_other_rows_with_a_note(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, RunConfig.of(epochs=2, sigma=sigma)) for sigma in (None, 2.0)]
    assert [row.note for row in rows_of(runs)] == ["sigma=default", "sigma=2"]


def test_the_papers_number_stands_beside_a_short_run_that_says_so(tmp_path: Path) -> None:
    run = make_run(tmp_path, recipe(NAME).having(epochs=60, sigma=2.0))
    row = next(row for row in rows_of([run]) if row.status == "run")
    assert [value and value.mean for value in row.published] == [93.94, 56.18, 98.12]
    assert (row.runs, row.note) == ("1 × 60", "epochs=60 sigma=2")


def test_cells_of_the_same_table_that_were_not_run_say_so(tmp_path: Path) -> None:
    rows = rows_of([make_run(tmp_path, recipe(NAME).having(epochs=2))])
    assert len(rows) == 9  # ResNet-34 under l1: three optimizers, three lambdas
    assert sorted(row.status for row in rows) == ["not run"] * 8 + ["run"]


def test_the_papers_table_has_all_cells_and_nothing_else(grid: list[RunRecord], tmp_path: Path) -> None:
    run = make_run(tmp_path, recipe(NAME).having(epochs=2))
    built = tables.build([*grid, run], reference(), whole=True)
    assert [table.title for table in built] == ["cifar10 · densenet121", "cifar10 · resnet34", "cifar100 · densenet201"]
    assert [row.status for table in built for row in table.rows].count("not run") == 44


def test_a_gap_in_a_grid_is_not_run_and_what_no_one_asked_for_is_not_there(grid: list[RunRecord]) -> None:
    kept = [r for r in grid if (r.config.optimizer, r.config.regularizer, r.config.lam) != ("proxsgd", "l1", 1e-2)]
    rows = rows_of(kept)
    missing = [row for row in rows if row.status == "not run"]
    assert [(row.penalty, row.config.optimizer) for row in missing] == [("l1 1e-2", "proxsgd")]
    assert not any(row.config.optimizer == "proxsgd" and row.config.regularizer == "l0" for row in rows)


def test_an_unfinished_run_shows_its_last_epoch_and_is_never_best(tmp_path: Path) -> None:
    half = make_run(tmp_path, RunConfig.of(epochs=8), stop=3)
    done = [make_run(tmp_path, RunConfig.of(epochs=8, optimizer=name)) for name in ("proxgen", "proxsgd")]
    row = next(row for row in rows_of([half, *done]) if row.status == "unfinished")
    assert row.values[0] == tables.Value(half.metrics[-1]["test_accuracy"])
    assert (row.runs, row.note) == ("1 × 3/8", "unfinished: values of the last epoch")
    assert not any(value and value.best for value in row.values)


def test_a_run_stopped_before_its_first_epoch_has_no_numbers(tmp_path: Path) -> None:
    run = make_run(tmp_path, RunConfig.of(epochs=8), stop=1)
    (row,) = rows_of([dataclasses.replace(run, metrics=[])])
    assert row.values == (None, None, None)
    assert row.runs == "1 × 0/8"


def test_penalties_without_a_lambda_show_their_constants(tmp_path: Path) -> None:
    (row,) = rows_of([make_run(tmp_path, RunConfig.of(epochs=2, regularizer="l0_ball", reg=("density=0.1",)))])
    assert row.penalty == "l0_ball density=0.1"


def test_terminal_fits_eighty_columns(grid: list[RunRecord]) -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    formats.print_tables(tables.build(grid), console)
    text = console.export_text()
    assert "…" not in text
    assert "SR2" in text
    assert "±" in text


def test_markdown_has_bold_and_as_many_cells_as_headings(grid: list[RunRecord]) -> None:
    lines = [line for line in formats.markdown(tables.build(grid)).splitlines() if line.startswith("|")]
    assert len({line.replace("\\|", "").count("|") for line in lines}) == 1
    assert "**" in lines[-1]
    assert "--:" in lines[1]


def test_the_summary_has_the_longest_runs_of_a_cell_and_how_they_depart(grid: list[RunRecord], tmp_path: Path) -> None:
    cell = recipe(NAME)
    done = make_run(tmp_path, cell.having(device="cuda", compile=True))
    second = {"seed": 1, "device": "cuda", "compile": True}
    shorter = make_run(tmp_path, cell.having(momentum=0.9), stop=9)
    other = recipe("cifar10-densenet121-sr2-l0-1e-2")
    half = make_run(tmp_path, other.having(penalize="all", seed=1), stop=7)
    none = make_run(tmp_path, recipe("cifar10-resnet34-proxgen-l1-1e-4"), stop=1)
    as_long = [make_run(tmp_path, cell.having(**other)) for other in ({"eta2": 0.9}, second)]
    runs = [*grid, half, dataclasses.replace(none, metrics=[]), shorter, as_long[0], done, as_long[1]]
    text = summary(runs)
    lines = [[field.strip() for field in line.split(" | ")] for line in text.strip(" |\n").splitlines()]
    head, _, *rows = lines
    assert {len(line) for line in lines} == {len(head)}
    assert sorted(row[0].strip("| ") for row in rows) == ["densenet121", *["resnet34"] * 3]
    assert next(row[-1].strip("| ") for row in rows if row[4].startswith("300")) == "–"  # the paper's come first
    assert sorted((row[4], row[-1].strip("| ")) for row in rows) == [
        ("0 of 300", "–"),
        ("300", "eta2=0.9"),
        ("300, 2 seeds", "–"),
        ("7 of 300", "penalize=all eta2=0.8 gamma3=0.9998"),
    ]
    by_epochs = {row[4]: row for row in rows[::-1]}
    accuracies = [run.result["accuracy"] for run in (done, as_long[1]) if run.result]
    mean = f"{statistics.fmean(accuracies):.2f} ± {statistics.stdev(accuracies):.2f}"
    assert by_epochs["300, 2 seeds"][5] == f"93.94 / {mean}"
    assert by_epochs["7 of 300"][6] == f"94.99 / {half.metrics[-1]['zero_pct']:.2f}"
    assert by_epochs["0 of 300"][5:9] == ["85.98 / –", "1.02 / –", "72.94 / –", "–"]


def test_latex_is_booktabs_with_everything_escaped(tmp_path: Path) -> None:
    run = make_run(tmp_path, RunConfig.of(epochs=2, regularizer="group_l2", reg=("groups=rows",), data="my_mod:da&ta"))
    text = formats.latex(tables.build([run]))
    for words in (r"\toprule", r"\midrule", r"\bottomrule", r"group\_l2", r"my\_mod:da\&ta", r"$\leq$", r"accuracy \%"):
        assert words in text
    body = text[text.index(r"\toprule") : text.index(r"\bottomrule")]
    rows = [line for line in body.splitlines() if line.endswith(r"\\")]
    assert len({line.replace(r"\&", "").count("&") for line in rows}) == 1


def test_csv_reads_back_unrounded(grid: list[RunRecord], tmp_path: Path) -> None:
    paper_run = make_run(tmp_path, recipe(NAME).having(epochs=2))
    text = formats.comma_separated(tables.build([*grid, paper_run], reference()))
    lines = list(csv.DictReader(io.StringIO(text)))
    ours = next(line for line in lines if line["data"] == "cifar10" and line["status"] == "run")
    assert paper_run.result is not None
    assert float(ours["accuracy"]) == paper_run.result["accuracy"]
    assert (ours["accuracy_paper"], ours["lam"], ours["epochs"]) == ("93.94", "0.0001", "2")
    missing = next(line for line in lines if line["status"] == "not run")
    assert (missing["accuracy"], missing["epochs"]) == ("", "")


def test_a_baseline_that_prunes_stands_beside_the_same_budget(tmp_path: Path) -> None:
    configs = [
        RunConfig.of(optimizer="gmp", regularizer="none", density=0.05, lr=1.0),
        RunConfig.of(optimizer="gmp", regularizer="none", density=0.1),
        RunConfig.of(optimizer="adamw", regularizer="none"),
        *(RunConfig(regularizer="l0_ball", reg=(f"density={density}",)) for density in (0.1, 0.05)),
    ]
    records = [make_run(tmp_path, dataclasses.replace(config, epochs=2)) for config in configs]
    (table,) = tables.build(records)
    assert [(row.penalty, row.config.optimizer, row.status, row.note) for row in table.rows] == [
        ("l0_ball density=0.05", "gmp", "run", ""),
        ("l0_ball density=0.05", "sr2", "run", ""),
        ("l0_ball density=0.1", "gmp", "run", ""),
        ("l0_ball density=0.1", "sr2", "run", ""),
        ("none", "adamw", "run", ""),
    ]
    names = [plate.name for chart in charts.charts(records) for plate in chart.plates]
    assert len(set(names)) == len(names)  # no file is written twice
