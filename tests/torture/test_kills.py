"""SIGKILL in the middle of `sr2 train`: whatever is on the disk, the same command ends in the same bits."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sr2.experiments.run.config import RunConfig
from sr2.experiments.run.one import train
from sr2.experiments.run.progress import Watch
from sr2.experiments.run.stop import StopSignals
from tests.experiments.tools.runs import same_run

pytestmark = pytest.mark.torture

NET = """
from torch import nn
def net():  # small, since hundreds of runs are made; dropout's random numbers must be resumed too
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.2), nn.Linear(64, 10))
"""
CONFIG = RunConfig.of(model="dropnet:net", epochs=2, batch=700, sigma=0.05, momentum=0.9, regularizer="l0")
RANDOM_KILLS = int(os.environ.get("SR2_TORTURE_KILLS", "100"))


@pytest.fixture
def undisturbed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "dropnet.py").write_text(NET)
    monkeypatch.chdir(tmp_path)
    assert training(Path("undisturbed"))() == 0
    return Path("undisturbed")


def training(runs: Path, before: Callable[[], Any] = lambda: None) -> Callable[[], int]:
    """Train in a process of its own; the function waits for its exit code, -9 where it was killed."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            before()
            train(CONFIG, runs, Watch(), StopSignals())
            code = 0
        finally:
            os._exit(code)

    def wait() -> int:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    wait.pid = pid  # type: ignore[attr-defined]
    return wait


def compare(undisturbed: Path, disturbed: Path) -> None:
    (one,), (other,) = list(undisturbed.iterdir()), list(disturbed.iterdir())
    same_run(one, other)
    assert not list(other.glob(".*.*"))


def die_at(count: int) -> Callable[[], None]:
    """The process kills itself at the count-th of its file operations."""

    def arm() -> None:
        left = [count]
        for name in ("fsync", "replace", "open", "unlink"):
            setattr(os, name, dying(getattr(os, name), left))

    return arm


def dying(operation: Callable[..., Any], left: list[int]) -> Callable[..., Any]:
    def operate(*args: Any, **named: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return operation(*args, **named)

    return operate


def test_killed_at_every_file_operation(undisturbed: Path, figure: Callable[[str], None]) -> None:
    """Before each fsync, rename and removal of a run, in turn."""
    for count in range(1, 1000):
        disturbed = Path(f"at{count}")
        killed = training(disturbed, die_at(count))()
        assert killed in (0, -9)
        if killed == 0:
            break
        assert training(disturbed)() == 0
        compare(undisturbed, disturbed)
    assert count > 20
    figure(f"kills: a run was killed before each of its {count - 1} file operations, and ended in the same bits")


def test_killed_at_random_moments(undisturbed: Path, chance: random.Random, figure: Callable[[str], None]) -> None:
    started = time.perf_counter()
    training(Path("timed"))()
    seconds = time.perf_counter() - started
    kills = runs = 0
    while kills < RANDOM_KILLS:
        disturbed = Path(f"random{runs}")
        runs += 1
        for _ in range(20):
            wait = training(disturbed)
            time.sleep(chance.uniform(0, 0.8 * seconds))
            os.kill(wait.pid, signal.SIGKILL)  # type: ignore[attr-defined]
            code = wait()
            assert code in (0, -9)
            kills += code == -9
            if code == 0:
                break
        assert training(disturbed)() == 0
        compare(undisturbed, disturbed)
    figure(f"kills: {kills} at random moments of {runs} runs, and all ended in the same bits")
