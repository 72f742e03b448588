"""Runs behind an address that fsspec knows: the same run as in a folder, resumed, skipped, reported."""

from __future__ import annotations

from pathlib import Path

import fsspec
import pytest

from sr2.cli import main
from sr2.experiments.run.build import checked
from sr2.experiments.run.config import RunConfig
from sr2.experiments.run.one import train
from sr2.experiments.run.progress import Watch
from sr2.experiments.run.shared import opened
from sr2.experiments.run.stop import StoppedError, StopSignals
from tests.experiments.tools.runs import same_run

CONFIG = checked(RunConfig.of(model="mlp", epochs=3, batch=400))
FLAGS = ["train", "--model", "mlp", "--epochs", "3", "--batch", "400"]


class StopsAfter(Watch):
    def __init__(self, stop: StopSignals, steps: int) -> None:
        super().__init__()
        self.stop, self.left = stop, steps

    def step(self, examples: int) -> None:
        self.left -= 1
        self.stop.told = self.left == 0


def copy(address: str, folder: Path) -> Path:
    with opened(address) as shared:
        assert shared is not None
        shared.here = folder
        return shared.fetch()


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_a_run_behind_an_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    address = f"memory://{tmp_path.name}/runs" if kind == "memory" else f"file://{tmp_path}/away/runs"
    train(CONFIG, "plain", Watch(), StopSignals())
    stop = StopSignals()
    with pytest.raises(StoppedError):  # within the second epoch
        train(CONFIG, address, StopsAfter(stop, 5), stop)
    system, root = fsspec.url_to_fs(address)
    assert not system.exists(f"{root}/{CONFIG.key}/result.json")
    assert system.exists(f"{root}/{CONFIG.key}/checkpoint.pt")
    capsys.readouterr()
    assert main([*FLAGS, "--runs", address]) == 0
    assert f"in {address}/{CONFIG.key}" in capsys.readouterr().out.replace("\n", "")
    same_run(Path("plain", CONFIG.key), copy(address, tmp_path / "copy") / CONFIG.key)
    assert main([*FLAGS, "--runs", address]) == 0
    assert "is finished already" in capsys.readouterr().out
    assert main(["report", address]) == 0
    assert f"the report is {address}/report/index.html" in capsys.readouterr().out
    assert b"<html" in system.cat_file(f"{root}/report/index.html")
    assert not Path("memory:").exists()


def test_an_address_that_nobody_knows(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*FLAGS, "--runs", "nowhere://x"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: nowhere://x cannot be opened: ")
    assert said.count("\n") == 1


def test_an_address_without_runs_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """It, and not the copy of it on this machine."""
    assert main(["report", "memory://nothing-there"]) == 2
    assert capsys.readouterr().err.startswith("error: memory://nothing-there has no run in it: name a run folder")


def test_a_file_is_sent_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "away" / "a.json"
    with opened(f"file://{tmp_path}/away") as shared:
        assert shared is not None
        path = shared.here / "a.json"
        path.write_text("first")
        shared.send(path)
        assert target.read_text() == "first"

        def fails(self: Path) -> bytes:
            raise MemoryError("in the middle")

        monkeypatch.setattr(Path, "read_bytes", fails)
        with pytest.raises(Exception, match="in the middle"):
            shared.send(path)
    assert target.read_text() == "first"
    assert [p.name for p in target.parent.iterdir()] == ["a.json"]
