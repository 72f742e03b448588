"""Runs that are not there yet: one JSON file per (task, method, seed), written whole or not at all."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from ...files import write_whole
from ..errors import UserError, short
from ..run.files import named_errors
from .methods import Method, Trained, missing
from .tasks import Problem, make

Record = dict[str, Any]


def say(line: str) -> None:
    """At once, also where the output is a file."""
    print(line, flush=True)


def measure(problem: Problem, trained: Trained) -> Record:
    """Training objective F, validation and test error of the last iterate, and of every other point."""
    found = {"last": _at_point(problem)}
    for name, point in trained.points.items():
        with point():
            found[name] = _at_point(problem)
    return found


def _at_point(problem: Problem) -> Record:
    problem.model.eval()
    weights = [p for p in problem.model.parameters() if p.dim() > 1]
    penalty = problem.l1 * float(sum(p.detach().double().abs().sum() for p in weights))
    return {
        "train": problem.objective(problem.train) + penalty,
        "validation_loss": problem.objective(problem.validation),
        "validation": problem.error(problem.validation),
        "test": problem.error(problem.test),
        "zeros": sum(int((p == 0).sum()) for p in weights) / sum(p.numel() for p in weights),
    }


def run(task: str, method: Method, seed: int) -> Record:
    """One run from its seed, timed without evaluation."""
    problem = make(task, seed)
    torch.manual_seed(seed)
    start, cpu = time.perf_counter(), time.process_time()
    trained = method(problem)
    spent = {"seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - cpu}
    return {"steps": problem.steps, "optimum": problem.optimum, **spent, **trained.numbers, **measure(problem, trained)}


def run_all(
    folder: Path,
    tasks: Iterable[str],
    methods: dict[str, Method],
    seeds: Iterable[int],
    say: Callable[[str], None] = say,
) -> None:
    """Every run that has no file yet. A task whose data is not here and a method whose package is not are said once."""
    methods = {name: method for name, method in methods.items() if _is_here(name, say)}
    wanted = [(seed, task, name) for seed in seeds for task in tasks for name in methods]
    left = [run for run in wanted if not _path(folder, *run).exists()]
    without: set[str] = set()
    for number, (seed, task, name) in enumerate(left, 1):
        if task in without:
            continue
        try:
            found = run(task, methods[name], seed)
        except UserError as error:
            without.add(task)
            say(f"{task} is left out: {error}")
            continue
        record = {"task": task, "method": name, "seed": seed, **found}
        write(_path(folder, seed, task, name), record)
        say(f"[{number}/{len(left)}] {_line(record)}")


def _path(folder: Path, seed: int, task: str, method: str) -> Path:
    return folder / task / f"{method}_s{seed}.json"


def _is_here(method: str, say: Callable[[str], None]) -> bool:
    if command := missing(method):
        say(f"{method} is left out: {command}")
    return not command


def _line(record: Record) -> str:
    points = {name: value["validation"] for name, value in record.items() if isinstance(value, dict)}
    found = " ".join(f"{name} {value:.4f}" for name, value in points.items())
    return f"{record['task']:18} {record['method']:32} s{record['seed']} {record['seconds']:6.1f} s  {found}"


def write(path: Path, record: Record) -> None:
    """A reader sees the whole record or none."""
    with named_errors(path):
        write_whole(path, (json.dumps(record, indent=1) + "\n").encode())


def read(folder: Path) -> list[Record]:
    """Every record in a folder."""
    return [_read(path) for path in sorted(folder.glob("*/*_s*.json"))]


def _read(path: Path) -> Record:
    try:
        record: Record = json.loads(path.read_text())
        _ = record["task"], record["method"], record["seed"], record["last"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path} is not a run of the panel ({short(error)}): delete it, and run the same again"
        ) from error
    return record
