"""1, 2 and 4 processes are one run; a process that is lost ends all of them, and any number of them goes on."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.experiments.tools.processes import close_runs, start

pytestmark = pytest.mark.torture

FLAGS = ["--epochs", "4", "--batch", "64", "--sigma", "0.02", "--eta2", "0.9"]


def done(run: subprocess.Popen[str]) -> None:
    _, error = run.communicate(timeout=300)
    assert run.returncode == 0, error


@pytest.fixture
def one(tmp_path: Path) -> Path:
    done(start(tmp_path, "one", FLAGS))
    return tmp_path / "one"


def test_one_two_and_four(tmp_path: Path, one: Path, figure: Callable[[str], None]) -> None:
    for processes in (2, 4):
        done(start(tmp_path, str(processes), FLAGS, processes))
        counts = close_runs(one, tmp_path / str(processes))
        assert counts["rejected"] > 0
    steps = sum(counts.values())
    figure(f"processes: 1, 2 and 4 took the same {steps} decisions ({counts['rejected']} rejections), numbers to 1e-4")


def workers(agent: int) -> list[int]:
    """The processes that torchrun has started."""
    found = Path(f"/proc/{agent}/task/{agent}/children").read_text().split()
    return [int(pid) for pid in found if b"sr2" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def test_a_lost_process_ends_all_and_the_run_goes_on(
    tmp_path: Path, one: Path, chance: random.Random, figure: Callable[[str], None]
) -> None:
    lost = 0
    for rank, processes in ((0, 2), (1, 2), (2, 4)):
        run = start(tmp_path, "disturbed", FLAGS, processes)
        assert run.stdout is not None
        run.stdout.readline()  # from here on it trains
        time.sleep(chance.uniform(0, 1))
        pids = workers(run.pid)
        if len(pids) == processes:
            os.kill(pids[rank], signal.SIGKILL)
            lost += 1
        _, error = run.communicate(timeout=120)
        assert run.returncode != 0 or len(pids) < processes
        ours = [line for line in error.splitlines() if "sr2/experiments" in line]
        assert not ours, error  # a sentence, no traceback of ours
        for pid in pids:
            assert not Path(f"/proc/{pid}").exists()
    done(start(tmp_path, "disturbed", FLAGS, 2))
    close_runs(one, tmp_path / "disturbed")
    assert lost > 0
    figure(f"processes: {lost} of torchrun's were lost; all others ended, and the run went on to the same result")


def test_a_signal_to_torchrun_saves_and_stops_all(tmp_path: Path, one: Path, figure: Callable[[str], None]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        run = start(tmp_path, "disturbed", FLAGS, 2)
        assert run.stdout is not None
        run.stdout.readline()
        run.send_signal(number)
        _, error = run.communicate(timeout=120)
        assert "and saved: run the same command to go on" in error
        assert run.returncode != 0
    done(start(tmp_path, "disturbed", FLAGS, 4))
    close_runs(one, tmp_path / "disturbed")
    figure("processes: SIGINT and SIGTERM to torchrun saved; 4 processes went on with what 2 had begun")
