"""`sr2 bench --panel`: run what is missing, then print the tables and draw the figure."""

from __future__ import annotations

import fnmatch
import importlib.util
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from ..bench import BenchConfig
from ..bench_table import run_and_print as print_timings
from ..errors import UserError
from ..names import check_known, check_read
from ..run.build import find_device
from ..run.export import bench_sparse
from . import gpt_methods as gpt
from . import methods, runner, summary, tasks

DEVICE_TASKS = ("gpt",)
"""Run where they are named, or on CUDA."""
TRAINED = ("resnet18", "densenet121")
"""Networks on CIFAR-10 that `sr2 train` compares."""


@dataclass(frozen=True)
class PanelConfig:
    """The same tasks for every optimizer."""

    panel: bool = False
    """Instead run the panel, the same tasks for all, in so far as its runs are not there; then tables and a figure."""
    runs: Path = Path("panel")
    """The panel's folder: one JSON file per task, method and seed."""
    tasks: tuple[str, ...] = ()
    """The panel's tasks; all small ones unless given, on CUDA gpt too."""
    methods: tuple[str, ...] = ("*",)
    """The panel's methods, as shell patterns: 'sr2*' 'adamw_0.001*'."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """The panel's seeds, which draw data, first weights and batches."""
    gpt_steps: int = 2000
    """Steps of the panel's task gpt."""


def bench_or_panel(config: BenchConfig, panel: PanelConfig, sparse: Path | None = None, trust: bool = False) -> None:
    """What `sr2 bench` does: the timings, or the layers of a run, or the panel. A flag that is not read is told."""
    if sparse is not None:
        for given in (config, panel):
            check_read(given, "is not for --sparse: leave out one of them")
        bench_sparse(sparse, trust=trust)
    elif panel.panel:
        check_read(config, "is not for --panel: leave out one of them", but=["device"])
        run_and_print(panel, config.device)
    else:
        check_read(panel, "is for --panel: add that, or leave it out")
        print_timings(config)


def run_and_print(config: PanelConfig, device_name: str = "cpu") -> None:
    """The runs that are missing, then the tables and the figure of all that are there."""
    device = find_device(device_name)
    named = config.tasks or (*tasks.PANEL, *(DEVICE_TASKS if device.type == "cuda" else ()))
    for name in named:
        check_known("task", name, (*tasks.TASKS, *DEVICE_TASKS, *TRAINED), own=False)
    for what, given in {"method": config.methods, "seed": config.seeds}.items():
        if not given:
            raise UserError(f"name at least one {what} of the panel, or leave out --{what}s")
    if min(config.seeds) < 0:
        raise UserError(f"seeds must be at least 0, and one is {min(config.seeds)}")
    known = methods.own() | methods.baselines()
    _check_patterns(config.methods, (*known, *gpt.METHODS))
    chosen = {n: m for n, m in known.items() if any(fnmatch.fnmatch(n, p) for p in config.methods)}
    with _one_thread():
        runner.run_all(config.runs, [name for name in named if name in tasks.TASKS], chosen, config.seeds)
    if "gpt" in named:
        gpt.run_all(config.runs, config.methods, config.seeds, config.gpt_steps, device)
    for name in (name for name in named if name in TRAINED):
        print(
            f"{name} is left to the trainer: sr2 train --data cifar10 --model {name} --epochs 40 --precision bf16 "
            "--compile --device cuda --hold-out 5000, with --optimizer sgd --lr 0.1 beside it"
        )
    _show(config.runs)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Networks this small are no faster with more, and times then compare."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _check_patterns(patterns: Sequence[str], known: Sequence[str]) -> None:
    for pattern in patterns:
        if not fnmatch.filter(known, pattern):
            raise UserError(
                f"no method of the panel is {pattern!r}: known are {', '.join(known)}, or a pattern of them"
            )


def _show(folder: Path) -> None:
    records = runner.read(folder)
    small = [record for record in records if record["task"] in tasks.TASKS]
    if small:
        panel = summary.Panel(small)
        print(f"equal gradients\n\n{summary.table(panel)}\n")
        if any(record["method"] in summary.IN_TIME for record in small):
            print(f"equal time\n\n{summary.table(panel, summary.IN_TIME)}\n")
        if importlib.util.find_spec("matplotlib") is None:
            print("no figure is drawn: matplotlib is missing, pip install matplotlib")
        else:
            summary.figure(panel, folder / "panel.png")
            print(f"the figure is {folder / 'panel.png'}")
    if large := [record for record in records if record["task"] == "gpt"]:
        print(gpt.table(large))
    if not records:
        raise UserError(f"no run of the panel is in {folder}: none of the tasks could be run")
