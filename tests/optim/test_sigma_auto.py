"""sigma="auto": SR2 asks for sigma_0 once, where R leaves half of the weights, and goes on with it after a resume."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sr2 import L0, L1, MCP, SR2, ElasticNet, L0Ball
from sr2.optim.curvature import LARGEST, estimate_sigma0, leaves_half
from tests.tools import algorithm_1

X = torch.randn(24, 6, generator=torch.Generator().manual_seed(1))
Y = torch.randint(0, 3, (24,), generator=torch.Generator().manual_seed(2))


def network():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3)).double()


def step(optimizer, model, i=0):
    rows = torch.arange(8 * i, 8 * i + 8) % len(X)
    return optimizer.step(lambda: F.cross_entropy(model(X[rows].double()), Y[rows]))


def test_auto_is_the_default_and_repr_shows_it():
    model = network()
    optimizer = SR2(model, L1(1e-3), eta2=0.99)
    assert math.isnan(optimizer.sigma)
    assert "sigma=auto" in repr(optimizer)
    assert optimizer.last_step is None
    expected = estimate_sigma0(lambda: F.cross_entropy(model(X[:8].double()), Y[:8]), model, optimizer._parameters())
    step(optimizer, model)
    assert optimizer.last_step.accepted
    assert optimizer.sigma == expected
    assert f"sigma={expected:g}" in repr(optimizer)


def test_sigma_min_is_a_floor():
    x = nn.Parameter(torch.ones(2, dtype=torch.float64))
    optimizer = algorithm_1([x], sigma_min=50.0)
    optimizer.step(lambda: x.square().sum())
    assert optimizer.sigma == 50.0
    searched = SR2([x], sigma_min=50.0)
    searched.estimate_sigma(lambda: x.square().sum())
    assert 50.0 <= searched.sigma < 55.0  # in a metric it is searched, to a few percent


@pytest.mark.parametrize("done", [0, 1, 4], ids=["before the first step", "after it", "later"])
@pytest.mark.parametrize("capturable", [False, True])
def test_resumed_to_the_same_bits(done, capturable, tmp_path):
    def go(model, optimizer, steps):
        for i in steps:
            step(optimizer, model, i)

    one = network()
    straight = SR2(one, L1(1e-3), eta2=0.5, capturable=capturable)
    go(one, straight, range(8))

    two = network()
    first = SR2(two, L1(1e-3), eta2=0.5, capturable=capturable)
    go(two, first, range(done))
    torch.save({"model": two.state_dict(), "optimizer": first.state_dict()}, tmp_path / "saved")
    saved = torch.load(tmp_path / "saved", weights_only=True)
    three = network()
    three.load_state_dict(saved["model"])
    again = SR2(three, L1(1e-3), eta2=0.5, capturable=capturable)
    again.load_state_dict(saved["optimizer"])
    assert again.sigma == first.sigma or (done == 0 and math.isnan(again.sigma))
    go(three, again, range(done, 8))
    assert again.sigma == straight.sigma
    assert again.counts == straight.counts
    assert again.stationarity == straight.stationarity
    for a, b in zip(one.state_dict().values(), three.state_dict().values(), strict=True):
        assert torch.equal(a, b)


def test_a_loaded_sigma_is_not_estimated_again():
    model = network()
    fixed = SR2(model, sigma=123.0)
    auto = SR2(model, gamma3=1.0)
    auto.load_state_dict(fixed.state_dict())
    assert auto.sigma == 123.0
    step(auto, model)
    assert auto.sigma == 123.0


def test_estimate_sigma_on_another_closure():
    """On all data before the first step; the step then uses it."""
    model = network()
    optimizer = algorithm_1(model)
    optimizer.estimate_sigma(lambda: F.cross_entropy(model(X.double()), Y))
    found = optimizer.sigma
    assert found == estimate_sigma0(lambda: F.cross_entropy(model(X.double()), Y), model, optimizer._parameters())
    step(optimizer, model)
    assert optimizer.sigma == found


@pytest.mark.parametrize("wrong", ["wrong", "Auto", "", None, True, -1.0, 0.0, math.nan, math.inf, 1e-9])
def test_wrong_sigma(wrong):
    with pytest.raises(ValueError, match="sigma must be a number"):
        SR2([nn.Parameter(torch.ones(1))], sigma=wrong)


@pytest.mark.parametrize("R", [L0(0.1), L1(30.0), ElasticNet(30.0, 1.0), MCP(30.0, 3.0)], ids=str)
def test_it_leaves_half_of_the_weights(R):
    model = network()
    closure = lambda: F.cross_entropy(model(X.double()), Y)  # noqa: E731
    optimizer = algorithm_1(model, R)
    optimizer.estimate_sigma(closure)
    curvature = estimate_sigma0(closure, model, optimizer._parameters())
    doublings = math.log2(optimizer.sigma / curvature)
    assert doublings == pytest.approx(round(doublings))
    assert doublings > 0
    weights = torch.cat([p.flatten() for p in optimizer.param_groups[0]["params"]])

    def left(sigma):
        return float((R.prox([weights], 1 / sigma)[0] != 0).double().mean())

    assert left(optimizer.sigma) >= 0.5 > left(optimizer.sigma / 2)


@pytest.mark.parametrize("R", [None, L1(1e-4), L0Ball(density=0.01)], ids=str)
@pytest.mark.filterwarnings("ignore:R\\(x_0\\)")
def test_where_little_is_taken_or_sigma_has_no_say_it_is_the_curvature(R):
    model = network()
    closure = lambda: F.cross_entropy(model(X.double()), Y)  # noqa: E731
    optimizer = algorithm_1(model, R)
    optimizer.estimate_sigma(closure)
    assert optimizer.sigma == estimate_sigma0(closure, model, optimizer._parameters())


def test_weights_that_are_all_zero_ask_for_nothing():
    assert leaves_half([(L0(1.0), [torch.zeros(5)]), (None, [torch.ones(2)])], 3.0) == 3.0


def test_it_gives_up_where_only_a_boundless_sigma_leaves_half():
    assert LARGEST <= leaves_half([(L1(1e30), [torch.ones(5)])], 1.0) < 2 * LARGEST


@pytest.mark.filterwarnings("ignore:sigma_0 came out as")
def test_an_absurd_one_is_told_and_mended():
    """A LayerNorm of a constant divides by the root of its eps: the largest curvature is of no use."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 8), nn.LayerNorm(8, eps=1e-14), nn.Linear(8, 1)).double()
    with torch.no_grad():
        model[0].weight.zero_()
        model[0].bias.fill_(0.5)
    x, y = torch.randn(32, 1).double(), torch.randn(32, 1).double()
    optimizer = algorithm_1(model)
    with pytest.warns(UserWarning, match="the curvature at x_0 is 1e.12, as of a norm of a constant: sigma_0 is"):
        optimizer.step(lambda: F.mse_loss(model(x), y))
    assert optimizer.sigma < 0.1 * LARGEST
