"""Runs that are not there yet: one JSON file per (task, method, seed), written whole or not at all."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from .methods import Method, Trained
from .tasks import Problem, make

Record = dict[str, Any]


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


def run_all(folder: Path, tasks: Iterable[str], methods: dict[str, Method], seeds: Iterable[int]) -> None:
    """Every run that has no file yet."""
    for seed in seeds:
        for task in tasks:
            for name, method in methods.items():
                path = folder / task / f"{name}_s{seed}.json"
                if path.exists():
                    continue
                record = {"task": task, "method": name, "seed": seed, **run(task, method, seed)}
                write(path, record)
                print(_line(record), flush=True)


def _line(record: Record) -> str:
    points = {name: value["validation"] for name, value in record.items() if isinstance(value, dict)}
    found = " ".join(f"{name} {value:.4f}" for name, value in points.items())
    return f"{record['task']:18} {record['method']:32} s{record['seed']} {record['seconds']:6.1f} s  {found}"


def write(path: Path, record: Record) -> None:
    """Beside the file, then renamed: a reader sees the whole record or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(record, indent=1) + "\n")
    temporary.replace(path)


def read(folder: Path) -> list[Record]:
    """Every record in a folder."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*/*.json"))]
