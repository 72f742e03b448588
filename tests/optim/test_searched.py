"""sigma_0 in a metric: it is searched along the first step, where rho = 1/2, and leaves half of the weights."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sr2 import L0, L1, SR2, L0Ball, Nuclear
from sr2.metrics import Andrei
from sr2.optim import start
from sr2.optim.curvature import LARGEST
from sr2.optim.start import FIRST, TRIES, searched
from sr2.rules import Tolerant
from tests.tools import values


class Asked:
    """rho as a function of sigma, and how often it was asked for."""

    def __init__(self, rho):
        self.rho, self.sigmas = rho, []

    def __call__(self, sigma):
        self.sigmas.append(sigma)
        return self.rho(sigma)


@pytest.mark.parametrize("curvature", [1e-4, 0.3, 3.0, 80.0, 1e3, 1e6, 1e8])
def test_along_a_quadratic_it_is_the_curvature(curvature):
    rho = Asked(lambda sigma: 1 - curvature / (2 * sigma))
    sigma = searched(rho, 1e-6)
    assert abs(rho.rho(sigma) - 0.5) <= 0.1
    assert len(rho.sigmas) <= 2 + abs(math.log(curvature / 100, 32)) + 1


@pytest.mark.parametrize("sharp", [1.0, 4.0])
@pytest.mark.parametrize("at", [0.02, 5.0, 4e4])
def test_where_rho_is_no_quadratics(at, sharp):
    """Any rho that rises with sigma, through infinities that are no numbers."""

    def rho(sigma):
        return math.nan if sigma < at / 50 else 1 - 0.5 * (at / sigma) ** sharp

    sigma = searched(rho, 1e-6)
    assert abs(rho(sigma) - 0.5) <= 0.1


def test_where_rho_jumps_it_is_the_sigma_above():
    for low in (-1.0, -math.inf, math.nan):
        rho = Asked(lambda sigma, low=low: 1.0 if sigma >= 7.0 else low)
        assert 7.0 <= searched(rho, 1e-6) < 7.0 * 1.1
        assert len(rho.sigmas) < TRIES


def test_a_loss_that_has_no_curvature_ends_near_the_least_sigma():
    rho = Asked(lambda sigma: 1.0)
    assert 1e-3 <= searched(rho, 1e-3) < 1e-3 * 1.1
    assert min(rho.sigmas) >= 1e-3


@pytest.mark.parametrize("constant", [math.nan, -math.inf, -1.0, 0.95])
def test_it_ends_whatever_it_is_told(constant):
    rho = Asked(lambda sigma: constant)
    assert 1e-6 <= searched(rho, 1e-6) <= LARGEST
    assert len(rho.sigmas) <= TRIES


@pytest.mark.parametrize("curvature", [1e-4, 150.0, 3e3, math.inf])
@pytest.mark.parametrize("sigma_min", [200.0, 1e13])
def test_it_is_never_below_the_least_sigma(sigma_min, curvature):
    rho = Asked(lambda sigma: 1 - curvature / (2 * sigma))
    assert searched(rho, sigma_min) >= sigma_min
    assert min(rho.sigmas) >= sigma_min


def test_where_nothing_is_promised_the_first_sigma_stays():
    assert searched(lambda sigma: math.inf, 1e-6) == searched(lambda sigma: math.nan, 1e-6) == FIRST
    sigma = searched(lambda sigma: math.inf if sigma > 0.1 else 1 - 1e-3 / (2 * sigma), 1e-6)  # rounding hides it above
    assert sigma == pytest.approx(1e-3)


# ---- on the first batch


def problem():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 40), nn.BatchNorm1d(40), nn.ReLU(), nn.Dropout(0.2), nn.Linear(40, 3))
    x, y = torch.randn(64, 10), torch.randint(3, (64,))
    return model, lambda: F.cross_entropy(model(x), y)


@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize("metric", ["adam", "rmsprop", "adagrad"])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_the_first_step_has_half_of_what_it_promised(metric, scale, capturable):
    model, closure = problem()
    rule = Tolerant(usual=math.inf)  # else sigma_0 is at least the usual one
    optimizer = SR2(model, L1(1e-5 * scale), metric=metric, rule=rule, capturable=capturable)
    optimizer.step(lambda: scale * closure())
    assert optimizer.last_step.rho == pytest.approx(0.5, abs=0.1)
    assert optimizer.last_step.accepted


@pytest.mark.filterwarnings("ignore:R\\(x_0\\) is infinite")
@pytest.mark.parametrize("R", [None, L0Ball(k=200)], ids=str)
def test_a_first_batch_without_a_gradient_says_nothing_of_sigma(R):
    """It was the least there is, and the second batch's step a million times too long."""
    model, closure = problem()
    optimizer = SR2(model, R, average=False)
    optimizer.step(lambda: 0.0 * closure())
    assert optimizer.sigma == FIRST
    for _ in range(10):
        optimizer.step(closure)
    assert optimizer.counts["accepted"] >= 8


def test_a_promise_that_rounding_would_hide_says_nothing_of_sigma():
    x = nn.Parameter(torch.ones(3))
    optimizer = SR2([x])
    optimizer.estimate_sigma(lambda: 1e9 + 1e-5 * x.sum())
    assert optimizer.sigma == FIRST


def test_what_a_metric_falls_to_is_of_single_entries():
    andrei, x = Andrei(), torch.ones(2, 2)
    assert start.falls_to(andrei, [(None, [x]), (L1(1.0), [x])]) == andrei.falls_to < 1
    assert start.falls_to(andrei, [(None, [x]), (Nuclear(1.0), [x])]) == start.falls_to(None, []) == 1.0


def test_an_estimate_leaves_no_trace():
    model, closure = problem()
    optimizer, before, drawn = SR2(model, L1(1e-4)), values(model), torch.get_rng_state()
    optimizer.estimate_sigma(closure)
    assert optimizer.sigma > 0
    assert all(torch.equal(before[name], t) for name, t in values(model).items())
    assert torch.equal(drawn, torch.get_rng_state())
    assert all(p.grad is None for p in model.parameters())
    assert not any(optimizer.state.values())
    sigma = optimizer.sigma
    optimizer.step(closure)
    assert optimizer.sigma in (sigma, 0.98 * sigma, 1.5 * sigma)  # it is not estimated again


def left(asks, monkeypatch):
    """The share of the weights that one step leaves under an l0 that gains more than the loss can."""
    model, closure = problem()
    if not asks:
        monkeypatch.setattr(start, "half_left", lambda *_: lambda: True)
    optimizer = SR2(model, L0(1.0))
    for _ in range(4):  # x stays for three of them
        optimizer.step(closure)
    weights = torch.cat([p.detach().flatten() for p in model.parameters() if p.dim() > 1])
    return float((weights != 0).float().mean())


def test_the_first_step_leaves_half_of_the_weights(monkeypatch):
    assert left(True, monkeypatch) >= 0.5
    assert left(False, monkeypatch) < 0.2


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_a_batch_that_is_not_finite_is_said(broken):
    model, closure = problem()
    optimizer = SR2(model, L1(1e-4))
    with pytest.raises(FloatingPointError, match=r"the loss at x_0 is .* skip it"):
        optimizer.estimate_sigma(lambda: closure() * broken)
    assert math.isnan(optimizer.sigma)
    optimizer.estimate_sigma(closure)
    assert optimizer.sigma > 0


@pytest.mark.parametrize(("metric", "told"), [("adam", True), (None, False)])
def test_an_embedding_of_which_a_batch_touches_little_is_told(metric, told):
    """Where D is Adam's eps, a penalty takes what no batch has touched yet."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(1000, 8), nn.Linear(8, 1))
    words = torch.arange(10)
    optimizer = SR2(model, L1(1e-4), metric=metric)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            optimizer.step(lambda: model(words).square().mean())
    found = [str(w.message) for w in caught if "had no gradient in the first batch" in str(w.message)]
    assert len(found) == told
    assert all("99 % of a penalized tensor of shape (1000, 8)" in message for message in found)
