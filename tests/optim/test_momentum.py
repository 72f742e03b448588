"""Momentum: a step is judged on f(., xi) + (v - g)'x, whose gradient is v, so that noise is not taken for curvature."""

import math

import pytest
import torch
from torch import nn

from sr2 import L0, L1, MCP, SCAD, SR2
from sr2.rules import Tolerant
from tests.tools import algorithm_1


def quadratic(diagonal, start=1.0):
    c = torch.tensor(diagonal, dtype=torch.float64)
    x = nn.Parameter(torch.full_like(c, start))
    return x, c, lambda: (c * x.square()).sum() / 2


@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_rho_is_the_curvature_whatever_the_noise(seed, capturable):
    """f(x, xi) = c x^2 / 2 + xi'x: without a penalty, rho = 1 - c / (2 sigma) for every draw of xi."""
    torch.manual_seed(seed)
    c, x = 3.0, nn.Parameter(torch.randn(5, dtype=torch.float64))
    optimizer = algorithm_1([x], sigma=4.0, momentum=0.9, capturable=capturable)
    for _ in range(20):
        xi = 10 * torch.randn(5, dtype=torch.float64)
        optimizer.step(lambda xi=xi: c * x.square().sum() / 2 + (xi * x).sum())
        assert optimizer.last_step.rho == pytest.approx(1 - c / 8, abs=1e-9)
    assert optimizer.counts["accepted"] == 20
    assert optimizer.sigma == 4.0


@pytest.mark.parametrize("R", [L1(0.3), L0(0.1)], ids=repr)
def test_the_decrease_that_counts_is_that_of_f_with_gradient_v(R):
    torch.manual_seed(0)
    a, x = torch.randn(6, 4, dtype=torch.float64), nn.Parameter(torch.randn(4, dtype=torch.float64))
    optimizer = algorithm_1([x], R, sigma=30.0, momentum=0.7)
    m = torch.zeros(4, dtype=torch.float64)
    for t in range(1, 15):
        xi, old = torch.randn(6, dtype=torch.float64), x.detach().clone()

        def f(z, xi=xi):
            return (a @ z - xi).square().sum() / 2

        g = a.T @ (a @ old - xi)
        m = 0.7 * m + 0.3 * g
        v, sigma = m / (1 - 0.7**t), optimizer.sigma
        optimizer.step(lambda f=f: f(x))
        new = R.prox(old - v / sigma, 1 / sigma)
        s = new - old
        decrease = f(old) - f(new) + (g - v) @ s + R.value([old]) - R.value([new])
        last = optimizer.last_step
        assert last.actual == pytest.approx(decrease.item(), abs=1e-10)
        assert last.predicted == pytest.approx((R.value([old]) - R.value([new]) - v @ s).item(), abs=1e-10)
        assert last.trial_loss == pytest.approx(f(new).item())  # the loss that is shown is the batch's own


def test_a_full_objective_is_tested_as_it_is():
    x, _, f = quadratic([1.0])
    optimizer = algorithm_1([x], sigma=2.0, momentum=0.9)
    for xi in (5.0, -5.0, 5.0):
        before = f().item()
        optimizer.step(lambda xi=xi: f() + xi * x.sum(), objective=f)
        last = optimizer.last_step
        assert last.actual == pytest.approx(before - last.trial_loss)


def test_a_rejected_step_raises_sigma_and_momentum_goes_on():
    x, c, f = quadratic([1.0, 0.01])
    optimizer = SR2([x], sigma=1.0, eta2=0.5, momentum=0.9, gamma1=2.0)
    m, rejected = torch.zeros_like(c), 0
    for t in range(1, 61):
        before, sigma = x.detach().clone(), optimizer.sigma
        optimizer.step(f)
        m = 0.9 * m + 0.1 * c * before
        torch.testing.assert_close(optimizer.state[x]["momentum"], m, rtol=1e-12, atol=0)
        trial = before - m / (1 - 0.9**t) / sigma
        assert optimizer.last_step.trial_loss == pytest.approx(((c * trial.square()).sum() / 2).item(), abs=1e-15)
        if not optimizer.last_step.accepted:
            rejected += 1
            assert optimizer.sigma == 2 * sigma
            assert torch.equal(x, before)
    assert rejected > 2


def test_a_rejected_plain_step_raises_sigma_with_momentum_on_too():
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
    assert optimizer.counts["rejected"] > 3
    assert most <= 5.56 * 50.0  # theorem 1: a step with sigma >= L / 2 (1 - eta1) is accepted
    assert f().item() < 1e-3


def test_v_is_the_bias_corrected_average():
    x = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    gs = [torch.tensor(g, dtype=torch.float64) for g in ([1.0, 2.0], [3.0, -1.0], [0.5, 0.5])]
    optimizer = algorithm_1([x], sigma=1e3, momentum=0.8)
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


@pytest.mark.parametrize(("share", "on_objective", "settles"), [(0.8, 0, False), (1.25, 0, True), (0.8, 1, True)])
@pytest.mark.parametrize(("R", "c", "best"), [(MCP(1.0, 3.0), 2.0, 1.5), (SCAD(1.0, 4.0), 3.0, 2.5)], ids=repr)
def test_under_an_r_that_bends_down_x_settles_where_sigma_is_large_enough(R, c, best, share, on_objective, settles):
    """R bends down by kappa = 1/3: x <- prox(x - v / sigma) spirals out where sigma < kappa / (1 - beta), whatever the
    curvature of f. rho does not see it, unless the step is tested on the objective as it is."""
    x, beta = nn.Parameter(torch.tensor([best + 0.1], dtype=torch.float64)), 0.9

    def f():
        return (x - c).square().sum() / 2

    options = {"metric": None, "momentum": beta, "weight_decay": 0.0, "rule": Tolerant()}
    optimizer = SR2([x], R, sigma=share / (3 * (1 - beta)), **options)
    furthest = 0.0
    for t in range(3000):
        optimizer.step(f, objective=f if on_objective else None)
        furthest = max(furthest, abs(x.item() - best)) if t >= 2900 else 0.0
    assert furthest < 1e-6 if settles else furthest > 0.1
