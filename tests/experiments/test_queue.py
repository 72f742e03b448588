"""The paper's cells as a queue: order, what is skipped, kills in the middle, several processes."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from sr2.cli import main
from sr2.experiments.errors import UserError
from sr2.experiments.models import base as models
from sr2.experiments.paper import queue
from sr2.experiments.paper.cells import cells, match
from sr2.experiments.paper.recipes import papers_settings
from sr2.experiments.run.build import checked
from sr2.experiments.run.config import RunConfig
from sr2.experiments.run.one import train
from sr2.experiments.run.problem import Problems
from sr2.experiments.run.progress import Watch
from sr2.experiments.run.stop import DivergedError, StopSignals
from sr2.experiments.run.store import RunStore, find_runs, read_run
from sr2.experiments.run.train import Trainer
from tests.experiments.tools.official import small_cifar10, small_cifar100, write_cifar10_python
from tests.experiments.tools.runs import same_run
from tests.experiments.tools.synthetic import make_run

SHORT = RunConfig(epochs=60)


def tiny(classes: int, in_shape: tuple[int, ...]) -> nn.Module:
    """In place of the paper's networks."""
    layers = nn.AvgPool2d(8), nn.Conv2d(in_shape[0], 4, 3, padding=1), models.BatchNorm(4), nn.ReLU(), nn.Dropout(0.1)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64, classes))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A folder with CIFAR-10 of 120 images, networks of 1,000 weights, and the cells of two problems."""
    monkeypatch.chdir(tmp_path)
    make_small(monkeypatch)


def make_small(monkeypatch: pytest.MonkeyPatch) -> None:
    write_cifar10_python(Path("data", "cifar-10-batches-py").absolute(), small_cifar10(monkeypatch))
    monkeypatch.setenv("SR2_DATA", str(Path("data").absolute()))
    few = {name: cell for name, cell in cells().items() if cell.data == "cifar100" or "resnet34-" in name}
    few = {name: cell for name, cell in few.items() if cell.data == "cifar100" or cell.lam == 1e-4}
    monkeypatch.setattr(queue, "cells", lambda: few)
    for name in ("resnet34", "densenet121", "densenet201"):
        monkeypatch.setattr(f"sr2.experiments.models.{models._MODULES[name][1:]}.{name}", tiny)
    monkeypatch.setattr(queue, "papers_settings", lambda name: papers_settings(name).having(batch=25))


# ---- the plan


def test_the_plan_has_every_cell_and_the_rows_beside_them() -> None:
    runs = queue.plan("cifar10", queue.ROWS, SHORT)
    assert len({run.key for run in runs}) == len(runs) == 30 + 12 + 36
    first = [match(run) for run in runs[:30]]
    assert set(first) == {cell for cell in cells().values() if cell.data == "cifar10"}
    assert [cell.model for cell in first if cell] == ["resnet34"] * 15 + ["densenet121"] * 15
    names = [(cell.regularizer, cell.lam, cell.optimizer) for cell in first[:5] if cell]
    assert names == [
        *[("l0", 1e-4, "sr2"), ("l0", 1e-4, "proxgen")],
        *[("l1", 1e-4, "sr2"), ("l1", 1e-4, "proxgen"), ("l1", 1e-4, "proxsgd")],
    ]
    assert {run.optimizer for run in runs[30:42]} == {"sr2"}
    assert sorted({(run.optimizer, float(run.options["lr"])) for run in runs[42:]}) == [
        *[("proxgen", 0.01), ("proxgen", 0.1), ("proxsgd", 0.2), ("proxsgd", 0.6)]
    ]
    assert {run.epochs for run in runs} == {60}


def test_a_cell_is_run_with_the_papers_constants_also_where_they_fail() -> None:
    runs = queue.plan("cifar10", ["paper"], SHORT)
    (run,) = (run for run in runs if match(run) == cells()["cifar10-densenet121-sr2-l0-1e-2"])
    assert (run.options["eta2"], run.options["gamma3"]) == (0.99, 0.8)


def test_no_cell_of_other_data() -> None:
    with pytest.raises(UserError, match="'digits': use cifar10 or cifar100"):
        queue.plan("digits", ["paper"], SHORT)
    assert len(queue.plan("cifar100", ["paper"], SHORT)) == 15


def test_what_is_done_elsewhere_or_for_longer_is_skipped(tmp_path: Path) -> None:
    runs = queue.plan("cifar10", ["paper"], SHORT)
    make_run(tmp_path / "results", runs[0])
    make_run(tmp_path / "results", runs[1].having(epochs=300))
    make_run(tmp_path / "results", runs[2].having(epochs=300), stop=60)
    make_run(tmp_path / "runs", runs[3].having(epochs=300, cooldown=0.2))  # another run
    make_run(tmp_path / "runs", runs[4].having(epochs=59))
    make_run(tmp_path / "runs", runs[5], stop=59)
    make_run(tmp_path / "runs", runs[6], stop=3)
    (tmp_path / "runs" / runs[6].key / "diverged.txt").write_text("its loss is nan\n")
    left = queue.Queue(runs, tmp_path / "runs", [tmp_path / "results"]).left()
    assert left == [*runs[3:6], *runs[7:]]


def test_the_committed_results_spare_what_they_have() -> None:
    shared = RunConfig(epochs=60, precision="bf16", compile=True)
    runs = [run.having(device="cuda") for run in queue.plan("cifar10", ["paper"], shared)]
    left = {match(run) for run in queue.Queue(runs, Path("none"), [Path(__file__).parents[2] / "results"]).left()}
    done = {cell.name for cell in {match(run) for run in runs} - left if cell}
    assert done >= {
        "cifar10-resnet34-sr2-l1-1e-4",
        "cifar10-resnet34-sr2-l0-1e-3",
        "cifar10-densenet121-sr2-l1-1e-4",
        "cifar10-resnet34-proxgen-l1-1e-4",
        "cifar10-resnet34-proxsgd-l1-1e-4",
    }


# ---- its work


def test_the_time_ends_and_the_same_command_goes_on(small: None, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["paper", "queue", "--rows", "paper", "--epochs", "1", "--device", "cpu"]
    assert main([*command, "--minutes", "1e-6"]) == 0  # shorter than any run
    said = capsys.readouterr().out
    assert "run the same command to go on" in said
    assert main([*command, "--show"]) == 0
    left = len(capsys.readouterr().out.splitlines()) - 1
    assert 0 < left <= 5
    assert main(command) == 0
    assert capsys.readouterr().out.endswith("5 of 5 runs are finished\n")
    assert len(find_runs([Path("runs")])) == 5
    assert main(command) == 0
    assert capsys.readouterr().out == "5 of 5 runs are finished\n"


def test_a_queue_of_another_machines_device_is_shown(
    small: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    command = ["paper", "queue", "--rows", "paper", "--epochs", "1", "--device", "cuda"]
    assert main([*command, "--show"]) == 0
    shown = [line.split()[0] for line in capsys.readouterr().out.splitlines()[:-1]]
    on_cpu = queue.plan("cifar10", ["paper"], RunConfig(epochs=1))
    assert shown == [run.having(device="cuda").key for run in on_cpu]
    assert main(command) == 2
    assert capsys.readouterr().err == (
        "error: there is no device 'cuda' here, torch sees no CUDA device: use --device cpu\n"
    )
    assert main([*command[:-1], "cud", "--show"]) == 2


def test_one_process_trains_many_settings_to_the_same_bits_as_many_processes(small: None) -> None:
    runs = queue.plan("cifar10", ["paper"], RunConfig(epochs=2))[:5]
    queue.Queue(runs, Path("one")).work(StopSignals(), Watch())
    for run in runs:
        train(run, Path("many"), Watch(), StopSignals())
        same_run(Path("one", run.key), Path("many", run.key))


def test_a_problem_is_made_once_and_starts_again(small: None) -> None:
    first, second, other = (
        checked(RunConfig.of(data="cifar10", model="resnet34", batch=25, lam=lam, seed=seed))
        for lam, seed in ((1e-3, 0), (1e-4, 0), (1e-3, 1))
    )
    problems = Problems()
    one = problems.of(first)
    before = {name: tensor.clone() for name, tensor in one.model.state_dict().items()}
    with torch.no_grad():
        for p in one.model.parameters():
            p.zero_()
    again = problems.of(second)
    assert again is one
    assert all(torch.equal(before[name], tensor) for name, tensor in again.model.state_dict().items())
    assert problems.of(other) is not one


def test_a_run_that_diverges_is_written_down_and_not_tried_again(
    small: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = queue.plan("cifar10", ["paper"], RunConfig(epochs=2))[:2]

    def diverge(*arguments: object, **options: object) -> Path:
        if arguments[0] == runs[0]:
            (Path("runs") / runs[0].key).mkdir(parents=True)
            RunStore(Path("runs") / runs[0].key, runs[0]).start()
            raise DivergedError("its mean loss is nan")
        return train(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(queue, "train", diverge)
    line = queue.Queue(runs, Path("runs"))
    line.work(StopSignals(), Watch())
    assert line.left() == []
    assert queue.diverged(read_run(Path("runs") / runs[0].key)) == "its mean loss is nan"
    assert "its mean loss is nan" in capsys.readouterr().out


def test_who_finds_a_run_locked_goes_on_to_the_next(small: None) -> None:
    runs = queue.plan("cifar10", ["paper"], RunConfig(epochs=1))[:2]
    line = queue.Queue(runs, Path("runs"))
    with RunStore(Path("runs") / runs[0].key, runs[0]).locked():
        line.work(StopSignals(), Watch())
        assert line.left() == [runs[0]]
    line.work(StopSignals(), Watch())
    assert line.left() == []


REHEARSAL = """
import sys, pytest
from sr2.cli import main
from sr2.experiments.paper import queue
from tests.experiments.test_queue import make_small
with pytest.MonkeyPatch.context() as patch:
    make_small(patch)
    queue.PROGRAM = (sys.executable, __file__)
    sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.torture
def test_a_queue_that_is_killed_goes_on_to_the_same_bits(small: None) -> None:
    Path("rehearsal.py").write_text(REHEARSAL)
    words = ["paper", "queue", "--rows", "paper", "--epochs", "12", "--device", "cpu", "--jobs", "2"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}

    def start() -> subprocess.Popen[str]:
        command = [sys.executable, "rehearsal.py", *words]
        return subprocess.Popen(command, env=environment, start_new_session=True, stdout=subprocess.PIPE, text=True)

    killed = start()
    wait_for(lambda: len(list(Path("runs").glob("*/checkpoint.pt"))) >= 2)  # two processes, a run each
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    assert any(not path.with_name("result.json").exists() for path in Path("runs").glob("*/checkpoint.pt"))
    before = set(Path("runs").glob("*/result.json"))
    told = start()
    wait_for(lambda: set(Path("runs").glob("*/result.json")) > before)
    told.terminate()
    assert "run the same command to go on" in told.communicate()[0]
    assert told.returncode == 130
    done = start()
    assert done.communicate()[0].endswith("5 of 5 runs are finished\n")
    assert done.returncode == 0
    for run in queue.plan("cifar10", ["paper"], RunConfig(epochs=12))[:2]:  # which were killed
        train(run, Path("whole"), Watch(), StopSignals())
        same_run(Path("runs", run.key), Path("whole", run.key))


def wait_for(what: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not what():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_runs_travel_and_go_on_elsewhere(small: None) -> None:
    pack = importlib.import_module("benchmarks.device.pack")
    runs = queue.plan("cifar10", ["paper"], RunConfig(epochs=3))[:3]
    queue.Queue(runs[:1], Path("runs")).work(StopSignals(), Watch())
    run = runs[1]
    store = RunStore(Path("runs", run.key), run)
    with store.locked():
        trainer = Trainer(run, store, StopSignals())
        store.start()
        next(trainer.run())  # and the machine is gone
    packed = pack.pack(Path("runs"), Path("out"))
    assert [path.name for path in packed] == ["runs.tar.gz", "checkpoints.00"]
    assert pack.unpack(Path("out"), Path("results"), finished=True) == [runs[0].key]
    assert {path.name for path in Path("results", runs[0].key).iterdir()} <= set(pack.TEXTS)
    assert queue.Queue(runs, Path("none"), [Path("results")]).left() == runs[1:]
    assert pack.unpack(Path("out"), Path("elsewhere")) == sorted(run.key for run in runs[:2])
    again = queue.Queue(runs[:2], Path("elsewhere"))
    assert again.left() == [run]
    again.work(StopSignals(), Watch())
    train(run, Path("whole"), Watch(), StopSignals())
    same_run(Path("elsewhere", run.key), Path("whole", run.key))


def test_a_run_whose_checkpoint_had_no_room_begins_anew(small: None) -> None:
    pack = importlib.import_module("benchmarks.device.pack")
    (run,) = queue.plan("cifar10", ["paper"], RunConfig(epochs=2))[:1]
    store = RunStore(Path("runs", run.key), run)
    with store.locked():
        trainer = Trainer(run, store, StopSignals())
        store.start()
        next(trainer.run())  # and the machine is gone
    assert [path.name for path in pack.pack(Path("runs"), Path("out"), room=0)] == ["runs.tar.gz"]
    assert pack.unpack(Path("out"), Path("elsewhere")) == []
    again = queue.Queue([run], Path("elsewhere"))
    again.work(StopSignals(), Watch())
    assert again.left() == []


@pytest.mark.torture
def test_cifar100_end_to_end(small: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Files of the official shapes through the official reader, and every cell of the paper's CIFAR-100 tables."""
    folder = tmp_path / "data" / "cifar-100-binary"
    folder.mkdir()
    for name, (images, coarse, fine) in zip(("train", "test"), small_cifar100(monkeypatch), strict=True):
        rows = (bytes([c, f]) + x.tobytes() for x, c, f in zip(images, coarse, fine, strict=True))
        (folder / f"{name}.bin").write_bytes(b"".join(rows))
    command = ["paper", "queue", "--data", "cifar100", "--epochs", "1", "--rows", "paper", "--device", "cpu"]
    assert main(command) == 0
    records = find_runs([Path("runs")])
    assert {match(record.config) for record in records} == {c for c in cells().values() if c.data == "cifar100"}
    assert all(record.result and record.prune for record in records)
    assert main(["paper", "report"]) == 0
