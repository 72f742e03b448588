"""The commands of `sr2`: argument parsing and nothing else. Signatures are flags, docstrings are help.

A new command is a function here that calls into its room, and a line in `_APP`; those that train are in `training.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from tyro.conf import Positional, arg
from tyro.extras import SubcommandApp

from .bench import BenchConfig
from .errors import UserError
from .run.store import RunRecord, Which, find_runs
from .training import RUNS, Name, paper_queue, paper_run, train_grid, train_one

DESCRIPTION = "Train sparse networks under nonsmooth regularizers, without a learning rate to tune."
Folders = Positional[tuple[Path, ...]]


def run(arguments: Sequence[str]) -> int:
    """Parse the arguments and run their command; returns the exit code."""
    config = (tyro.conf.FlagCreatePairsOff, tyro.conf.DisallowNone)
    return _app(_APP, arguments).cli(args=arguments, prog="sr2", description=DESCRIPTION, config=config) or 0


def _app(commands: dict[str, Any], arguments: Sequence[str]) -> Any:
    app = SubcommandApp()
    for name, command in commands.items():
        if isinstance(command, dict):
            app.command(_app(command, arguments), name=name, help=f"{_HELP[name]}: {', '.join(command)}.")
        else:
            app.command(name=name)(command(arguments) if command in _MADE else command)
    return app


# ---- finished runs


def prune(folders: Folders, *, device: str | None = None, weights: Which | None = None, trust: bool = False) -> int:
    """Set |w| <= 10^-k to zero for k = 1..8, without retraining, and measure: prune.json of each finished run.

    Args:
        folders: Run folders, or folders of them.
        device: Where to evaluate, if not where the run was trained.
        weights: The average of the iterates or the last one; unless given, the average where there is one.
        trust: Import the module:callable that a run names for its network or its data.
    """
    from .run.prune import prune_runs

    return prune_runs(_find(folders), device, trust=trust, weights=weights)


def shrink(folders: Folders, *, weights: Which | None = None, trust: bool = False) -> int:
    """Remove the channels that nothing depends on, exactly: shrunk.safetensors and its figures of each finished run.

    Args:
        folders: Run folders, or folders of them.
        weights: The average of the iterates or the last one; unless given, the average where there is one.
        trust: Import the module:callable that a run names for its network or its data.
    """
    from .run.export import export_runs

    return export_runs(_find(folders), "shrunk", trust=trust, weights=weights)


def export(
    folders: Folders,
    *,
    format: Literal["safetensors", "onnx", "2:4"] = "safetensors",  # noqa: A002 - the flag's name
    weights: Which | None = None,
    trust: bool = False,
) -> int:
    """Write each finished run's network for use: small, for onnxruntime, or for sparse tensor cores; and measure it.

    Args:
        folders: Run folders, or folders of them.
        format: safetensors: lossless, zeros packed. onnx: shrunk, batch norm folded. 2:4: bfloat16, on an NVIDIA GPU.
        weights: The average of the iterates or the last one; unless given, the average where there is one.
        trust: Import the module:callable that a run names for its network or its data.
    """
    from .run.export import export_runs

    return export_runs(_find(folders), format, trust=trust, weights=weights)


def report(folders: Folders, *, out: Path | None = None) -> None:
    """Tables, figures and one HTML page of runs. Never trains.

    Args:
        folders: Run folders, or folders of them.
        out: The folder of the report; `report` beside the runs unless given.
    """
    from .paper.summary import report_runs

    report_runs(_find(folders), out or folders[0] / "report")


def _find(folders: Sequence[Path]) -> list[RunRecord]:
    if not folders:
        raise UserError("name at least one run folder, or a folder of runs")
    return _readable(folders)


def _readable(folders: Sequence[Path], missing_ok: bool = False) -> list[RunRecord]:
    """The runs that can be read; those that cannot are named, and the others go on."""
    damaged: list[UserError] = []
    found = find_runs(folders, missing_ok, damaged)
    if damaged and not found:
        raise damaged[0]
    for error in damaged:
        print(f"skipped: {error}", file=sys.stderr)
    return found


# ---- the rest


def bench(
    config: Annotated[BenchConfig, arg(name="")] = BenchConfig(),  # noqa: B008 - frozen
    *,
    sparse: Path | None = None,
    trust: bool = False,
) -> None:
    """Time a training step against torch's SGD, and the optimizer's own work against a copy: ratios of one process.

    Args:
        config: what to time.
        sparse: A finished run: instead time its layers on this CPU, dense and as sparse rows, with their break-even.
        trust: Import the module:callable that the run names for its network or its data.
    """
    if sparse is not None:
        from .run.export import bench_sparse

        bench_sparse(sparse, trust=trust)
        return
    from .bench_table import run_and_print

    run_and_print(config)


def data_list() -> None:
    """The data sets, and which of them are here."""
    from .data.listing import print_list

    print_list()


def data_fetch(name: Name) -> None:
    """Bring a data set here, and check it.

    Args:
        name: One of `sr2 data list`.
    """
    from .data.listing import fetch_and_show

    print(fetch_and_show(name))


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
    print(list_text(_readable([runs], missing_ok=fresh or runs.is_dir())))


def paper_report(*, runs: Path = RUNS, out: Path | None = None) -> None:
    """The paper's tables with our numbers beside the published ones.

    Args:
        runs: The folder of runs.
        out: The folder of the report; `paper` beside the runs unless given.
    """
    from .paper.summary import print_and_write

    print_and_write(_readable([runs], missing_ok=runs.is_dir()), runs, out or runs / "paper")


_MADE = (train_one, train_grid, paper_run)
"""These make their command, as its flags are made while the program runs."""
_HELP = {"data": "Data sets", "paper": "The paper's experiments"}
_APP: dict[str, Any] = {
    "train": train_one,
    "compare": train_grid,
    "prune": prune,
    "shrink": shrink,
    "export": export,
    "report": report,
    "bench": bench,
    "data": {"list": data_list, "fetch": data_fetch, "check": data_check},
    "paper": {"list": paper_list, "run": paper_run, "queue": paper_queue, "report": paper_report},
}
"""All commands by the names that users type."""
COMMANDS = (*_APP, *(f"{name} {sub}" for name, subs in _APP.items() if isinstance(subs, dict) for sub in subs))
"""Their names, those of commands of commands behind."""
