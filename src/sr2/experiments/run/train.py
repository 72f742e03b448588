"""A run from its configuration to its folder: one that is finished is skipped, one that was interrupted goes on."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import Any, Protocol

from ..tasks import Score
from .build import checked
from .config import RunConfig
from .events import events
from .problem import Problem, Problems
from .runner import Metrics
from .stop import StopSignals
from .store import RunStore
from .trainer import Trainer


class Watcher(Protocol):
    """What shows a run to its user; `progress.Watch` does."""

    def run(self, trainer: Trainer) -> contextlib.AbstractContextManager[None]:
        """Around the training of one run."""

    def step(self, examples: int) -> None:
        """A step was taken on that many examples."""

    def epoch(self, row: Metrics) -> None:
        """An epoch was measured."""

    def finished(self, path: Path) -> None:
        """A run ended just now."""

    def skipped(self, path: Path, result: dict[str, Any], score: Score) -> None:
        """A run was finished before."""

    def say(self, sentence: str) -> None:
        """A line above whatever is going on."""


def train(
    config: RunConfig,
    root: Path,
    watch: Watcher,
    stop: StopSignals,
    tensorboard: bool = False,
    problems: Problems | None = None,
) -> Path:
    """Train a run to its end, or find it finished; returns its folder.

    Args:
        config: any; what cannot be run is a UserError before anything starts.
        root: the folder of runs.
        watch: shows the run.
        stop: asked after every step.
        tensorboard: whether to write TensorBoard's event files into the run's folder.
        problems: of the runs before, to be used again.
    """
    config = checked(config)
    store = RunStore(Path(root) / config.key, config)
    if _finished(store, watch):  # before it is locked: nobody writes to it, and perhaps nobody can
        return store.path
    with store.locked():
        if _finished(store, watch):  # another process was quicker
            return store.path
        with events(store.path if tensorboard else None) as log:
            trainer = Trainer(config, store, stop, (problems or Problems()).of(config))
            store.start(trainer.problem.model, trainer.problem.task.score)
            with watch.run(trainer):
                for row in trainer.run(watch.step):
                    watch.epoch(row)
                    log(row)
        if trainer.stopped_early:
            watch.say(trainer.stopped_early)
    watch.finished(store.path)
    if trainer.certified:
        watch.say(trainer.certified)
    return store.path


def _finished(store: RunStore, watch: Watcher) -> bool:
    if (result := store.result) is None:
        return False
    if store.knows_network:
        store.check_network(
            Problem(dataclasses.replace(store.config, device="cpu", compile=False, precision="fp32")).model
        )
    watch.skipped(store.path, result, store.score)
    return True
