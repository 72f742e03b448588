"""A rule of one's own is obeyed on every path: on the host, on the device, beside the kernel, by the certificate."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sr2 import L0, L1, SR2, L0Ball, certificate
from sr2.optim.moves.fused import FusedMove
from sr2.rules import Ratio, Rule, Verdict

X, Y = torch.randn(16, 6), torch.randint(3, (16,))


class Never(Rule):
    """Rejects whatever it sees, and raises sigma by a tenth."""

    def judge(self, evidence, state):
        return Verdict(torch.zeros_like(evidence.ss, dtype=torch.bool), 1.1 * state.sigma, evidence.actual)


class Remembers(Rule):
    """Accepts all; sigma is the running mean of rho plus one, and rho is what it remembers."""

    def memory(self):
        return {"mean": 0.5, "count": 0.0}

    def judge(self, evidence, state):
        rho = evidence.actual / evidence.predicted
        mean = 0.9 * state.memory["mean"] + 0.1 * rho
        accepted = torch.ones_like(rho, dtype=torch.bool)
        return Verdict(accepted, mean + 1, rho, {"mean": mean, "count": state.memory["count"] + 1})


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 3))


def run(rule, steps=5, regularizer=None, **options):
    network = model()
    optimizer = SR2(network, regularizer or L1(1e-3), sigma=5.0, rule=rule, **options)
    for _ in range(steps):
        optimizer.step(lambda: F.cross_entropy(network(X), Y))
    return network, optimizer


PATHS = {
    "loop": {"foreach": False},
    "flat": {"foreach": True},
    "device": {"capturable": True},
    "device loop": {"capturable": True, "foreach": False},
    "kernel": {"capturable": True, "kernel": True},
    "kernel, momentum": {"capturable": True, "kernel": True, "momentum": 0.9},
    "host beside the kernel": {"kernel": True},
}


@pytest.fixture(params=PATHS)
def path(request, monkeypatch):
    options = dict(PATHS[request.param])
    if options.pop("kernel", False):
        pytest.importorskip("triton")
        if torch.cuda.is_available():
            pytest.skip("Triton compiles where there is a CUDA device: see test_cuda.py")
        monkeypatch.setattr(FusedMove, "fits", staticmethod(lambda proposals: True))
    return options


def test_a_rule_that_always_rejects(path):
    network, optimizer = run(Never(), **path)
    assert optimizer.counts == {"accepted": 0, "rejected": 5, "null": 0, "broken": 0}
    assert optimizer.sigma == pytest.approx(5.0 * 1.1**5)
    assert all(torch.equal(x, y) for x, y in zip(network.parameters(), model().parameters(), strict=True))


def test_a_rule_that_remembers(path):
    _, optimizer = run(Remembers(), **path)
    _, expected = run(Remembers(), foreach=False, **{k: v for k, v in path.items() if k == "momentum"})
    assert optimizer.counts["accepted"] == 5
    assert float(optimizer._search.memory["count"]) == 5
    assert optimizer.sigma == pytest.approx(expected.sigma, rel=1e-6) != 5.0
    assert optimizer.sigma == pytest.approx(float(optimizer._search.memory["mean"]) + 1)


@pytest.mark.parametrize("capturable", [False, True])
def test_what_it_remembers_is_saved(capturable):
    network, optimizer = run(Remembers(), capturable=capturable)
    other = SR2(network, L1(1e-3), sigma=1.0, rule=Remembers(), capturable=not capturable)
    other.load_state_dict(optimizer.state_dict())
    assert {k: float(v) for k, v in other._search.memory.items()} == {
        k: float(v) for k, v in optimizer._search.memory.items()
    }


@pytest.mark.parametrize("capturable", [False, True])
def test_null_steps_and_broken_batches_are_not_its_question(capturable):
    x = nn.Parameter(torch.zeros(3))
    optimizer = SR2([x], sigma=5.0, rule=Never(), capturable=capturable)
    optimizer.step(lambda: x.square().sum())  # at the minimizer
    assert optimizer.counts["null"] == 1
    assert optimizer.sigma == 5.0
    assert optimizer.last_step.accepted is None
    assert math.isnan(optimizer.last_step.rho)
    if capturable:
        optimizer.step(lambda: x.sum() * math.nan)
        assert optimizer.counts == {"accepted": 0, "rejected": 0, "null": 1, "broken": 1}
        assert optimizer.sigma == 5.0


def test_sigma_stays_at_its_least_or_above():
    class Falls(Never):
        def judge(self, evidence, state):
            return super().judge(evidence, state)._replace(sigma=0.01 * state.sigma)

    _, optimizer = run(Falls(), sigma_min=0.5)
    assert optimizer.sigma == 0.5


def test_the_certificate_asks_the_rule():
    network, data = model(), [(X, Y), (X[:8], Y[:8])]
    assert certificate(network, data, SR2(network, L1(1e-3), sigma=50.0)).accepted == 2
    assert certificate(network, data, SR2(network, L1(1e-3), sigma=50.0, rule=Never())).accepted == 0


@pytest.mark.parametrize("regularizer", [L1(1e-3), L0(1e-4), L0Ball(density=1.0)], ids=repr)
def test_the_shorthand_is_the_rule(regularizer):
    constants = {"eta1": 0.1, "eta2": 0.5, "gamma1": 2.0, "gamma2": 3.0, "gamma3": 0.5}
    a, one = run(None, 20, regularizer, **constants)
    b, other = run(Ratio(**constants), 20, regularizer)
    assert one.rule == other.rule == Ratio(**constants)
    assert (one.sigma, one.counts) == (other.sigma, other.counts)
    assert all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"rule": "ratio"}, TypeError, "rule must be an object of sr2.rules, and is 'ratio'"),
        ({"rule": Ratio(), "eta2": 0.5}, ValueError, "says it already: leave out eta1 to gamma3"),
        ({"direction": 0.9}, TypeError, "direction must be an object of sr2.directions, and is 0.9"),
        ({"schedule": (1, 2)}, TypeError, r"schedule must be an object of sr2.schedules, and is \(1, 2\)"),
    ],
    ids=str,
)
def test_wrong_parts(options, error, words):
    with pytest.raises(error, match=words):
        SR2(model(), **options)
