"""SR2 in a training script as timm's is written: micro-batches, autocast, an average of weights, TensorBoard.

python examples/trainers/script_loop.py

Against the script of another optimizer: no scheduler, no clipping, no scaler; the forward pass is inside the closure;
micro-batches are a list of losses; the model's average is the optimizer's own.
"""

import sys
import tempfile

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.tensorboard import SummaryWriter

from sr2 import L0, SR2, recalibrate_, sparsity


def train_one_epoch(model, loader, optimizer, micro, writer, step):
    model.train()
    for x, y in loader:

        def closure(x=x, y=y):
            with torch.autocast(x.device.type, torch.bfloat16):
                parts = zip(x.split(micro), y.split(micro), strict=True)
                return [nn.functional.cross_entropy(model(a), b) for a, b in parts]

        optimizer.step(closure)
        step += 1
        if step % 5 == 0:
            last = optimizer.last_step
            writer.add_scalar("loss", last.loss, step)
            writer.add_scalar("sigma", last.sigma, step)
            writer.add_scalar("rho", last.rho, step)
            writer.add_scalar("zeros", sparsity(model).fraction, step)
    return step


@torch.no_grad()
def validate(model, x, y):
    model.eval()
    return (model(x).argmax(1) == y).double().mean().item()


def main(folder):
    torch.manual_seed(0)
    images, labels = (torch.tensor(a) for a in load_digits(return_X_y=True))
    x, y, x_test, y_test = images[:1400].float() / 16, labels[:1400], images[1400:].float() / 16, labels[1400:]
    loader = DataLoader(TensorDataset(x, y), batch_size=128, shuffle=True, drop_last=True)
    model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = SR2(model, L0(3e-4))
    step = 0
    with SummaryWriter(folder) as writer:
        for _ in range(6):
            step = train_one_epoch(model, loader, optimizer, 64, writer, step)
        print(f"accuracy {100 * validate(model, x_test, y_test):.1f} %")
        with optimizer.averaged():
            recalibrate_(model, [x])
            print(f"accuracy of the average {100 * validate(model, x_test, y_test):.1f} %")
    print(f"{100 * sparsity(model).fraction:.1f} % of the weights are zero")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(sys.argv[1] if len(sys.argv) > 1 else folder)
