"""A run that is stopped, killed or resumed ends in the same bits as an undisturbed one."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from sr2.experiments.run.build import checked
from sr2.experiments.run.config import RunConfig
from sr2.experiments.run.runner import CapturedRunner
from sr2.experiments.run.stop import StoppedError, StopSignals
from sr2.experiments.run.store import RunStore, read_run
from sr2.experiments.run.train import Trainer
from tests.experiments.tools.runs import NET, finish, same_run
from tests.tools import remembered


@pytest.mark.parametrize(
    "settings",
    [
        {"momentum": 0.9, "cooldown": 0.7},
        {"metric": "andrei", "regularizer": "l0"},
        {"optimizer": "proxgen", "momentum": 0.9, "metric": "adam"},
        {"optimizer": "proxsgd", "cooldown": 0.7},
        {"optimizer": "adamw", "average": True},
        {"optimizer": "gmp", "density": 0.1},
    ],
)
def test_stopped_at_any_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]) -> None:
    (tmp_path / "dropnet.py").write_text(NET)
    monkeypatch.chdir(tmp_path)
    config = checked(RunConfig.of(model="dropnet:net", epochs=2, batch=400, **settings))

    def run(root: str, stops: set[int]) -> Path:
        store = RunStore(tmp_path / root, config)
        assert finish(config, store, stops).steps == 6
        return store.path

    same_run(run("undisturbed", set()), run("stopped", {1, 3, 5, 6}))


class Replayed:
    """What a CapturedStep does, without a GPU: some steps for real, then one a call."""

    def __init__(self, optimizer: object, body: Callable[[], None], warmup: int = 3) -> None:
        self.body = body
        for _ in range(warmup):
            body()

    def __call__(self) -> None:
        self.body()


@pytest.mark.parametrize(
    "settings", [{"optimizer": "proxgen", "cooldown": 0.7}, {"optimizer": "gmp"}, {"optimizer": "adamw"}], ids=str
)
def test_a_captured_run_with_a_schedule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    """Every step has its own learning rate and its own masks, the first ones after a resume too."""
    config = checked(RunConfig.of(model="mlp", epochs=4, batch=400, lr=0.05, **settings))
    plain = RunStore(tmp_path / "plain", config)
    finish(config, plain)
    monkeypatch.setattr("sr2.experiments.run.runner.CapturedStep", Replayed)
    monkeypatch.setattr("sr2.experiments.run.runner.run_beside", lambda body: body())
    monkeypatch.setattr("sr2.experiments.run.train.StepRunner", CapturedRunner)
    for stops in ((), (1, 5, 6)):
        captured = RunStore(tmp_path / f"captured{stops}", config)
        assert finish(config, captured, stops).steps == 12
        same_run(plain.path, captured.path)


def test_the_second_signal_is_immediate() -> None:
    with StopSignals() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.asked
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.torture
def test_real_signals_at_random_moments(tmp_path: Path) -> None:
    seed = time.time_ns() % 10**6
    chance = random.Random(seed)
    print(f"moments of seed {seed}")
    (tmp_path / "dropnet.py").write_text(NET)
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}  # the number of threads decides the bits, too
    flags = ["--model", "dropnet:net", "--epochs", "6", "--batch", "16", "--momentum", "0.9", "--regularizer", "l0"]

    def start(runs: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "sr2", "train", *flags, "--runs", runs]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, cwd=tmp_path, env=environ, stdout=pipe, stderr=pipe, text=True)

    undisturbed = start("undisturbed")
    for number in (signal.SIGKILL, signal.SIGINT, signal.SIGTERM):
        process = start("disturbed")
        assert process.stdout is not None
        process.stdout.readline()  # "SR2 l0 … on digits": from here on it trains
        time.sleep(chance.uniform(0, 0.6))
        process.send_signal(number)
        _, error = process.communicate(timeout=60)
        if number == signal.SIGKILL:
            assert process.returncode in (-9, 0)
        elif process.returncode == -number:  # it came after the end, while Python was leaving
            assert list((tmp_path / "disturbed").glob("*/result.json"))
        elif process.returncode != 0:
            assert process.returncode == 130, error
            assert "and saved: run the same command to go on" in error
            assert "Traceback" not in error
    last = start("disturbed")
    out, error = last.communicate(timeout=60)
    assert (last.returncode, error) == (0, ""), out
    assert undisturbed.wait(timeout=60) == 0
    undisturbed.communicate()
    (one,), (other,) = (list((tmp_path / name).iterdir()) for name in ("undisturbed", "disturbed"))
    same_run(one, other)
    assert not [p.name for p in other.glob(".*.*")]


def test_a_run_goes_on_from_the_previous_checkpoint(tmp_path: Path) -> None:
    config = checked(RunConfig.of(model="mlp", epochs=3, batch=400))
    stores = [RunStore(tmp_path / name, config) for name in ("undisturbed", "damaged")]
    for store in stores:
        with store.locked():
            trainer = Trainer(config, store, StopSignals())
            store.start()
            rows = trainer.run()
            next(rows), next(rows)
            if store is stores[1]:
                (store.path / "checkpoint.pt").unlink()
                trainer = Trainer(config, store, StopSignals())
                assert trainer.epoch == 1
                rows = trainer.run()
            assert len(list(rows)) == 3 - (2 if store is stores[0] else 1)
    same_run(stores[0].path, stores[1].path)


def test_the_optimizer_state_is_in_the_checkpoint(tmp_path: Path) -> None:
    config = checked(RunConfig.of(model="mlp", epochs=1, batch=400))
    store = RunStore(tmp_path, config)
    with store.locked():
        trainer = Trainer(config, store, StopSignals())
        store.start()
        list(trainer.run())
    state = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert remembered(state["optimizer"])["accepted"] == 3


def test_a_run_whose_checkpoints_cost_too_much_writes_fewer_and_goes_on_to_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = checked(RunConfig.of(model="mlp", epochs=4, batch=400))
    often, seldom = (RunStore(tmp_path / name, config) for name in ("often", "seldom"))
    finish(config, often)
    monkeypatch.setattr("sr2.experiments.run.train.FREE_SAVING", -1.0)
    with seldom.locked():
        trainer = Trainer(config, seldom, StopSignals())
        seldom.start()
        rows = trainer.run()
        next(rows), next(rows)  # and killed here: the metrics are ahead of the checkpoint
        assert seldom.load_checkpoint() is None
        assert len(read_run(seldom.path).metrics) == 2
    assert finish(config, seldom).steps == 12
    assert seldom.load_checkpoint()["epoch"] == 4  # type: ignore[index]
    same_run(often.path, seldom.path)


def test_a_checkpoint_of_the_first_version_goes_on(tmp_path: Path) -> None:
    """Which said "refused" and "images", and had the sums of an epoch in another order."""
    config = checked(RunConfig.of(model="mlp", epochs=3, batch=400, sigma=0.5))
    stores = [RunStore(tmp_path / name, config) for name in ("undisturbed", "old")]
    finish(config, stores[0])
    with stores[1].locked():
        stop = StopSignals()
        trainer = Trainer(config, stores[1], stop)
        stores[1].start()

        def stop_in_the_second_epoch(examples: int) -> None:
            stop.told = trainer.steps == 5

        with pytest.raises(StoppedError):
            list(trainer.run(stop_in_the_second_epoch))
    state = stores[1].load_checkpoint()
    assert state is not None
    sums = state["sums"]
    loss, rho, tested, right = sums["sums"]
    counts = {"refused" if n == "rejected" else n: c for n, c in sums["counts_before"].items()}
    old = {"sums": torch.stack([loss, right, rho, tested]), "images": sums["examples"], "counts_before": counts}
    rows = [{"refused" if n == "rejected" else n: value for n, value in row.items()} for row in state["rows"]]
    assert "refused" in rows[0]
    stores[1].save_checkpoint({**state, "sums": old, "rows": rows})
    finish(config, stores[1])
    same_run(stores[0].path, stores[1].path)
