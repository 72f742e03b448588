"""Where the time of a captured SR2 step goes, kernel by kernel, and how long epochs take. Needs a CUDA device.

    python benchmarks/profile_step.py cifar10-resnet34-sr2-l0-1e-3 --out profile.json
    python benchmarks/profile_step.py cifar10-resnet34-sr2-l1-1e-4 --model resnet18 --defaults --test-every 16

It trains `--epochs` epochs of the cell as `sr2 paper run --precision bf16 --compile` does, times each (the first
compiles), then profiles some replays of the step's graph and sorts the kernels by what they are for. Last, on one batch
and interleaved: the step, torch's fused SGD, and a forward pass alone, all as CUDA graphs.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from sr2.experiments.bench import BenchConfig, Timing, _graph, interleave
from sr2.experiments.paper.recipes import recipe
from sr2.experiments.run.build import checked, make_optimizer
from sr2.experiments.run.config import RunConfig
from sr2.experiments.run.problem import Problem
from sr2.experiments.run.runner import CapturedRunner
from sr2.experiments.run.view import OptimizerView
from sr2.optim import CapturedStep

KINDS = {  # the first that fits
    "SR2's own": ("move", "copy_if", "decide"),
    "convolutions and products": ("conv", "gemm", "xmma", "cutlass", "dgrad", "wgrad", "fprop", "cudnn", "nvjet"),
    "casts, buffers and gradients, many tensors a launch": ("multi_tensor", "Copy", "CatArray"),
    "compiled: norms, activations, sums": ("triton_",),
}


def kind(name: str) -> str:
    """What a kernel is for."""
    for title, words in KINDS.items():
        if any(name == word if title == "SR2's own" else word in name for word in words):
            return title
    return "other"


def compare_with_sgd(problem: Problem, runner: CapturedRunner) -> dict[str, dict[str, float]]:
    """Milliseconds and ratios to plain SGD: SR2's step without the batch, SGD's, SGD's with the momentum and the decay
    that networks are trained with, a forward pass in training mode."""
    x, y = problem.batches.make(problem.batches.plan(0)[: problem.batches.batch_size])

    def stepped(**options: Any) -> Callable[[], None]:
        sgd = torch.optim.SGD(problem.model.parameters(), lr=1e-3, fused=True, **options)

        def step_sgd() -> None:
            sgd.zero_grad()
            problem.loss(x, y)[0].backward()  # type: ignore[no-untyped-call]
            sgd.step()

        return step_sgd

    def forward() -> None:
        with torch.no_grad():
            problem.loss(x, y)

    optimizer = runner.view.optimizer
    sr2 = CapturedStep(optimizer, lambda: optimizer.step(lambda: problem.loss(x, y)[0]))
    usual = _graph(stepped(momentum=0.9, nesterov=True, weight_decay=5e-4))
    bodies = {"sgd": _graph(stepped()), "sgd with momentum": usual, "sr2": sr2, "forward": _graph(forward)}
    timings = [Timing(name) for name in bodies]
    interleave(list(bodies.values()), timings, BenchConfig(steps=32, repeats=9), problem.device)
    return {
        t.name: {
            "milliseconds": 1e3 * t.median,
            "ratio": statistics.median(a / b for a, b in zip(t.seconds, timings[0].seconds, strict=True)),
        }
        for t in timings
    }


def configured(args: argparse.Namespace) -> RunConfig:
    """The cell's run, with what was asked for."""
    config = recipe(args.cell)
    if args.defaults:
        config = dataclasses.replace(config, options={})
    every = int(args.test_every) if args.test_every.isdigit() else args.test_every
    options = {} if every == 1 else {"test_every": every}
    return config.having(
        model=args.model or config.model,
        device="cuda" if torch.cuda.is_available() else "cpu",
        precision=args.precision,
        compile=not args.eager,
        penalize="weights",
        **options,
    )


def main() -> None:
    """Profile one cell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cell", help="as `sr2 paper list` names it")
    parser.add_argument("--model", help="another network than the cell's")
    parser.add_argument("--defaults", action="store_true", help="SR2's defaults instead of the cell's constants")
    parser.add_argument("--test-every", default="1", help="of SR2: 1, k, or auto")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--replays", type=int, default=10)
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--eager", action="store_true", help="do not compile the network")
    parser.add_argument("--wait-for", type=Path, help="start timing only once this file exists")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("there is no CUDA device here, and its kernels are what is profiled: run it where there is one")
    config = configured(args)
    problem = Problem(checked(config))
    runner = CapturedRunner(problem, OptimizerView(make_optimizer(config, problem.model), config.batch))
    seconds = []
    for epoch in range(args.epochs):
        problem.model.train()
        started = time.perf_counter()
        runner.begin(epoch)
        while not runner.done:
            runner.run()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
        while epoch == 0 and args.wait_for is not None and not args.wait_for.exists():
            time.sleep(0.1)
        print(f"epoch {epoch + 1}: {seconds[-1]:.3f} s", {k: v for k, v in runner.means().items() if v is not None})
        runner.start_epoch()
    runner.begin(args.epochs)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as prof:
        for _ in range(args.replays):
            runner.run()
        torch.cuda.synchronize()
    kernels: dict[str, list[float]] = collections.defaultdict(list)
    for event in prof.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            kernels[event.name].append(event.device_time_total)
    total, count = sum(map(sum, kernels.values())), sum(map(len, kernels.values()))
    by_kind: dict[str, list[float]] = collections.defaultdict(list)
    for name, times in kernels.items():
        by_kind[kind(name)] += times
    steps = args.replays
    against = compare_with_sgd(problem, runner)
    figures = {
        "cell": args.cell,
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "compiled": not args.eager,
        "epoch_seconds": seconds,
        "epoch_median": statistics.median(seconds[1:]),
        "step_milliseconds": 1e3 * statistics.median(seconds[1:]) / len(problem.batches),
        "kernel_milliseconds": total / steps / 1e3,
        "kernels": count / steps,
        "against_sgd": against,
        "kinds": {k: {"milliseconds": sum(t) / steps / 1e3, "kernels": len(t) / steps} for k, t in by_kind.items()},
        "largest": [
            {"name": n[:90], "milliseconds": sum(t) / steps / 1e3, "kernels": len(t) / steps}
            for n, t in sorted(kernels.items(), key=lambda item: -sum(item[1]))[:60]
        ],
    }
    print(against)
    for name in ("epoch_median", "step_milliseconds", "kernel_milliseconds", "kernels"):
        print(name, round(figures[name], 3))
    for name, row in figures["kinds"].items():
        print(f"{row['milliseconds']:8.3f} ms {row['kernels']:7.1f}  {name}")
    for row in figures["largest"][:25]:
        print(f"{row['milliseconds']:8.3f} ms {row['kernels']:7.1f}  {row['name']}")
    if args.out is not None:
        args.out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
