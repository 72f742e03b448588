"""Every cell beside the paper's, and the order of the optimizers."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from sr2.experiments.paper.comparison import comparison, pruning_figures
from sr2.experiments.paper.recipes import cells, papers_settings
from sr2.experiments.run.config import RunConfig
from sr2.experiments.run.store import RunRecord, find_runs
from tests.experiments.tools.synthetic import make_run

RESULTS = Path(__file__).parents[2] / "results"


def run(root: Path, optimizer: str, accuracy: float, zeros: float, epochs: int = 3, **changes: Any) -> RunRecord:
    """A run of ResNet-34 with l1 1e-4 that ends with these numbers."""
    config = papers_settings(f"cifar10-resnet34-{optimizer}-l1-1e-4").having(epochs=epochs, **changes)
    record = make_run(root, config)
    assert record.result is not None
    record.result.update(accuracy=accuracy, zero_pct=zeros)
    for row in record.metrics:
        row.update(test_accuracy=accuracy - (epochs - row["epoch"]), zero_pct=zeros)
    return record


def rows(text: str, model: str = "resnet34") -> dict[str, list[str]]:
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if f"| {model} |" in line]
    return {row[4]: row for row in lines if row[2:4] == ["l1", "1e-4"]}


def test_a_cell_that_was_not_run_is_missing(tmp_path: Path) -> None:
    text = comparison([])
    assert text.count("| missing |") == len(cells()) == 45
    assert "optimizers: 0 of 18." in text
    assert "collapsed: 1.00, 98.91, 99.50" in text  # the paper's own
    assert comparison([run(tmp_path, "sr2", 90, 50)]).count("| missing |") == 44


def test_optimizers_are_compared_after_the_same_epochs(tmp_path: Path) -> None:
    runs = [run(tmp_path, "sr2", 93, 50, epochs=9), run(tmp_path, "proxgen", 82, 1), run(tmp_path, "proxsgd", 80, 0)]
    text = comparison(runs)
    found = rows(text)
    assert found["SR2"][6:8] == ["3", f"87.00, 50.00, {runs[0].metrics[2]['small_pct']:.2f}"]
    assert found["SR2"][8].startswith("9 epochs: 93.00, 50.00")
    assert found["3"][5:] == [  # of the order, which has the epochs there
        *("SR2 > ProxGEN ≈ ProxSGD", "SR2 > ProxGEN > ProxSGD", "yes"),
        *("SR2 > ProxGEN > ProxSGD", "SR2 > ProxGEN > ProxSGD", "yes"),
    ]
    assert "optimizers: 1 of 18. The order is the paper's by accuracy in 1, by zeros in 1." in text


def test_an_order_that_is_not_the_papers_is_told(tmp_path: Path) -> None:
    runs = [run(tmp_path, "sr2", 70, 50), run(tmp_path, "proxgen", 82, 1), run(tmp_path, "proxsgd", 80, 0)]
    assert rows(comparison(runs))["3"][5:8] == [
        *("SR2 > ProxGEN ≈ ProxSGD", "ProxGEN > ProxSGD > SR2", "no: ProxSGD, SR2"),
    ]


def test_what_collapsed_or_diverged_is_said_to_have(tmp_path: Path) -> None:
    gone, lost = run(tmp_path, "sr2", 10, 99), run(tmp_path, "proxgen", 50, 1)
    (lost.path / "diverged.txt").write_text("its mean loss is nan\n")
    found = rows(comparison([gone, lost]))
    assert found["SR2"][7].startswith("collapsed: 10.00, 99.00")
    assert found["ProxGEN"][7].startswith("diverged: 50.00")


def test_other_rates_and_the_librarys_defaults_stand_beside(tmp_path: Path) -> None:
    plain = run(tmp_path, "proxgen", 82, 1)
    rates = [run(tmp_path, "proxgen", accuracy, 2, lr=lr) for lr, accuracy in ((0.01, 88), (0.1, 85))]
    ours = run(tmp_path, "sr2", 93, 50)
    config = dataclasses.replace(RunConfig.from_dict(ours.config.to_dict()), options={"metric": "adam"})
    defaults = make_run(tmp_path, config)
    found = rows(comparison([plain, *rates, ours, defaults]))
    assert found["ProxGEN"][8].startswith("3 epochs: 88.00, 2.00")
    assert found["ProxGEN"][8].endswith("(lr=1e-2)")
    assert found["SR2"][8].endswith("(the library's defaults)")


def test_each_problem_with_a_sweep_has_a_figure_of_its_pruning(tmp_path: Path) -> None:
    files = pruning_figures([run(tmp_path, "sr2", 93, 50), run(tmp_path, "proxgen", 82, 1)])
    assert set(files) == {f"pruning-cifar10-resnet34-l1-1e-4.{kind}" for kind in ("svg", "png")}
    assert files["pruning-cifar10-resnet34-l1-1e-4.png"].startswith(b"\x89PNG")


@pytest.mark.skipif(not RESULTS.exists(), reason="a checkout has them")
def test_the_page_of_the_docs_is_that_of_the_results() -> None:
    page = (RESULTS.parent / "docs" / "cells.md").read_text(encoding="utf-8")
    made = comparison(find_runs([RESULTS]))
    assert page.endswith(made), "run `sr2 paper report --runs results` and put its cells.md behind the page's preface"
