"""The commands that train. Their flags are made while the program runs, from configurations (`flags.py`)."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional, arg

from .errors import UserError
from .flags import Flags, training_flags
from .run.compare import Grid, compare
from .run.config import Precision, RunConfig
from .run.progress import Watch
from .run.registry import has_lambda
from .run.stop import StopSignals
from .run.store import find_runs
from .run.train import train

RUNS = Path("runs")
Name = Positional[str]


def train_one(arguments: Sequence[str]) -> Callable[..., None]:
    flags = training_flags(RunConfig(), RUNS)

    def train_one(values: Any) -> None:
        """Train one network; a finished run is skipped, an interrupted one goes on."""
        _train(flags.config(values), **flags.files(values))

    return _with(flags, train_one)


def train_grid(arguments: Sequence[str]) -> Callable[..., int]:
    flags = training_flags(Grid(), RUNS)

    def train_grid(values: Any) -> int:
        """Train a grid of optimizers x regularizers x lambdas x seeds; ends with a table and a report."""
        files = flags.files(values)
        with StopSignals() as stop:
            done, failed = compare(flags.config(values), files["runs"], stop, files["tensorboard"])
        if done:
            from .paper.summary import report_runs

            report_runs(find_runs(done), files["runs"] / "report")
        if failed:
            print(f"error: {len(failed)} of {len(done) + len(failed)} runs did not finish", file=sys.stderr)
        return 2 if failed else 0

    return _with(flags, train_grid)


def paper_run(arguments: Sequence[str]) -> Callable[..., None]:
    """The recipe of the cell that is named gives the flags their defaults."""
    named = list(arguments[:2]) == ["paper", "run"] and len(arguments) > 2 and not arguments[2].startswith("-")
    recipe = RunConfig()
    if named:
        from .paper.recipes import recipe as find_recipe

        recipe = find_recipe(arguments[2])
    flags = training_flags(recipe, RUNS)

    def paper_run(values: Any, cell: Any) -> None:
        """Train one cell of the paper with its settings; each flag overrides one (`CELL --help` shows them).

        Args:
            cell: One of `sr2 paper list`.
        """
        config: RunConfig = flags.config(values)
        if not named:
            raise UserError(f"name the cell first: sr2 paper run {cell} …")
        if config.optimizer != recipe.optimizer:  # whose constants the recipe has
            raise UserError(
                f"{cell} is a cell of {recipe.optimizer}: name one of {config.optimizer} (`sr2 paper list`), or use "
                "`sr2 train`"
            )
        if config.lam == recipe.lam and not has_lambda(config.regularizer):  # the recipe's, not what somebody typed
            config = config.having(lam=RunConfig.lam)
        _train(config, **flags.files(values))

    return _with(flags, paper_run, cell=Name)


def paper_queue(
    *,
    data: str = "cifar10",
    rows: tuple[Literal["paper", "defaults", "rates"], ...] = ("paper", "defaults", "rates"),
    epochs: int = 300,
    device: str = "auto",
    precision: Precision = "fp32",
    compile: bool = False,  # noqa: A002 - the flag's name
    minutes: float | None = None,
    jobs: int = 1,
    runs: Path = RUNS,
    done: tuple[Path, ...] = (),
    show: bool = False,
) -> int:
    """Train all cells of a data set, one after another; what is finished is skipped, what was interrupted goes on.

    Args:
        data: cifar10 or cifar100.
        rows: paper: as the paper says; defaults: SR2 as the library has it; rates: baselines with other learning rates.
        epochs: Of every run; the paper has 300.
        device: cpu, cuda, cuda:0, or auto.
        precision: Arithmetic of the networks.
        compile: Compile the networks with torch.compile, once per network.
        minutes: Stop after so many, with checkpoints written; the same command goes on.
        jobs: Processes that share the queue; on one GPU, start `nvidia-cuda-mps-control -d` first.
        runs: The folder of runs.
        done: More folders of runs, such as results: what is finished there is not run again.
        show: Only say what is left.
    """
    from .paper.queue import Queue, plan, share

    shared = RunConfig(epochs=epochs, device=device, precision=precision, compile=compile)
    queue = Queue(plan(data, rows, shared), runs, done)
    if show:
        print("\n".join([*(f"{run.key}  {run.label}" for run in queue.left()), queue.state()]))
        return 0
    with StopSignals(minutes) as stop:
        if jobs == 1:
            queue.work(stop, Watch(len(queue.left())))
            return 0
        flags: dict[str, Any] = {"data": [data], "rows": rows, "epochs": [epochs], "device": [device], "runs": [runs]}
        flags |= {"precision": [precision], "compile": [] if compile else None, "done": done or None}
        flags["minutes"] = None if minutes is None else [minutes]
        words = [[f"--{name}", *map(str, values)] for name, values in flags.items() if values is not None]
        code = share(jobs, ["paper", "queue", *itertools.chain.from_iterable(words)], stop)
    print(queue.state())
    return code


def _with(flags: Flags, command: Callable[..., Any], **others: Any) -> Callable[..., Any]:
    """The command with the types that its flags have; they are made while the program runs."""
    command.__annotations__ = {"values": Annotated[flags.kind, arg(name="")], **others}
    return command


def _train(config: RunConfig, runs: Path, tensorboard: bool) -> None:
    with StopSignals() as stop:
        train(config, runs, Watch(), stop, tensorboard)
