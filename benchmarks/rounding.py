"""What bfloat16 autocast makes of f(x) - f(x + s), in shares of f: where `SR2(autocast=…)` has its slack from.

    python benchmarks/rounding.py digits cnn
    python benchmarks/rounding.py cifar10 densenet121 --steps 40 --batches 8

Steps s = -g / sigma so short that f is linear along them; the deviation is of what autocast measures from that.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Iterator
from itertools import count, islice

import torch
from torch import Tensor

from sr2 import SR2
from sr2.experiments.config import RunConfig, checked
from sr2.experiments.errors import UserError
from sr2.experiments.network import Network
from sr2.experiments.problem import Problem

SHORT = (1e-2, 1e-3, 1e-4)
"""What the steps promise, in shares of f."""


def endless(problem: Problem) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches of one epoch after the other."""
    for epoch in count():
        yield from problem.batches.epoch(epoch)


def deviations(problem: Problem, batches: int) -> list[list[float]]:
    """(measured - promised) / f, a list for each of SHORT."""
    model, found = problem.model.train(), [[] for _ in SHORT]  # type: ignore[var-annotated]
    rounded = Network(model, "cpu", precision="bf16")
    xs = list(model.parameters())
    for x, y in islice(endless(problem), batches):
        gs = torch.autograd.grad(rounded.loss(x, y)[0], xs)
        gg = math.fsum(float(g.double().square().sum()) for g in gs)
        with torch.no_grad():
            f, kept = float(rounded.loss(x, y)[0]), [w.clone() for w in xs]
            for share, deviation in zip(SHORT, found, strict=True):
                torch._foreach_add_(xs, list(gs), alpha=-share * f / gg)
                deviation.append((f - float(rounded.loss(x, y)[0])) / f - share)
                torch._foreach_copy_(xs, kept)
    return found


def main() -> None:
    """Print a line for each length of step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("model")
    parser.add_argument("--steps", type=int, default=100, help="of training before it is measured")
    parser.add_argument("--batches", type=int, default=40)
    args = parser.parse_args()
    try:
        problem = Problem(checked(RunConfig(data=args.data, model=args.model)))
    except UserError as error:
        parser.error(str(error))
    optimizer = SR2(problem.model)
    problem.model.train()
    for x, y in islice(endless(problem), args.steps):
        optimizer.step(lambda x=x, y=y: problem.loss(x, y)[0])  # type: ignore[misc]
    eps = torch.finfo(torch.bfloat16).eps
    for share, found in zip(SHORT, deviations(problem, args.batches), strict=True):
        deviation, most = statistics.pstdev(found) / eps, max(map(abs, found)) / eps
        print(f"promised {share:g} f: deviation {deviation:.2f} eps f, at most {most:.2f} eps f")


if __name__ == "__main__":
    main()
