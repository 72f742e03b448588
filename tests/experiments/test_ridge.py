"""--ridge: lambda / 2 |x|^2 beside the regularizer of a run."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from sr2 import L1, L0Ball, Ridge
from sr2.cli import main
from sr2.experiments.errors import UserError
from sr2.experiments.paper.cells import match
from sr2.experiments.paper.recipes import recipe
from sr2.experiments.report.groups import group, penalty
from sr2.experiments.run.build import checked, make_optimizer, make_regularizer
from sr2.experiments.run.compare import Grid, expand
from sr2.experiments.run.config import RunConfig
from sr2.experiments.run.store import find_runs
from sr2.experiments.trained import trained

BUDGET = RunConfig(model="mlp", regularizer="l0_ball", reg=("density=0.05",), ridge=2e-4)


def test_it_stands_beside_the_regularizer() -> None:
    assert make_regularizer(BUDGET) == Ridge(2e-4, L0Ball(density=0.05))
    assert make_regularizer(RunConfig(ridge=0.5)) == Ridge(0.5, L1(1e-3))
    assert make_regularizer(RunConfig(regularizer="none", ridge=0.5)) == Ridge(0.5)
    assert make_regularizer(RunConfig(regularizer="none")) is None


def test_a_budget_beside_it_is_told_the_steps() -> None:
    made = make_optimizer(BUDGET, torch.nn.Linear(9, 9), steps=100)
    plain = make_optimizer(BUDGET.having(ridge=0.0), torch.nn.Linear(9, 9), steps=100)
    assert made.reach == plain.reach is not None  # type: ignore[union-attr]


def test_the_key_of_a_run_without_it_is_as_it_was() -> None:
    assert RunConfig(lam=0.01, ridge=0.0).key == "digits-cnn-sr2-l1-0.01-s0-2e0ca8c746"
    assert RunConfig(lam=0.01, ridge=1e-4).key != RunConfig(lam=0.01).key


def test_names_show_it() -> None:
    assert BUDGET.label == "SR2 l0_ball density=0.05 ridge 0.0002"
    assert penalty(BUDGET) == "l0_ball density=0.05 ridge 2e-4"


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "gmp"])
def test_a_baseline_decays_by_itself(optimizer: str) -> None:
    with pytest.raises(UserError, match=f"{optimizer} has no regularizer, which --ridge is: .* --weight-decay"):
        checked(RunConfig(optimizer=optimizer, regularizer="none", ridge=0.5))


@pytest.mark.parametrize("ridge", [-1.0, math.nan, math.inf])
def test_a_wrong_one_is_named(ridge: float) -> None:
    with pytest.raises(UserError, match=f"must be .* {ridge}"):
        checked(RunConfig(ridge=ridge))


def test_a_grid_gives_it_to_those_that_have_a_regularizer() -> None:
    runs, left_out = expand(Grid(optimizers=("sr2", "gmp", "adamw"), densities=(0.1, 0.05), ridge=2e-4))
    assert [run.label for run in runs] == [
        "SR2 l0_ball density=0.1 ridge 0.0002",
        "SR2 l0_ball density=0.05 ridge 0.0002",
        "GMP density=0.1",
        "GMP density=0.05",
        "AdamW",
    ]
    assert not left_out
    with pytest.raises(UserError, match=r"no optimizer of the grid .* --ridge"):
        expand(Grid(optimizers=("gmp", "adamw"), ridge=2e-4))


def test_a_run_with_it_is_no_cell_of_the_paper() -> None:
    cell = recipe("cifar10-resnet34-sr2-l1-1e-4")
    assert match(cell) is not None
    assert match(cell.having(ridge=1e-4)) is None


def test_sr2_train_shrinks_by_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--model", "mlp", "--epochs", "2", "--density", "0.1", "--runs", str(tmp_path)]
    assert main(["train", *flags]) == 0
    assert main(["train", *flags, "--ridge", "0.5"]) == 0
    assert "ridge 0.5" in capsys.readouterr().out
    free, ridged = group(find_runs([tmp_path]))  # two rows, the one without a ridge first
    assert (free.variant, ridged.variant) == ("", "")
    weights = [
        torch.cat([p.flatten() for n, p in trained(found.records[0].path).model.named_parameters() if "weight" in n])
        for found in (free, ridged)
    ]
    assert weights[1].norm() < 0.7 * weights[0].norm()
    assert torch.equal((weights[0] != 0).sum(), (weights[1] != 0).sum())
