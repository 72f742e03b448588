"""`sr2 train --batch-growth`: batches that fail the paper's assumption 3 make the next ones larger."""

from __future__ import annotations

import contextlib
import itertools
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from sr2 import SR2
from sr2.cli import main
from sr2.experiments.data import Batches, load
from sr2.experiments.models import build
from sr2.experiments.run.build import checked, make_optimizer
from sr2.experiments.run.config import RunConfig
from sr2.experiments.run.stop import StoppedError, StopSignals
from sr2.experiments.run.store import RunRecord, RunStore, find_runs, read_weights
from sr2.experiments.run.train import Trainer
from tests.experiments.tools.runs import NET, same_run


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def train(*flags: str) -> int:
    return main(["train", "--model", "mlp", "--epochs", "4", "--batch", "50", *flags])


def only_run() -> RunRecord:
    (record,) = find_runs([Path("runs")])
    return record


def test_the_batch_grows_and_never_beyond_the_largest(capsys: pytest.CaptureFixture[str]) -> None:
    assert train("--batch-growth", "3", "--largest-batch", "300") == 0
    said = capsys.readouterr().out
    rows = only_run().metrics
    sizes = [row["batch"] for row in rows]
    assert sizes == sorted(sizes)
    assert 50 < sizes[0] <= sizes[-1] == 300
    for row in rows:
        assert f"epoch {row['epoch']}/4" in said
        assert f"  batch {row['batch']}  " in said
    steps = [now["steps"] - before for now, before in zip(rows, [0, *(row["steps"] for row in rows)], strict=False)]
    assert [row["accepted"] + row["rejected"] + row["null"] for row in rows] == steps
    assert steps[0] < 28  # 28 batches of 50
    assert steps[-1] == 4  # of 300 in 1400 images
    assert sum(row["null"] for row in rows) >= math.log2(300 / 50)  # one for each time that it grew


def test_a_batch_that_passes_stays(capsys: pytest.CaptureFixture[str]) -> None:
    assert train("--batch-growth", "1e9", "--epochs", "2") == 0
    assert capsys.readouterr().out.count("  batch 50  ") == 2
    rows = only_run().metrics
    assert [(row["batch"], row["steps"]) for row in rows] == [(50, 28), (50, 56)]


def test_without_growth_the_batch_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert train("--epochs", "1") == 0
    assert "batch" not in capsys.readouterr().out
    assert only_run().metrics[0]["batch"] == 50


def test_no_batch_is_larger_than_the_data() -> None:
    assert train("--batch-growth", "1e-6", "--batch", "128") == 0  # the largest batch is 4096, and 1437 images are here
    rows = only_run().metrics
    assert max(row["batch"] for row in rows) == rows[-1]["batch"] == 1408  # eleven batches of 128
    assert rows[-1]["steps"] - rows[-2]["steps"] == 1
    assert all(math.isfinite(row["loss"]) for row in rows)


@pytest.mark.parametrize("batch", [50, 75])  # 75: halves of 37 and 38
def test_the_numbers_are_those_of_a_plain_loop(batch: int) -> None:
    assert train("--batch", str(batch), "--batch-growth", "3", "--largest-batch", "400", "--epochs", "3") == 0
    record = only_run()
    torch.manual_seed(0)
    model = build("mlp", 10, (1, 8, 8))
    optimizer = make_optimizer(record.config, model)
    assert isinstance(optimizer, SR2)
    batches = Batches(load("digits"), batch, "cpu", seed=0)
    steps = 0
    for epoch, row in enumerate(record.metrics):
        plan, first, correct, total = batches.plan(epoch), 0, 0, 0.0
        while first + (size := optimizer.batch_size or 0) <= batches.seen:
            x, y = batches.make(plan[first : first + size])
            half = size // 2

            def closure(x: torch.Tensor = x, y: torch.Tensor = y, half: int = half) -> list[torch.Tensor]:
                return [F.cross_entropy(model(x[part]), y[part]) for part in (slice(half), slice(half, None))]

            with torch.no_grad():
                correct += int((model(x).argmax(1) == y).sum())
                halves = [float(loss) for loss in closure()]
            loss = float(optimizer.step(closure))
            assert loss == pytest.approx(sum(halves) / 2, rel=1e-6)
            total, first, steps = total + size * loss, first + size, steps + 1
        assert row["loss"] == pytest.approx(total / first, rel=1e-12)
        assert row["train_accuracy"] == pytest.approx(100 * correct / first, rel=1e-12)
        assert (row["batch"], row["steps"], row["sigma"]) == (optimizer.batch_size, steps, optimizer.sigma)
    assert record.metrics[-1]["batch"] > batch
    stored = read_weights(record.path)
    assert all(torch.equal(stored[name], tensor) for name, tensor in model.state_dict().items())


def test_stopped_at_any_step(tmp_path: Path) -> None:
    (tmp_path / "dropnet.py").write_text(NET)
    config = checked(RunConfig.of(model="dropnet:net", epochs=3, batch=50, batch_growth=3.0, largest_batch=400))

    def run(root: str, stops: set[int]) -> tuple[Path, list[int]]:
        store, images = RunStore(tmp_path / root, config), []
        with store.locked():
            while store.result is None:
                stop = StopSignals()

                def on_step(seen: int, stop: StopSignals = stop) -> None:
                    images.append(seen)
                    stop.told = len(images) in stops

                trainer = Trainer(config, store, stop)
                store.start()
                with contextlib.suppress(StoppedError):
                    list(trainer.run(on_step))
        assert trainer.steps == len(images)
        return store.path, images

    undisturbed, sizes = run("undisturbed", set())
    grown = [number for number, (a, b) in enumerate(itertools.pairwise(sizes), 1) if a != b]
    assert grown  # stopped right before and right after the batch grew, too
    stops = {1, 4, len(sizes) - 1, len(sizes), *grown, *(number + 1 for number in grown)}
    stopped, again = run("stopped", stops)
    assert again == sizes
    assert max(sizes) <= 400
    same_run(undisturbed, stopped)


def test_with_a_stop_of_its_own() -> None:
    flags = ["--batch-growth", "20", "--largest-batch", "400", "--epochs", "6", "--epsilon", "1"]
    assert train(*flags, "--certificate") == 0
    record = only_run()
    assert record.result is not None
    assert record.result["stopped"] == "converged"
    assert (record.path / "certificate.json").is_file()


MISTAKES: dict[str, tuple[list[str], str]] = {
    "momentum": (["--batch-growth", "3", "--momentum", "0.9"], "batch_growth .* no momentum"),
    "kappa of zero": (["--batch-growth", "0"], "kappa must be a number above 0.*is 0.0"),
    "a negative kappa": (["--batch-growth", "-1"], "kappa must be a number above 0.*is -1.0"),
    "kappa that is no number": (["--batch-growth", "nan"], "kappa must be a number above 0"),
    "proxgen": (["--batch-growth", "3", "--optimizer", "proxgen"], "proxgen has no option batch_growth"),
    "proxsgd": (["--batch-growth", "3", "--optimizer", "proxsgd"], "proxsgd has no option batch_growth"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_a_sentence(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags, words = MISTAKES[case]
    assert train(*flags) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert re.search(words, error), error
    assert not Path("runs").exists()


def test_the_report_can_make_the_run_again() -> None:
    from sr2.experiments.report.page import command

    settings: dict[str, Any] = {"batch_growth": 3.0, "largest_batch": 300}
    assert command(RunConfig.of(**settings)) == "sr2 train --opt batch_growth=3.0 --largest-batch 300"
