"""Golden first losses: a refactor moves no digit.

`python tests/optim/test_golden.py` writes golden.json anew; do so only where the method itself was meant to change.
"""

import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sr2 import L0, L1, SR2, ProxGEN, ProxSGD

FILE = Path(__file__).with_name("golden.json")
RUNS = {
    "sr2 l0": lambda m: SR2(m, L0(1e-3), sigma=0.2, eta2=0.6),
    "sr2 l1 momentum adam": lambda m: SR2(m, L1(1e-3), sigma=0.2, eta2=0.6, momentum=0.9, metric="adam"),
    "sr2 all andrei": lambda m: SR2(m, L1(1e-3), sigma=0.5, eta2=0.99, gamma3=0.8, metric="andrei", penalize="all"),
    "proxgen l1": lambda m: ProxGEN(m, L1(1e-3), lr=0.05, momentum=0.9, metric="adam"),
    "proxsgd l1": lambda m: ProxSGD(m, L1(1e-3)),
}


def run(name):
    """20 steps in float64 on data that no generator of torch drew, so that no version of it can change them."""
    t = torch.arange(24 * 6, dtype=torch.float64).reshape(24, 6)
    x, y = torch.sin(t * 1.7) + torch.cos(t * t), torch.arange(24) % 3
    model = nn.Sequential(nn.Linear(6, 10), nn.BatchNorm1d(10), nn.Tanh(), nn.Linear(10, 3)).double()
    with torch.no_grad():
        for i, p in enumerate(model.parameters()):
            p.copy_(torch.sin(torch.arange(p.numel(), dtype=torch.float64) * (i + 1.3)).reshape(p.shape) * 0.5)
    optimizer = RUNS[name](model)
    losses, sigmas = [], []
    for step in range(20):
        batch = [(7 * step + 5 * i) % 24 for i in range(12)]
        losses.append(optimizer.step(lambda batch=batch: F.cross_entropy(model(x[batch]), y[batch])).item())
        sigmas.append(getattr(optimizer, "sigma", None))
    return {"losses": losses, "sigmas": sigmas}


@pytest.mark.parametrize("name", RUNS)
def test_golden(name):
    expected, got = json.loads(FILE.read_text())[name], run(name)
    assert got["losses"] == pytest.approx(expected["losses"], rel=1e-6)
    assert got["sigmas"] == (
        expected["sigmas"] if None in got["sigmas"] else pytest.approx(expected["sigmas"], rel=1e-6)
    )


def test_the_file_holds_these_runs_and_no_other():
    golden = json.loads(FILE.read_text())
    assert golden.keys() == RUNS.keys()
    sigmas = golden["sr2 l0"]["sigmas"]
    assert max(sigmas) > 0.2
    assert any(b < a for a, b in pairwise(sigmas))


if __name__ == "__main__":
    FILE.write_text(json.dumps({name: run(name) for name in RUNS}, indent=1) + "\n")
