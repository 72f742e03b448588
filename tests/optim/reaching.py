"""The runs of the tests on `reach`."""

import torch
import torch.nn.functional as F
from torch import nn

from sr2 import L1, NM, SR2, GroupL2, L0Ball
from sr2.rules import Ratio, Tolerant

ADAM = {"metric": "adam", "momentum": 0.9, "rule": Tolerant(), "average": True}
PLAIN = {"metric": None, "momentum": 0.0, "average": False}


def problem(seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 20), nn.Tanh(), nn.Linear(20, 4))
    x, y = torch.randn(20, 32, 8), torch.randint(4, (20, 32))
    return model, [lambda i=i: F.cross_entropy(model(x[i]), y[i]) for i in range(20)]


def weights(model):
    return [p for p in model.parameters() if p.dim() > 1]


def nonzeros(model):
    return sum(int(torch.count_nonzero(p)) for p in weights(model))


def run(optimizer, closures, steps, first=0):
    for t in range(first, first + steps):
        optimizer.step(closures[t % len(closures)])


CASES = {
    "budget": (L0Ball(density=0.1), ADAM),
    "blocks": (NM(1, 4), {**ADAM, "metric": None}),
    "lambda": (L1(1e-2), ADAM),
    "groups": (GroupL2(1e-2, "rows"), ADAM),
    "ratio": (L0Ball(density=0.1), {**PLAIN, "rule": Ratio(), "sigma": 3.0}),
}


def trained(name, steps=30, **more):
    R, options = CASES[name]
    model, closures = problem()
    optimizer = SR2(model, R, reach=(3, 20), **{**options, **more})
    run(optimizer, closures, steps)
    return model, optimizer, closures
