"""The first step: what fails leaves nothing, and what starts outside the domain of R is brought in."""

import math

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from sr2 import L0, L1, SR2, BatchGrowth, Box, L0Ball, Ridge
from sr2.optim.curvature import estimate_sigma0
from tests.tools import LargeTensors, algorithm_1


def test_a_broken_first_batch_estimates_nothing():
    model = nn.Linear(3, 1)
    good, bad = torch.randn(8, 3), torch.full((8, 3), math.nan)
    optimizer = SR2(model, L1(1e-3))
    with pytest.raises(FloatingPointError):
        optimizer.step(lambda: model(bad).square().mean())
    assert math.isnan(optimizer.sigma)
    assert "sigma=auto" in repr(optimizer)
    expected = SR2(model, L1(1e-3))
    expected.estimate_sigma(lambda: model(good).square().mean())
    optimizer.step(lambda: model(good).square().mean())
    assert optimizer.rule.gamma3 * 0.99 < optimizer.sigma / expected.sigma < 1.01


@pytest.mark.filterwarnings("ignore:R\\(x_0\\)")
def test_a_capturable_broken_first_batch_estimates_nothing_and_leaves_x_outside():
    model = nn.Linear(3, 1, bias=False)
    nn.init.constant_(model.weight, 5.0)
    optimizer = SR2(model, Box(-1.0, 1.0), capturable=True)
    optimizer.step(lambda: model(torch.full((2, 3), math.nan)).sum())
    assert optimizer.counts["broken"] == 1
    assert math.isnan(optimizer.sigma)
    assert bool((model.weight == 5.0).all())
    optimizer.step(lambda: model(torch.ones(2, 3)).square().sum())
    assert optimizer.counts["broken"] == 1
    assert optimizer.sigma > 0
    assert bool((model.weight.abs() <= 1.0).all())


@pytest.mark.filterwarnings("ignore:R\\(x_0\\)")
def test_an_estimate_that_fails_leaves_x_outside():
    model = nn.Linear(3, 1, bias=False)
    nn.init.constant_(model.weight, 5.0)
    optimizer = SR2(model, Box(-1.0, 1.0))

    def closure():
        raise KeyError("no batch")

    with pytest.raises(KeyError, match="no batch"):
        optimizer.estimate_sigma(closure)
    assert bool((model.weight == 5.0).all())
    assert "sigma=auto" in repr(optimizer)


def test_a_broken_first_batch_leaves_x_outside():
    model = nn.Linear(3, 1, bias=False)
    nn.init.constant_(model.weight, 5.0)
    optimizer = SR2(model, Box(-1.0, 1.0), sigma=1.0)
    with pytest.warns(UserWarning, match="moved"), pytest.raises(FloatingPointError):
        optimizer.step(lambda: model(torch.full((2, 3), math.nan)).sum())
    assert bool((model.weight == 5.0).all())
    with pytest.warns(UserWarning, match="moved"):
        optimizer.step(lambda: model(torch.ones(2, 3)).square().sum())
    assert bool((model.weight.abs() <= 1.0).all())


@pytest.mark.parametrize("capturable", [False, True])
def test_a_group_that_joins_outside_is_brought_in(capturable):
    first, second, x = nn.Linear(3, 3), nn.Linear(3, 1), torch.randn(8, 3)
    optimizer = SR2(first.parameters(), L1(1e-3), sigma=5.0, capturable=capturable)
    optimizer.step(lambda: first(x).square().mean())
    optimizer.add_param_group({"params": list(second.parameters()), "regularizer": Box(-0.01, 0.01)})
    with pytest.warns(UserWarning, match="moved"):
        optimizer.step(lambda: second(first(x)).square().mean())
    assert all(bool((p.abs() <= 0.0100001).all()) for p in second.parameters())


@pytest.mark.filterwarnings("ignore:R\\(x_0\\)")
@pytest.mark.parametrize(("sigma", "first"), [(4.0, 2.4), (1.0, 1.5)])
def test_x_0_goes_to_the_prox_of_its_first_step(sigma, first):
    x, seen = nn.Parameter(torch.tensor([3.0, 1.0])), []
    optimizer = algorithm_1([x], Ridge(1.0, L0Ball(k=1)), sigma=sigma)
    optimizer.step(lambda: seen.append(x.tolist()) or x.sum())
    assert seen[0] == [pytest.approx(first), 0.0]


@pytest.mark.filterwarnings("ignore:R\\(x_0\\)")
@pytest.mark.parametrize("capturable", [False, True])
def test_an_x_that_left_is_brought_back(capturable):
    model, x = nn.Linear(3, 2, bias=False), torch.randn(8, 3)
    optimizer = SR2(model, L0Ball(k=2), sigma=5.0, capturable=capturable, reach=None)
    for _ in range(3):
        optimizer.step(lambda: model(x).square().mean())
    with torch.no_grad():
        model.weight.fill_(0.3)
    for _ in range(3):
        optimizer.step(lambda: model(x).square().mean())
    assert int((model.weight != 0).sum()) <= 2
    assert optimizer.sigma < 100


def test_sparse_gradients_are_an_error_with_auto_sigma():
    embedding = nn.Embedding(10, 3, sparse=True)
    with pytest.raises(ValueError, match="sparse=False"):
        SR2(embedding, L1(0.1)).step(lambda: embedding(torch.tensor([1, 2])).square().sum())


def test_a_reentrant_checkpoint_is_seen():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    x = torch.randn(16, 4, dtype=torch.float64, requires_grad=True)
    parameters = list(model.parameters())

    def closure():
        return model[2](checkpoint(model[:2], x, use_reentrant=True)).square().mean()

    with pytest.warns(UserWarning, match="finite differences"):
        assert estimate_sigma0(closure, model, parameters) > 0


@pytest.mark.parametrize("wrong", [{"batch_growth": 3}, {"eta1": "a"}, {"gamma1": "b"}])
def test_wrong_arguments(wrong):
    with pytest.raises((TypeError, ValueError), match=next(iter(wrong))):
        SR2(nn.Linear(2, 1), L1(0.1), **wrong)


def test_repr_shows_what_was_asked_for():
    words = repr(SR2(nn.Linear(2, 1), L1(0.1), epsilon=1e-3, batch_growth=BatchGrowth(3.0)))
    assert "epsilon=0.001" in words
    assert "kappa=3.0" in words


@pytest.mark.parametrize("returned", [3, [], None])
def test_a_closure_that_returns_no_loss(returned):
    with pytest.raises(ValueError, match="closure"):
        SR2(nn.Linear(2, 1), L1(0.1)).step(lambda: returned)


def test_sigma_is_estimated_where_r_is_finite_by_whoever_asks():
    def optimizer():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 1))
        x = torch.randn(32, 6)
        return SR2(model, L0Ball(density=0.1), gamma3=1.0), lambda: model(x).square().mean()

    (one, f), (other, g) = optimizer(), optimizer()
    with pytest.warns(UserWarning, match="moved"):
        one.step(f)
    with pytest.warns(UserWarning, match="moved"):
        other.estimate_sigma(g)
    assert other.sigma == one.sigma


@pytest.mark.parametrize("capturable", [False, True])
def test_an_interrupt_while_deciding_leaves_x_and_buffers(capturable, monkeypatch):
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    x = torch.randn(8, 3)
    optimizer = SR2(model, L1(1e-3), sigma=1.0, capturable=capturable)
    optimizer.step(lambda: model(x).square().mean())
    before = {name: t.clone() for name, t in model.state_dict().items()}

    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(type(optimizer.rule), "judge", interrupt)
        with pytest.raises(KeyboardInterrupt):
            optimizer.step(lambda: model(x).square().mean())
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())


def test_a_closure_that_fails_after_its_forward_leaves_the_buffers():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))
    before, drawn = {name: t.clone() for name, t in model.state_dict().items()}, torch.get_rng_state()

    def closure():
        model(torch.randn(8, 3))
        raise RuntimeError("no loss today")

    with pytest.raises(RuntimeError, match="no loss today"):
        SR2(model, L1(1e-3), sigma=1.0).step(closure)
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())
    assert torch.equal(drawn, torch.get_rng_state())


@pytest.mark.parametrize("change", [lambda p: p.double(), lambda p: p[:2].clone()], ids=["dtype", "shape"])
def test_a_parameter_that_was_changed_between_steps_gets_a_buffer_of_its_own(change):
    x = nn.Parameter(torch.randn(4, 3))
    optimizer = algorithm_1([x], L1(1e-3), sigma=1e3)
    optimizer.step(lambda: x.square().sum())
    x.data, x.grad = change(x.data), None
    before, step = x.detach().clone(), 1 / optimizer.sigma
    optimizer.step(lambda: x.square().sum())
    assert optimizer.last_step.accepted
    torch.testing.assert_close(x.detach(), L1(1e-3).prox(before - 2 * before * step, step))


@pytest.mark.parametrize("regularizer", [L1(1e-3), L0(1e-3)], ids=str)
def test_the_first_step_keeps_one_x_and_makes_nothing_else_as_large(regularizer):
    n = 3_000_000  # several of the chunks in which the CPU works
    x, g = nn.Parameter(torch.randn(n)), torch.randn(n)
    optimizer = algorithm_1([x], regularizer, sigma=10.0)

    def closure():
        x.grad = g
        return torch.zeros(())

    counter = LargeTensors(n)
    counter.seen = {x.data_ptr(), g.data_ptr()}
    with counter:
        optimizer.step(closure)
    assert counter.made == 1
    with counter:
        optimizer.step(closure)
    assert counter.made == 1
