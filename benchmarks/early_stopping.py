"""`python -m benchmarks.early_stopping`: small tables, with the network of the smallest validation loss kept.

Every fifth step the validation loss is asked, of SR2 also at the average, and the best network so far is kept: what a
person with a few hundred rows does. Test error of that network, and of the last one, mean ± standard error.
"""

from __future__ import annotations

import argparse
import statistics
import warnings
from collections.abc import Callable

import torch

from sr2 import SR2
from sr2.experiments.panel.methods import ADAMW_RATES
from sr2.experiments.panel.tasks import Problem, make

EVERY = 5


def errors(problem: Problem, optimizer: torch.optim.Optimizer) -> tuple[float, float]:
    """On the test part: of the network with the smallest validation loss, and of the last one."""
    seen: list[tuple[float, float]] = []

    def look() -> None:
        problem.model.eval()
        seen.append((problem.objective(problem.validation), problem.error(problem.test)))

    for k, (x, y) in enumerate(problem.batches(), 1):
        problem.model.train()
        if isinstance(optimizer, SR2):
            optimizer.step(lambda x=x, y=y: problem.loss(problem.model(x), y))
        else:
            optimizer.zero_grad()
            problem.loss(problem.model(x), y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        if k % EVERY == 0:
            look()
            if isinstance(optimizer, SR2):
                with optimizer.averaged():
                    look()
    return min(seen)[1], seen[-1][1]


def methods() -> dict[str, Callable[[Problem], torch.optim.Optimizer]]:
    found: dict[str, Callable[[Problem], torch.optim.Optimizer]] = {
        "sr2": lambda p: SR2(p.model),
        "sr2_steps": lambda p: SR2(p.model, steps=p.steps, steps_per_epoch=p.steps_per_epoch),
    }
    for rate in ADAMW_RATES:
        found[f"adamw_{rate:g}"] = lambda p, rate=rate: torch.optim.AdamW(p.model.parameters(), lr=rate)  # type: ignore[misc]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=["diabetes", "breast_cancer"])
    parser.add_argument("--seeds", type=int, default=30)
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for task in args.tasks:
        for name, make_optimizer in methods().items():
            found = []
            for seed in range(args.seeds):
                problem = make(task, seed)
                torch.manual_seed(seed)
                found.append(errors(problem, make_optimizer(problem)))
            words = []
            for numbers in zip(*found, strict=True):
                apart = statistics.stdev(numbers) / len(numbers) ** 0.5
                words.append(f"{statistics.mean(numbers):.4f} ± {apart:.4f}")
            print(f"{task:14} {name:14} stopped early {words[0]}, last {words[1]}", flush=True)


if __name__ == "__main__":
    main()
