"""Runs that are stopped and taken up again, and what makes two of them the same."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from sr2.experiments.run.config import RunConfig
from sr2.experiments.run.files import read_json
from sr2.experiments.run.stop import StoppedError, StopSignals
from sr2.experiments.run.store import WEIGHTS, RunStore, read_run
from sr2.experiments.run.train import Trainer

NET = """
from torch import nn
def net():  # batch-norm and dropout: buffers and random numbers must be resumed too
    features = nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU()
    return nn.Sequential(*features, nn.Flatten(), nn.Dropout(0.2), nn.Linear(288, 10))
"""


def finish(config: RunConfig, store: RunStore, stops: Collection[int] = ()) -> Trainer:
    """Train to the end, stopped after each of these steps; the trainer of the last go."""
    steps = 0
    with store.locked():
        while store.result is None:
            stop = StopSignals()

            def on_step(images: int, stop: StopSignals = stop) -> None:
                nonlocal steps
                steps += 1
                stop.told = steps in stops

            trainer = Trainer(config, store, stop)
            store.start(score=trainer.problem.task.score)
            with contextlib.suppress(StoppedError):
                list(trainer.run(on_step))
    return trainer


def without_sums(folder: Path) -> None:
    """A finished run as the first version left it, whose files may be changed."""
    path = folder / "result.json"
    kept = {name: value for name, value in read_json(path).items() if name != "files"}
    path.write_text(json.dumps(kept))


def same_run(one: Path, other: Path) -> None:
    def rows(folder: Path) -> list[dict[str, Any]]:
        return [{**row, "seconds": None} for row in read_run(folder).metrics]

    assert rows(one) == rows(other)
    assert (one / WEIGHTS).read_bytes() == (other / WEIGHTS).read_bytes()
