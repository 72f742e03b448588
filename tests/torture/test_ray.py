"""`sr2 compare --on ray` on a real cluster of two nodes: a worker that is lost, a user who stops."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.experiments.tools.runs import same_run

pytest.importorskip("ray")
pytestmark = [pytest.mark.torture, pytest.mark.filterwarnings("ignore")]

FLAGS = ["compare", "--model", "mlp", "--epochs", "60", "--optimizers", "sr2", "--regularizers", "l1"]
GRID = [*FLAGS, "--lams", "1e-3", "2e-3", "4e-3"]


def start(folder: Path, *flags: str) -> subprocess.Popen[str]:
    pipe, environ = subprocess.PIPE, {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "sr2", *flags]
    return subprocess.Popen(command, cwd=folder, env=environ, stdout=pipe, stderr=pipe, text=True)


@pytest.fixture
def address() -> Iterator[str]:
    """Two nodes of one core each, on this machine."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        cluster.add_node(num_cpus=1)
        yield cluster.address
    finally:
        cluster.shutdown()


def working(runs: Path) -> list[int]:
    """The processes that hold the lock of a run, once it has a checkpoint."""
    held = {p.parent / ".lock" for p in runs.glob("*/checkpoint.pt")}
    inodes = {path.stat().st_ino for path in held if path.exists()}
    lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return [int(words[4]) for words in lines if int(words[5].split(":")[-1]) in inodes]


def wait_for(condition: Callable[[], list[int]], seconds: float = 240) -> list[int]:
    until = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < until
        time.sleep(0.1)
    return found


def test_a_worker_is_lost_and_a_user_stops(tmp_path: Path, address: str, figure: Callable[[str], None]) -> None:
    plain = start(tmp_path, *GRID, "--runs", "here")
    grid = [*GRID, "--runs", "ray", "--on", "ray", "--address", address]
    runs = tmp_path / "ray"

    first = start(tmp_path, *grid)
    os.kill(wait_for(lambda: working(runs))[0], signal.SIGKILL)  # Ray starts the run again
    time.sleep(1)
    wait_for(lambda: working(runs))
    first.send_signal(signal.SIGINT)
    _, error = first.communicate(timeout=240)
    assert first.returncode == 130, error
    assert "the others saved: run the same command to go on" in error
    assert "Traceback" not in error

    again = start(tmp_path, *grid)
    out, error = again.communicate(timeout=600)
    assert again.returncode == 0, error
    assert "the report is" in out
    done = start(tmp_path, *grid)
    out, error = done.communicate(timeout=600)
    assert out.count("is finished already") == 3, out + error

    assert plain.wait(timeout=600) == 0
    plain.communicate()
    keys = sorted(p.name for p in (tmp_path / "here").iterdir() if p.name != "report")
    assert keys == sorted(p.name for p in runs.iterdir() if p.name != "report")
    for key in keys:
        same_run(tmp_path / "here" / key, runs / key)
    figure("ray: 3 runs on 2 nodes, a worker killed, the grid stopped and begun again: the bits of runs without Ray")


def test_what_the_cluster_lacks_is_said(tmp_path: Path) -> None:
    short = start(tmp_path, *GRID, "--on", "ray", "--cpus", "4096")
    _, error = short.communicate(timeout=240)
    assert (short.returncode, error.count("\n")) == (2, 1)
    assert "a run wants 4096 CPUs, and the cluster has" in error
