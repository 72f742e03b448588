"""`python -m benchmarks.budgets`: sparsity budgets on the digits of the panel, SR2 with and without `steps=n`, and
gradual pruning.

The learning rate of the baseline is chosen on the validation part; what is printed is the error on the test part.
"""

from __future__ import annotations

import argparse
import itertools
import warnings
from collections.abc import Callable
from typing import Any

import torch

from sr2 import SR2, L0Ball
from sr2.experiments.baselines import GMP
from sr2.experiments.panel import tasks
from sr2.experiments.panel.methods import recalibrate

RATES = (0.03, 0.1, 0.3)
DENSITIES = (1.0, 0.1, 0.05, 0.02)
Result = tuple[float, float, float]
"""Validation error, test error, and the share of the penalized weights that is zero."""


def sr2(problem: tasks.Problem, density: float, **options: Any) -> Result:
    optimizer = SR2(problem.model, L0Ball(density=density) if density < 1 else None, **options)
    return _train(problem, optimizer, lambda step: None)


def gmp(problem: tasks.Problem, density: float, lr: float) -> Result:
    optimizer = GMP(problem.model, None, lr, density=min(density, 0.999999), steps=problem.steps)
    return _train(problem, optimizer, optimizer.before_step)


def _train(problem: tasks.Problem, optimizer: Any, before_step: Callable[[int], None]) -> Result:
    problem.model.train()
    for t, (x, y) in enumerate(problem.batches()):
        before_step(t)
        optimizer.step(lambda x=x, y=y: problem.loss(problem.model(x), y))
    weights = [p for p in problem.model.parameters() if p.dim() > 1]
    zeros = sum(int((p == 0).sum()) for p in weights) / sum(p.numel() for p in weights)
    with optimizer.averaged():
        recalibrate(problem)
        problem.model.eval()
        return problem.error(problem.validation), problem.error(problem.test), zeros


METHODS: dict[str, Callable[[str, int, float], Result]] = {
    "SR2, `steps=n`": lambda task, seed, density: sr2(p := tasks.make(task, seed), density, steps=p.steps),
    "SR2": lambda task, seed, density: sr2(tasks.make(task, seed), density),
    "SR2, at once": lambda task, seed, density: sr2(tasks.make(task, seed), density, reach=None),
    "GMP": lambda task, seed, density: min(gmp(tasks.make(task, seed), density, lr) for lr in RATES),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", nargs="*", default=["digits_cnn", "digits_mlp"])
    parser.add_argument("--methods", nargs="*", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1])
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message=".*was moved to its prox")  # of the method that wants just that
    print(f"| task | density | {' | '.join(args.methods)} |\n|---|---|{'---|' * len(args.methods)}")
    for task, density in itertools.product(args.tasks, DENSITIES):
        cells = []
        for name in args.methods:
            rows = [METHODS[name](task, seed, density) for seed in args.seeds]
            zeros = f"{100 * rows[0][2]:.2f} % zeros" if density < 1 else "dense"
            cells.append(f"{' / '.join(f'{100 * test:.1f}' for _, test, _ in rows)} ({zeros})")
        print(f"| {task} | {density:g} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
