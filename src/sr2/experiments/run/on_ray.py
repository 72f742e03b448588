"""The runs of a grid on a Ray cluster: as many at once as it has room for, each in a process of its own.

The folders are those of `sr2 compare` without Ray, so what is finished is skipped, and what a lost worker has begun
goes on from its checkpoint. All nodes must see the folder of runs, under the same path or address.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..data.fetch import ensure
from ..errors import UserError
from .config import RunConfig
from .one import train
from .progress import Watch
from .shared import Folder, is_address
from .stop import StoppedError, StopSignals

PATIENCE = 60.0
"""Seconds that runs have to save themselves when the user stops the grid."""


@dataclass(frozen=True)
class Place:
    """Where the runs of a grid are trained."""

    on: Literal["here", "ray"] = "here"
    """here: one after another. ray: side by side on a Ray cluster; `pip install 'sr2[ray]'`."""
    address: str | None = None
    """With ray: of a cluster, as auto or 10.0.0.1:6379; without it, one is started on this machine and ends again."""
    cpus: float = 1.0
    """With ray: cores per run."""
    gpus: float | None = None
    """With ray: devices per run, 0.5 puts two runs on one; 1 with --device cuda unless given."""
    retries: int = 3
    """With ray: how often a run is started again whose worker or node was lost. It goes on from its checkpoint."""

    def resources(self, run: RunConfig) -> dict[str, float]:
        """What a run takes of the cluster."""
        gpus = float(run.device.startswith("cuda")) if self.gpus is None else self.gpus
        return {"CPU": self.cpus, "GPU": gpus}


def train_on_ray(
    runs: Sequence[RunConfig], root: Folder, place: Place, watch: Watch, stop: StopSignals, tensorboard: bool
) -> list[tuple[RunConfig, str]]:
    """Train the runs; returns a sentence for each that did not finish.

    Args:
        runs: checked.
        root: the folder of runs, as all nodes see it.
        place: the cluster, and what each run needs of it.
        watch: shows which run has ended.
        stop: asked while the cluster works.
        tensorboard: whether to write TensorBoard's event files.
    """
    failed: list[tuple[RunConfig, str]] = []
    wanted = place.resources(runs[0])
    with _cluster(place, wanted) as ray:
        one = ray.remote(_one).options(num_cpus=wanted["CPU"], num_gpus=wanted["GPU"], max_retries=place.retries)
        where = str(root) if is_address(root) else str(Path(root).resolve())
        waiting = {one.remote(run.to_dict(), where, os.getcwd(), tensorboard): run for run in runs}
        while waiting:
            if stop.asked:
                _stop(ray, list(waiting))
                raise StoppedError(
                    f"stopped after {len(runs) - len(waiting)} of {len(runs)} runs, the others saved: run the same "
                    "command to go on"
                )
            for ready in ray.wait(list(waiting), timeout=0.5)[0]:
                run = waiting.pop(ready)
                said, sentence = _answer(ray, ready)
                if not said:
                    failed.append((run, sentence))
                watch.say(f"[{len(runs) - len(waiting)}/{len(runs)}] {sentence}")
    return failed


def _one(settings: dict[str, Any], root: str, folder: str, tensorboard: bool) -> tuple[bool, str]:
    """In a worker: one run from its checkpoint, or from its start; whether it finished, and a sentence."""
    if Path(folder).is_dir():
        os.chdir(folder)  # where a user's own module:callable is found
    run = RunConfig.from_dict(settings)
    watch = _Last()
    try:
        ensure(run.data)
        with StopSignals() as stop:  # ray.cancel is a SIGINT
            train(run, root, watch, stop, tensorboard)
    except (UserError, StoppedError) as error:
        return False, f"{run.key}: {error}"
    return True, watch.sentence


class _Last(Watch):
    """Keeps the last sentence; a worker has no terminal."""

    sentence = ""

    def say(self, sentence: str) -> None:
        self.sentence = sentence


def _answer(ray: Any, ready: Any) -> tuple[bool, str]:
    """What a worker has returned; one that was lost too often returns nothing."""
    try:
        answer: tuple[bool, str] = ray.get(ready)
        return answer
    except ray.exceptions.RayError as error:
        first = str(error).strip().splitlines()[0]
        return False, f"a worker of Ray failed ({type(error).__name__}: {first}): run the same command to go on"


def _stop(ray: Any, waiting: list[Any]) -> None:
    """Ask all runs to save themselves; those that do not in time are ended."""
    for task in waiting:
        ray.cancel(task)
    until = time.monotonic() + PATIENCE
    while waiting and time.monotonic() < until:
        waiting = ray.wait(waiting, timeout=0.5)[1]
    for task in waiting:
        ray.cancel(task, force=True)


@contextmanager
def _cluster(place: Place, wanted: dict[str, float]) -> Iterator[Any]:
    """Ray, connected to the cluster."""
    try:
        import ray
    except ImportError as error:
        raise UserError("--on ray needs Ray: pip install 'sr2[ray]'") from error
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        if place.address is None:
            ray.init(include_dashboard=False, **quiet)
        else:
            ray.init(address=place.address, **quiet)
    except (ConnectionError, RuntimeError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise UserError(f"there is no Ray cluster at {place.address or 'this machine'}: {first}") from error
    try:
        _check_room(ray.cluster_resources(), wanted)
        yield ray
    finally:
        ray.shutdown()


def _check_room(there: dict[str, float], wanted: dict[str, float]) -> None:
    """Ray would wait for ever for what the cluster does not have."""
    for name, count in wanted.items():
        if count > there.get(name, 0.0):
            raise UserError(f"a run wants {count:g} {name}s, and the cluster has {there.get(name, 0.0):g} in all")
