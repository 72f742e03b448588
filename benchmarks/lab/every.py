"""The trial every k-th step only, and one bad batch between two tests: `python -m benchmarks.lab.every`."""

from __future__ import annotations

import sys

import torch

from sr2.experiments.panel import tasks

from .search import SR2, Rule, Setting


def run(task: str, every: int, seed: int, l0: float = 0.0, spike: int = -1) -> str:
    problem = tasks.make(task, seed)
    setting = Setting(first="search", rule=Rule(eta1=-1.0, eta2=0.9), l1=problem.l1, l0=l0, outlier=10.0)
    optimizer = SR2(problem.model, setting, chained=every > 1)
    problem.model.train()
    for k, (x, y) in enumerate(problem.batches()):
        batch = x * 1e5 if k == spike else x
        test = k < 100 or k % every == 0
        optimizer.step(lambda x=batch, y=y: problem.loss(problem.model(x), y), test)  # type: ignore[misc]
    problem.model.eval()
    last = problem.error(problem.validation)
    zeros = float((optimizer.flat.x[optimizer.flat.weights] == 0).double().mean())
    optimizer.use(optimizer.averages[0])
    counted = f"sigma {float(optimizer.sigma):.3g} rejected {float(optimizer.rejected):.0f}"
    trials = f"trials {float(optimizer.evaluations):.0f}"
    return f"last {last:.4f} average {problem.error(problem.validation):.4f} zeros {zeros:.3f} {counted} {trials}"


def main() -> None:
    torch.set_num_threads(1)
    for task in sys.argv[1:] or ["friedman1", "classes4", "digits_mlp"]:
        for every in (1, 4, 16):
            print(
                f"{task:12} every {every:3}", run(task, every, 0), "| spike", run(task, every, 0, spike=202), flush=True
            )
        for l0 in (1e-5, 1e-4, 1e-3):
            print(f"{task:12} l0 {l0:g}", run(task, 1, 0, l0), flush=True)


if __name__ == "__main__":
    main()
