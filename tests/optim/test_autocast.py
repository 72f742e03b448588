"""Rounding by autocast: rho carries a slack of its size, and sigma does not run away."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from sr2 import L1, SR2, BatchGrowth
from sr2.numerics import Rounding
from tests.tools import algorithm_1

BF16 = torch.bfloat16
EPS = torch.finfo(BF16).eps


def train(autocast, capturable=False, epochs=40, dtype=torch.float32):
    torch.manual_seed(0)
    x, y = (torch.tensor(a) for a in load_digits(return_X_y=True))
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).to(dtype)
    optimizer = algorithm_1(model, L1(1e-5), momentum=0.9, autocast=autocast, capturable=capturable)
    sigmas, losses = [], []
    for _ in range(epochs):
        for batch in torch.randperm(len(x)).split(128):

            def closure(b=batch):
                with torch.autocast("cpu", BF16, enabled=dtype == torch.float32):
                    return nn.functional.cross_entropy(model(x[b].to(dtype) / 16).float(), y[b])

            losses.append(float(optimizer.step(closure)))
        sigmas.append(optimizer.sigma)
    return sigmas, sum(losses[-15:]) / 15


def test_sigma_does_not_run_away_under_autocast(monkeypatch):
    """f(x) - f(x + s) is rounding once the loss is small: without the slack every second such step is rejected."""
    assert train(None, epochs=5) == train(BF16, epochs=5)  # it is seen
    stays, low = train(BF16)
    monkeypatch.setattr("sr2.optim.closure.watch.LOW", ())
    runs_away, high = train(None)
    assert max(runs_away) > 1e3
    assert 0.1 < min(stays) < max(stays) < 100
    assert low < high


def test_sigma_does_not_run_away_with_bfloat16_parameters(monkeypatch):
    """A float32 loss of bfloat16 layers is as coarse as under autocast, which nobody has to say."""
    stays, low = train(None, dtype=BF16)
    monkeypatch.setattr(Rounding, "of", lambda *_: Rounding(2.0**-23, 0.0))
    runs_away, high = train(None, dtype=BF16)
    assert max(runs_away) > 1e3
    assert max(stays) < 100
    assert low < high


def test_capturable_decides_alike():
    assert train(BF16, epochs=10) == train(BF16, capturable=True, epochs=10)


@pytest.mark.parametrize(
    ("f", "slack"),
    [
        (1.0, 2 * EPS),
        (100.0, 200 * EPS),
        (-3.0, 6 * EPS),
        (2.0**-7, 2 * EPS * 2.0**-7 * 7 * math.log(2)),
        (1e-9, 10 * 2.0**-23),
        (0.0, 10 * 2.0**-23),
    ],
)
@pytest.mark.parametrize("capturable", [False, True])
def test_the_slack_is_a_share_of_f_and_at_least_that_of_the_loss(f, slack, capturable):
    x = nn.Parameter(torch.zeros(1))
    optimizer = algorithm_1([x], sigma=1.0, autocast=BF16, capturable=capturable)
    optimizer.step(lambda: f + 1e-9 * x.sum())
    last = optimizer.last_step
    assert last.trial_loss == pytest.approx(f)
    assert last.rho == pytest.approx((last.actual + slack) / (last.predicted + slack), rel=1e-12)
    assert last.accepted


@pytest.mark.parametrize("size", [1, 4, 8, 16])
def test_the_slack_covers_what_rounded_logits_do_to_a_cross_entropy(size):
    """Their error is a share of the margin, and of a small loss the larger the smaller it is."""
    torch.manual_seed(0)
    y = torch.randint(10, (128,))
    z = torch.randn(128, 10) * size / 4 + size * nn.functional.one_hot(y, 10)

    def errors():
        for _ in range(200):
            moved = z + 0.1 * torch.randn_like(z)
            exact, coarse = (nn.functional.cross_entropy(a, y).double() for a in (moved, moved.bfloat16().float()))
            yield float((coarse - exact).abs() / Rounding(0.0, 2 * EPS).slack(exact, exact))

    assert max(errors()) < 0.7


@pytest.mark.parametrize(("share", "accepted"), [(0.9, True), (1.2, False)])
@pytest.mark.parametrize(("f", "slack"), [(1.0, 2 * EPS), (2.0**-7, 2 * EPS * 2.0**-7 * 7 * math.log(2))])
def test_what_rises_beyond_the_slack_is_rejected(f, slack, share, accepted):
    x = nn.Parameter(torch.zeros(1))
    optimizer = algorithm_1([x], sigma=1.0, autocast=BF16)
    optimizer.step(lambda: f - 1e-9 * x.sum() + share * slack * (x.detach() != 0).float().sum())
    assert optimizer.last_step.accepted == accepted


def test_a_loss_is_as_exact_as_the_least_exact_parameter():
    exact, coarse = torch.float64, torch.float32
    for parameters, eps in (
        ([exact], exact),
        ([exact, coarse], coarse),
        ([coarse], coarse),
        ([torch.bfloat16], coarse),
    ):
        assert Rounding.of(exact, parameters, None).eps == torch.finfo(eps).eps


def test_momentum_does_not_change_its_size():
    """rho leaves out (g - v)'s, which is added to f(x): the slack is of f as it was evaluated."""
    x = nn.Parameter(torch.zeros(1))
    optimizer = SR2([x], sigma=1.0, momentum=0.9, autocast=BF16)
    for slope in (0.5, -0.5, 0.5):
        optimizer.step(lambda a=slope: 1.0 + a * (x - x.detach()).sum() + 1e-6 * x.detach().sum())
        last = optimizer.last_step
        slack = 2 * EPS * last.trial_loss
        assert last.rho == pytest.approx((last.actual + slack) / (last.predicted + slack), rel=1e-12)


def test_a_batch_is_not_too_small_for_what_rounding_does():
    def passes(autocast):
        x = nn.Parameter(torch.zeros(1))
        growth = BatchGrowth(kappa=1e-6, batch=8)
        optimizer = SR2([x], sigma=1.0, autocast=autocast, batch_growth=growth)
        optimizer.step(lambda: 1.0 - 1e-9 * x.sum() - EPS * (x.detach() != 0).float().sum())
        return optimizer.batch_size == 8

    assert passes(BF16)
    assert not passes(None)


def test_the_noise_of_a_batch_is_not_rounding():
    growth = BatchGrowth(kappa=1.0)
    assert growth.passes(model_error=0.5, noise=0.0, ss=1e-4, slack=0.5)
    assert not growth.passes(model_error=0.0, noise=1.0, ss=1e-4, slack=0.5)


def test_it_is_shown_and_copied():
    optimizer = copy.deepcopy(SR2(nn.Linear(2, 1), autocast=BF16))
    assert optimizer.autocast == BF16
    assert "autocast=torch.bfloat16" in repr(optimizer)
    assert "autocast" not in repr(SR2(nn.Linear(2, 1)))


@pytest.mark.parametrize("wrong", ["bfloat16", True, 8, torch.int8, torch.float32])
def test_what_is_no_such_dtype(wrong):
    with pytest.raises(ValueError, match=r"autocast must be torch.bfloat16, torch.float16 or None, and is "):
        SR2(nn.Linear(2, 1), autocast=wrong)
