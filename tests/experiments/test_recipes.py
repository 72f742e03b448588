from __future__ import annotations

import json
from pathlib import Path

import pytest
from torch import nn

from sr2 import SR2
from sr2.experiments.errors import UserError
from sr2.experiments.paper import cells as paper
from sr2.experiments.paper import recipes
from sr2.experiments.run.build import checked, make_optimizer
from sr2.rules import Ratio

PUBLISHED = json.loads(Path(paper.__file__).with_name("tables.json").read_text())["cells"]


def test_one_recipe_for_each_published_cell() -> None:
    assert len(recipes.cells()) == len(PUBLISHED) == 45
    for row, (name, cell) in zip(PUBLISHED, recipes.cells().items(), strict=True):
        run = recipes.recipe(name)
        for ours, theirs in (("data", "dataset"), ("model", "network"), ("optimizer", "optimizer"), ("lam", "lam")):
            assert getattr(run, ours) == getattr(cell, ours) == row[theirs]
        assert run.regularizer == cell.regularizer == row["regularizer"]


@pytest.mark.parametrize("name", recipes.cells())
def test_every_recipe_has_the_papers_settings_and_can_be_run(name: str) -> None:
    checked(recipes.recipe(name))
    run = checked(recipes.papers_settings(name))
    penalized = "all" if run.optimizer == "proxsgd" else "weights"  # as their authors do
    assert (run.penalize, run.epochs, run.batch, run.options["metric"]) == (penalized, 300, 128, "none")
    if run.optimizer == "sr2":
        paper = {"momentum": 0.0, "metric": None, "average": False, **SR2.paper_defaults()}
        named = {n: "none" if value is None else value for n, value in paper.items() if n != "weight_decay"}
        assert run.options == named | {"sigma": 41.0}
    elif run.optimizer == "proxgen":
        assert (run.options["lr"], run.options["momentum"]) == (1e-3, 0)
    else:
        assert run.optimizer == "proxsgd"
        assert run.options == {"metric": "none", "lr": 0.06, "lr_decay": 0.5, "rho": "none"}


def test_a_recipe_of_sr2_is_algorithm_1_whatever_the_defaults_are() -> None:
    made = make_optimizer(recipes.recipe("cifar10-resnet34-sr2-l1-1e-4"), nn.Linear(2, 2))
    assert isinstance(made, SR2)
    assert (made.rule, made.direction, made.metric, made.averaging, made.schedule) == (
        Ratio(eta1=7.5e-4, eta2=0.99, gamma1=5.56, gamma3=0.8),
        *(None, None, None, None),
    )


def test_a_recipe_keeps_the_key_that_it_had_when_there_was_no_average() -> None:
    """Committed in results/, and run before anything could be averaged."""
    run = recipes.recipe("cifar10-resnet34-sr2-l1-1e-4").having(precision="bf16", compile=True, device="cuda")
    assert run.options["average"] is False
    assert run.key == "cifar10-resnet34-sr2-l1-0.0001-s0-3ee6341761"


def test_what_the_papers_constants_cannot_do_has_its_own() -> None:
    changed = {name for name in recipes.cells() if recipes.recipe(name) != recipes.papers_settings(name)}
    assert changed == {"cifar10-densenet121-sr2-l0-1e-2"}
    run = recipes.recipe("cifar10-densenet121-sr2-l0-1e-2")
    assert [run.options[name] for name in ("eta2", "gamma3", "sigma", "gamma1")] == [0.8, 0.9998, 41, 5.56]


def test_the_names_are_those_a_user_types() -> None:
    assert {"cifar10-resnet34-sr2-l1-1e-4", "cifar100-densenet201-proxgen-l0-1e-2"} <= set(recipes.cells())


def test_an_unknown_cell_names_the_closest() -> None:
    with pytest.raises(UserError, match=r"did you mean cifar10-resnet34-sr2-l1-1e-4\?.*all 45"):
        recipes.recipe("cifar10-resnet34-sr2-l1-1e4")
