"""Half of a ResNet's channels: SR2 under a budget of channels on CIFAR-10, then `shrink`. Figures of docs/export.md.

    OMP_NUM_THREADS=1 python benchmarks/channels.py --width 32 --blocks 1 --steps 600 --out channels.json

A ResNet of basic blocks with `width` to 8 `width` filters is trained from nothing for so many steps of one batch size,
once for each density of channels (1 is the dense network). The last iterate is scored on the test images, which choose
nothing here. Then it is shrunk and timed against itself before, interleaved, for batches of 1 and of 64.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from sr2 import SR2, channel_groups, param_groups
from sr2.experiments.data import Batches, eval_batches, load
from sr2.experiments.models.base import BatchNorm
from sr2.experiments.models.resnet import BasicBlock
from sr2.export import save, shrink
from sr2.export.measure import parameters, table

SHAPE = (3, 32, 32)


def resnet(width: int, blocks: int) -> nn.Module:
    """The project's ResNet with `blocks` in each of four stages and another width: 64 and 2 is ResNet-18."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1, bias=False), BatchNorm(width), nn.ReLU(inplace=True)]
    inputs = width
    for stage, block in itertools.product(range(4), range(blocks)):
        outputs = width * 2**stage
        layers.append(BasicBlock(inputs, outputs, 2 if stage and not block else 1))
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 10))


def trained(density: float, options: argparse.Namespace) -> tuple[nn.Module, dict[str, Any]]:
    """The network after the last step, and how it went."""
    torch.manual_seed(options.seed)
    model = resnet(options.width, options.blocks).to(options.device)
    groups = param_groups(model, [("*", None)])
    if density < 1:
        groups = channel_groups(model, torch.zeros(1, *SHAPE), density, floor=options.floor)
    optimizer = SR2(groups, average=False, steps=options.steps)
    batches = Batches(load("cifar10"), options.batch, options.device, seed=options.seed)
    drawn = itertools.chain.from_iterable(batches.epoch(number) for number in itertools.count())
    start = time.perf_counter()
    for step, (x, y) in enumerate(itertools.islice(drawn, options.steps), 1):
        loss = optimizer.step(lambda x=x, y=y: cross_entropy(model(x), y))  # type: ignore[misc]
        if step % 50 == 0:
            print(f"density {density:g}, step {step}: loss {float(loss):.3f}, sigma {optimizer.sigma:.3g}", flush=True)
    figures = {"steps": options.steps, "batch": options.batch, "seconds": round(time.perf_counter() - start)}
    return model, figures | {"sigma": optimizer.sigma, **optimizer.counts}


@torch.no_grad()
def accuracy(model: nn.Module, device: str) -> float:
    """Percent of the 10,000 test images."""
    model.to(device).eval()
    right = sum(int((model(x).argmax(1) == y).sum()) for x, y in eval_batches(load("cifar10"), 500, device))
    return right / 100


def row(density: float, options: argparse.Namespace) -> dict[str, Any]:
    model, found = trained(density, options)
    before = accuracy(model, options.device)
    small = shrink(model.cpu(), torch.zeros(1, *SHAPE), verbose=False)
    found |= {
        "density": density,
        "floor": options.floor,
        "width": options.width,
        "blocks": options.blocks,
        "accuracy": before,
    }
    found |= {"accuracy shrunk": accuracy(small, options.device), "channels": small.shrunk.channels}
    found |= {"parameters": (parameters(model), parameters(small)), "padded": small.shrunk.padded}
    found["macs"] = small.shrunk.macs
    if density < 1:
        found["milliseconds"] = timed(model.eval(), small.cpu())
    if options.keep:
        found["bytes"] = save(small, options.keep / f"density-{density:g}.safetensors")
        save(model, options.keep / f"density-{density:g}-whole.safetensors")
    return found


def timed(model: nn.Module, small: nn.Module) -> dict[str, list[float]]:
    """Milliseconds of this process before and after, by batch: medians of 9, in turn."""
    made = {}
    with torch.no_grad():
        for batch in (1, 64):
            x = torch.randn(batch, *SHAPE)
            seconds: list[list[float]] = [[], []]
            for _ in range(9):
                for network, found in zip((model, small), seconds, strict=True):
                    start = time.process_time()
                    for _ in range(64 // batch):
                        network(x)
                    found.append((time.process_time() - start) / (64 // batch))
            made[str(batch)] = [1e3 * statistics.median(found) for found in seconds]
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--densities", type=float, nargs="*", default=[1.0, 0.5])
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--blocks", type=int, default=1)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--floor", type=float, help="as in `channel_groups`: 1 keeps the same share of every layer")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--keep", type=Path, help="a folder for the networks")
    parser.add_argument("--out", type=Path, help="where to write the figures as JSON")
    options = parser.parse_args()
    rows = [row(density, options) for density in options.densities]
    told = [["density", "accuracy", "shrunk", "channels", "parameters", "MACs", "faster, batch 1", "batch 64"]]
    for r in rows:
        times = r.get("milliseconds", {})
        faster = [f"{before / after:.2f}" for before, after in times.values()] or ["-", "-"]
        sizes = [f"{r[key][1]:,}" for key in ("channels", "parameters", "macs")]
        told.append([f"{r['density']:g}", f"{r['accuracy']:.2f}", f"{r['accuracy shrunk']:.2f}", *sizes, *faster])
    print(table(told))
    if options.out:
        figures = {"torch": torch.__version__, "threads": torch.get_num_threads(), "rows": rows}
        options.out.write_text(json.dumps(figures, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
