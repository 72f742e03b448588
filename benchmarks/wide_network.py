"""l0 on a network too wide for the paper's constants: eta2 and gamma3 against each other, on digits, in two minutes.

    python benchmarks/wide_network.py

`docs/reproduction.md` shows what it prints.
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn

from sr2 import L0, SR2, sparsity

WIDTH, EPOCHS = 512, 40
CONSTANTS = [{"eta2": 0.99, "gamma3": 0.8}, *({"eta2": eta2, "gamma3": "auto"} for eta2 in (0.99, 0.9, 0.8))]


def train(lam: float, seed: int, constants: dict[str, float | str]) -> tuple[float, float, float]:
    """Accuracy on the training images and zeros, in per cent, and the gamma3 that was used."""
    x, y = (torch.tensor(a) for a in load_digits(return_X_y=True))
    x = x.float() / 16
    torch.manual_seed(seed)
    first = [nn.Linear(64, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU()]
    second = [nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU()]
    model = nn.Sequential(*first, *second, nn.Linear(WIDTH, 10))
    optimizer = SR2(model, L0(lam), **constants)  # type: ignore[arg-type]
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(x)).split(128):
            optimizer.step(lambda b=batch: nn.functional.cross_entropy(model(x[b]), y[b]))
    right = (model.eval()(x).argmax(1) == y).double().mean()
    return 100 * float(right), 100 * sparsity(model).fraction, optimizer.search.gamma3


def main() -> None:
    """Print a line for each choice."""
    torch.set_num_threads(1)
    for lam in (1e-2, 1e-3):
        for constants in CONSTANTS:
            runs = [train(lam, seed, constants) for seed in range(2)]
            accuracy, zeros, gamma3 = zip(*runs, strict=True)
            shown = ", ".join(f"{a:.1f}" for a in accuracy), ", ".join(f"{z:.1f}" for z in zeros)
            print(
                f"lambda {lam:g}  {constants}  gamma3 {gamma3[0]:.5g}  accuracy {shown[0]}  zeros {shown[1]}",
                flush=True,
            )


if __name__ == "__main__":
    main()
