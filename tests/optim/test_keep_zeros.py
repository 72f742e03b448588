"""KeepZeros under every optimizer: what is zero before the first step stays zero, also in a resumed run."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sr2 import KeepZeros
from tests.optimizers import OPTIMIZERS, named

DRAW = torch.Generator().manual_seed(0)
X, Y = torch.randn(32, 6, generator=DRAW), torch.randint(3, (32,), generator=DRAW)


def half_zero():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 3))
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() > 1:
                p.mul_(torch.rand_like(p) < 0.5)
    return model


@pytest.mark.parametrize("case", OPTIMIZERS, ids=named)
def test_zeros_stay_also_in_a_resumed_run(case):
    if not case.takes(KeepZeros()):
        pytest.skip(f"{case.kind.__name__} does not take it")
    model = half_zero()
    zeros = [p == 0 for p in model.parameters() if p.dim() > 1]
    before = [p.detach().clone() for p in model.parameters()]

    def steps(model, optimizer):
        for _ in range(5):
            optimizer.step(lambda: F.cross_entropy(model(X), Y))
        kept = [p == 0 for p in model.parameters() if p.dim() > 1]
        assert all(bool((now | ~then).all()) for now, then in zip(kept, zeros, strict=True))

    optimizer = case.make(model, KeepZeros())
    steps(model, optimizer)
    assert any(not torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))
    again = copy.deepcopy(model)
    resumed = case.make(again, KeepZeros())
    resumed.load_state_dict(optimizer.state_dict())
    steps(again, resumed)
