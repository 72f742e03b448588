"""steps=n: the cooldown and the path of a budget that follow from it, and what a run has of them."""

import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

from sr2 import L1, SR2, L0Ball, Ridge
from sr2.experiments import models
from sr2.rules import Tolerant
from sr2.schedules import Cooldown, Reach

ADAM = {"metric": "adam", "momentum": 0.9, "rule": Tolerant(), "average": True}


def test_what_steps_stands_for():
    def made(R, **more):
        return SR2(nn.Linear(30, 30), R, steps=1000, **more)

    budget = made(L0Ball(density=0.05))
    assert (budget.reach, budget.schedule) == (Reach(100, 700), Cooldown(700, 1000))
    assert "reach=Reach(first=100, last=700)" in repr(budget)
    assert (made(None).reach, made(None).schedule) == (None, Cooldown(500, 1000))
    assert (made(L1(1e-3)).reach, made(L1(1e-3)).schedule) == (None, Cooldown(700, 1000))
    groups = [{"params": [nn.Parameter(torch.ones(9, 9))], "regularizer": R} for R in (L0Ball(k=5), None)]
    assert SR2(groups, steps=1000).schedule == Cooldown(700, 1000)
    given = made(L0Ball(density=0.05), reach=(5, 50), cooldown=(900, 950))
    assert (given.reach, given.schedule) == (Reach(5, 50), Cooldown(900, 950))
    assert made(None, schedule=Cooldown(1, 2)).schedule == Cooldown(1, 2)
    assert made(L1(1e-3), reach=(5, 50)).reach == Reach(5, 50)
    for n in (2, 3, 10):
        optimizer = SR2(nn.Linear(3, 3), L0Ball(k=2), steps=n)
        assert optimizer.reach.last <= n
        assert optimizer.schedule.last == n


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"reach": 0.5}, "reach must be its first and last step, as \\(100, 700\\), and is 0.5"),
        ({"reach": (0, 5)}, "reach must have 1 <= first < last, as \\(100, 700\\), and is \\(0, 5\\)"),
        ({"reach": (5, 5)}, "1 <= first < last"),
        ({"reach": (1.0, 5)}, "reach must be its first and last step"),
        ({"steps": 1}, r"SR2: steps \(epochs \* len\(loader\)\) must be an integer of at least 2, and is 1"),
        ({"steps": 1e3}, "must be an integer of at least 2, and is 1000.0"),
        ({"steps": "100"}, "must be an integer of at least 2, and is '100'"),
        ({"steps": 100, "epsilon": 1e-3}, "leave out cooldown=\\(70, 100\\) or epsilon=0.001"),
    ],
)
def test_what_is_no_path(options, words):
    with pytest.raises(ValueError, match=words):
        SR2(nn.Linear(2, 1), L0Ball(k=1), **options)


def digits(network):
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 8 - 1, torch.tensor(labels)
    torch.manual_seed(0)
    order = torch.randperm(len(x))
    train, test = order[:1200], order[1200:]
    model = network()
    return model, (x[train], y[train]), (x[test], y[test])


def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def accuracy(network, density, steps):
    model, (x, y), test = digits(network)
    optimizer = SR2(model, None if density is None else L0Ball(density=density), steps=steps, **ADAM)
    for _ in range(steps):
        chosen = torch.randint(len(x), (64,))
        optimizer.step(lambda chosen=chosen: F.cross_entropy(model(x[chosen]), y[chosen]))
    if density is not None:
        n = sum(p.numel() for p in optimizer.param_groups[0]["params"])
        assert sum(int(torch.count_nonzero(p)) for p in optimizer.param_groups[0]["params"]) == round(density * n)
    model.eval()
    with torch.no_grad():
        return float((model(test[0]).argmax(1) == test[1]).double().mean())


@pytest.mark.parametrize(
    ("network", "steps"),
    [
        pytest.param(mlp, 300, id="mlp"),
        pytest.param(lambda: models.build("cnn", 10, (1, 8, 8)), 200, id="cnn", marks=pytest.mark.torture),
    ],
)
def test_zeros_are_had_exactly_and_cost_little(network, steps):
    dense = accuracy(network, None, steps)
    assert dense > 0.95
    for density, loss in ((0.1, 0.02), (0.05, 0.04), (0.02, 0.12)):
        assert accuracy(network, density, steps) > dense - loss


def test_a_run_that_is_much_longer_than_was_said_is_told_once():
    torch.manual_seed(0)
    model, x = nn.Linear(6, 1), torch.randn(16, 6)
    optimizer = SR2(model, L0Ball(density=0.5), steps=10)
    for _ in range(11):
        optimizer.step(lambda: model(x).square().mean())  # one more is no mistake
    with pytest.warns(UserWarning, match=r"step 12 of SR2\(..., steps=10\).*epochs \* len\(loader\)") as said:
        optimizer.step(lambda: model(x).square().mean())
    assert said[0].filename == __file__
    optimizer.step(lambda: model(x).square().mean())  # silent


def test_a_budget_beside_a_ridge_is_a_budget():
    x = [nn.Parameter(torch.ones(4, 4))]
    assert SR2(x, Ridge(1e-4, L0Ball(density=0.5)), steps=100).reach == SR2(x, L0Ball(density=0.5), steps=100).reach
    assert SR2(x, Ridge(1e-4), steps=100).reach is SR2(x, L1(1e-4), steps=100).reach is None
