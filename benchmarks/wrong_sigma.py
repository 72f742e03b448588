"""`python -m benchmarks.wrong_sigma`: the panel's tasks from a sigma_0 that is wrong by a thousand, either way.

SR2 has its defaults and nothing else, with and without a regularizer, in float32 and in bfloat16 autocast; `told` is
`steps=n` too. A line per regularizer and precision has the validation error of the average over that from SR2's own
sigma_0: the geometric mean over the tasks, the worst task, and the least and largest last sigma, over the usual one.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import warnings
from collections.abc import Iterator

import torch
from torch import Tensor

from sr2 import L0, L1, SR2, GroupL2, L0Ball
from sr2.experiments.panel import tasks
from sr2.experiments.panel.methods import recalibrate
from sr2.regularizers.base import Regularizer

FACTORS = (1e-3, 1e3)
FAST = [name for name in tasks.PANEL if name != "characters"] + ["characters_mini"]
REGULARIZERS: dict[str, Regularizer | None] = {
    "none": None,
    "L1(1e-4)": L1(1e-4),
    "L0(1e-4)": L0(1e-4),
    "L0Ball(density=0.05)": L0Ball(density=0.05),
    'GroupL2(1e-3, "rows")': GroupL2(1e-3, "rows"),
}
LEAST = 0.002
"""Smaller errors count as this one, as in the panel: below it a ratio says nothing."""


@contextlib.contextmanager
def precision(name: str) -> Iterator[None]:
    with torch.autocast("cpu", torch.bfloat16, enabled=name == "bf16"):
        yield


def run(name: str, R: Regularizer | None, in_precision: str, factor: float, told: bool, seed: int) -> tuple[float, ...]:
    """The validation error of the average, and the last sigma over the usual one."""
    problem = tasks.make(name, seed)
    options = {"steps": problem.steps} if told else {}

    def loss(x: Tensor, y: Tensor) -> Tensor:
        with precision(in_precision):
            output = problem.model(x)
        return problem.loss(output.float(), y)

    problem.model.train()
    optimizer = SR2(problem.model, R, **options)
    batches = problem.batches()
    if factor != 1:
        x, y = next(batches)
        optimizer.estimate_sigma(lambda: loss(x, y))
        wrong = factor * optimizer.sigma
        problem = tasks.make(name, seed)
        problem.model.train()
        optimizer, batches = SR2(problem.model, R, sigma=wrong, **options), problem.batches()
    for x, y in batches:
        optimizer.step(lambda x=x, y=y: loss(x, y))  # type: ignore[misc]
    last = optimizer.sigma / optimizer.rule.usual_sigma
    with optimizer.averaged():
        recalibrate(problem)
        problem.model.eval()
        return max(problem.error(problem.validation), LEAST), last


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", nargs="*", default=FAST, choices=list(tasks.TASKS))
    parser.add_argument("--regularizers", nargs="*", default=list(REGULARIZERS), choices=list(REGULARIZERS))
    parser.add_argument("--precisions", nargs="*", default=["float32", "bf16"], choices=["float32", "bf16"])
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1])
    parser.add_argument("--told", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    print("| R | | sigma_0 | error, over that from SR2's own sigma_0 | worst task | last sigma over usual |")
    print("|---|---|---|---|---|---|")
    for named in args.regularizers:
        for how in args.precisions:
            table = {
                (task, factor): [run(task, REGULARIZERS[named], how, factor, args.told, seed) for seed in args.seeds]
                for task in args.tasks
                for factor in (1.0, *FACTORS)
            }
            for factor in FACTORS:
                errors = {key: statistics.mean(error for error, _ in runs) for key, runs in table.items()}
                ratios = {task: errors[task, factor] / errors[task, 1.0] for task in args.tasks}
                mean = statistics.geometric_mean(ratios.values())
                worst = max(ratios, key=ratios.__getitem__)
                last = [sigma for task in args.tasks for _, sigma in table[task, factor]]
                print(
                    f"| `{named}` | {how} | times {factor:g} | {mean:.2f} | {worst} {ratios[worst]:.2f} | "
                    f"{min(last):.2g} to {max(last):.2g} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
