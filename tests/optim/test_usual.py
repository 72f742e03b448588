"""Steps that are longer than usual, a tenth of the weights: what they may take, and where they may begin."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sr2 import L1, SR2, L0Ball, Ridge
from sr2.rules import Tolerant


@pytest.mark.parametrize("capturable", [False, True])
def test_a_longer_step_takes_no_more_of_a_weight(capturable):
    optimizer = SR2(nn.Linear(4, 3), sigma=5.0, weight_decay=0.4, rule=Tolerant(usual=20.0), capturable=capturable)
    for sigma, share in ((5.0, 0.02), (20.0, 0.02), (80.0, 0.005)):
        optimizer._search.sigma.fill_(sigma)
        w = optimizer._search.decay_of(optimizer.param_groups[0], optimizer.rule.usual_sigma)
        assert isinstance(w, torch.Tensor) == capturable
        assert float(w) / sigma == pytest.approx(share)


@pytest.mark.parametrize("R", [None, L0Ball(density=0.9)], ids=str)
@pytest.mark.parametrize(
    ("told", "left"),
    [({}, 0.05), ({"steps": 800, "steps_per_epoch": 8}, 0.05), ({"weight_decay": 0.25}, 1.0)],  # |x| < 1 / w, as AdamW
    ids=str,
)
def test_a_solution_far_from_the_start_is_reached(R, told, left):
    """sigma is small there, and w / sigma was more than 2: each step turned the weights around, to a loss of 1e26."""
    torch.manual_seed(0)
    x, model = torch.randn(512, 20), nn.Linear(20, 1)
    y = x @ (10 * torch.randn(20, 1)) + 100
    optimizer = SR2(model, R, **told)
    for k in range(800):
        b = slice(64 * (k % 8), 64 * (k % 8) + 64)
        optimizer.step(lambda b=b: (model(x[b]) - y[b]).square().mean())
    with torch.no_grad(), optimizer.averaged():
        assert (model(x) - y).square().mean() < left * y.var()


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(10, 30), nn.Tanh(), nn.Linear(30, 3))


@pytest.mark.parametrize("estimated", [False, True])
@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize(
    ("R", "longest"),
    [(None, 1), (L1(1e-6), 3), (L0Ball(density=0.9), 2), (Ridge(1e-6, L0Ball(density=0.9)), 2)],
    ids=str,
)
def test_sigma_0_is_at_least_the_usual_one_or_a_third_of_it_beside_a_regularizer(R, longest, capturable, estimated):
    """A fourth under penalties, until batches have said how far they agree."""
    longest = 4 if longest == 3 and not capturable else longest
    torch.manual_seed(1)
    x, y = torch.randn(32, 10), torch.randint(3, (32,))

    def first_sigma(rule):
        model = network()
        optimizer = SR2(model, R, rule=rule, capturable=capturable)
        closure = lambda: F.cross_entropy(model(x), y)  # noqa: E731
        if estimated:
            optimizer.estimate_sigma(closure)
            return optimizer.sigma
        optimizer.step(closure)
        return optimizer.sigma / (0.98 if optimizer.last_step.rho >= 0.9 else 1)

    found = first_sigma(Tolerant(usual=math.inf))
    for usual in (10 * found, 2 * found, found / 2):
        least = usual / longest
        assert first_sigma(Tolerant(usual=usual)) == pytest.approx(max(found, least), rel=0.03)


def test_who_names_sigma_has_it():
    model, x = network(), torch.randn(8, 10)
    optimizer = SR2(model, sigma=3.0, rule=Tolerant(usual=100.0, eta2=0.9999, rise=1e6))
    optimizer.step(lambda: model(x).square().mean())
    assert optimizer.sigma == 3.0


@pytest.mark.parametrize("R", [None, L1(1e-6)], ids=str)
def test_embeddings_of_which_a_batch_touches_few_rows_are_learnt(R):
    """Any step is good for the batch that made it: sigma_0 was 2.6 where 97 is usual, and the held-out error 0.52."""
    torch.manual_seed(0)
    users, items = nn.Embedding(300, 8), nn.Embedding(200, 8)
    for table in (users, items):
        nn.init.normal_(table.weight, std=0.1)
    a, b = torch.randint(300, (16000,)), torch.randint(200, (16000,))
    y = 0.5 * (torch.randn(300, 4)[a] * torch.randn(200, 4)[b]).sum(1)
    optimizer = SR2(nn.ModuleList([users, items]), R)
    for _ in range(500):
        i = torch.randint(12000, (256,))
        optimizer.step(lambda i=i: F.mse_loss((users(a[i]) * items(b[i])).sum(1), y[i]))
    with torch.no_grad(), optimizer.averaged():
        assert F.mse_loss((users(a) * items(b)).sum(1)[12000:], y[12000:]) < 0.1 * y.var()
