"""`sr2 compare --on ray` without Ray: a cluster of one thread that runs every task at once."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sr2.cli import main
from sr2.experiments.run.store import find_runs

FLAGS = ["compare", "--on", "ray", "--model", "mlp", "--epochs", "1", "--batch", "400", "--optimizers", "sr2"]


class Remote:
    def __init__(self, function: Any, asked: dict[str, Any]) -> None:
        self.function, self.asked = function, asked

    def options(self, **asked: Any) -> Remote:
        self.asked.update(asked)
        return self

    def remote(self, *args: Any) -> Any:
        return lambda: self.function(*args)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def lost(task: Any) -> Any:
        if found.get("lost"):
            raise RuntimeError("The node died.\nand more")
        return task()

    ray = SimpleNamespace(
        init=found.update,
        shutdown=lambda: None,
        cluster_resources=lambda: {"CPU": 2.0},
        remote=lambda function: Remote(function, found),
        wait=lambda waiting, timeout: (waiting[:1], waiting[1:]),
        get=lost,
        exceptions=SimpleNamespace(RayError=RuntimeError),
    )
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.chdir(tmp_path)
    return found


def test_a_grid(asked: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    grid = [*FLAGS, "--regularizers", "l1", "none", "--lams", "1e-3", "--cpus", "2", "--retries", "5"]
    assert main([*grid, "--address", "10.0.0.1:6379"]) == 0
    assert (asked["num_cpus"], asked["num_gpus"], asked["max_retries"]) == (2, 0, 5)
    assert asked["address"] == "10.0.0.1:6379"
    assert len(find_runs([Path("runs")])) == 2
    assert "[2/2] SR2 none" in capsys.readouterr().out
    assert main(grid) == 0
    assert capsys.readouterr().out.count("is finished already") == 2


def test_a_worker_that_is_lost_too_often(asked: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    asked["lost"] = True
    assert main([*FLAGS, "--regularizers", "none"]) == 2
    said = capsys.readouterr()
    assert "a worker of Ray failed (RuntimeError: The node died.): run the same command to go on" in said.out
    assert said.err == "error: 1 of 1 runs did not finish\n"


def test_what_the_cluster_lacks(asked: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*FLAGS, "--gpus", "1"]) == 2
    assert capsys.readouterr().err == "error: a run wants 1 GPUs, and the cluster has 0 in all\n"


def test_without_ray(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.chdir(tmp_path)
    assert main(FLAGS) == 2
    assert capsys.readouterr().err == "error: --on ray needs Ray: pip install 'sr2[ray]'\n"
