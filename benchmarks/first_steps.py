"""What SR2 does in its first steps on one of the paper's cells, step by step, on the CPU.

    python benchmarks/first_steps.py cifar10-densenet121-sr2-l0-1e-2 40
    python benchmarks/first_steps.py cifar10-densenet121-sr2-l0-1e-2 40 sigma=1000 penalize=all

Settings of the run are given as name=value. `docs/reproduction.md` quotes what it prints.
"""

from __future__ import annotations

import dataclasses
import sys

from sr2.experiments.config import RunConfig, make_optimizer
from sr2.experiments.evaluate import percent_zero
from sr2.experiments.problem import Problem
from sr2.experiments.recipes import recipe
from sr2.optim import SR2


def settings(pairs: list[str]) -> dict[str, object]:
    """name=value, as numbers where they are."""
    found: dict[str, object] = {}
    for pair in pairs:
        name, _, text = pair.partition("=")
        kind = type(getattr(RunConfig(), name))
        found[name] = kind(text) if kind is int else text if not text[:1].isdigit() else float(text)
    return found


def main() -> None:
    """Print a line a step."""
    cell, steps, *pairs = sys.argv[1:]
    config = dataclasses.replace(recipe(cell), **settings(pairs))  # type: ignore[arg-type]
    problem = Problem(config)
    optimizer = make_optimizer(config, problem.model)
    assert isinstance(optimizer, SR2)
    problem.model.train()
    print(" step   loss  trial      rho     sigma  predicted  zeros %")
    for step, (x, y) in enumerate(problem.batches.epoch(0), start=1):
        optimizer.step(lambda x=x, y=y: problem.loss(x, y)[0])  # type: ignore[misc]
        last, zeros = optimizer.last_step, percent_zero(problem.model)
        assert last is not None
        numbers = f"{last.loss:6.3f} {last.trial_loss:6.3f} {last.rho:8.4f} {last.sigma:9.4g} {last.predicted:10.4g}"
        print(f"{step:5d} {numbers} {zeros:8.2f}{'' if last.accepted else '  refused'}", flush=True)
        if step == int(steps):
            break


if __name__ == "__main__":
    main()
