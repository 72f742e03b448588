"""`sr2 train --epsilon`: a run ends once it is as stationary as the user asked for, and says so."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from sr2.cli import main
from sr2.experiments.run.build import checked
from sr2.experiments.run.config import RunConfig
from sr2.experiments.run.store import RunRecord, RunStore, find_runs, read_run
from tests.experiments.tools.runs import finish, same_run

SENTENCE = r"stopped after epoch (\d+) of (\d+): the mean of \|s\|\^2 is (\S+) ± (\S+), below epsilon\^2 = (\S+)"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def train(*flags: str) -> int:
    return main(["train", "--model", "mlp", "--epochs", "8", "--batch", "200", *flags])


def only_run() -> RunRecord:
    (record,) = find_runs([Path("runs")])
    return record


def test_a_converged_run_ends_early_and_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert train("--epsilon", "0.5") == 0
    said = capsys.readouterr().out
    found = re.search(SENTENCE, said)
    assert found is not None, said
    epoch, epochs = int(found[1]), int(found[2])
    mean, twice_error, square = map(float, found.groups()[2:])
    assert 1 < epoch < epochs == 8
    assert square == 0.25
    assert 0 < mean < mean + twice_error <= square
    assert f"epoch {epoch}/8" in said
    assert f"epoch {epoch + 1}/8" not in said
    record = only_run()
    assert record.result is not None
    assert (record.result["stopped"], record.result["epochs"], len(record.metrics)) == ("converged", epoch, epoch)
    assert 7 * epoch >= 30  # no claim before thirty draws
    assert train("--epsilon", "0.5") == 0
    assert "is finished already" in capsys.readouterr().out


@pytest.mark.parametrize("flags", [["--epsilon", "1e-3"], []])
def test_a_run_that_does_not_converge_ends_with_its_epochs(
    flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert train("--epochs", "5", *flags) == 0
    assert "stopped" not in capsys.readouterr().out
    result = only_run().result
    assert result is not None
    assert (result["stopped"], result["epochs"]) == ("epochs", 5)


def test_epsilon_only_cuts_the_run_short() -> None:
    assert train("--epsilon", "0.5", "--runs", "with") == 0
    assert train("--eta2", "0.99", "--runs", "without") == 0  # Algorithm 1, which epsilon is about
    (short,), (long,) = find_runs([Path("with")]), find_runs([Path("without")])
    drop: dict[str, Any] = {"seconds": None}
    assert [row | drop for row in short.metrics] == [row | drop for row in long.metrics[: len(short.metrics)]]


def test_stopped_before_and_resumed_it_ends_at_the_same_epoch(tmp_path: Path) -> None:
    config = checked(RunConfig.of(model="mlp", epochs=8, batch=200, epsilon=0.5))
    stores = [RunStore(tmp_path / name, config) for name in ("undisturbed", "stopped")]
    whole = finish(config, stores[0])
    assert whole.epoch < 8
    steps = 7 * whole.epoch
    # within an epoch, after an epoch, and after the very step that made it converge
    resumed = finish(config, stores[1], {3, 14, steps - 2, steps})
    assert resumed.stopped_early == whole.stopped_early != ""
    same_run(stores[0].path, stores[1].path)
    results = [read_run(store.path).result or {} for store in stores]
    assert [result["stopped"] for result in results] == ["converged", "converged"]
    for result in results:
        del result["seconds"], result["files"]["env.json"], result["files"]["metrics.jsonl"]  # which have the time
    assert results[0] == results[1]


def test_killed_between_the_last_epoch_and_the_result(tmp_path: Path) -> None:
    config = checked(RunConfig.of(model="mlp", epochs=8, batch=200, epsilon=0.5))
    store = RunStore(tmp_path / "run", config)
    trainer = finish(config, store)
    (store.path / "result.json").unlink()
    again = finish(config, store)
    assert (again.epoch, again.steps) == (trainer.epoch, trainer.steps)
    assert json.loads((store.path / "result.json").read_text())["stopped"] == "converged"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--optimizer", "proxgen", "--epsilon", "0.1"], "proxgen has no option epsilon: its options are"),
        (["--optimizer", "proxsgd", "--epsilon", "0.1"], "proxsgd has no option epsilon: its options are"),
        (["--epsilon", "0"], "epsilon must be a number above 0"),
        (["--epsilon", "-1"], "epsilon must be a number above 0"),
        (["--epsilon", "nan"], "epsilon must be a number above 0"),
    ],
)
def test_a_mistake_is_a_sentence(flags: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(*flags) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert words in error
    assert not Path("runs").exists()


def test_the_report_says_what_stopped_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert train("--epsilon", "0.5") == 0
    assert main(["report", "runs"]) == 0
    page = Path("runs/report/index.html").read_text()
    assert "<dt>stopped by</dt><dd>converged</dd>" in page
    assert "unfinished" not in page
    assert "--opt epsilon=0.5" in page
