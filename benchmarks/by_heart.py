"""`python -m benchmarks.by_heart`: what it is worth to see whether examples are learnt by heart, and its constants.

Tasks of the panel with short epochs, `steps=n` and `steps_per_epoch`, validation error of the average, mean ± standard
error; and the share of the further decay that was taken on the average. Four minutes of a core.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import statistics
import warnings
from collections.abc import Iterator
from unittest.mock import patch

import torch

from sr2 import SR2
from sr2.experiments.panel.methods import recalibrate
from sr2.experiments.panel.tasks import make
from sr2.optim.parts import heart
from sr2.optim.parts.heart import ByHeart

VARIANTS: dict[str, dict[str, float]] = {
    "as it is": {},
    "nothing is asked": {"LEARNT": -math.inf},
    "LEARNT = 2": {"LEARNT": 2.0},
    "LEARNT = 4": {"LEARNT": 4.0},
    "FASTER = 1.4": {"FASTER": 1.4},
    "FASTER = 5.6": {"FASTER": 5.6},
    "whatever the noise": {"noise": 0.0},
    "from the first step on": {"LEARNT": math.inf, "noise": 0.0},
}
"""What is changed in `sr2.optim.parts.heart`, by the words of the table."""
TASKS = {"diabetes": 30, "breast_cancer": 30, "digits_mlp": 10, "digits_layernorm": 10, "digits_cnn": 10}
"""And how many seeds each has."""


@contextlib.contextmanager
def changed(constants: dict[str, float]) -> Iterator[None]:
    """SR2 with these constants; noise=0 takes all of the further decay, however little noise is left."""
    with contextlib.ExitStack() as stack:
        for name, value in constants.items():
            if name != "noise":
                stack.enter_context(patch.object(heart, name, value))
            else:
                whole = property(lambda self: float(self.ratio < heart.LEARNT))
                stack.enter_context(patch.object(ByHeart, "share", whole))
        yield


def run(task: str, seed: int, *, asks: bool = True) -> tuple[float, float, float]:
    """Validation and test error, and the mean share of the further decay."""
    problem = make(task, seed)
    torch.manual_seed(seed)
    optimizer = SR2(problem.model, steps=problem.steps, steps_per_epoch=problem.steps_per_epoch)
    search, shares = optimizer._search, []
    if not asks:
        search.heart = None
    problem.model.train()
    for x, y in problem.batches():
        optimizer.step(lambda x=x, y=y: problem.loss(problem.model(x), y))
        shares.append(search.heart.share if search.heart else 0.0)
    with optimizer.averaged():
        recalibrate(problem)
        problem.model.eval()
        return problem.error(problem.validation), problem.error(problem.test), statistics.mean(shares)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS))
    parser.add_argument("--seeds", type=int, help="instead of 10 or 30")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print("| task | seeds |", " | ".join(VARIANTS), "|", flush=True)
    print("|---|---|" + "---|" * len(VARIANTS), flush=True)
    for task in args.tasks:
        seeds, cells = args.seeds or TASKS[task], []
        for name, constants in VARIANTS.items():
            with changed(constants):
                found = [run(task, seed, asks=name != "nothing is asked") for seed in range(seeds)]
            validation, test, share = zip(*found, strict=True)
            apart = statistics.stdev(validation) / seeds**0.5
            cells.append(
                f"{statistics.mean(validation):.4f} ± {apart:.4f} ({statistics.mean(test):.4f}), "
                f"{statistics.mean(share):.2f}"
            )
        print(f"| {task} | {seeds} |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
