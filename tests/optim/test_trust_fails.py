"""Steps on trust that were no good: a test, or a batch between two tests, finds it, and x goes back."""

import math
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sr2 import SR2
from sr2.rules import Tolerant
from tests.tools import same_bits

from .trusting import TUNED, X, Y, train


@pytest.mark.parametrize("capturable", [False, True])
def test_a_rejected_test_goes_back_to_the_last_point_that_passed(capturable):
    class Rejects(Tolerant):
        def judge(self, evidence, state):
            verdict = super().judge(evidence, state)
            accepted = verdict.accepted & (state.steps != 4)
            return verdict._replace(accepted=accepted, sigma=torch.where(accepted, state.sigma, 1.5 * state.sigma))

    model, optimizer = train(1, test_every=4, rule=Rejects(usual=math.inf), capturable=capturable)
    passed = [p.detach().clone() for p in model.parameters()]
    train(3, model, optimizer, first=1)
    assert not same_bits(passed, [p.detach() for p in model.parameters()])
    momentum = [optimizer.state[p]["momentum"].clone() for p in model.parameters()]
    train(1, model, optimizer, first=4)
    assert same_bits(passed, [p.detach() for p in model.parameters()])
    assert same_bits(momentum, [optimizer.state[p]["momentum"] for p in model.parameters()])
    assert optimizer.sigma == 450.0
    assert optimizer.counts["rejected"] == 1


@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize("factor", [1e5, math.nan, math.inf])
def test_a_bad_batch_between_tests_goes_back_and_leaves_no_trace(factor, capturable):
    model, optimizer = train(1, test_every=4, capturable=capturable)
    with torch.no_grad():
        model[3].weight.mul_(30)  # so that the loss of such a batch shows
    train(1, model, optimizer, first=4)
    optimizer._search.pace.left = 0
    train(1, model, optimizer, first=5)
    passed = [p.detach().clone() for p in model.parameters()]
    train(1, model, optimizer, first=6)
    buffers = [b.clone() for b in model.buffers()]
    states = [{k: torch.as_tensor(v).clone() for k, v in optimizer.state[p].items()} for p in model.parameters()]
    sigma, rejected = optimizer.sigma, optimizer.counts["rejected"]

    def closure():
        return F.cross_entropy(factor * model(X[0]), Y[0])

    optimizer.step(closure)
    assert same_bits(passed, [p.detach() for p in model.parameters()])
    assert same_bits(buffers, list(model.buffers()))
    for before, p in zip(states, model.parameters(), strict=True):
        for name in ("momentum", "momentum_weight", "square", "square_weight", "passed"):
            assert torch.equal(before[name], torch.as_tensor(optimizer.state[p][name])), name
    assert optimizer.sigma == pytest.approx(1.5 * sigma)
    assert optimizer.counts["rejected"] == rejected + 1
    train(8, model, optimizer)
    assert all(bool(p.isfinite().all()) for p in model.parameters())


@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize("test_every", [2, 3, 16])
def test_where_trust_leads_out_of_the_loss_and_a_test_finds_it_sigma_rises(test_every, capturable):
    """A barrier: f is NaN beyond 1. With sigma as it was, the same step would leave again and again."""
    x, slope = nn.Parameter(torch.zeros(3)), torch.tensor([1.0, 2.0, 3.0])
    options = {"metric": None, "momentum": 0.0, "average": False, "capturable": capturable}
    optimizer = SR2([x], sigma=0.5, test_every=test_every, **options)
    for _ in range(100):
        optimizer.step(lambda: -(slope * x).sum() - 0.3 * torch.log(1 - x).sum())
    assert optimizer.sigma > 4.0
    assert optimizer.counts["accepted"] >= 100 // test_every - 12
    assert bool((optimizer.state[x]["passed"] < 1).all())


@cache
def accuracy_on_digits(test_every, spoil=None, bad_at=-1):
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    images, labels = torch.tensor(images / 16.0, dtype=torch.float32), torch.tensor(labels)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = SR2(model, test_every=test_every, **TUNED)
    draw = torch.Generator().manual_seed(1)
    for t in range(200):
        batch = torch.randint(len(labels), (64,), generator=draw)
        x = spoil(images[batch]) if t == bad_at else images[batch]
        try:
            optimizer.step(lambda x=x, batch=batch: F.cross_entropy(model(x), labels[batch]))
        except FloatingPointError:
            assert t == bad_at
    with torch.no_grad():
        return float((model(images).argmax(1) == labels).float().mean())


@pytest.mark.parametrize("test_every", [4, "auto"])
@pytest.mark.parametrize(
    "spoil", [lambda a: 1e5 * a, lambda a: a * math.nan, lambda a: a / 0.0], ids=["1e5", "nan", "inf"]
)
@pytest.mark.parametrize("bad_at", [120, pytest.param(121, marks=pytest.mark.torture), 123])
def test_one_bad_batch_costs_nothing(spoil, bad_at, test_every):
    assert accuracy_on_digits(test_every, spoil, bad_at) > accuracy_on_digits(test_every) - 0.01


def test_a_network_that_is_broken_for_good_is_an_error():
    model, optimizer = train(1, test_every=4)
    with torch.no_grad():
        model[1].weight.fill_(math.nan)
        optimizer.state[model[1].weight]["passed"].fill_(math.nan)
    with pytest.raises(FloatingPointError, match="the loss at x_t is nan"):
        train(2, model, optimizer)
