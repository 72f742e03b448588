"""SR2 with Accelerate: one closure evaluates all parts of a batch; a state that is saved and loaded.

python examples/trainers/accelerate_digits.py

`prepare` wraps the model before SR2 is made, so that SR2 knows of the other processes. Accelerate's own
`accumulate` skips the calls of `step` between; here the parts of a batch are a list of losses instead.
"""

import sys
import tempfile

import torch
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from sr2 import L1, SR2, sparsity

PARTS = 2


def made(accelerator):
    torch.manual_seed(0)
    images, labels = (torch.tensor(a) for a in load_digits(return_X_y=True))
    loader = DataLoader(TensorDataset(images.float() / 16, labels), batch_size=128, shuffle=True, drop_last=True)
    model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10))
    model, loader = accelerator.prepare(model, loader)
    optimizer = accelerator.prepare(SR2(model, L1(1e-3)))
    return model, loader, optimizer


def epoch(accelerator, model, loader, optimizer):
    for x, y in loader:
        parts = list(zip(x.chunk(PARTS), y.chunk(PARTS), strict=True))

        def closure(parts=parts):
            with accelerator.autocast():
                return [nn.functional.cross_entropy(model(x), y) for x, y in parts]

        optimizer.step(closure)


def main(folder):
    accelerator = Accelerator(cpu=True)
    model, loader, optimizer = made(accelerator)
    for _ in range(5):
        epoch(accelerator, model, loader, optimizer)
    inner = optimizer.optimizer
    print(f"loss {inner.last_step.loss:.3f}, sigma {inner.sigma:.3g}")
    accelerator.save_state(folder)
    epoch(accelerator, model, loader, optimizer)
    accelerator.load_state(folder)  # back to where it was
    print(f"sigma {inner.sigma:.3g} again")
    print(f"{100 * sparsity(model).fraction:.1f} % of the weights are zero")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(sys.argv[1] if len(sys.argv) > 1 else folder)
