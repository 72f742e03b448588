"""The runs of the tests on `test_every`."""

import torch
import torch.nn.functional as F
from torch import nn

from sr2 import L1, SR2
from sr2.rules import Tolerant

DRAW = torch.Generator().manual_seed(0)
X, Y = torch.randn(8, 16, 6, generator=DRAW), torch.randint(3, (8, 16), generator=DRAW)
TUNED = {"metric": "adam", "momentum": 0.9, "rule": Tolerant(), "average": True}
FATES = ("accepted", "rejected", "null", "broken", "untested")


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 20), nn.BatchNorm1d(20), nn.Tanh(), nn.Linear(20, 3))


def train(steps, model=None, optimizer=None, first=0, spoil=None, **options):
    model = network() if model is None else model
    optimizer = optimizer or SR2(model, L1(1e-3), **{"sigma": 300.0} | TUNED | options)
    for t in range(first, first + steps):
        x = X[t % 8] if spoil is None else spoil(t, X[t % 8])
        optimizer.step(lambda x=x, t=t: F.cross_entropy(model(x), Y[t % 8]))
    return model, optimizer


def points(model, optimizer):
    with optimizer.averaged():
        averages = [p.detach().clone() for p in model.parameters()]
    return [*(p.detach().clone() for p in model.parameters()), *averages, *(b.clone() for b in model.buffers())]
