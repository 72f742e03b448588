"""Take a trained network and make it sparse: 2:4, a budget of weights, a budget of channels; then make it small.

python examples/sparsify.py             # a few minutes at most; --steps 50 for a first look
python examples/sparsify.py --load net.safetensors   # a network that was trained before
"""

import argparse
import copy
import tempfile
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

from sr2 import NM, SR2, L0Ball, channel_groups, sparsity
from sr2.export import load, save, shrink

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--steps", type=int, default=400, help="of training, and again of each sparse network")
parser.add_argument("--load", type=Path, help="a file of `sr2.export.save` with the trained network")
options = parser.parse_args()

images, labels = load_digits(return_X_y=True)
order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
x, y = torch.tensor(images, dtype=torch.float32)[order].view(-1, 1, 8, 8) / 16, torch.tensor(labels)[order]
x, x_test, y, y_test = x[:1400], x[1400:], y[:1400], y[1400:]


def network() -> nn.Module:
    layers: list[nn.Module] = []
    for inputs, outputs, stride in ((1, 16, 1), (16, 32, 2), (32, 64, 2)):
        layers += [nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def train(model: nn.Module, params, regularizer=None) -> nn.Module:
    """`steps` says how long the run is: a budget shrinks on the way, and steps become short at the end."""
    optimizer = SR2(params, regularizer, steps=options.steps, average=False)  # with `steps` the last iterate is as good
    model.train()
    for _ in range(options.steps):
        b = torch.randint(len(x), (64,))
        optimizer.step(lambda b=b: cross_entropy(model(x[b]), y[b]))
    return model.eval()


@torch.no_grad()
def score(model: nn.Module) -> float:
    return 100 * (model(x_test).argmax(1) == y_test).double().mean().item()


torch.manual_seed(0)
dense = network()
dense = load(options.load, dense).eval() if options.load else train(dense, dense)

recipes = {
    "2:4": NM(2, 4),
    "10 % of the weights": L0Ball(density=0.1),
    "3 % of the weights": L0Ball(density=0.03),
    "50 % of the channels": 0.5,
    "25 % of the channels": 0.25,
}
with tempfile.TemporaryDirectory() as folder:
    file = Path(folder) / "net.safetensors"
    print(f"{'':22} {'accuracy %':>10} {'zeros %':>8} {'bytes':>8} {'shrunk: parameters':>19} {'bytes':>8}")
    for name, what in {"dense": None, **recipes}.items():
        model = copy.deepcopy(dense)
        if isinstance(what, float):  # filters with their batch norms: what `shrink` can cut
            train(model, channel_groups(model, x[:1], density=what))
        elif what is not None:
            train(model, model, what)
        small = shrink(model, x[:1], verbose=False)
        told = f"{name:22} {score(model):10.2f} {100 * sparsity(model).fraction:8.2f} {save(model, file):8,}"
        print(f"{told} {sum(p.numel() for p in small.parameters()):19,} {save(small, file):8,}", flush=True)

    again = load(file, network()).eval()  # the last one: `load` makes the whole network as small as the file says
    print(f"the last one, shrunk, saved and loaded: {score(again):.2f} %")
