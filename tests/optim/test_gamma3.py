"""gamma3="auto": sigma falls the slower, the larger R is at the start."""

import copy
import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sr2 import L0, L1, SR2, L0Ball
from sr2.optim.parts.rules import GAMMA3, gamma3_for


def problem(seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 50), nn.Tanh(), nn.Linear(50, 3))
    x, y = torch.randn(32, 6), torch.randint(3, (32,))
    return model, lambda: F.cross_entropy(model(x), y)


@pytest.mark.parametrize("capturable", [False, True])
def test_it_is_chosen_once_from_r_at_x0(capturable):
    model, closure = problem()
    optimizer = SR2(model, L0(10.0), sigma=1e6, gamma3="auto", capturable=capturable)
    assert "gamma3='auto'" in repr(optimizer)
    optimizer.step(closure)
    weights = 6 * 50 + 50 * 3  # biases are not penalized
    assert optimizer.rule.gamma3 == gamma3_for(10.0 * weights) > GAMMA3
    assert f"gamma3={optimizer.rule.gamma3!r}" in repr(optimizer)
    model[0].weight.data.zero_()
    optimizer.step(closure)
    assert optimizer.rule.gamma3 == gamma3_for(10.0 * weights)


def test_sigma_falls_by_it():
    model, closure = problem()
    optimizer = SR2(model, L0(10.0), sigma=1e6, gamma3="auto", eta2=0.01)
    optimizer.step(closure)
    assert optimizer.sigma == 1e6 * optimizer.rule.gamma3


def test_all_groups_count():
    model, closure = problem()
    groups = [
        {"params": [model[0].weight], "regularizer": L0(1.0)},
        {"params": [model[2].weight], "regularizer": L0(2.0)},
        {"params": [model[0].bias, model[2].bias], "regularizer": None},
    ]
    optimizer = SR2(groups, sigma=1e6, gamma3="auto")
    optimizer.step(closure)
    assert optimizer.rule.gamma3 == gamma3_for(300 + 2 * 150)


@pytest.mark.parametrize("regularizer", [None, L1(1e-6), L0Ball(density=0.5)], ids=str)
@pytest.mark.filterwarnings("ignore:R\\(x_0\\) is infinite")
def test_where_r_is_small_or_a_set_it_is_the_papers(regularizer):
    model, closure = problem()
    optimizer = SR2(model, regularizer, sigma=10.0, gamma3="auto")
    optimizer.step(closure)
    assert optimizer.rule.gamma3 == GAMMA3


@pytest.mark.parametrize("way", ["state", "copy"])
def test_it_is_carried_on(way):
    model, closure = problem()
    optimizer = SR2(model, L0(10.0), sigma=1e6, gamma3="auto")
    optimizer.step(closure)
    model[0].weight.data.zero_()  # R is another now
    if way == "copy":
        model, other = copy.deepcopy((model, optimizer))
    else:
        other = SR2(model, L0(10.0), gamma3="auto")
        other.load_state_dict(optimizer.state_dict())
    other.step(lambda: model(torch.ones(4, 6)).square().mean())
    assert other.rule.gamma3 == optimizer.rule.gamma3


def test_a_number_stays_and_a_state_without_one_chooses_now():
    model, closure = problem()
    auto = SR2(model, L0(10.0), sigma=1e6, gamma3="auto")
    auto.step(closure)
    number = SR2(model, L0(10.0), gamma3=0.5)
    number.load_state_dict(auto.state_dict())
    number.step(closure)
    assert number.rule.gamma3 == 0.5
    again = SR2(model, L0(10.0), gamma3="auto")
    again.load_state_dict(number.state_dict())
    again.step(closure)
    assert again.rule.gamma3 > GAMMA3


def test_a_first_step_that_fails_chooses_nothing():
    model, closure = problem()
    optimizer = SR2(model, L0(10.0), sigma=1e6, gamma3="auto")
    with pytest.raises(FloatingPointError):
        optimizer.step(lambda: closure() * float("nan"))
    assert "gamma3='auto'" in repr(optimizer)
    model[0].weight.data.zero_()
    optimizer.step(closure)
    assert optimizer.rule.gamma3 == gamma3_for(10.0 * 150)


@pytest.mark.parametrize("value", ["slow", "0.8", [0.8], True], ids=str)
def test_anything_else_is_an_error(value):
    with pytest.raises(ValueError, match=re.escape(f"gamma3 must be a number or 'auto', and is {value!r}")):
        SR2(problem()[0], gamma3=value)


def test_a_wide_network_is_not_taken_whole():
    """With the paper's constants each fall of sigma causes the next, and little is left that can learn."""
    torch.manual_seed(0)
    x, directions = torch.randn(512, 32), torch.randn(32, 4)
    y = (x @ directions).argmax(1)

    def accuracy(**constants):
        torch.manual_seed(1)
        middle = [nn.Linear(400, 400), nn.BatchNorm1d(400), nn.ReLU()]
        model = nn.Sequential(nn.Linear(32, 400), nn.BatchNorm1d(400), nn.ReLU(), *middle, nn.Linear(400, 4))
        optimizer = SR2(model, L0(1e-2), **constants)
        for _ in range(12):
            for batch in torch.randperm(512).split(64):
                optimizer.step(lambda b=batch: F.cross_entropy(model(x[b]), y[b]))
        return float((model.eval()(x).argmax(1) == y).float().mean())

    assert accuracy(eta2=0.8, gamma3="auto") > 0.8
    assert accuracy(eta2=0.99, gamma3=0.8) < 0.6


def test_a_budget_that_is_not_reached_yet_says_nothing_of_it():
    model = nn.Linear(6, 3)
    optimizer = SR2(model, L0Ball(density=0.1), eta1=7.5e-4, reach=(1, 30), sigma=5.0)
    optimizer.step(lambda: model(torch.ones(2, 6)).square().mean())
    assert optimizer.rule.gamma3 == GAMMA3
