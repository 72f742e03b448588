from __future__ import annotations

from pathlib import Path

import pytest

from sr2.experiments.paper import cells as paper
from sr2.experiments.paper.recipes import recipe
from tests.experiments.tools.synthetic import make_run

NAME = "cifar10-resnet34-sr2-l1-1e-4"


def test_a_run_matches_its_cell_whatever_its_other_settings(tmp_path: Path) -> None:
    run = make_run(tmp_path, recipe(NAME).having(epochs=3, seed=4, precision="bf16", sigma=2.0))
    assert paper.match(run.config) == paper.cells()[NAME]


@pytest.mark.parametrize(
    "change",
    [
        {"data": "digits"},
        {"model": "cnn"},
        {"optimizer": "other"},
        {"regularizer": "scad"},
        {"lam": 2e-4},
        {"reg": ("a=1",)},
    ],
)
def test_another_problem_is_no_cell(tmp_path: Path, change: dict[str, object]) -> None:
    run = make_run(tmp_path, recipe(NAME).having(epochs=2))
    assert paper.match(run.config.having(**change)) is None


def test_the_list_says_what_was_run_and_what_is_missing(tmp_path: Path) -> None:
    done = make_run(tmp_path, recipe(NAME).having(epochs=3))
    half = make_run(tmp_path, recipe("cifar10-resnet34-proxgen-l1-1e-4"), stop=2)
    lines = paper.list_text([done, half]).splitlines()
    assert len(lines) == 1 + 45 + 1
    assert lines[-1] == "45 cells, 2 run, 43 missing"
    by_name = {line.split()[0]: line for line in lines}
    assert "93.94   56.18        98.12" in by_name[NAME]
    assert by_name[NAME].endswith("% after 3 epochs")
    assert by_name["cifar10-resnet34-proxgen-l1-1e-4"].endswith("unfinished, epoch 2 of 300")
    assert by_name["cifar10-resnet34-proxsgd-l1-1e-4"].endswith("missing")
