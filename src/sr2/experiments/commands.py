"""The commands of `sr2`: argument parsing and nothing else. Signatures are flags, docstrings are help.

A new command is a function here that calls into its room, and a line in `_APP`. Lists show its first sentence. Rooms
are imported inside: a list of commands needs no torch, whose import takes a second.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from tyro.conf import Positional, arg
from tyro.extras import SubcommandApp

from .errors import UserError
from .names import Precision, Which
from .run.shared import join, read_here
from .run.stop import StopSignals

if TYPE_CHECKING:
    from .flags import Flags
    from .run.config import RunConfig
    from .run.store import RunRecord

DESCRIPTION = "Train sparse networks under nonsmooth regularizers, without a learning rate to tune."
RUNS = Path("runs")
Folders = Positional[tuple[Path, ...]]
Name = Positional[str]


def run(arguments: Sequence[str], app: Any = None) -> int:
    """Parse the arguments and run their command; returns the exit code."""
    config = (tyro.conf.FlagCreatePairsOff, tyro.conf.DisallowNone)
    app = app or build(arguments)
    return app.cli(args=arguments, prog="sr2", description=DESCRIPTION, config=config) or 0


def build(arguments: Sequence[str], commands: dict[str, Any] | None = None) -> Any:
    """The parser of the commands that the arguments name; of the others it has the first sentence."""
    app, commands = SubcommandApp(), _APP if commands is None else commands
    for name, command in commands.items():
        if isinstance(command, dict):
            app.command(build(arguments, command), name=name, help=f"{_HELP[name]}: {', '.join(command)}.")
        elif name not in arguments:
            app.command(name=name, help=f"{command.__doc__.partition('.')[0]}.")(lambda: None)
        else:
            made = command(arguments) if command in _MADE else command
            made.__doc__ = command.__doc__
            app.command(name=name)(made)
    return app


# ---- training


def train_one(arguments: Sequence[str]) -> Callable[..., None]:
    """Train one network. A finished run is skipped, an interrupted one goes on."""
    from .flags import training_flags
    from .run.config import RunConfig

    flags = training_flags(RunConfig(), RUNS)

    def train_one(values: Any) -> None:
        _train(flags.config(values), **flags.files(values))

    return _with(flags, train_one)


def train_grid(arguments: Sequence[str]) -> Callable[..., int]:
    """Train a grid of runs, with a table and a report. It is optimizers x regularizers x lambdas x seeds."""
    from .flags import training_flags
    from .reporting import report_grid
    from .run.compare import Grid, compare
    from .run.on_ray import Place

    flags = training_flags(Grid(), RUNS)

    def train_grid(values: Any, place: Any = Place()) -> int:  # noqa: B008 - frozen
        files = flags.files(values)
        with StopSignals() as stop:
            done, failed = compare(flags.config(values), files["runs"], stop, files["tensorboard"], place)
        if done:
            report_grid(files["runs"], done)
        if failed:
            print(f"error: {len(failed)} of {len(done) + len(failed)} runs did not finish", file=sys.stderr)
        return 2 if failed else 0

    return _with(flags, train_grid, place=Annotated[Place, tyro.conf.OmitArgPrefixes])


def paper_run(arguments: Sequence[str]) -> Callable[..., None]:
    """Train one cell of the paper with its settings. Each flag overrides one; `CELL --help` shows them.

    Args:
        cell: One of `sr2 paper list`.
    """
    from .flags import training_flags
    from .run.config import RunConfig
    from .run.registry import has_lambda

    named = list(arguments[:2]) == ["paper", "run"] and len(arguments) > 2 and not arguments[2].startswith("-")
    recipe = RunConfig()
    if named:
        from .paper.recipes import recipe as find_recipe

        recipe = find_recipe(arguments[2])  # it gives the flags their defaults
    flags = training_flags(recipe, RUNS)

    def paper_run(values: Any, cell: Any) -> None:
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
    """Train all cells of a data set, one after another. The finished are skipped, the interrupted go on.

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
    from .paper.queue import work
    from .run.config import RunConfig

    shared = RunConfig(epochs=epochs, device=device, precision=precision, compile=compile)
    return work(data, rows, shared, runs, done, minutes=minutes, jobs=jobs, show=show)


def _with(flags: Flags, command: Callable[..., Any], **others: Any) -> Callable[..., Any]:
    """The command with the types that its flags have; they are made while the program runs."""
    command.__annotations__ = {"values": Annotated[flags.kind, arg(name="")], **others}
    return command


def _train(config: RunConfig, runs: str, tensorboard: bool) -> None:
    from .run.one import train
    from .run.progress import Watch

    with StopSignals() as stop:
        train(config, runs, Watch(), stop, tensorboard)


# ---- finished runs


def prune(folders: Folders, *, device: str | None = None, weights: Which | None = None, trust: bool = False) -> int:
    """Set small weights of finished runs to zero, and measure. Those with |w| <= 10^-k, for k = 1 to 8: prune.json.

    Args:
        folders: Run folders, or folders of them.
        device: Where to evaluate, if not where the run was trained.
        weights: The average of the iterates or the last one; unless given, the average where there is one.
        trust: Import the module:callable that a run names for its network or its data.
    """
    from .run.prune import prune_runs

    return prune_runs(_find(folders), device, trust=trust, weights=weights)


def shrink(folders: Folders, *, weights: Which | None = None, trust: bool = False) -> int:
    """Remove the dead channels of finished runs, exactly. Writes shrunk.safetensors and its figures into each run.

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
    """Write the networks of finished runs for use. Small, for onnxruntime or for sparse tensor cores; and measured.

    Args:
        folders: Run folders, or folders of them.
        format: safetensors: lossless, zeros packed. onnx: shrunk, batch norm folded. 2:4: bfloat16, on an NVIDIA GPU.
        weights: The average of the iterates or the last one; unless given, the average where there is one.
        trust: Import the module:callable that a run names for its network or its data.
    """
    from .run.export import export_runs

    return export_runs(_find(folders), format, trust=trust, weights=weights)


def report(folders: Positional[tuple[str, ...]], *, out: str | None = None) -> None:
    """Tables, figures and one HTML page of runs. Never trains.

    Args:
        folders: Run folders, or folders of them: paths, or addresses that fsspec knows, as s3://bucket/runs.
        out: The folder of the report, a path or an address; `report` beside the runs unless given.
    """
    from .reporting import show

    with contextlib.ExitStack() as copies:
        records = _find([copies.enter_context(read_here(folder)) for folder in folders])
        show(records, out or join(folders[0], "report"))


def _find(folders: Sequence[Path]) -> list[RunRecord]:
    from .reporting import readable

    if not folders:
        raise UserError("name at least one run folder, or a folder of runs")
    return readable(folders)


# ---- the rest


def bench(arguments: Sequence[str]) -> Callable[..., None]:
    """Time a training step against torch's SGD. Beside it the optimizer's own work against a copy, as ratios.

    Args:
        config: what to time.
        panel: what to train.
        sparse: A finished run: instead time its layers on this CPU, dense and as sparse rows, with their break-even.
        trust: Import the module:callable that the run names for its network or its data.
    """
    from .bench import BenchConfig
    from .panel.command import PanelConfig, bench_or_panel

    time, train = BenchConfig(), PanelConfig()

    def bench(config: Any = time, panel: Any = train, *, sparse: Path | None = None, trust: bool = False) -> None:
        bench_or_panel(config, panel, sparse, trust)

    configs = {"config": Annotated[BenchConfig, arg(name="")], "panel": Annotated[PanelConfig, arg(name="")]}
    bench.__annotations__ |= configs
    return bench


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
    """The paper's cells, their numbers, and which of them were run.

    Args:
        runs: The folder of runs.
    """
    from .paper.cells import list_text
    from .reporting import readable

    fresh = runs == RUNS  # nobody has trained yet
    print(list_text(readable([runs], missing_ok=fresh or runs.is_dir())))


def paper_report(*, runs: Path = RUNS, out: Path | None = None) -> None:
    """The paper's tables with our numbers beside the published ones.

    Args:
        runs: The folder of runs.
        out: The folder of the report; `paper` beside the runs unless given.
    """
    from .paper.summary import print_and_write
    from .reporting import readable

    print_and_write(readable([runs], missing_ok=runs.is_dir()), runs, out or runs / "paper")


_MADE = (train_one, train_grid, paper_run, bench)  # these make their command: its flags are made while the program runs
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
