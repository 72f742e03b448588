"""`sr2 train` on the embedded digits: its files, its numbers, its words."""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from sr2 import SR2, sparsity
from sr2.cli import main
from sr2.experiments.data import Batches, eval_batches, load
from sr2.experiments.models import build
from sr2.experiments.run.build import checked, make_optimizer
from sr2.experiments.run.config import RunConfig
from sr2.experiments.run.stop import StopSignals
from sr2.experiments.run.store import AVERAGE, WEIGHTS, RunStore, find_runs, read_run, read_weights
from sr2.experiments.run.train import Trainer

ROW = [
    *(
        "epoch",
        "steps",
        "loss",
        "R",
        "objective",
        "train_accuracy",
        "test_loss",
        "test_accuracy",
        "zero_pct",
        "small_pct",
    ),
    *("sigma", "rho", "batch", "accepted", "rejected", "null", "seconds"),
    *("average_test_loss", "average_test_accuracy", "average_zero_pct", "average_small_pct"),
]


def train(*flags: str) -> int:
    return main(["train", "--model", "mlp", "--epochs", "2", "--batch", "200", *flags])


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def only_run() -> Path:
    (record,) = find_runs([Path("runs")])
    return record.path


def test_a_run_leaves_what_it_promises(capsys: pytest.CaptureFixture[str]) -> None:
    assert train() == 0
    said = capsys.readouterr().out
    assert "epoch 2/2" in said
    assert re.search(r"accepted \d+ %", said)
    folder = only_run()
    told = {"config.json", "env.json", "metrics.jsonl", "result.json", "prune.json", WEIGHTS, AVERAGE}
    assert {p.name for p in folder.iterdir()} == {*told, "checkpoint.pt", "checkpoint.previous.pt", ".lock"}
    record = read_run(folder)
    assert record.config == checked(RunConfig.of(model="mlp", epochs=2, batch=200))
    assert folder.name == record.config.key
    assert [list(row) for row in record.metrics] == [ROW, ROW]
    last, result, prune = record.metrics[-1], record.result, record.prune
    assert result is not None
    assert prune is not None
    assert (last["epoch"], last["steps"], last["accepted"] + last["rejected"], last["null"]) == (2, 14, 7, 0)
    assert last["objective"] == last["loss"] + last["R"]
    assert result["accuracy"] == last["test_accuracy"]
    assert result["zero_pct"] == last["zero_pct"]
    assert result["average_accuracy"] == last["average_test_accuracy"] == prune["unpruned"]["accuracy"]
    assert result["average_zero_pct"] == last["average_zero_pct"] == prune["unpruned"]["sparsity_pct"]
    assert (result["epochs"], result["stopped"], result["parameters"]) == (2, "epochs", 17226)
    histogram = result["histogram"]
    assert len(histogram["log10_edges"]) == len(histogram["counts"]) + 1 == 41
    assert sum(histogram["counts"]) + histogram["zeros"] == 17226 == sum(layer["total"] for layer in result["layers"])
    assert sum(layer["zeros"] for layer in result["layers"]) == histogram["zeros"]


def test_the_numbers_are_those_of_a_plain_loop() -> None:
    assert train("--lam", "0.002") == 0
    record = read_run(only_run())
    dataset = load("digits")
    torch.manual_seed(0)
    model = build("mlp", 10, (1, 8, 8))
    optimizer = make_optimizer(record.config, model, steps=7 * len(record.metrics))
    assert isinstance(optimizer, SR2)
    batches = Batches(dataset, 200, "cpu", seed=0)
    for epoch, row in enumerate(record.metrics):
        losses, rhos, correct = [], [], 0
        for x, y in batches.epoch(epoch):
            correct += int((model(x).argmax(1) == y).sum())
            losses.append(float(optimizer.step(lambda x=x, y=y: F.cross_entropy(model(x), y))))
            rhos.append(optimizer.last_step.rho)  # type: ignore[union-attr]
        with torch.no_grad():
            ((x, y),) = eval_batches(dataset, 360, "cpu")
            logits = model(x)
        weights = [p for p in model.parameters() if p.dim() == 2]
        assert row["loss"] == pytest.approx(sum(losses) / 7, rel=1e-12)
        assert row["rho"] == pytest.approx(float(torch.tensor(rhos).nanmean()), rel=1e-6)  # x stays three times
        assert row["train_accuracy"] == pytest.approx(correct / 14)
        assert row["test_loss"] == pytest.approx(float(F.cross_entropy(logits, y)), rel=1e-5)
        assert row["test_accuracy"] == pytest.approx(float((logits.argmax(1) == y).float().mean()) * 100, rel=1e-6)
        assert row["R"] == pytest.approx(
            0.002 * sum(float(w.detach().double().abs().sum()) for w in weights), rel=1e-12
        )
        assert row["sigma"] == optimizer.sigma
        assert row["zero_pct"] == 100 * sparsity(model).fraction
        assert row["small_pct"] == 100 * sparsity(model, 1e-3).fraction
    with optimizer.averaged():
        assert same(read_weights(record.path, "average"), model)
        assert not same(read_weights(record.path, "last"), model)
    assert same(read_weights(record.path, "last"), model)


def same(stored: dict[str, torch.Tensor], model: torch.nn.Module) -> bool:
    return all(torch.equal(stored[name], tensor) for name, tensor in model.state_dict().items())


def test_a_finished_run_is_skipped_with_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert train() == 0
    before = {p.name: p.stat().st_mtime_ns for p in only_run().iterdir()}
    capsys.readouterr()
    assert train() == 0
    assert "is finished already (accuracy" in capsys.readouterr().out
    assert {p.name: p.stat().st_mtime_ns for p in only_run().iterdir()} == before


def test_a_finished_run_is_skipped_where_nothing_can_be_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train() == 0
    (only_run() / ".lock").unlink()
    monkeypatch.setattr(RunStore, "locked", lambda _: pytest.fail("wants to write"))  # to root no folder is read-only
    assert train() == 0
    assert "is finished already (accuracy" in capsys.readouterr().out


@pytest.mark.parametrize("file", ["config.json", "env.json", "metrics.jsonl", "prune.json", "result.json"])
@pytest.mark.parametrize("content", [pytest.param("{\n", marks=pytest.mark.torture), "[1]\n"])
def test_the_way_out_of_a_damaged_file_works(file: str, content: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert train() == 0
    record = read_run(only_run())
    folder = record.path
    weights = read_weights(folder)
    (folder / file).write_text(content)
    assert main(["report", "runs"]) == 2
    error = capsys.readouterr().err
    assert f"{folder / file} is " in error
    way = re.findall(r"delete it( and result\.json beside it)?, and run (?:(sr2 .*)|the same training again)$", error)
    ((also, command),) = way
    (folder / file).unlink()
    if also:
        (folder / "result.json").unlink()
    assert (main(command.split()[1:]) if command else train()) == 0
    assert main(["report", "runs"]) == 0
    again = read_run(folder)
    assert again.metrics == record.metrics
    assert {**(again.result or {}), "files": 0} == {**(record.result or {}), "files": 0}  # env.json is another one
    assert again.prune == record.prune
    assert again.env
    assert all(torch.equal(tensor, weights[name]) for name, tensor in read_weights(folder).items())


def test_a_resume_writes_damaged_metrics_anew(capsys: pytest.CaptureFixture[str]) -> None:
    config = checked(RunConfig.of(model="mlp", epochs=2, batch=200))
    store = RunStore(Path("runs") / config.key, config)
    with store.locked():
        trainer = Trainer(config, store, StopSignals())
        store.start()
        next(trainer.run())  # and killed here
    (store.path / "metrics.jsonl").write_text('{"epoch": 1, "lo')
    (store.path / "config.json").write_text("{")
    assert main(["report", "runs"]) == 2
    assert "config.json is damaged" in (error := capsys.readouterr().err)
    assert error.endswith("delete it, and run the same training again\n")
    assert train() == 0
    assert [row["epoch"] for row in read_run(store.path).metrics] == [1, 2]


@pytest.mark.parametrize("flags", [["--optimizer", "proxgen", "--lr", "0.1"], ["--optimizer", "proxsgd"]])
def test_optimizers_without_a_test_have_no_sigma(flags: list[str]) -> None:
    assert train(*flags) == 0
    (row, _) = read_run(only_run()).metrics
    assert [row[name] for name in ("sigma", "rho", "accepted", "rejected", "null")] == [None] * 5


@pytest.mark.parametrize(
    "flags",
    [
        ["--precision", "bf16", "--model", "cnn"],
        ["--regularizer", "none"],
        ["--regularizer", "lp", "--reg", "p=0.5"],
        ["--optimizer", "proxsgd", "--regularizer", "box", "--reg", "lo=-0.01", "hi=0.01"],
        ["--penalize", "all", "--momentum", "0.9", "--metric", "adam", "--regularizer", "sr2:L0"],
    ],
)
def test_many_kinds_of_runs(flags: list[str]) -> None:
    assert train(*flags) == 0
    record = read_run(only_run())
    assert record.result is not None
    assert math.isfinite(record.metrics[-1]["loss"])


def test_x_outside_the_domain_of_r_is_null_in_json() -> None:
    flags = ["--optimizer", "proxsgd", "--regularizer", "box", "--reg", "lo=-0.01", "hi=0.01"]
    assert train(*flags) == 0
    text = (only_run() / "metrics.jsonl").read_text()
    assert "Infinity" not in text
    assert json.loads(text.splitlines()[0])["R"] is None


@pytest.mark.filterwarnings("default")
def test_a_note_of_the_library_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert train("--regularizer", "box", "--reg", "lo=-0.01", "hi=0.01") == 0
    assert re.fullmatch(r"note: R\(x_0\) is infinite under Box\(.*\n", capsys.readouterr().err)


def test_a_loss_that_is_not_finite_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert train("--optimizer", "proxgen", "--lr", "1e30") == 2
    error = capsys.readouterr().err
    assert "stopped in epoch 1: its mean loss is" in error
    assert "--lr" in error
    Path("broken.py").write_text(
        "import torch\n"
        "def net():\n"
        "    layer = torch.nn.Linear(64, 10)\n"
        "    torch.nn.init.constant_(layer.bias, torch.nan)\n"
        "    return torch.nn.Sequential(torch.nn.Flatten(), layer)\n"
    )
    assert train("--model", "broken:net") == 2
    assert "stopped in epoch 1: the loss at x_0 is nan, and sigma_0 cannot be found" in capsys.readouterr().err
    assert train("--model", "broken:net", "--sigma", "1") == 2
    assert "stopped in epoch 1: the loss at x_t is nan" in capsys.readouterr().err


def test_a_terminal_gets_one_live_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    assert train() == 0
    said = capsys.readouterr().out
    assert "epoch 2/2  loss" in said
    assert "left" in said
    assert "━" in said


def test_tensorboard_if_asked(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "torch.utils.tensorboard", None)
        assert train("--tensorboard") == 2
    assert "pip install 'sr2[tensorboard]'" in capsys.readouterr().err
    pytest.importorskip("tensorboard")
    assert train("--tensorboard") == 0
    assert list((only_run() / "tensorboard").glob("events*"))


@pytest.mark.parametrize("name", ["proxgen", "proxsgd"])
def test_a_cooldown_of_a_baseline_is_a_schedule_of_torch(name: str) -> None:
    assert train("--optimizer", name, "--lr", "0.05", "--cooldown", "0.5") == 0
    record = read_run(only_run())
    torch.manual_seed(0)
    model = build("mlp", 10, (1, 8, 8))
    optimizer = make_optimizer(record.config.having(cooldown=None), model)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: min(1.0, max(0.02, (14 - t) / 7)))
    batches = Batches(load("digits"), 200, "cpu", seed=0)
    for epoch in range(2):
        for x, y in batches.epoch(epoch):
            optimizer.step(lambda x=x, y=y: F.cross_entropy(model(x), y))  # type: ignore[misc]
            schedule.step()
    stored = read_weights(record.path)
    assert all(torch.equal(stored[n], tensor) for n, tensor in model.state_dict().items())


def test_a_learning_rate_on_the_device_is_lowered_in_place(tmp_path: Path) -> None:
    """A CUDA graph reads that very tensor."""
    config = RunConfig.of(model="mlp", optimizer="proxgen", lr=0.5, cooldown=0.5, epochs=2, batch=200)
    trainer = Trainer(config, RunStore(tmp_path, config), StopSignals())
    (group,) = trainer.optimizer.param_groups[:1]
    group["lr"] = lr = torch.tensor(0.5)
    trainer.view.before_step(14)
    assert group["lr"] is lr
    assert lr == pytest.approx(0.01)


def test_a_cooldown_is_of_the_last_steps_of_the_run() -> None:
    """Two epochs of seven steps, of which the last seven raise sigma, at the end fifty times."""
    assert train("--cooldown", "0.5", "--sigma", "100", "--gamma3", "1") == 0
    first, second = read_run(only_run()).metrics
    assert (first["steps"], second["steps"]) == (7, 14)
    assert (first["rejected"], second["rejected"]) == (0, 0)
    assert first["sigma"] == 100
    assert second["sigma"] == pytest.approx(5000)
