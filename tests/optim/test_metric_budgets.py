"""Budgets and groups in a diagonal metric: SR2 and ProxGEN step to the exact prox with one step per entry.

An R that couples the entries of a tensor has one number per tensor, or per group: the root mean square of the metric.
"""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

from sr2 import NM, SR2, GroupL0, GroupL2, L0Ball, Nuclear, ProxGEN, Rank, metrics
from sr2.optim.parts.metrics import one_number
from sr2.regularizers import Regularizer
from sr2.rules import Tolerant
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


@dataclass(frozen=True)
class Norm(Regularizer):
    """lam |x| of the whole group at once, as a user writes it: it couples tensors."""

    lam: float
    convex = True

    def terms_of(self, xs):
        return [self.lam * torch.cat([x.double().flatten() for x in xs]).norm()]

    def prox_of(self, xs, steps):
        assert len({float(step) for step in steps}) == 1  # one for all, or it is no prox
        norm = torch.cat([x.double().flatten() for x in xs]).norm()
        return [(x * (1 - self.lam * float(steps[0]) / norm).clamp_min(0)).to(x.dtype) for x in xs]


COUPLED = [Nuclear(1e-2), Rank(2), Norm(1e-3)]


@pytest.mark.filterwarnings("ignore:R\\(x_0\\) is infinite")
@pytest.mark.parametrize("R", REGULARIZERS + COUPLED, ids=repr)
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


@pytest.mark.filterwarnings("ignore:R\\(x_0\\) is infinite")
@pytest.mark.parametrize("R", [None, *REGULARIZERS], ids=repr)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_andreis_first_steps_are_not_too_long_for_the_tolerant(R, momentum):
    """The first D is 1 and the second at its floor, a hundredth: sigma_0 was too small for that by as much."""
    model, loss = problem()
    optimizer = SR2(model, R, metric="andrei", momentum=momentum, reach=None)
    losses = [float(optimizer.step(loss)) for _ in range(15)]
    assert optimizer.counts["accepted"] >= 12
    assert losses[:5] == sorted(losses[:5], reverse=True)
    assert losses[-1] < losses[0]  # in between one that tolerates rises may rise


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


@pytest.mark.parametrize("R", [r for r in REGULARIZERS if r.strict], ids=repr)
@pytest.mark.parametrize(("kind", "times"), [(SR2, 4.0), (ProxGEN, 1.0)])
def test_under_a_budget_of_sr2_a_zero_must_be_wanted_four_times_as_much(R, kind, times):
    """The metric is 4 D where x is zero: the prox in that metric, still exact. ProxGEN is as its paper has it."""
    model, loss = problem()
    weights = [p for p in model.parameters() if p.dim() > 1]
    with torch.no_grad():
        for x in weights:
            x[torch.rand_like(x) < 0.6] = 0.0
    loss().backward()
    D = [(x.grad.abs() + 1e-8) * torch.where(x == 0, times, 1.0) for x in weights]
    us = [x.detach() - 0.1 / d * x.grad for x, d in zip(weights, D, strict=True)]
    expected = R.prox(us, [0.1 / d for d in D])
    if kind is ProxGEN:
        ProxGEN(weights, R, lr=0.1, metric="adam").step()
        found = weights
    else:
        (proposal,) = SR2(weights, R, sigma=10.0, momentum=0.0, weight_decay=0.0, reach=None)._proposals()
        proposal.turn()
        found = proposal.regularizer.prox_of(us, proposal.steps)
    for x, z in zip(found, expected, strict=True):
        torch.testing.assert_close(x.detach(), z, rtol=1e-4, atol=1e-5)
        assert ((x == 0) == (z == 0)).float().mean() > 0.99  # Adam's average rounds g^2, and near ties may turn


@pytest.mark.parametrize("R", COUPLED, ids=repr)
@pytest.mark.parametrize("kind", [ProxGEN, SR2])
def test_where_r_couples_entries_the_metric_is_one_number(R, kind):
    """The first step with Adam's metric: d = rms(|g| + eps) of each tensor, or of the group, by numpy."""
    model, loss = problem()
    model.eval()  # the optimizer is given tensors, and protects no statistics of batch norm
    weights = [p for p in model.parameters() if p.dim() > 1]
    with torch.no_grad():
        for x, z in zip(weights, R.prox(weights, 1e-3), strict=True):
            x.copy_(z)
    gs = torch.autograd.grad(loss(), weights)
    D = [np.abs(g.double().numpy()) + 1e-8 for g in gs]
    if isinstance(R, Norm):
        D = [np.concatenate([d.ravel() for d in D])] * len(D)
    steps = [torch.tensor(0.1 / np.sqrt((d**2).mean())) for d in D]
    expected = R.prox([x.detach() - s * g for x, s, g in zip(weights, steps, gs, strict=True)], steps)
    options = {"lr": 0.1} if kind is ProxGEN else {"sigma": 10.0, "rule": Tolerant(rise=1e9)}
    kind(weights, R, metric="adam", weight_decay=0.0, **options).step(loss)
    for x, z in zip(weights, expected, strict=True):
        torch.testing.assert_close(x.detach(), z, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("by_tensor", [True, False])
def test_one_number(by_tensor):
    D = [torch.tensor([3.0, 4.0]), torch.tensor([[1.0]]), torch.zeros(0)]
    found = [float(d) for d in one_number(D, by_tensor)]
    assert found == pytest.approx([12.5**0.5, 1.0, 0.0] if by_tensor else [(26 / 3) ** 0.5] * 3)


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


@pytest.mark.parametrize("metric", [metrics.Adam, metrics.RMSprop, metrics.AdaGrad])
def test_a_metric_without_eps_is_an_error(metric):
    """Of a weight that never had a gradient D would be 0, its step 0 / 0, and every step rejected."""
    with pytest.raises(ValueError, match="eps"):
        metric(eps=0.0)
