"""`python -m benchmarks.penalties`: SR2's defaults under ten regularizers, beside Algorithm 1, on tasks of the panel.

Both have `steps=n`. Validation error and zeros of the last iterate, means over the seeds; four minutes of a core.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import warnings
from typing import Any

import torch

from benchmarks.fronts import Point, error, train
from sr2 import L0, L1, NM, SR2, GroupL2, L0Ball, Lp, Rank
from sr2.experiments.panel import tasks
from sr2.regularizers import Regularizer

REGULARIZERS: tuple[Regularizer, ...] = (
    L1(1e-4),
    L1(1e-3),
    L0(1e-4),
    L0(1e-3),
    L0(1e-2),
    Lp(1e-3, 0.5),
    GroupL2(1e-3, "rows"),
    NM(2, 4),
    L0Ball(density=0.05),
    Rank(4),
)
KINDS: tuple[dict[str, Any], ...] = ({}, {"eta1": 7.5e-4})
"""The defaults, and Algorithm 1."""


def cell(task: str, R: Regularizer, options: dict[str, Any], seeds: int) -> str:
    errors, zeros = zip(*(trained(tasks.make(task, seed), R, options) for seed in range(seeds)), strict=True)
    return f"{statistics.mean(errors):.3f} / {100 * statistics.mean(zeros):.0f} %"


def trained(problem: tasks.Problem, R: Regularizer, options: dict[str, Any]) -> Point:
    optimizer = SR2(problem.model, R, steps=problem.steps, **options)
    zeros = train(problem, optimizer)
    return error(problem), zeros


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", nargs="*", default=["digits_mlp", "friedman1"])
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print(f"| R | {' | '.join(f'{task} | Algorithm 1' for task in args.tasks)} |\n|---|{'---|---|' * len(args.tasks)}")
    for R in REGULARIZERS:
        cells = [cell(task, R, options, args.seeds) for task, options in itertools.product(args.tasks, KINDS)]
        print(f"| `{R!r}` | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
