"""Momentum: a refused step speaks against the direction, not against sigma."""

import math

import pytest
import torch
from torch import nn

from sr2 import L1, SR2


def quadratic(diagonal, start=1.0):
    c = torch.tensor(diagonal, dtype=torch.float64)
    x = nn.Parameter(torch.full_like(c, start))
    return x, c, lambda: (c * x.square()).sum() / 2


def test_a_refused_momentum_step_keeps_sigma_and_the_next_is_the_plain_gradient():
    x, c, f = quadratic([1.0, 0.01])
    optimizer = SR2([x], sigma=1.0, eta2=0.5, momentum=0.9)
    refused = 0
    for _ in range(60):
        restarted = "momentum" not in optimizer.state[x]
        before, sigma = x.detach().clone(), optimizer.sigma
        optimizer.step(f)
        last = optimizer.last_step
        if restarted:
            trial = before - c * before / sigma
            assert last.trial_loss == pytest.approx(((c * trial.square()).sum() / 2).item(), abs=1e-15)
        if last.accepted is False and not restarted:
            refused += 1
            assert optimizer.sigma == sigma
            assert torch.equal(x, before)
        if last.accepted is False:
            assert "momentum" not in optimizer.state[x]
            assert "momentum_weight" not in optimizer.state[x]
    assert refused > 2


def test_a_refused_plain_step_raises_sigma_with_momentum_on_too():
    x, _, f = quadratic([100.0])
    optimizer = SR2([x], sigma=1.0, momentum=0.9, gamma1=3.0)
    for t in range(1, 4):
        optimizer.step(f)
        assert optimizer.last_step.accepted is False
        assert optimizer.sigma == 3.0**t


def test_a_momentum_step_that_is_not_finite_raises_sigma():
    x, _, f = quadratic([1.0])
    optimizer = SR2([x], sigma=4.0, momentum=0.9, gamma1=2.0, gamma2=3.0)
    optimizer.step(f)
    assert optimizer.last_step.accepted
    sigma, calls = optimizer.sigma, []

    def closure():
        calls.append(0)
        return f() * (math.nan if len(calls) == 2 else 1.0)

    optimizer.step(closure)
    assert optimizer.sigma == 3.0 * sigma


@pytest.mark.parametrize("R", [None, L1(1e-3)], ids=repr)
def test_sigma_stays_bounded_where_momentum_overshoots(R):
    """One sharp and one flat direction: v keeps pointing across the valley after x has crossed it."""
    x, _c, f = quadratic([50.0, 0.01])
    optimizer = SR2([x], R, sigma=25.0, eta2=0.5, momentum=0.95)
    most = 0.0
    for _ in range(1000):
        optimizer.step(f)
        most = max(most, optimizer.sigma)
    assert optimizer.counts["refused"] > 3
    assert most <= 5.56 * 50.0  # a plain step with sigma >= L / 2 (1 - eta1) is accepted
    assert f().item() < 1e-3


def test_v_is_the_bias_corrected_average():
    x = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    gs = [torch.tensor(g, dtype=torch.float64) for g in ([1.0, 2.0], [3.0, -1.0], [0.5, 0.5])]
    optimizer = SR2([x], sigma=1e3, momentum=0.8)
    m = torch.zeros(2, dtype=torch.float64)
    for t, g in enumerate(gs, start=1):
        m = 0.8 * m + 0.2 * g
        before, sigma = x.detach().clone(), optimizer.sigma
        optimizer.step(lambda g=g: (g * x).sum())
        assert optimizer.last_step.accepted
        torch.testing.assert_close(x.detach(), before - m / (1 - 0.8**t) / sigma, rtol=1e-12, atol=0)


def test_momentum_speeds_up_an_ill_conditioned_quadratic():
    ends = {}
    for momentum in (0.0, 0.9):
        x, _, f = quadratic(torch.logspace(0, -3, 20).tolist())
        optimizer = SR2([x], sigma=1.0, eta2=0.5, momentum=momentum)
        for _ in range(400):
            optimizer.step(f)
        ends[momentum] = f().item()
    assert ends[0.9] < 0.02 * ends[0.0]
