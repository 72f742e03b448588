"""`sr2 compare`: the grid, what is left out, what is skipped, what it ends with."""

from __future__ import annotations

from pathlib import Path

import pytest

from sr2.cli import main
from sr2.experiments.errors import UserError
from sr2.experiments.run.compare import Grid, expand
from sr2.experiments.run.store import find_runs


def test_the_grid() -> None:
    runs, left_out = expand(Grid.of(seeds=(0, 1)))
    assert len(runs) == (3 * 2 - 1) * 3 * 2
    assert len({run.key for run in runs}) == len(runs)
    (sentence,) = left_out
    assert sentence.startswith("proxsgd x l0 is left out: ")
    assert "not convex" in sentence


def test_options_go_to_the_optimizers_that_have_them() -> None:
    runs, _ = expand(
        Grid.of(optimizers=("sr2", "proxgen,lr=0.5", "proxsgd"), regularizers=("l1",), lams=(1.0,), lr=0.1)
    )
    assert [run.options.get("lr") for run in runs] == [None, 0.5, 0.1]
    runs, _ = expand(Grid.of(optimizers=("proxsgd,rho=none,metric=none",), regularizers=("l1",), lams=(1.0,)))
    assert runs[0].options == {"rho": "none", "metric": "none"}


def test_a_regularizer_without_lambda_is_one_run() -> None:
    runs, _ = expand(Grid.of(optimizers=("sr2",), regularizers=("nm,n=1,m=4", "lp,p=0.5", "none")))
    assert [run.label for run in runs] == [
        "SR2 nm n=1 m=4",
        *(f"SR2 lp {lam} p=0.5" for lam in ("0.0001", "0.001", "0.01")),
        "SR2 none",
    ]


@pytest.mark.parametrize(
    ("grid", "words"),
    [
        (Grid.of(optimizers=("proxsgd",), regularizers=("l0",)), "left out: L0.*not convex"),
        (Grid.of(optimizers=("sr2",), lr=0.1), "no optimizer of the grid has the option lr"),
        (Grid.of(optimizers=("sr2,lr=0.1",)), "not an option of sr2.*sigma"),
        (Grid.of(optimizers=("sr2,adamw",)), "write sr2 adamw, with a space$"),
        (Grid.of(optimizers=("proxgen,lr=high",)), "lr must be a number above 0.*is 'high'"),
        (Grid.of(optimizers=("sr3",)), "did you mean sr2"),
        (Grid.of(regularizers=("l1", "elastic")), "did you mean elastic_net"),
        (Grid.of(regularizers=("l1", "lp")), "lp needs more constants"),
        (Grid.of(data="digit"), "^unknown data set"),
        (Grid.of(lams=(1.0, -1.0)), "lam must be"),
        (Grid.of(regularizers=()), "the grid is empty"),
    ],
)
def test_a_wrong_grid_is_named_before_anything_starts(grid: Grid, words: str) -> None:
    with pytest.raises(UserError, match=words):
        expand(grid)


def test_sr2_compare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    common = ["compare", "--model", "mlp", "--epochs", "1", "--batch", "400", "--optimizers", "sr2", "proxsgd"]
    assert main([*common, "--lams", "0.001"]) == 0
    said = capsys.readouterr().out
    assert "[1/3] SR2 l1 0.001 on digits" in said
    assert "proxsgd x l0 is left out" in said
    report = tmp_path / "runs" / "report" / "index.html"
    assert "the report is runs/report/index.html" in said
    assert report.stat().st_size > 1000

    assert main([*common, "--lams", "0.001", "0.01"]) == 0
    said = capsys.readouterr().out
    assert said.count("is finished already") == 3
    assert "[6/6]" in said
    assert len(find_runs([Path("runs")])) == 6
    assert len(find_runs(Path("runs").iterdir())) == 6  # as a shell writes runs/*, the report too
    with pytest.raises(UserError, match="report has no run in it"):
        find_runs([Path("runs", "report")])


def test_a_run_that_diverges_does_not_end_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    grid = ["--optimizers", "proxgen,lr=1e30", "sr2", "--regularizers", "l1", "--lams", "0.001"]
    assert main(["compare", "--model", "mlp", "--epochs", "1", "--batch", "400", *grid]) == 2
    said = capsys.readouterr()
    assert "stopped in epoch 1" in said.out
    assert "[2/2] SR2 l1 0.001: accuracy" in said.out
    assert "error: 1 of 2 runs did not finish" in said.err
