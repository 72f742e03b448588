"""`python -m benchmarks.fronts`: error against zeros under l1 on tasks of the panel, SR2 beside ProxGEN at five rates.

SR2 has `steps=n` and its defaults; ProxGEN has Adam's metric and momentum 0.9. Both are told nothing but lambda, and
ProxGEN its learning rate. Validation error, of SR2's average and of ProxGEN's last iterate; zeros of the last iterate.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from sr2 import L1, SR2, ProxGEN
from sr2.experiments.panel import tasks
from sr2.experiments.panel.methods import recalibrate

RATES = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
Point = tuple[float, float]
"""Validation error, and the share of the penalized weights that is zero."""


def sr2(task: str, lam: float, seed: int) -> Point:
    problem = tasks.make(task, seed)
    optimizer = SR2(problem.model, L1(lam), steps=problem.steps)
    zeros = train(problem, optimizer)
    with optimizer.averaged():
        recalibrate(problem)
        return error(problem), zeros


def proxgen(lr: float, task: str, lam: float, seed: int) -> Point:
    problem = tasks.make(task, seed)
    zeros = train(problem, ProxGEN(problem.model, L1(lam), lr=lr, metric="adam", momentum=0.9))
    return error(problem), zeros


def train(problem: tasks.Problem, optimizer: Any) -> float:
    problem.model.train()
    for x, y in problem.batches():
        optimizer.step(lambda x=x, y=y: problem.loss(problem.model(x), y))
    weights = [p for p in problem.model.parameters() if p.dim() > 1]
    return sum(int((p == 0).sum()) for p in weights) / sum(p.numel() for p in weights)


def error(problem: tasks.Problem) -> float:
    problem.model.eval()
    return problem.error(problem.validation)


def cell(points: Sequence[Point]) -> str:
    errors, zeros = zip(*points, strict=True)
    spread = statistics.stdev(errors) / len(errors) ** 0.5 if len(errors) > 1 else float("nan")
    return f"{statistics.mean(errors):.4f} ± {spread:.4f} at {100 * statistics.mean(zeros):.0f} %"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", nargs="*", default=["digits_mlp"])
    parser.add_argument("--lams", nargs="*", type=float, default=[1e-5, 3e-5, 1e-4, 3e-4, 1e-3])
    parser.add_argument("--seeds", type=int, default=6)
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    methods: dict[str, Callable[[str, float, int], Point]] = {"SR2": sr2}
    methods |= {f"ProxGEN {lr:g}": partial(proxgen, lr) for lr in RATES}
    print(f"| task | lambda | {' | '.join(methods)} |\n|---|---|{'---|' * len(methods)}")
    for task, lam in itertools.product(args.tasks, args.lams):
        cells = [cell([run(task, lam, seed) for seed in range(args.seeds)]) for run in methods.values()]
        print(f"| {task} | {lam:g} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
