"""A rule of one's own is obeyed on every path: on the host, on the device, beside the kernel, by the certificate."""

import math
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sr2 import L0, L1, SR2, L0Ball, certificate, rules
from sr2.directions import Average
from sr2.metrics import Adam
from sr2.optim.moves.fused import FusedMove
from sr2.rules import Ratio, Rule, Tolerant, Verdict
from tests.tools import HostReads, algorithm_1, same_bits

DRAW = torch.Generator().manual_seed(0)
X, Y = torch.randn(16, 6, generator=DRAW), torch.randint(3, (16,), generator=DRAW)


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


PUBLIC = [
    part for part in vars(rules).values() if isinstance(part, type) and issubclass(part, Rule) and part is not Rule
]
RULES = [*(rule() for rule in PUBLIC), Never(), Remembers()]
every = pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 3))


def run(rule, steps=5, regularizer=None, **options):
    network = model()
    plain = {"metric": None, "momentum": 0.0, "average": False}  # of every rule: they are compared to the last digits
    optimizer = SR2(network, regularizer or L1(1e-3), rule=rule, **{"sigma": 5.0, **plain, **options})
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


@every
def test_a_rule_decides_alike_on_every_path(rule, path):
    """Against the loop on the host, with sigma too small at first."""
    momentum = {k: v for k, v in path.items() if k == "momentum"}
    network, optimizer = run(rule, 12, **{**path, "sigma": 0.2})
    expected, other = run(rule, 12, foreach=False, sigma=0.2, **momentum)
    assert optimizer.counts == other.counts
    assert optimizer.sigma == pytest.approx(other.sigma, rel=1e-5)
    assert optimizer.last_step.rho == pytest.approx(other.last_step.rho, rel=1e-2, nan_ok=True)
    for x, y in zip(network.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rule", [Ratio(), Tolerant()], ids=str)
def test_in_the_metric_and_with_momentum_too(rule, path):
    """With shorter steps: in a metric, the host and the device divide with other last bits, and long steps part."""
    options = {"metric": "adam", "momentum": 0.9, "average": True, "sigma": 100.0}
    network, optimizer = run(rule, 12, **{**path, **options})
    expected, other = run(rule, 12, foreach=False, **options)
    assert optimizer.counts == other.counts
    assert optimizer.sigma == pytest.approx(other.sigma, rel=1e-5)
    with optimizer.averaged(), other.averaged():
        for x, y in zip(network.parameters(), expected.parameters(), strict=True):
            torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)


@every
@pytest.mark.parametrize("capturable", [False, True])
def test_a_rule_goes_on_from_a_saved_state(rule, capturable):
    """Saved on the host and loaded on the device, or the other way."""
    network, optimizer = run(rule, 6, capturable=capturable)
    other = SR2(network, L1(1e-3), sigma=1.0, rule=rule, capturable=not capturable)
    other.load_state_dict(optimizer.state_dict())
    assert (other.sigma, other.counts, other.rule) == (optimizer.sigma, optimizer.counts, optimizer.rule)
    assert {k: float(v) for k, v in other._search.memory.items()} == {
        k: float(v) for k, v in optimizer._search.memory.items()
    }


@dataclass(frozen=True)
class Chooses(Never):
    """Its constant is None, or "auto", until x_0 is seen."""

    level: float | str | None = None

    @property
    def undecided(self):
        return not isinstance(self.level, float)

    def choose(self, R, size):
        return {"level": R + size}


@pytest.mark.parametrize("before", [None, "auto"])
def test_what_a_rule_chooses_is_its_and_is_saved_whatever_stood_there(before):
    _, optimizer = run(Chooses(before), metric="adam")
    level = optimizer.rule.level
    assert isinstance(level, float)
    assert optimizer.rule == Chooses(level)
    for given, expected in ((before, level), (3.0, 3.0)):
        other = SR2(model(), L1(1e-3), rule=Chooses(given), metric="adam", momentum=0.0, average=False)
        other.load_state_dict(optimizer.state_dict())
        assert other.rule == Chooses(expected)


@every
def test_a_rule_reads_no_number_on_the_host(rule):
    """So a CUDA graph can hold it."""
    network = model()
    optimizer = SR2(network, L1(1e-3), sigma=5.0, rule=rule, capturable=True)
    optimizer.step(lambda: F.cross_entropy(network(X), Y))
    with HostReads() as reads:
        optimizer.step(lambda: F.cross_entropy(network(X), Y))
    assert reads.seen == []


def test_a_rule_that_always_rejects(path):
    network, optimizer = run(Never(), **path)
    assert optimizer.counts == {"accepted": 0, "rejected": 5, "null": 0, "broken": 0}
    assert optimizer.sigma == pytest.approx(5.0 * 1.1**5)
    assert same_bits(network.parameters(), model().parameters())


def test_a_rule_that_remembers(path):
    _, optimizer = run(Remembers(), **path)
    _, expected = run(Remembers(), foreach=False, **{k: v for k, v in path.items() if k == "momentum"})
    assert optimizer.counts["accepted"] == 5
    assert float(optimizer._search.memory["count"]) == 5
    assert optimizer.sigma == pytest.approx(expected.sigma, rel=1e-6) != 5.0
    assert optimizer.sigma == pytest.approx(float(optimizer._search.memory["mean"]) + 1)


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


@pytest.mark.parametrize("capturable", [False, True])
def test_of_a_null_step_it_remembers_nothing(capturable):
    x = nn.Parameter(torch.zeros(3))
    optimizer = SR2([x], sigma=5.0, rule=Remembers(), capturable=capturable)
    optimizer.step(lambda: x.square().sum())
    assert {name: float(value) for name, value in optimizer._search.memory.items()} == Remembers().memory()


def test_sigma_stays_at_its_least_or_above():
    class Falls(Never):
        def judge(self, evidence, state):
            return super().judge(evidence, state)._replace(sigma=0.01 * state.sigma)

    _, optimizer = run(Falls(), sigma_min=0.5)
    assert optimizer.sigma == 0.5


def test_the_certificate_asks_the_rule():
    network, data = model(), [(X, Y), (X[:8], Y[:8])]
    assert certificate(network, data, algorithm_1(network, L1(1e-3), sigma=50.0)).accepted == 2
    assert (
        certificate(network, data, SR2(network, L1(1e-3), sigma=50.0, rule=Never(), metric=None, momentum=0.0)).accepted
        == 0
    )


def test_to_the_certificate_a_null_step_is_a_success():
    """Of length 0, whatever the rule says of it."""
    network = model()
    with torch.no_grad():
        network[2].bias.zero_()
    optimizer = SR2([network[2].bias], L1(9.0), sigma=50.0, rule=Never(), metric=None, momentum=0.0)
    report = certificate(network, [(X, Y), (X[:8], Y[:8])], optimizer)
    assert (report.accepted, report.delta) == (2, 0.0)


@pytest.mark.parametrize("regularizer", [L1(1e-3), L0(1e-4), L0Ball(density=1.0)], ids=repr)
def test_the_shorthand_is_the_rule(regularizer):
    constants = {"eta1": 0.1, "eta2": 0.5, "gamma1": 2.0, "gamma2": 3.0, "gamma3": 0.5}
    a, one = run(None, 20, regularizer, **constants)
    b, other = run(Ratio(**constants), 20, regularizer)
    assert one.rule == other.rule == Ratio(**constants)
    assert (one.sigma, one.counts) == (other.sigma, other.counts)
    assert same_bits(a.parameters(), b.parameters())


def test_a_subclass_with_a_verdict_of_its_own_is_not_judged_by_its_parents_kernel(path):
    class Strict(Ratio):
        def judge(self, evidence, state):
            verdict = super().judge(evidence, state)
            return verdict._replace(accepted=verdict.accepted & False, sigma=2 * state.sigma)

    _, optimizer = run(Strict(gamma3=0.8), **path)
    assert optimizer.counts["rejected"] == 5
    assert optimizer.sigma == 5.0 * 2**5


def test_a_subclass_with_a_direction_or_metric_of_its_own_is_left_to_itself():
    """The kernel runs only where `beta` and `adam` are declared."""

    class Still(Average):
        def update(self, gs, states):
            vs, news = super().update(gs, states)
            return [0 * v for v in vs], news

    class Stiff(Adam):
        def update(self, xs, gs, states):
            D, news = super().update(xs, gs, states)
            return [1e30 * d for d in D], news

    assert (Average(0.9).beta, Still(0.9).beta) == (0.9, None)
    assert (Adam().adam, Stiff().adam) == ((0.999, 1e-8), None)
    start = model()
    for options in ({"direction": Still(0.9)}, {"metric": Stiff()}):
        network, optimizer = run(None, regularizer=L1(0.0), **options)
        assert optimizer.counts["null"] == 5, options
        assert all(torch.equal(x, y) for x, y in zip(network.parameters(), start.parameters(), strict=True))


def test_a_rule_that_returns_no_verdict_is_told_so():
    class Careless(Rule):
        def judge(self, evidence, state):
            return True

    with pytest.raises(TypeError, match=r"must return Verdict\(accepted, sigma, rho\), and returned True"):
        run(Careless())
