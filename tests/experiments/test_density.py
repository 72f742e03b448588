"""--density and --densities: budgets that are had at the end of a run."""

import pytest
from torch import nn

from sr2 import L0Ball
from sr2.experiments.errors import UserError
from sr2.experiments.flags import training_flags
from sr2.experiments.run.build import make_optimizer
from sr2.experiments.run.compare import Grid, expand
from sr2.experiments.run.config import RunConfig
from sr2.schedules import Cooldown, Reach


def config(*arguments, tmp_path, start=RunConfig()):  # noqa: B008 - frozen
    import tyro

    flags = training_flags(start, tmp_path)
    markers = (tyro.conf.FlagCreatePairsOff, tyro.conf.DisallowNone)
    return flags.config(tyro.cli(flags.kind, args=list(arguments), config=markers))


def test_a_density_is_a_budget(tmp_path):
    asked = config("--density", "0.05", tmp_path=tmp_path)
    assert asked == RunConfig(regularizer="l0_ball", reg=("density=0.05",))
    assert asked.label == "SR2 l0_ball density=0.05"
    more = config("--density", "0.25", "--regularizer", "l0_ball", "--reg", "floor=0", tmp_path=tmp_path)
    assert more == RunConfig(regularizer="l0_ball", reg=("floor=0", "density=0.25"))
    for named in ("l0", "l1", "none"):  # l1 is the default, and was typed
        with pytest.raises(UserError, match=f"leave out --regularizer {named}, or --density 0.05"):
            config("--density", "0.05", "--regularizer", named, tmp_path=tmp_path)
    for lam in ("0.001", "0.1"):
        with pytest.raises(UserError, match=f"a budget and has no lambda: leave out --lam {lam}, or --density 0.05"):
            config("--density", "0.05", "--lam", lam, tmp_path=tmp_path)


def test_the_run_tells_a_budget_how_many_steps_there_are():
    def made(steps=1000, **settings):
        return make_optimizer(RunConfig.of(**settings), nn.Linear(10, 10), steps)

    budget = {"regularizer": "l0_ball", "reg": ("density=0.05",)}
    optimizer = made(**budget)
    assert optimizer.param_groups[0]["regularizer"] == L0Ball(density=0.05)
    assert optimizer.reach == Reach(100, 700)
    assert optimizer.schedule == Cooldown(700, 1000)
    assert made(**budget, cooldown=0.1).schedule == Cooldown(900, 1000)
    assert made(regularizer="nm").reach == Reach(100, 700)
    assert made(regularizer="l1").reach is None
    assert made(regularizer="l1").schedule == Cooldown(700, 1000)
    assert made(regularizer="l1", eta2=0.9).schedule is None  # Algorithm 1 goes on as long as one lets it
    assert made(1, **budget).reach is not None
    open_ended = made(**budget, epsilon=1e-3)  # nobody knows its last step
    assert (open_ended.reach, open_ended.schedule) == (None, None)
    assert made(optimizer="proxgen", lr=0.1, **budget) is not None


def test_a_baseline_that_prunes_has_it_as_its_own(tmp_path):
    asked = config("--density", "0.05", "--optimizer", "gmp", "--regularizer", "none", tmp_path=tmp_path)
    assert asked == RunConfig.of(optimizer="gmp", regularizer="none", density=0.05)
    runs, _ = expand(Grid(optimizers=("gmp", "adamw"), densities=(0.1, 0.01)))
    assert [(run.optimizer, run.option("density")) for run in runs] == [("gmp", 0.1), ("gmp", 0.01), ("adamw", None)]
    runs, _ = expand(Grid(optimizers=("gmp,density=0.3",), densities=(0.1, 0.01)))
    assert [run.option("density") for run in runs] == [0.3]


def test_densities_of_a_grid():
    runs, left_out = expand(Grid(optimizers=("sr2",), densities=(0.1, 0.01)))
    assert [run.reg for run in runs] == [("density=0.1",), ("density=0.01",)]
    assert not left_out
    beside, _ = expand(Grid(optimizers=("sr2",), regularizers=("none",), densities=(0.1,)))
    assert [run.regularizer for run in beside] == ["none", "l0_ball"]
    (same,), _ = expand(Grid(optimizers=("sr2",), regularizers=("l0_ball,density=0.1",)))
    assert same.key == runs[0].key


def test_regularizers_that_were_typed_are_compared_beside_budgets(tmp_path):
    asked = ("--optimizers", "sr2", "--densities", "0.1", "--lams", "0.01")
    alone, _ = expand(config(*asked, tmp_path=tmp_path, start=Grid()))
    assert [run.regularizer for run in alone] == ["l0_ball"]
    both, _ = expand(config(*asked, "--regularizers", "l1", "l0", tmp_path=tmp_path, start=Grid()))  # the default
    assert [run.regularizer for run in both] == ["l1", "l0", "l0_ball"]
