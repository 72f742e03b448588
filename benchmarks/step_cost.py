"""What SR2's step costs beside torch's SGD and AdamW, with the defaults, at several `test_every`.

    python benchmarks/step_cost.py --models mlp cnn                               # on the CPU
    python benchmarks/step_cost.py --models resnet18 --device cuda --data cifar10 # as CUDA graphs, in bf16

One batch, all optimizers interleaved on copies of one network, in rounds of whole periods of the tests: the ratio to
SGD is the median over rounds.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from sr2 import L1, SR2
from sr2.experiments.bench import BenchConfig, Timing, _graph, interleave
from sr2.experiments.run.build import checked
from sr2.experiments.run.config import RunConfig
from sr2.experiments.run.problem import Problem
from sr2.optim import CapturedStep

PERIOD = 16
"""Steps of a round: a whole number of periods of every `test_every` that divides it."""


def bodies(problem: Problem, every: list[int | str], lam: float) -> dict[str, Callable[[], Any]]:
    """One step of each optimizer, of a network of its own."""
    x, y = problem.batches.make(problem.batches.plan(0)[: problem.batches.batch_size])
    cuda = problem.device.type == "cuda"

    def loss_of(model: torch.nn.Module) -> torch.Tensor:
        with torch.autocast(problem.device.type, torch.bfloat16, enabled=cuda):
            return problem.task.loss(model(x), y)

    def usual(kind: type[torch.optim.Optimizer], **options: Any) -> Callable[[], Any]:
        model = copy.deepcopy(problem.model)
        optimizer = kind(model.parameters(), **options)

        def step() -> None:
            optimizer.zero_grad()
            loss_of(model).backward()  # type: ignore[no-untyped-call]
            optimizer.step()

        return _graph(step) if cuda else step

    def ours(test_every: int | str) -> Callable[[], Any]:
        model = copy.deepcopy(problem.model)
        optimizer = SR2(model, L1(lam), test_every=test_every, capturable=cuda)
        for _ in range(100):  # past sigma_0, and "auto" on its way
            optimizer.step(lambda: loss_of(model))

        def step() -> None:
            optimizer.step(lambda: loss_of(model))

        return CapturedStep(optimizer, step) if cuda else step

    capturable = {"capturable": True} if cuda else {}
    found = {
        "sgd": usual(torch.optim.SGD, lr=1e-3, momentum=0.9, fused=True),
        "adamw": usual(torch.optim.AdamW, lr=1e-5, fused=True, **capturable),
    }
    return found | {f"sr2, test_every={k}": ours(k) for k in every}


def main() -> None:
    """Measure, print, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["mlp", "cnn"])
    parser.add_argument("--data", default="digits")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--test-every", nargs="+", default=["1", "4", "16", "auto"])
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--lam", type=float, default=1e-4)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    every = [int(k) if k.isdigit() else k for k in args.test_every]
    figures: dict[str, Any] = {"torch": torch.__version__, "device": args.device, "batch": args.batch}
    for name in args.models:
        config = RunConfig.of(data=args.data, model=name, device=args.device, batch=args.batch, lam=args.lam)
        problem = Problem(checked(config))
        problem.model.train()
        made = bodies(problem, every, args.lam)
        timings = [Timing(body) for body in made]
        interleave(list(made.values()), timings, BenchConfig(steps=PERIOD, repeats=args.repeats), problem.device)
        figures[name] = {
            t.name: {
                "milliseconds": 1e3 * t.median,
                "ratio": statistics.median(a / b for a, b in zip(t.seconds, timings[0].seconds, strict=True)),
            }
            for t in timings
        }
        for label, row in figures[name].items():
            print(f"{name:10} {label:22} {row['milliseconds']:9.3f} ms {row['ratio']:7.3f} of SGD")
    if args.out is not None:
        args.out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
