"""The trainer and the average of the iterates: measured, reported and saved beside the last one, and named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import sr2
from sr2.cli import main
from sr2.experiments.errors import UserError
from sr2.experiments.run.build import checked
from sr2.experiments.run.config import RunConfig
from sr2.experiments.run.evaluate import averaged, evaluate, percent_zero
from sr2.experiments.run.stop import StopSignals
from sr2.experiments.run.store import AVERAGE, RunStore, read_run, read_weights
from sr2.experiments.run.train import Trainer
from sr2.experiments.trained import trained
from tests.experiments.tools.runs import NET, finish, same_run

SR2 = {"sigma": 20.0, "average": True, "lam": 3e-3}


def config_of(**settings: Any) -> RunConfig:
    return checked(RunConfig.of(**{"model": "cnn", "epochs": 8, "batch": 200, **settings}))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = RunStore(tmp_path_factory.mktemp("run"), config_of(**SR2))
    finish(store.config, store)
    return store.path


def test_both_are_measured_and_saved(folder: Path) -> None:
    record = read_run(folder)
    assert record.result is not None
    rows = [row["epoch"] for row in record.metrics if "average_test_accuracy" in row]
    assert rows == [2, 4, 6, 8]
    last, average = trained(folder, weights="last"), trained(folder)
    assert evaluate(last)[1] == record.result["accuracy"] == record.metrics[-1]["test_accuracy"]
    assert evaluate(average)[1] == record.result["average_accuracy"] == record.metrics[-1]["average_test_accuracy"]
    assert percent_zero(average.model) == record.result["average_zero_pct"]
    assert not all(torch.equal(x, y) for x, y in zip(last.model.parameters(), average.model.parameters(), strict=True))
    for (name, x), y in zip(last.model.named_parameters(), average.model.parameters(), strict=True):
        if x.dim() > 1:
            assert not bool(((x == 0) & (y != 0)).any()), name
    assert record.result["zero_pct"] > 0
    assert read_weights(folder, "average").keys() == read_weights(folder, "last").keys()


def test_the_average_is_that_of_the_checkpoint_with_batch_norm_anew(folder: Path) -> None:
    config = read_run(folder).config
    trainer = Trainer(config, RunStore(folder, config), StopSignals())
    before = {name: t.clone() for name, t in trainer.problem.model.state_dict().items()}
    stored = read_weights(folder)
    (mean, *_) = (name for name in stored if name.endswith("running_mean"))
    with averaged(trainer.problem, trainer.view):
        inside = trainer.problem.model.state_dict()
        assert all(torch.equal(inside[name], t) for name, t in stored.items())
        assert not torch.equal(inside[mean], before[mean])
        assert bool(inside[mean].any())
    assert all(torch.equal(t, before[name]) for name, t in trainer.problem.model.state_dict().items())


@pytest.mark.parametrize("settings", [SR2, {"optimizer": "gmp", "density": 0.2}], ids=str)
def test_a_resumed_run_has_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]) -> None:
    (tmp_path / "dropnet.py").write_text(NET)
    monkeypatch.chdir(tmp_path)
    config = config_of(**{"model": "dropnet:net", "epochs": 4, "batch": 400, **settings})
    stores = [RunStore(tmp_path / name, config) for name in ("undisturbed", "stopped")]
    for store, stops in zip(stores, ((), (1, 4, 6, 11)), strict=True):
        finish(config, store, stops)
    same_run(stores[0].path, stores[1].path)
    one, other = ((store.path / AVERAGE).read_bytes() for store in stores)
    assert one == other


def test_measuring_it_does_not_disturb_the_training(tmp_path: Path, folder: Path) -> None:
    plain = RunStore(tmp_path, config_of(**{**SR2, "average": False}))
    finish(plain.config, plain)
    one, other = read_weights(plain.path), read_weights(folder, "last")
    assert all(torch.equal(x, other[name]) for name, x in one.items())
    assert not (plain.path / AVERAGE).exists()
    with pytest.raises(UserError, match="the run kept no average, or did not finish; use --weights last"):
        read_weights(plain.path, "average")


def test_a_run_that_stops_early_has_one_too(tmp_path: Path) -> None:
    store = RunStore(tmp_path, config_of(**{**SR2, "model": "mlp", "epochs": 40, "epsilon": 1e3}))
    trainer = finish(store.config, store)
    assert trainer.epoch < 40
    assert trainer.stopped_early
    record = read_run(tmp_path)
    assert record.result is not None
    assert record.result["average_accuracy"] == record.metrics[-1]["average_test_accuracy"]


def test_the_commands_take_either(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prune", str(folder)]) == 0
    assert "average of the" in capsys.readouterr().out
    of_average = json.loads((folder / "prune.json").read_text())
    assert of_average["weights"] == "average"
    assert main(["prune", str(folder), "--weights", "last"]) == 0
    of_last = json.loads((folder / "prune.json").read_text())
    result = json.loads((folder / "result.json").read_text())
    assert "weights" not in of_last
    assert of_last["unpruned"]["accuracy"] == result["accuracy"]
    assert of_average["unpruned"]["accuracy"] == result["average_accuracy"]
    capsys.readouterr()
    assert main(["export", str(folder)]) == 0
    assert f"of {AVERAGE}" in capsys.readouterr().out
    assert main(["shrink", str(folder), "--weights", "last"]) == 0
    assert "of weights.safetensors" in capsys.readouterr().out


def test_the_report_and_the_last_line_name_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    flags = ["--model", "mlp", "--epochs", "2", "--batch", "400", "--opt", "average=True"]
    for _ in range(2):  # trained, and skipped
        assert main(["train", *flags]) == 0
        assert "; average of the iterates " in capsys.readouterr().out
    assert main(["report", "runs", "--out", "report"]) == 0
    said = capsys.readouterr().out
    assert "last iterate" in said
    assert "average of the iterates" in said
    (folder,) = (tmp_path / "runs").iterdir()
    result = json.loads((folder / "result.json").read_text())
    assert f"{result['average_accuracy']:.2f}" in said


def test_only_the_last_optimizer_of_a_network_reminds() -> None:
    model = torch.nn.Linear(3, 1)

    def stepped() -> sr2.SR2:
        optimizer = sr2.SR2(model)
        optimizer.step(lambda: model(torch.ones(5, 3)).square().mean())
        return optimizer

    first, second = stepped(), stepped()  # `first` lives on, as one does in a cycle of references
    with second.averaged():
        pass
    model.state_dict()  # a warning would be an error
    third = stepped()
    with first.averaged(), pytest.warns(UserWarning, match="this state_dict holds the last iterate"):
        model.state_dict()
    assert third.averaging is not None
