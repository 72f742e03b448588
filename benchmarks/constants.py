"""eta2, gamma3 and a cooldown on digits, where they matter; `docs/constants.md` shows what this prints.

    python benchmarks/constants.py wide      # l0 takes a wide network whole
    python benchmarks/constants.py steady    # with batch norm a low eta2 makes steps too long
    python benchmarks/constants.py cooled    # and a cooldown makes them short in time

The network of the rows on CIFAR-10 is `wide` below:

    PYTHONPATH=benchmarks sr2 train --data cifar10 --model constants:wide --regularizer l0 --lam 1e-3 --sigma auto \\
        --eta2 0.9 --gamma3 auto --epochs 20

A cooldown on CIFAR-10's images at 8 x 8, where a network of 256 trains in two seconds an epoch:

    PYTHONPATH=benchmarks sr2 train --data constants:thumbnails --model constants:narrow --regularizer l1 --lam 1e-3 \\
        --cooldown 0.2 --epochs 50
"""

from __future__ import annotations

import argparse
import math
import statistics
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import avg_pool2d

from sr2 import L0, L1, SR2, sparsity
from sr2.experiments.data import load
from sr2.regularizers.base import Regularizer

AUTO: list[dict[str, Any]] = [{"eta2": eta2, "gamma3": "auto"} for eta2 in (0.99, 0.9, 0.8)]
FIXED = [{"eta2": eta2, "gamma3": gamma3} for eta2, gamma3 in ((0.99, 0.8), (0.9, 0.95), (0.9, 0.8), (0.8, 0.8))]
COOLED = [{**constants, "cooldown": (480, 600)} for constants in FIXED]  # of 600 steps
TABLES = {
    "wide": (512, [L0(1e-2), L0(1e-3)], [FIXED[0], *AUTO]),
    "steady": (64, [L1(1e-4), L0(1e-3)], FIXED),
    "cooled": (64, [L1(1e-4), L0(1e-3)], COOLED),
}


def wide(classes: int, in_shape: tuple[int, ...], width: int = 1024, bias: bool = False) -> nn.Module:
    """Two hidden layers with batch norm."""
    first = [nn.Linear(math.prod(in_shape), width, bias), nn.BatchNorm1d(width), nn.ReLU()]
    second = [nn.Linear(width, width, bias), nn.BatchNorm1d(width), nn.ReLU()]
    return nn.Sequential(nn.Flatten(), *first, *second, nn.Linear(width, classes))


def narrow(classes: int, in_shape: tuple[int, ...]) -> nn.Module:
    """The same with 256."""
    return wide(classes, in_shape, 256)


def thumbnails() -> list[torch.Tensor]:
    """CIFAR-10 with the means of 4 x 4 pixels as pixels."""
    data = load("cifar10")
    small = [avg_pool2d(x.float(), 4).round().to(torch.uint8) for x in (data.train_inputs, data.test_inputs)]
    return [small[0], data.train_targets, small[1], data.test_targets]


def train(width: int, regularizer: Regularizer, constants: dict[str, Any], seed: int) -> str:
    """40 epochs; training accuracy in evaluation mode, lowest and highest of the last six epochs, and the last."""
    x, y = (torch.tensor(a) for a in load_digits(return_X_y=True))
    x = x.float() / 16
    torch.manual_seed(seed)
    model = wide(10, (64,), width, bias=True)
    optimizer, accuracy, losses = SR2(model, regularizer, **constants), [], [0.0]
    for _ in range(40):
        losses = []
        for batch in torch.randperm(len(x)).split(128):
            step = optimizer.step(lambda b=batch: nn.functional.cross_entropy(model(x[b]), y[b]))
            losses.append(float(step))
        accuracy.append(100 * float((model.eval()(x).argmax(1) == y).double().mean()))
        model.train()
    zeros, loss = 100 * sparsity(model).fraction, statistics.fmean(losses)
    return (
        f"accuracy {min(accuracy[-6:]):.1f} to {max(accuracy[-6:]):.1f}, at the end {accuracy[-1]:.1f} %, "
        f"zeros {zeros:.1f} %, loss {loss:.3f}, sigma {optimizer.sigma:.3g}, gamma3 {optimizer.rule.gamma3:.5g}"
    )


def main() -> None:
    """Print a line a run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=TABLES)
    torch.set_num_threads(1)
    width, regularizers, choices = TABLES[parser.parse_args().table]
    for regularizer in regularizers:
        for constants in choices:
            for seed in range(2):
                print(regularizer, constants, f"seed {seed}:", train(width, regularizer, constants, seed), flush=True)


if __name__ == "__main__":
    main()
