"""What a global budget adds to a step: SR2 under L0Ball against SR2 under L1, whole steps, interleaved.

    python benchmarks/selection.py --device cuda --out selection.json      # bf16, captured as CUDA graphs
    OMP_NUM_THREADS=1 python benchmarks/selection.py --repeats 3 --steps 1 # the CPU, in seconds of the process

ResNet-18 (11 million weights, of which the budget keeps 5 %), one batch of 128. Every way has a network of its own. The
ratio is the median of ratios of neighbouring timings to the first way. "tensor by tensor" is how L1 moves without its
fused kernel. "alone" is one prox of the budget, without a step, also as a share of the step under L1. "parts", on CUDA:
each part of the move under a shrinking budget, repeated in a graph of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from sr2 import L1, SR2, L0Ball
from sr2.experiments.models import build
from sr2.export.measure import table
from sr2.optim import CapturedStep
from sr2.optim.moves.fused import MOVE, MOVE_CHOSEN, SCORE
from sr2.regularizers import Regularizer
from sr2.regularizers.selection import DIGITS

WAYS: dict[str, tuple[Regularizer, dict[str, Any]]] = {
    "L1": (L1(1e-6), {}),
    "L1, tensor by tensor": (L1(1e-6), {"foreach": False}),
    "L0Ball": (L0Ball(density=0.05), {}),
    "L0Ball, no floor": (L0Ball(density=0.05, floor=0), {}),
    "L0Ball, shrinking": (L0Ball(density=0.05), {"reach": (1, 10**6)}),
}


def step_of(R: Regularizer, given: dict[str, Any], options: argparse.Namespace) -> Callable[[], object]:
    """One training step, as a CUDA graph where there is CUDA."""
    optimizer, step = trained(R, given, options)
    if options.device.startswith("cuda"):
        return CapturedStep(optimizer, step)
    step()
    return step


def trained(R: Regularizer, given: dict[str, Any], options: argparse.Namespace) -> tuple[SR2, Callable[[], object]]:
    """An optimizer of a network and its step."""
    torch.manual_seed(0)
    device, cuda = torch.device(options.device), options.device.startswith("cuda")
    model = build(options.model, 10, (3, options.size, options.size)).to(device)
    x = torch.randn(options.batch, 3, options.size, options.size, device=device)
    y = torch.randint(10, (options.batch,), device=device)
    if cuda:
        model, x = model.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)
    with torch.no_grad():  # from within the budget, so that no warning says that x was moved there
        weights = [p for p in model.parameters() if p.dim() > 1]
        for p, z in zip(weights, R.prox(weights, 1e-9), strict=True):
            p.copy_(z)
    optimizer = SR2(model, R, sigma=1e4, average=False, capturable=cuda, **given)

    def loss() -> torch.Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16) if cuda else contextlib.nullcontext():
            return cross_entropy(model(x), y)

    def step() -> torch.Tensor:
        return optimizer.step(loss)

    return optimizer, step


def prox_of(R: Regularizer, options: argparse.Namespace) -> Callable[[], object]:
    """The prox of all weights alone, with one step per entry."""
    weights = [p.detach() for p in build(options.model, 10, (3, 32, 32)).to(options.device).parameters() if p.dim() > 1]
    steps = [torch.rand_like(w) + 0.1 for w in weights]

    def prox() -> object:
        return R.prox_of(weights, steps)

    return replayed(prox) if options.device.startswith("cuda") else prox


def replayed(body: Callable[[], object], times: int = 1) -> Callable[[], object]:
    """This, so many times, as a CUDA graph."""
    body()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(times):
            body()
    return graph.replay


REPEATED = 20
"""How often a graph repeats a part: replaying a short one would take longer than the part."""


def parts_of(options: argparse.Namespace) -> dict[str, Callable[[], object]]:
    """The parts of a fused move under a shrinking budget, in their order, and the move without one."""
    optimizer, step = trained(*WAYS["L0Ball, shrinking"], options)
    step(), step()
    optimizer._search.share.fill_(0.7)  # at 7.6 % of the weights
    move: Any = next(iter(optimizer._moves._made.values()))[1]
    budgets, length = move._budgets, torch.full((), 1e-4, dtype=torch.float64, device=options.device)
    search, bits = budgets._search, budgets._scores.view(torch.int32)
    counts = torch.zeros(len(search.ends) << max(bits for _, bits in DIGITS), dtype=torch.int32, device=options.device)
    bodies: dict[str, Callable[[], object]] = {
        "score": lambda: move._run(length, budgets, SCORE),
        "choose": budgets.choose,
        "choose: counts": lambda: [search.count(bits, row, counts) for row in range(len(DIGITS))],
        "move what is chosen": lambda: move._run(length, budgets, MOVE_CHOSEN),
        "move without a budget": lambda: move._run(length, None, MOVE),
    }
    bodies |= {f"choose: count {row}": lambda row=row: search.count(bits, row, counts) for row in range(len(DIGITS))}
    return {name: replayed(body, REPEATED) for name, body in bodies.items()}


def timed(bodies: Sequence[Callable[[], object]], options: argparse.Namespace) -> list[list[float]]:
    """Seconds of each, in turn, again and again; on the CPU those of this process, whatever else the machine does."""
    cuda = options.device.startswith("cuda")
    clock = time.perf_counter if cuda else time.process_time
    seconds: list[list[float]] = [[] for _ in bodies]
    for _ in range(options.repeats):
        for body, found in zip(bodies, seconds, strict=True):
            if cuda:
                torch.cuda.synchronize()
            start = clock()
            for _ in range(options.steps):
                body()
            if cuda:
                torch.cuda.synchronize()
            found.append((clock() - start) / options.steps)
    return seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--size", type=int, default=32, help="of the images")
    parser.add_argument("--steps", type=int, default=10, help="per timing")
    parser.add_argument("--repeats", type=int, default=9, help="timings of each")
    ways = [*WAYS, "alone", "parts"]
    parser.add_argument("--ways", nargs="*", default=ways, help="the first is what others are measured by")
    parser.add_argument("--out", type=Path, help="where to write the figures as JSON")
    options = parser.parse_args()
    budget = L0Ball(density=0.05)
    bodies = {n: step_of(*WAYS[n], options) for n in options.ways if n in WAYS}
    if "alone" in options.ways:
        bodies["alone"] = prox_of(budget, options)
    parts = parts_of(options) if "parts" in options.ways and options.device.startswith("cuda") else {}
    seconds = timed([*bodies.values(), *parts.values()], options)
    rows = []
    for name, found in zip([*bodies, *parts], seconds, strict=True):
        if name in parts:
            found = [t / REPEATED for t in found]
        ratio = statistics.median(a / b for a, b in zip(found, seconds[0], strict=True))
        rows.append({"way": name, "milliseconds": 1e3 * statistics.median(found), "ratio": ratio})
    print(table([["", "ms", "ratio"], *([r["way"], f"{r['milliseconds']:.3f}", f"{r['ratio']:.3f}"] for r in rows)]))
    if options.out:
        what = {"torch": torch.__version__, "device": options.device, "batch": options.batch, "model": options.model}
        if options.device.startswith("cuda"):
            what["gpu"] = torch.cuda.get_device_name()
        options.out.write_text(json.dumps({**what, "rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
