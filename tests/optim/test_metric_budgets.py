"""Budgets and groups in a diagonal metric: SR2 and ProxGEN step to the exact prox with one step per entry."""

import pytest
import torch
from torch import nn

from sr2 import NM, GroupL0, GroupL2, L0Ball, ProxGEN
from tests.tools import algorithm_1


def problem():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16, 3))
    x, y = torch.randn(32, 4, 6, 6), torch.randint(3, (32,))
    return model, lambda: nn.functional.cross_entropy(model(x), y)


REGULARIZERS = [
    L0Ball(density=0.2),
    L0Ball(density=0.5, groups="filters"),
    NM(2, 4),
    GroupL0(1e-4, "filters"),
    GroupL2(1e-3, "columns"),
]


@pytest.mark.filterwarnings("ignore:R\\(x_0\\) is infinite")
@pytest.mark.parametrize("R", REGULARIZERS, ids=repr)
@pytest.mark.parametrize("metric", ["adam", "rmsprop", "andrei"])
def test_sr2_descends(R, metric):
    model, loss = problem()
    optimizer = algorithm_1(model, R, metric=metric)
    weights = [p for p in model.parameters() if p.dim() > 1]
    first = loss().detach() + R.value(R.prox(weights, 1.0))
    for _ in range(15):
        optimizer.step(loss)
        assert R.value(weights).isfinite()
    assert optimizer.counts["accepted"] > 5
    assert loss().detach() + R.value(weights) < first


@pytest.mark.parametrize("R", REGULARIZERS, ids=repr)
def test_the_step_is_the_prox_in_the_metric(R):
    """ProxGEN's first step with Adam's metric: D = |g| + eps, x <- prox_{lr / D}(x - lr g / D)."""
    model, loss = problem()
    weights = [p for p in model.parameters() if p.dim() > 1]
    gs = torch.autograd.grad(loss(), weights)
    steps = [0.1 / (g.abs() + 1e-8) for g in gs]
    expected = R.prox([x.detach() - s * g for x, s, g in zip(weights, steps, gs, strict=True)], steps)
    ProxGEN(weights, R, lr=0.1, metric="adam").step(loss)
    for x, z in zip(weights, expected, strict=True):
        torch.testing.assert_close(x.detach(), z, rtol=1e-4, atol=1e-5)
        assert ((x == 0) == (z == 0)).float().mean() > 0.99  # Adam's average rounds g^2, and near ties may turn


@pytest.mark.parametrize("R", [L0Ball(density=0.1), L0Ball(density=0.5, groups="filters"), NM(1, 4)], ids=repr)
def test_a_budget_is_reached(R):
    """From everything to its own over twenty steps, by a number that is filled in place."""
    model, loss = problem()
    weights = [p for p in model.parameters() if p.dim() > 1]
    first, share = loss().detach(), torch.zeros((), dtype=torch.float64)
    optimizer = ProxGEN(weights, R.at_strength(share), lr=0.01, momentum=0.9, metric="adam")
    zeros = []
    for step in range(40):
        share.fill_(min(1.0, step / 20))
        optimizer.step(loss)
        zeros.append(sum(int((p == 0).sum()) for p in weights))
    assert zeros[0] == 0
    assert zeros[:21] == sorted(zeros[:21])
    assert len(set(zeros[20:])) == 1
    assert R.value(weights) == 0
    assert loss().detach() < first
