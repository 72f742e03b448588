"""weight_norm: its lengths are a norm's, and a filter of zeros has no loss: a run that stands still is told why."""

import math
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sr2 import L1, SR2, L0Ball, param_groups

X = torch.randn(24, 8, generator=torch.Generator().manual_seed(1))
Y = torch.arange(24) % 3


def old_weight_norm(layer):
    with warnings.catch_warnings(action="ignore", category=FutureWarning):
        return nn.utils.weight_norm(layer)


def told(steps, finite=lambda t: False):
    """What is said of steps whose loss at the trial point is finite where `finite(t)` is true."""
    model, t, calls = nn.Linear(8, 3), 0, 0

    def closure():
        nonlocal calls
        calls += 1
        return F.cross_entropy(model(X), Y) * (math.nan if calls == 2 and not finite(t) else 1.0)

    optimizer = SR2(model, sigma=100.0)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for t in range(steps):  # noqa: B007 - the closure reads it
            calls = 0
            optimizer.step(closure)
    return [str(w.message) for w in found]


@pytest.mark.parametrize("weight_norm", [nn.utils.parametrizations.weight_norm, old_weight_norm], ids=["new", "old"])
def test_its_lengths_are_not_penalized(weight_norm):
    model = nn.Sequential(weight_norm(nn.Linear(4, 3)), weight_norm(nn.Conv1d(3, 2, 2)))
    penalized, rest = SR2(model, L1(0.1)).param_groups
    assert [tuple(p.shape) for p in penalized["params"]] == [(3, 4), (2, 3, 2)]
    assert sorted(tuple(p.shape) for p in rest["params"]) == [(2,), (2, 1, 1), (3,), (3, 1)]


def test_other_parametrizations_are_weights():
    model = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3))
    penalized, _ = SR2(model, L1(0.1)).param_groups
    assert [tuple(p.shape) for p in penalized["params"]] == [(3, 4)]


def test_zeros_that_are_none_of_the_weight_are_told_at_construction():
    """Of an orthogonal matrix: all of it became zero under a budget, in silence."""
    model = nn.Sequential(nn.utils.parametrizations.orthogonal(nn.Linear(8, 12)), nn.ReLU(), nn.Linear(12, 3))
    words = r"zeros of 0\.parametrizations\.weight\.original need not .*that Orthogonal computes: .*param_groups\("
    with pytest.warns(UserWarning, match=words):
        SR2(model, L0Ball(density=0.1))
    groups = param_groups(model, [("*.parametrizations.*", None), ("*", L0Ball(density=0.1))])
    for quiet in (groups, model[2]):
        SR2(quiet)
    SR2(model)
    nn.utils.parametrize.remove_parametrizations(model[0], "weight")
    SR2(model, L0Ball(density=0.1))


def test_losses_that_are_not_finite_fifty_times_in_a_row_are_told_once():
    assert told(49) == []
    (said,) = told(120)
    assert "50 steps in a row" in said
    assert "remove_parametrizations" in said
    assert told(120, finite=lambda t: t % 50 == 49) == []  # the count begins anew


def test_a_budget_that_takes_a_whole_filter():
    torch.manual_seed(0)
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(8, 12)), nn.ReLU(), nn.Linear(12, 3))
    optimizer = SR2(model, L0Ball(density=0.1), reach=(2, 4))

    def train():
        for _ in range(60):
            optimizer.step(lambda: F.cross_entropy(model(X), Y))

    with pytest.warns(UserWarning, match="as weight_norm does"):
        train()


def test_the_way_out_is_one():
    torch.manual_seed(0)
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(8, 12)), nn.ReLU(), nn.Linear(12, 3))
    nn.utils.parametrize.remove_parametrizations(model[0], "weight")
    optimizer = SR2(model, L0Ball(density=0.1), reach=(2, 4))
    for _ in range(60):
        optimizer.step(lambda: F.cross_entropy(model(X), Y))
    assert optimizer.counts["accepted"] > 50
