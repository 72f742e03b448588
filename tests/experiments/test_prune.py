"""The pruning sweep against a slow one, and the weights that stay as they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from sr2.cli import main
from sr2.experiments.run.config import RunConfig
from sr2.experiments.run.evaluate import evaluate, recalibrate_
from sr2.experiments.run.problem import Problem
from sr2.experiments.run.prune import sweep
from sr2.experiments.run.store import WEIGHTS, find_runs, read_weights
from sr2.experiments.trained import trained
from tests.experiments.tools.runs import without_sums
from tests.experiments.tools.synthetic import make_run

WHY = "the run did not finish, or its weights were deleted"


def problem(model: str) -> Problem:
    return Problem(RunConfig.of(model=model))


def test_the_sweep_is_the_slow_one() -> None:
    made = problem("mlp")
    before = {name: tensor.clone() for name, tensor in made.model.state_dict().items()}
    found = sweep(made)
    assert [row["k"] for row in found["rows"]] == list(range(1, 9))
    for row in found["rows"]:
        assert row["alpha"] == float(f"1e-{row['k']}")
        pruned = {n: torch.where(t.abs() <= row["alpha"], 0.0, t) for n, t in before.items()}
        zeros = sum(int((t == 0).sum()) for t in pruned.values())
        assert row["sparsity_pct"] == pytest.approx(100 * zeros / 17226)
        made.model.load_state_dict(pruned)
        assert row["accuracy"] == row["accuracy_recalibrated"] == evaluate(made)[1]  # no batch-norm to estimate
    made.model.load_state_dict(before)
    assert found["unpruned"] == {"accuracy": evaluate(made)[1], "sparsity_pct": 0.0}


def test_the_network_has_its_weights_and_statistics_again() -> None:
    made = problem("cnn")
    before = {name: tensor.clone() for name, tensor in made.model.state_dict().items()}
    momenta = [m.momentum for m in made.model.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    sweep(made)
    assert all(torch.equal(before[name], tensor) for name, tensor in made.model.state_dict().items())
    assert [m.momentum for m in made.model.modules() if isinstance(m, torch.nn.BatchNorm2d)] == momenta


@pytest.mark.parametrize("augment", [False, True])
def test_statistics_are_estimated_over_the_training_batches_as_they_are_trained_on(augment: bool) -> None:
    made = problem("cnn")
    made.batches.augment = augment
    conv, norm = made.model[0], made.model[1]  # type: ignore[index]
    norm.running_mean.fill_(99.0)
    assert recalibrate_(made)
    with torch.no_grad():
        batches = [conv(x) for x, _ in made.batches.epoch(0)]
    mean = torch.stack([b.mean((0, 2, 3)) for b in batches]).mean(0)
    variance = torch.stack([b.var((0, 2, 3)) for b in batches]).mean(0)
    torch.testing.assert_close(norm.running_mean, mean, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(norm.running_var, variance, rtol=1e-4, atol=1e-5)
    assert not made.model.training
    assert not norm.training


@pytest.mark.parametrize(("model", "norms"), [("mlp", False), ("cnn", True)])
def test_the_table_has_batch_norm_where_the_network_has(
    model: str, norms: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--epochs", "1", "--batch", "400", "--model", model]) == 0
    capsys.readouterr()
    assert main(["prune", "runs"]) == 0
    said = capsys.readouterr().out
    assert "1e-8" in said
    assert ("batch-norm" in said) is norms


def test_sr2_prune(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--epochs", "1", "--batch", "400"]) == 0
    (record,) = find_runs([Path("runs")])
    written = (record.path / "prune.json").read_bytes()
    weights = (record.path / WEIGHTS).read_bytes()
    (record.path / "prune.json").unlink()
    capsys.readouterr()
    assert main(["prune", str(record.path)]) == 0
    assert "1e-8" in capsys.readouterr().out
    assert (record.path / "prune.json").read_bytes() == written  # what the end of the training found
    assert (record.path / WEIGHTS).read_bytes() == weights

    unfinished = make_run(Path("runs"), RunConfig.of(epochs=3), stop=1)
    assert main(["prune", "runs"]) == 0
    said = capsys.readouterr()
    assert said.err == f"skipped: {unfinished.path / WEIGHTS} is not there: {WHY}\n"
    assert record.path.name[:20] in said.out
    assert not (unfinished.path / "prune.json").exists()

    (record.path / WEIGHTS).unlink()
    assert main(["prune", str(record.path)]) == 2
    error = capsys.readouterr().err
    assert "weights.safetensors is not there" in error
    assert "error: there is nothing to prune" in error
    assert main(["prune", str(tmp_path)]) == 2
    assert main(["prune", "nowhere"]) == 2
    assert "nowhere does not exist" in capsys.readouterr().err


def test_a_trained_network_is_the_one_that_was_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--epochs", "1", "--batch", "400", "--model", "cnn", "--seed", "3"]) == 0
    (record,) = find_runs([Path("runs")])
    assert record.result is not None
    for weights, name in ((None, "average_accuracy"), ("average", "average_accuracy"), ("last", "accuracy")):
        run = trained(str(record.path), device="cpu", weights=weights)  # type: ignore[arg-type]
        assert not run.model.training
        images, labels = next(iter(run.test))
        right = (run.model(images).argmax(1) == labels).double().mean()
        assert 100 * float(right) == pytest.approx(record.result[name])
    assert record.result["accuracy"] != record.result["average_accuracy"]


def test_weights_of_another_network_are_said_to_be_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--epochs", "1", "--batch", "400", "--model", "mlp"]) == 0
    (record,) = find_runs([Path("runs")])
    (record.path / "config.json").write_text(json.dumps(record.config.having(model="cnn").to_dict()))
    without_sums(record.path)
    assert len(read_weights(record.path)) == 6
    assert main(["prune", "runs"]) == 2
    assert "do not fit its network cnn" in capsys.readouterr().err
