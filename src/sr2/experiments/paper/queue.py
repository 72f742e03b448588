"""The paper's cells as a queue: what is finished anywhere is skipped, what was interrupted goes on.

Nothing is kept but the folders of the runs, so the queue survives the end of its machine. A run is locked while it is
trained (`RunStore.locked`), and who finds one locked goes on to the next: several processes share a queue and a GPU.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..run.build import checked
from ..run.config import RunConfig
from ..run.files import write_file
from ..run.one import train
from ..run.problem import Problems
from ..run.progress import Watch
from ..run.stop import DivergedError, StoppedError, StopSignals
from ..run.store import BusyError, RunRecord, find_runs
from .cells import Cell, cells
from .recipes import papers_settings

ROWS = ("paper", "defaults", "rates")
"""paper: as the paper says. defaults: SR2 as the library has it by default. rates: other learning rates."""
RATES = {"proxgen": (1e-2, 1e-1), "proxsgd": (0.2, 0.6)}
"""Of the baselines, beside their authors' 1e-3 and 0.06: nobody has tuned those for these networks."""
PROGRAM = (sys.executable, "-m", "sr2")
_CHEAPEST_FIRST = ("resnet34", "densenet121", "densenet201")
_SR2_FIRST = ("sr2", "proxgen", "proxsgd")


def plan(data: str, rows: Sequence[str], shared: RunConfig, *, here: bool = True) -> list[RunConfig]:
    """The runs of a data set's cells, in the order in which they are worth their time.

    Row by row, the small network first; the optimizers of one problem side by side, so that a queue that is cut short
    has whole comparisons.

    Args:
        data: "cifar10" or "cifar100".
        rows: of `ROWS`.
        shared: epochs, device, precision and compile are taken from it.
        here: whether its device must be on this machine.
    """
    found = [cell for cell in cells().values() if cell.data == data]
    if not found:
        raise UserError(f"the paper has no cell of {data!r}: use {' or '.join(dict.fromkeys(_data()))}")
    if not rows:
        raise UserError(f"name at least one of --rows {' '.join(ROWS)}")
    found.sort(key=_place)
    runs = [run for row in rows for cell in found for run in _row(cell, row)]
    same = {name: getattr(shared, name) for name in ("epochs", "device", "precision", "compile")}
    return [checked(run.having(**same), here=here) for run in runs]


def _data() -> Iterator[str]:
    return (cell.data for cell in cells().values())


def _place(cell: Cell) -> tuple[int, float, str, int]:
    return _CHEAPEST_FIRST.index(cell.model), cell.lam, cell.regularizer, _SR2_FIRST.index(cell.optimizer)


def _row(cell: Cell, row: str) -> Iterator[RunConfig]:
    """The runs of a cell that belong to a row."""
    settings = papers_settings(cell.name)
    if row == "paper":
        yield settings
    elif row == "defaults" and cell.optimizer == "sr2":
        yield RunConfig.from_dict({**settings.to_dict(), "options": {}})
    elif row == "rates":
        for lr in RATES.get(cell.optimizer, ()):
            yield settings.having(lr=lr)


def covers(record: RunRecord, run: RunConfig) -> bool:
    """Whether a run that was done has this one in it: the same one, or the same for longer.

    Without a cooldown nothing in a run depends on how long it will be: its first epochs are the shorter run.
    """
    if record.config.key == run.key and (record.result is not None or diverged(record)):
        return True
    longer = len(record.metrics) >= run.epochs and record.config.option("cooldown") is None
    return longer and record.config.having(epochs=run.epochs).key == run.key


def diverged(record: RunRecord) -> str:
    """Why a run of a queue could not go on, in a sentence; empty if it did not diverge."""
    path = record.path / DIVERGED
    return path.read_text(encoding="utf-8").strip() if path.is_file() else ""


DIVERGED = "diverged.txt"


class Queue:
    """Runs to be done, and the folders in which some may be done already.

    Args:
        runs: checked, in order.
        root: where they are trained.
        done: other folders of runs, such as the committed results.
    """

    def __init__(self, runs: Iterable[RunConfig], root: Path, done: Sequence[Path] = ()) -> None:
        self.runs, self.root, self._done = list(runs), Path(root), list(done)
        for folder in done:
            if not folder.exists():
                raise UserError(f"{folder} does not exist: name a folder of runs, or leave out --done")
        if self.root.is_file():
            raise UserError(f"{root} is a file: name a folder with --runs")

    def left(self) -> list[RunConfig]:
        """The runs that nobody has finished."""
        records = find_runs([self.root, *self._done], missing_ok=True, damaged=[])
        return [run for run in self.runs if not any(covers(record, run) for record in records)]

    def work(self, stop: StopSignals, watch: Watch) -> None:
        """Train what is left and nobody else trains, one after another, until the time is over."""
        problems = Problems()
        others: set[str] = set()
        while todo := [run for run in self.left() if run.key not in others]:
            run = todo[0]
            try:
                if stop.asked:
                    raise StoppedError(self.state())
                train(run, self.root, watch, stop, problems=problems)
            except BusyError:
                others.add(run.key)
            except DivergedError as error:
                write_file(self.root / run.key / DIVERGED, f"{error}\n".encode())
                watch.say(str(error))
            except StoppedError:
                if stop.told:
                    raise
                break
        watch.say(self.state())

    def state(self) -> str:
        """How far the queue is, in a sentence."""
        left = len(self.left())
        state = f"{len(self.runs) - left} of {len(self.runs)} runs are finished"
        return f"{state}: run the same command to go on" if left else state


def share(jobs: int, command: Sequence[str], stop: StopSignals) -> int:
    """The same command in so many processes, which share the queue; returns the worst of their exit codes.

    Args:
        jobs: how many processes.
        command: of one of them, behind `PROGRAM`.
        stop: passed on to all of them.
    """
    if jobs < 1:
        raise UserError(f"jobs must be at least 1, and is {jobs}")
    workers = [subprocess.Popen([*PROGRAM, *command]) for _ in range(jobs)]
    told = False
    while any(worker.poll() is None for worker in workers):
        if stop.told and not told:
            told = True
            for worker in workers:
                worker.terminate()
        time.sleep(0.2)
    return max(abs(int(worker.returncode)) for worker in workers)


def work(
    data: str,
    rows: Sequence[str],
    shared: RunConfig,
    runs: Path,
    done: Sequence[Path],
    *,
    minutes: float | None,
    jobs: int,
    show: bool,
) -> int:
    """What `sr2 paper queue` does; returns its exit code."""
    queue = Queue(plan(data, rows, shared, here=not show), runs, done)
    if show:
        print("\n".join([*(f"{run.key}  {run.label}" for run in queue.left()), queue.state()]))
        return 0
    with StopSignals(minutes) as stop:
        if jobs == 1:
            queue.work(stop, Watch(len(queue.left())))
            return 0
        flags: dict[str, Any] = {"data": [data], "rows": rows, "epochs": [shared.epochs], "device": [shared.device]}
        flags |= {"runs": [runs], "precision": [shared.precision], "compile": [] if shared.compile else None}
        flags |= {"done": done or None, "minutes": None if minutes is None else [minutes]}
        words = [[f"--{name}", *map(str, values)] for name, values in flags.items() if values is not None]
        code = share(jobs, ["paper", "queue", *itertools.chain.from_iterable(words)], stop)
    print(queue.state())
    return code
