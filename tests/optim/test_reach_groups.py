"""While a budget shrinks: groups that come late, and layers that are frozen."""

import pytest
import torch
from torch import nn

from sr2 import SR2, L0Ball, Ridge

from .reaching import nonzeros, problem, run, trained


def test_a_group_that_comes_late_is_on_the_same_path():
    model, optimizer, closures = trained("budget", 11)
    late = nn.Parameter(torch.randn(10, 10))
    optimizer.add_param_group({"params": [late], "regularizer": L0Ball(density=0.1)})
    with pytest.warns(UserWarning, match="moved to its prox$"):
        optimizer.step(lambda: closures[0]() + late.square().mean())
    for t in range(20):
        optimizer.step(lambda t=t: closures[t % 20]() + late.square().mean())
    assert int(torch.count_nonzero(late)) == 10
    assert nonzeros(model) == 24


def test_a_layer_that_is_frozen_on_the_way_is_told():
    """It keeps the nonzeros that it has, and the budget is of what is left to train."""
    model, optimizer, closures = trained("budget", 11)
    model[0].weight.requires_grad_(False)
    words = r"160 of 240 weights under L0Ball\(density=0.1\) \(group 0\) were frozen with more nonzeros than it allows"
    with pytest.warns(UserWarning, match=words):
        run(optimizer, closures, 1)
    run(optimizer, closures, 30)
    assert int(torch.count_nonzero(model[2].weight)) == 8
    assert nonzeros(model) > 24


def test_a_layer_that_is_frozen_once_the_budget_is_reached_is_not_told():
    model, closures = problem()
    optimizer = SR2(model, L0Ball(density=0.1, floor=1), reach=(3, 20))
    run(optimizer, closures, 40)
    model[0].weight.requires_grad_(False)
    run(optimizer, closures, 5)
    assert nonzeros(model) == 24


@pytest.mark.parametrize("R", [None, L0Ball(density=0.1)], ids=str)
@pytest.mark.parametrize("ridge", [False, True])
def test_a_group_that_comes_late_does_not_move_those_on_their_path(R, ridge, recwarn):
    """Their budget has shrunk below what they have, as at every step: only the late one is moved, and told of."""
    model, optimizer, closures = trained("budget", 11)
    if ridge:
        optimizer.param_groups[0]["regularizer"] = Ridge(1e-6, optimizer.param_groups[0]["regularizer"])
    late = nn.Parameter(torch.randn(10, 10))
    optimizer.add_param_group({"params": [late], "regularizer": R})
    optimizer.step(lambda: closures[0]() + late.square().mean())
    assert ["(group 2): x_0 was moved to its prox" in str(w.message) for w in recwarn] == ([] if R is None else [True])
    for t in range(20):
        optimizer.step(lambda t=t: closures[t % 20]() + late.square().mean())
    assert nonzeros(model) == 24
