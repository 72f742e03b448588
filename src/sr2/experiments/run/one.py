"""One run, from its settings to its folder: found finished, gone on with, or begun; in one process or in several."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from ..tasks import Score
from .build import checked
from .config import RunConfig
from .events import events
from .problem import Problem, Problems
from .processes import Processes, joined
from .runner import Metrics
from .shared import Folder, opened
from .stop import StopSignals
from .store import RunStore
from .train import Trainer


class Watcher(Protocol):
    """What shows a run to its user; `progress.Watch` does."""

    def run(self, trainer: Trainer) -> contextlib.AbstractContextManager[None]:
        """Around the training of one run."""

    def step(self, examples: int) -> None:
        """A step was taken on that many examples."""

    def epoch(self, row: Metrics) -> None:
        """An epoch was measured."""

    def finished(self, path: Folder) -> None:
        """A run ended just now."""

    def skipped(self, path: Folder, result: dict[str, Any], score: Score) -> None:
        """A run was finished before."""

    def say(self, sentence: str) -> None:
        """A line above whatever is going on."""


def train(
    config: RunConfig,
    root: Folder,
    watch: Watcher,
    stop: StopSignals,
    tensorboard: bool = False,
    problems: Problems | None = None,
) -> Folder:
    """Train a run to its end, or find it finished; returns its folder.

    Args:
        config: any; what cannot be run is a UserError before anything starts.
        root: the folder of runs, a path or an address with ://.
        watch: shows the run.
        stop: asked after every step.
        tensorboard: whether to write TensorBoard's event files into the run's folder.
        problems: of the runs before, to be used again.
    """
    config = checked(config)
    with joined(config) as together, opened(root) as shared:
        path = Path(root) / config.key if shared is None else shared.here / config.key
        if shared is not None and together.first:
            shared.fetch(config.key)
        store = RunStore(path, config, together, shared)
        make = partial(Problem, together=together) if together.size > 1 else (problems or Problems()).of
        return _train(store, watch, stop, tensorboard, together, make)


def _train(
    store: RunStore,
    watch: Watcher,
    stop: StopSignals,
    tensorboard: bool,
    together: Processes,
    make: Callable[[RunConfig], Problem],
) -> Folder:
    if _finished(store, watch, together):  # before it is locked: nobody writes to it, and perhaps nobody can
        return store.shown
    with store.locked():
        if _finished(store, watch, together):  # another process was quicker
            return store.shown
        with events(store.path if tensorboard and together.first else None) as log:
            trainer = Trainer(store.config, store, stop, make(store.config))
            store.start(trainer.problem.model, trainer.problem.task.score)
            with watch.run(trainer):
                for row in trainer.run(watch.step):
                    watch.epoch(row)
                    log(row)
        if trainer.stopped_early:
            watch.say(trainer.stopped_early)
    watch.finished(store.shown)
    if trainer.certified:
        watch.say(trainer.certified)
    return store.shown


def _finished(store: RunStore, watch: Watcher, together: Processes) -> bool:
    result = store.result if together.first else None
    if not together.any(result is not None):
        return False
    if result is None:
        return True
    if store.knows_network:
        store.check_network(
            Problem(dataclasses.replace(store.config, device="cpu", compile=False, precision="fp32")).model
        )
    watch.skipped(store.shown, result, store.score)
    return True
