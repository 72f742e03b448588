"""`python -m benchmarks.epochs`: which share of a weight should a step take, where an epoch has few or many steps?

Fashion-MNIST, images and epochs varied, a share of the labels drawn anew; errors on 10,000 held-out training images,
last iterate. The share is that at the usual sigma: by default 0.00036 per step, with `steps_per_epoch` 0.14 per epoch.
`--shares auto blind` has the defaults with `steps_per_epoch`, and the same without asking what is learnt by heart.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import warnings

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sr2 import SR2
from sr2.experiments.data import base as data

BATCH = 64
SHARES = (4e-5, 1e-4, 3.6e-4, 1e-3, 3e-3, 1e-2)


def mlp() -> nn.Module:
    layers = [nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)]
    return nn.Sequential(nn.Flatten(), *layers)


def cnn() -> nn.Module:
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise((1, 12, 24, 48)):
        convolution = nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False)
        layers += [convolution, nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, 10))


def size(model: nn.Module) -> float:
    weights = torch.cat([p.detach().double().flatten() for p in model.parameters() if p.dim() > 1])
    return float(weights.square().mean().sqrt())


def error(images: Tensor, labels: Tensor, share: float | str, args: argparse.Namespace, seed: int) -> float:
    """On the held-out images, after one run."""
    torch.manual_seed(seed)
    model, draw = (mlp if args.network == "mlp" else cnn)(), torch.Generator().manual_seed(seed)
    chosen = torch.randperm(50000, generator=draw)[: args.images]
    x, y, n = images[chosen], labels[chosen].clone(), args.images // BATCH
    if args.noise:
        wrong = torch.rand(len(y), generator=draw) < args.noise
        y[wrong] = torch.randint(10, (int(wrong.sum()),), generator=draw)
    told = {"steps_per_epoch": n} if isinstance(share, str) else {"weight_decay": share * 10 / size(model)}
    optimizer = SR2(model, steps=args.epochs * n, test_every="auto", **told)  # type: ignore[arg-type]
    if share == "blind":
        optimizer._search.heart = None
    for _ in range(args.epochs):
        for b in torch.randperm(len(y), generator=draw)[: n * BATCH].split(BATCH):
            optimizer.step(lambda b=b: F.cross_entropy(model(x[b]), y[b]))
    model.eval()
    with torch.no_grad():
        return float((model(images[50000:]).argmax(1) != labels[50000:]).double().mean())


def number(word: str) -> float | str:
    return word if word in ("auto", "blind") else float(word)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", choices=["mlp", "cnn"], default="mlp")
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--noise", type=float, default=0.0, help="the share of labels that are drawn anew")
    parser.add_argument("--shares", type=number, nargs="+", default=SHARES)
    parser.add_argument("--seeds", type=int, default=4)
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    whole = data.load("fashion_mnist")
    images = (whole.train_inputs.float().view(-1, 1, 28, 28) / 255 - 0.286) / 0.353
    for share in args.shares:
        found = [error(images, whole.train_targets, share, args, seed) for seed in range(args.seeds)]
        spread = statistics.pstdev(found) / len(found) ** 0.5
        if isinstance(share, float):
            what = f"{share:g} per step, {share * (args.images // BATCH):.3f} per epoch"
        else:
            what = share
        print(f"{what}: {statistics.mean(found):.4f} ± {spread:.4f}", flush=True)


if __name__ == "__main__":
    main()
