"""The commands of `sr2`: one function each. Their signatures are the flags and their docstrings the help."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.table import Table
from tyro.conf import Positional, arg
from tyro.extras import SubcommandApp

from .bench import BenchConfig
from .run.compare import Grid, compare
from .run.config import RunConfig, has_lambda
from .errors import UserError
from .run.progress import Watch
from .run.store import WEIGHTS, RunRecord, find_runs
from .run.train import StopSignals, train

DESCRIPTION = "Train sparse networks under nonsmooth regularizers, without a learning rate to tune."
RUNS = Path("runs")
Folders = Positional[tuple[Path, ...]]
Name = Positional[str]


def run(arguments: Sequence[str]) -> int:
    """Parse the arguments and run their command; returns the exit code."""
    data, paper, app = SubcommandApp(), SubcommandApp(), SubcommandApp()
    data.command(name="list")(data_list)
    data.command(name="fetch")(data_fetch)
    data.command(name="check")(data_check)
    paper.command(name="list")(paper_list)
    paper.command(name="run")(_paper_run(arguments))
    paper.command(name="report")(paper_report)
    app.command(name="train")(train_one)
    app.command(name="compare")(train_grid)
    app.command(name="prune")(prune)
    app.command(name="report")(report)
    app.command(name="bench")(bench)
    app.command(data, name="data", help="Data sets: list, fetch, check.")
    app.command(paper, name="paper", help="The paper's experiments: list, run, report.")
    config = (tyro.conf.FlagCreatePairsOff, tyro.conf.DisallowNone)
    return app.cli(args=arguments, prog="sr2", description=DESCRIPTION, config=config) or 0


def train_one(
    config: Annotated[RunConfig, arg(name="")] = RunConfig(),  # noqa: B008 - frozen
    *,
    runs: Path = RUNS,
    tensorboard: bool = False,
) -> None:
    """Train one network; a finished run is skipped, an interrupted one goes on.

    Args:
        config: the run.
        runs: The folder of runs.
        tensorboard: Also write TensorBoard's event files into the run's folder.
    """
    with StopSignals() as stop:
        train(config, runs, Watch(), stop, tensorboard)


def train_grid(
    grid: Annotated[Grid, arg(name="")] = Grid(),  # noqa: B008 - frozen
    *,
    runs: Path = RUNS,
    tensorboard: bool = False,
) -> int:
    """Train a grid of optimizers x regularizers x lambdas x seeds; ends with a table and a report.

    Args:
        grid: the runs.
        runs: The folder of runs.
        tensorboard: Also write TensorBoard's event files into the runs' folders.
    """
    with StopSignals() as stop:
        done, failed = compare(grid, runs, stop, tensorboard)
    if done:
        _report(find_runs(done), runs / "report")
    if failed:
        print(f"error: {len(failed)} of {len(done) + len(failed)} runs did not finish", file=sys.stderr)
    return 2 if failed else 0


def prune(folders: Folders, *, device: str | None = None) -> int:
    """Set |w| <= 10^-k to zero for k = 1..8, without retraining, and measure: prune.json of each finished run.

    Args:
        folders: Run folders, or folders of them.
        device: Where to evaluate, if not where the run was trained.
    """
    from .run.prune import prune_run

    console, done = Console(), 0
    for record in _find(folders):
        if not (record.path / WEIGHTS).exists():
            why = "the run did not finish, or its weights were deleted"
            print(f"skipped: {record.path / WEIGHTS} is not there: {why}", file=sys.stderr)
            continue
        with console.status(f"pruning {record.path}"):
            sweep = prune_run(record.path, device)
        title = f"{record.config.label} ({record.path.name})"
        table = _table(title, "|w| <=", "zeros %", "accuracy %", "batch-norm anew %")
        plain = sweep["unpruned"]
        table.add_row("as trained", f"{plain['sparsity_pct']:.2f}", f"{plain['accuracy']:.2f}", "")
        for row in reversed(sweep["rows"]):
            numbers = (row["sparsity_pct"], row["accuracy"], row["accuracy_recalibrated"])
            table.add_row(f"1e-{row['k']}", *(f"{number:.2f}" for number in numbers))
        console.print(table)
        done += 1
    if not done:
        print("error: there is nothing to prune: no run that was named has its weights", file=sys.stderr)
    return 0 if done else 2


def report(folders: Folders, *, out: Path | None = None) -> None:
    """Tables, figures and one HTML page of runs. Never trains.

    Args:
        folders: Run folders, or folders of them.
        out: The folder of the report; `report` beside the runs unless given.
    """
    _report(_find(folders), out or folders[0] / "report")


def bench(config: Annotated[BenchConfig, arg(name="")] = BenchConfig()) -> None:  # noqa: B008 - frozen
    """Time a training step against torch's SGD, and the optimizer's own work against a copy: ratios of one process.

    Args:
        config: what to time.
    """
    from .bench import run as run_bench

    console = Console()
    with console.status("timing"):
        figures = run_bench(config)
    network = f"{config.model}, batch {config.batch}, {config.precision}{', compiled' if config.compile else ''}"
    table = _table(f"a training step of {network} on {figures['device']}", *_BENCH_HEADINGS)
    for row in figures["training"]:
        table.add_row(*_bench_cells(row))
    console.print(table)
    for part in figures["own_work"]:
        copy = next(row["milliseconds"] for row in part["rows"] if row["name"] == "copy")
        table = _table(f"the optimizer's own work on {part['parameters']:,} parameters", *_BENCH_HEADINGS, "of copy's")
        for row in part["rows"]:
            # SR2 must move 16 bytes a parameter (x and v read, x and the kept x written), a copy moves 8.
            share = f"{200 * copy / row['milliseconds']:.0f} %" if row["name"].startswith("sr2") else ""
            table.add_row(*_bench_cells(row), share)
        console.print(table)
    if config.out is not None:
        print(f"the figures are in {config.out}")


_BENCH_HEADINGS = ("name", "ms", "x SGD", "from", "to", "peak MB", "host reads")


def _bench_cells(row: dict[str, Any]) -> list[str]:
    peak, reads = row["peak_bytes"], row["host_reads"]
    return [
        row["name"],
        f"{row['milliseconds']:.3f}",
        *(f"{row[name]:.2f}" for name in ("ratio", "ratio_low", "ratio_high")),
        "" if peak is None else f"{peak / 1e6:.1f}",
        "" if reads is None else str(reads),
    ]


def data_list() -> None:
    """The data sets, and which of them are here."""
    from .data import default_root, rows

    table = _table(f"data sets, in {default_root()} ($SR2_DATA)", "name", "images", "classes", "size", "MB", "here")
    for row in rows():
        where = row.where or f"no: sr2 data fetch {row.name}"
        size = "x".join(map(str, row.shape))
        table.add_row(row.name, f"{row.images:,}", str(row.classes), size, f"{row.megabytes:g}", where)
    Console().print(table)


def data_fetch(name: Name) -> None:
    """Bring a data set here, and check it.

    Args:
        name: One of `sr2 data list`.
    """
    from .data import fetch

    with Console().status(f"fetching {name}") as status:

        def progress(what: str, done: int, total: int) -> None:
            size = f" {done / 1e6:.1f} MB" + (f" of {total / 1e6:.1f}" if total else "")
            status.update(what + size if done else what)

        sentence = fetch(name, progress=progress)
    print(sentence)


def data_check(name: Name) -> None:
    """Check every byte of a data set that is here.

    Args:
        name: One of `sr2 data list`.
    """
    from .data import check

    print(check(name))


def paper_list(*, runs: Path = RUNS) -> None:
    """The paper's cells, their published numbers, and which of them were run.

    Args:
        runs: The folder of runs.
    """
    from .paper.cells import list_text

    fresh = runs == RUNS  # nobody has trained yet
    print(list_text(find_runs([runs], missing_ok=fresh or runs.is_dir())))


def _paper_run(arguments: Sequence[str]) -> Callable[..., None]:
    """`sr2 paper run CELL`: the recipe of the cell that is named gives the flags their defaults."""
    named = list(arguments[:2]) == ["paper", "run"] and len(arguments) > 2 and not arguments[2].startswith("-")
    recipe = RunConfig()
    if named:
        from .paper.recipes import recipe as find_recipe

        recipe = find_recipe(arguments[2])

    def paper_run(
        cell: Name,
        config: Annotated[RunConfig, arg(name="")] = recipe,
        *,
        runs: Path = RUNS,
        tensorboard: bool = False,
    ) -> None:
        """Train one cell of the paper with its settings; each flag overrides one (`CELL --help` shows them).

        Args:
            cell: One of `sr2 paper list`.
            config: the run.
            runs: The folder of runs.
            tensorboard: Also write TensorBoard's event files into the run's folder.
        """
        if not named:
            raise UserError(f"name the cell first: sr2 paper run {cell} …")
        if config.optimizer != recipe.optimizer:  # whose constants the recipe has
            raise UserError(
                f"{cell} is a cell of {recipe.optimizer}: name one of {config.optimizer} (`sr2 paper list`), or use "
                "`sr2 train`"
            )
        if config.lam == recipe.lam and not has_lambda(config.regularizer):  # the recipe's, not what somebody typed
            config = replace(config, lam=RunConfig.lam)
        train_one(config, runs=runs, tensorboard=tensorboard)

    return paper_run


def paper_report(*, runs: Path = RUNS, out: Path | None = None) -> None:
    """The paper's tables with our numbers beside the published ones.

    Args:
        runs: The folder of runs.
        out: The folder of the report; `paper` beside the runs unless given.
    """
    records = find_runs([runs], missing_ok=runs.is_dir())
    if not records:
        print(f"{runs} has no run in it, so every cell is missing: name the folder with --runs", file=sys.stderr)
    _report(records, out or runs / "paper", paper=True)


def _report(records: list[RunRecord], out: Path, paper: bool = False) -> None:
    from .report.page import write_report
    from .report.tables import print_table

    print_table(records, paper=paper)
    print(f"the report is {write_report(records, out, paper=paper)}")


def _find(folders: Sequence[Path]) -> list[RunRecord]:
    if not folders:
        raise UserError("name at least one run folder, or a folder of runs")
    return find_runs(folders)


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title, title_justify="left")
    for heading in headings:
        table.add_column(heading, justify="left" if heading in ("name", "here") else "right")
    return table
