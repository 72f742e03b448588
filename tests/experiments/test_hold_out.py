"""--hold-out: training examples in the place of the test examples, the same for every run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from sr2.cli import main
from sr2.experiments.data import load
from sr2.experiments.errors import UserError
from sr2.experiments.run.build import checked
from sr2.experiments.run.config import RunConfig
from sr2.experiments.run.problem import Problem
from sr2.experiments.trained import trained


def test_nothing_is_in_both_and_nothing_is_lost() -> None:
    whole = load("digits")
    held = whole.holding_out(300)
    both = torch.cat([held.train_inputs, held.test_inputs]).flatten(1)
    assert torch.equal(both.unique(dim=0), whole.train_inputs.flatten(1).unique(dim=0))
    assert len(both) == 1437
    assert not torch.equal(held.test_inputs, whole.train_inputs[-300:])  # it is a permutation
    assert torch.bincount(held.test_targets, minlength=10).min() > 15


def test_every_seed_holds_out_the_same() -> None:
    one, other = (Problem(RunConfig(model="mlp", hold_out=200, seed=seed)) for seed in (0, 1))
    assert torch.equal(one.test.inputs, other.test.inputs)
    assert len(one.test.inputs) == 200
    assert one.batches.seen == 1152  # of 1237
    assert not torch.equal(Problem(RunConfig(model="mlp")).test.inputs[:200], one.test.inputs)


def test_the_key_of_a_run_without_it_is_as_it_was() -> None:
    assert RunConfig(lam=0.01, hold_out=0).key == "digits-cnn-sr2-l1-0.01-s0-2e0ca8c746"
    assert RunConfig(lam=0.01, hold_out=1).key != RunConfig(lam=0.01).key


@pytest.mark.parametrize(
    ("count", "words"), [(1437, "from 1 to 1436 of the 1437"), (-1, "hold_out must be at least 0")]
)
def test_too_many_or_too_few(count: int, words: str) -> None:
    with pytest.raises(UserError, match=words):
        Problem(checked(RunConfig(model="mlp", hold_out=count)))


def test_sr2_train_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    flags = ["--model", "mlp", "--epochs", "1", "--batch", "400", "--hold-out", "300", "--optimizer", "sgd"]
    assert main(["train", *flags]) == 0
    said = capsys.readouterr().out
    assert "held out" in said
    assert "on 300 held out, zeros" in said
    assert "test " not in said
    (folder,) = (tmp_path / "runs").iterdir()
    assert json.loads((folder / "result.json").read_text())["held_out"] == 300
    assert len(trained(folder).test.inputs) == 300
    assert main(["report", "runs"]) == 0
    assert "on 300 held out" in capsys.readouterr().out
