"""What SR2's own work costs on the CPU beside torch's AdamW, with the defaults: no network, gradients that are given.

    OMP_NUM_THREADS=1 python benchmarks/own_work.py
    python benchmarks/own_work.py --threads 2 --shapes 1e7 gpt

Shapes are one tensor of so many entries, or those of a network. All optimizers are interleaved, each on tensors of its
own; the ratio to AdamW (foreach) is the median over rounds. With one thread it is CPU time, so that another process on
the machine counts less; the page faults of a step are shown beside it, since fresh memory costs the most.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from sr2 import L1, SR2, L0Ball, Regularizer

STEPS = 3
"""Of a round."""
WARM = 5


def resnet18() -> list[tuple[int, ...]]:
    """As for images of 32 x 32: 11.2 M."""
    shapes: list[tuple[int, ...]] = [(64, 3, 3, 3), (64,), (64,)]
    before = 64
    for width in (64, 64, 128, 128, 256, 256, 512, 512):
        shapes += [(width, before, 3, 3), (width,), (width,), (width, width, 3, 3), (width,), (width,)]
        shapes += [(width, before, 1, 1), (width,), (width,)] if width != before else []
        before = width
    return [*shapes, (10, 512), (10,)]


def gpt(d: int = 384, layers: int = 6) -> list[tuple[int, ...]]:
    """Of characters: 10.8 M."""
    layer: list[tuple[int, ...]] = [(d,), (d,), (3 * d, d), (d, d), (d,), (d,), (4 * d, d), (d, 4 * d)]
    return [(65, d), (256, d), *(layers * layer), (d,), (65, d)]


def tensors(shapes: Sequence[tuple[int, ...]]) -> tuple[list[nn.Parameter], list[torch.Tensor]]:
    torch.manual_seed(0)
    return [nn.Parameter(0.01 * torch.randn(s)) for s in shapes], [1e-3 * torch.randn(s) for s in shapes]


def torchs(shapes: Sequence[tuple[int, ...]], **options: Any) -> Callable[[], Any]:
    """A step of AdamW."""
    xs, gs = tensors(shapes)
    optimizer = torch.optim.AdamW(xs, lr=1e-6, **options)

    def step() -> None:
        for x, g in zip(xs, gs, strict=True):
            x.grad = g
        optimizer.step()

    return step


def ours(shapes: Sequence[tuple[int, ...]], regularizer: Regularizer | None, **options: Any) -> Callable[[], Any]:
    """A step of SR2; as in `sr2 bench`, so short that a constant loss accepts it."""
    xs, gs = tensors(shapes)
    weights = [x for x in xs if x.dim() > 1] or xs
    groups = [{"params": weights, "regularizer": regularizer}]
    groups += [{"params": rest, "regularizer": None}] if (rest := [x for x in xs if x.dim() < 2]) != weights else []
    optimizer, loss = SR2(groups, sigma=1e9, **options), torch.ones(())

    def closure() -> torch.Tensor:
        for x, g in zip(xs, gs, strict=True):
            x.grad = g
        return loss

    return lambda: optimizer.step(closure)


def faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=["1e6", "1e7", "resnet18", "gpt"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--compile", action="store_true", help="SR2(..., compile=True) too")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    clock = time.process_time if args.threads == 1 else time.perf_counter
    for name in args.shapes:
        shapes = {"resnet18": resnet18, "gpt": gpt}[name]() if name in ("resnet18", "gpt") else [(int(float(name)),)]
        bodies = {
            "adamw, foreach": torchs(shapes, foreach=True),
            "adamw, fused": torchs(shapes, fused=True),
            "sr2": ours(shapes, None),
            "sr2 l1": ours(shapes, L1(1e-4)),
            "sr2 budget of 5 %": ours(shapes, L0Ball(density=0.05), reach=None),
        }
        if args.compile:
            bodies["sr2, compiled"] = ours(shapes, None, compile=True)
        seconds: dict[str, list[float]] = {label: [] for label in bodies}
        faulted: dict[str, int] = {}
        for body in bodies.values():
            for _ in range(WARM):
                body()
        for _ in range(args.repeats):
            for label, body in bodies.items():
                body()
                before, started = faults(), clock()
                for _ in range(STEPS):
                    body()
                seconds[label].append((clock() - started) / STEPS)
                faulted[label] = (faults() - before) // STEPS
        first = seconds["adamw, foreach"]
        for label, times in seconds.items():
            ratios = [a / b for a, b in zip(times, first, strict=True)]
            row = f"{name:9} {label:18} {1e3 * statistics.median(times):9.2f} ms {statistics.median(ratios):6.2f}"
            print(f"{row} of AdamW's ({min(ratios):.2f} to {max(ratios):.2f}), {faulted[label]:,} faults", flush=True)


if __name__ == "__main__":
    main()
