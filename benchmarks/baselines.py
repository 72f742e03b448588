"""SR2 against ProxGEN and ProxSGD where batches are noisy, each with and without a cooldown over the last fifth.

    python benchmarks/baselines.py 1e-3   # lambda of l1; CIFAR-10's images at 8 x 8, 0.12 million parameters, 50 epochs

`docs/notebook.md` shows what this prints. The baselines' cooldown is torch's LambdaLR, along the line of SR2's.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import torch
from constants import narrow, thumbnails
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import LambdaLR

from sr2 import L1, SR2, ProxGEN, ProxSGD, sparsity
from sr2.optim import ProximalOptimizer
from sr2.schedules import Cooldown

EPOCHS, BATCH = 50, 128
RIVALS: dict[str, Callable[[nn.Module, L1, tuple[int, int] | None], ProximalOptimizer]] = {
    "SR2": lambda model, r, cooldown: SR2(model, r, cooldown=cooldown),
    "ProxGEN, lr 0.03": lambda model, r, _: ProxGEN(model, r, lr=0.03),
    "ProxGEN, lr 0.1": lambda model, r, _: ProxGEN(model, r, lr=0.1),
    "ProxGEN, lr 0.3": lambda model, r, _: ProxGEN(model, r, lr=0.3),
    "ProxGEN, lr 1": lambda model, r, _: ProxGEN(model, r, lr=1.0),
    "ProxSGD": lambda model, r, _: ProxSGD(model, r),
}


def train(make: Callable[..., ProximalOptimizer], lam: float, cools: bool, data: list[Tensor]) -> list[float]:
    """Test accuracy, exact zeros, small weights, and F of the last epoch's batches."""
    x, y, x_test, y_test = data
    torch.manual_seed(0)
    model, steps = narrow(10, (3, 8, 8)), EPOCHS * (len(x) // BATCH)
    cooldown = (round(0.8 * steps), steps)
    optimizer = make(model, L1(lam), cooldown if cools else None)
    schedule = None
    if cools and not isinstance(optimizer, SR2):
        schedule = LambdaLR(optimizer, lambda t: float(Cooldown(*cooldown).left(torch.tensor(t))))
    losses: list[float] = []
    for _ in range(EPOCHS):
        losses = []
        for batch in torch.randperm(len(x))[: steps // EPOCHS * BATCH].split(BATCH):
            loss: Any = optimizer.step(lambda b=batch: cross_entropy(model(x[b]), y[b]))
            losses.append(float(loss))
            if schedule is not None:
                schedule.step()
    with torch.no_grad():
        accuracy = 100 * float((model.eval()(x_test).argmax(1) == y_test).double().mean())
        penalty = sum(float(g["regularizer"].value(g["params"])) for g in optimizer.param_groups if g["regularizer"])
    small = [100 * sparsity(model, threshold=t).fraction for t in (0.0, 1e-3)]
    return [accuracy, *small, statistics.fmean(losses) + penalty]


def main() -> None:
    """Print a line a run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lam", type=float)
    lam = parser.parse_args().lam
    torch.set_num_threads(1)
    images, labels, test_images, test_labels = thumbnails()
    mean, std = (f(images.float(), (0, 2, 3), keepdim=True) for f in (torch.mean, torch.std))
    data = [(images - mean) / std, labels, (test_images - mean) / std, test_labels]
    for name, make in RIVALS.items():
        for cools in (False, True):
            accuracy, zeros, small, objective = train(make, lam, cools, data)
            ending = "with a cooldown" if cools else "without"
            print(
                f"{name}, {ending}: {accuracy:.1f} %, zeros {zeros:.1f} %, small {small:.1f} %, F {objective:.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
