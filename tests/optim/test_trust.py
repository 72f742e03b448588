"""test_every: steps on trust between tests, the way back, on every path; saved and resumed."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sr2 import L1, SR2, ProxSGD
from sr2.experiments.host_reads import HostReads
from sr2.optim.capture import kept_pace, next_is_tested
from sr2.optim.closure.twice import TwoEvaluations
from sr2.optim.parts.testing import Auto, Pace
from sr2.optim.state import SearchState
from sr2.rules import Ratio, Tolerant
from tests.tools import same_bits

from .trusting import FATES, TUNED, X, Y, network, points, train


def test_every_step_is_todays():
    assert same_bits(points(*train(20)), points(*train(20, test_every=1)))
    assert "untested" not in train(1)[1].counts


def test_the_first_step_and_every_fourth_are_tested():
    model, optimizer = train(0, test_every=4)
    calls = []
    for _ in range(9):
        count = []

        def closure(count=count):
            count.append(1)
            return F.cross_entropy(model(X[0]), Y[0])

        optimizer.step(closure)
        calls.append(len(count))
    assert calls == [2, 1, 1, 1, 2, 1, 1, 1, 2]
    assert [optimizer.counts[name] for name in FATES] == [3, 0, 0, 0, 6]
    assert "testing=Every(k=4)" in repr(optimizer)


def test_a_step_on_trust_is_the_step_that_a_passing_test_keeps():
    """Where sigma stays and every test passes, the tests change nothing but what the average is made of."""
    rule = Tolerant(rise=100.0, gamma3=1.0)
    (one, _), (other, _) = train(20, rule=rule), train(20, rule=rule, test_every=4)
    assert same_bits([*one.parameters(), *one.buffers()], [*other.parameters(), *other.buffers()])


def test_what_an_untested_step_says_of_itself():
    _, optimizer = train(2, test_every=4)
    step = optimizer.last_step
    assert math.isnan(step.trial_loss)
    assert math.isnan(step.rho)
    assert math.isnan(step.actual)
    assert step.accepted
    assert step.step_norm > 0
    assert step.predicted > 0


@pytest.mark.parametrize("rule", [Tolerant(), Tolerant(usual=200.0), Ratio(eta2=0.6, gamma3=0.9)], ids=str)
@pytest.mark.parametrize("sigma", [0.1, 300.0])
def test_all_paths_go_the_same_way(rule, sigma):
    """From a sigma that is much too small, too: steps fail, and x goes back."""

    def run(**options):
        model = network().double()
        optimizer = SR2(model, L1(1e-3), **TUNED | {"rule": rule, "sigma": sigma, "test_every": 4} | options)
        for t in range(60):
            optimizer.step(lambda t=t: F.cross_entropy(model(X[t % 8].double()), Y[t % 8]))
        return optimizer, points(model, optimizer)

    (one, expected), *others = (run(**o) for o in ({"foreach": False}, {"foreach": True}, {"capturable": True}))
    assert (one.counts["rejected"] > 0) == (sigma == 0.1)
    for other, found in others:
        assert other.counts == one.counts
        assert other.sigma == pytest.approx(one.sigma, rel=1e-12)
        for x, y in zip(found, expected, strict=True):
            torch.testing.assert_close(x, y, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize("test_every", [4, "auto"])
def test_it_resumes_to_the_same_bits(test_every, capturable):
    options = {"test_every": test_every, "capturable": capturable, "sigma": 30.0}
    model, optimizer = train(60, **options)
    assert optimizer.counts["untested"] > 0
    half, saved = train(30, **options)
    state = copy.deepcopy(saved.state_dict())
    again = network()
    again.load_state_dict(half.state_dict())
    resumed = SR2(again, L1(1e-3), **TUNED | options | {"sigma": 1.0})
    resumed.load_state_dict(state)
    train(30, again, resumed, first=30)
    assert same_bits(points(again, resumed), points(model, optimizer))
    assert (resumed.counts, resumed.sigma) == (optimizer.counts, optimizer.sigma)


def test_a_run_that_tested_every_step_goes_on_with_a_test():
    model, plain = train(3)
    resumed = SR2(model, L1(1e-3), **TUNED, test_every=4)
    resumed.load_state_dict(plain.state_dict())
    train(4, model, resumed, first=3)
    assert [resumed.counts[name] for name in FATES] == [4, 0, 0, 0, 3]


def test_who_tests_every_step_is_told_of_a_broken_batch_also_after_a_run_on_trust():
    model, trusting = train(2, test_every=4)
    optimizer = SR2(model, L1(1e-3), **TUNED)
    optimizer.load_state_dict(trusting.state_dict())
    with pytest.raises(FloatingPointError, match="the loss at x_t is nan"):
        train(1, model, optimizer, spoil=lambda t, x: x * math.nan)


def test_auto_grows_while_nothing_fails_and_falls_back():
    auto, pace, gaps, failures, since = Auto(), Pace(), [], 0, 0
    for _ in range(600):
        tested = auto.due(pace, lambda: failures)
        since += 1
        if tested:
            gaps.append(since)
            since = 0
        pace.go_on(tested=tested)
    assert gaps[:85] == [*[1] * 20, *[2] * 20, *[4] * 20, *[8] * 20, *[16] * 5]
    failures += 1
    while not auto.due(pace, lambda: failures):
        pace.go_on(tested=False)
    pace.go_on(tested=True)
    assert [auto.due(pace, lambda: failures) for _ in range(3)] == [True] * 3


def test_auto_in_training():
    _, optimizer = train(120, test_every="auto")
    counts = optimizer.counts
    assert optimizer._search.pace.every > 1
    assert counts["accepted"] < 80
    assert sum(counts.values()) == 120


@pytest.mark.parametrize(("test_every", "reads_of_six"), [(4, 0), ("auto", 6)])
def test_capturable_steps_read_nothing_but_what_auto_asks(test_every, reads_of_six):
    model, optimizer = train(5, test_every=test_every, capturable=True)
    with HostReads("cpu") as reads:
        train(6, model, optimizer, first=5)
    assert len(reads.seen) == reads_of_six


def test_a_graph_has_one_kind_of_step_and_its_capture_does_not_count():
    """What `CapturedStep` does on the host, without a device: the kinds of its replays are those of steps."""
    model, optimizer = train(3, test_every=4, capturable=True)
    before = copy.copy(optimizer._search.pace)
    for tested in (True, False):
        with kept_pace(optimizer, optimizer.testing, tested):
            count = optimizer.counts["untested"]
            train(1, model, optimizer)
            assert optimizer.counts["untested"] == count + (not tested)
    assert optimizer._search.pace == before
    assert [next_is_tested(optimizer, optimizer.testing) for _ in range(6)] == [False, True, False, False, False, True]
    assert next_is_tested(ProxSGD(model), None)


@pytest.mark.parametrize("wrong", [0, -1, 2.5, True, "often", None])
def test_wrong_values(wrong):
    with pytest.raises(ValueError, match=r"test_every must be a whole number of at least 1, or 'auto', and is"):
        SR2(network(), test_every=wrong)


def test_theorems_are_not_claimed():
    with pytest.raises(ValueError, match=r"epsilon and batch_growth rest on theorems.*Every\(k=2\)"):
        SR2(network(), test_every=2, epsilon=1e-3)


@pytest.mark.parametrize("capturable", [False, True])
def test_an_interrupt_after_the_step_is_settled_leaves_it_done(capturable, monkeypatch):
    model, optimizer = train(3, capturable=capturable)
    twin, other = train(4, capturable=capturable)

    def interrupt(self, outcome):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(SearchState, "record", interrupt)
        with pytest.raises(KeyboardInterrupt):
            train(1, model, optimizer, first=3)
    assert same_bits([p.detach() for p in model.parameters()], [p.detach() for p in twin.parameters()])
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(optimizer.state[p]["momentum"], other.state[q]["momentum"])
    assert same_bits(list(model.buffers()), list(twin.buffers()))


def test_an_interrupt_while_settling_puts_x_back(monkeypatch):
    model, optimizer = train(3)
    before = [p.detach().clone() for p in model.parameters()]

    def interrupt(self, outcome):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(TwoEvaluations, "settle", interrupt)
        with pytest.raises(KeyboardInterrupt):
            train(1, model, optimizer, first=3)
    assert same_bits(before, [p.detach() for p in model.parameters()])


@pytest.mark.parametrize("capturable", [False, True])
def test_the_average_is_of_points_that_passed_and_each_stands_for_the_steps_since_the_last(capturable):
    model, optimizer = train(1, test_every=4, capturable=capturable)
    x, weight = next(model.parameters()), optimizer.averaging.weight
    mean = x.detach().clone()
    for t in range(2, 14):
        train(1, model, optimizer, first=t - 1)
        if t % 4 == 1:  # step 1, 5, 9, 13
            mean.lerp_(x.detach(), 1 - (1 - float(weight(torch.tensor(t)))) ** 4)
    with optimizer.averaged():
        torch.testing.assert_close(x.detach(), mean, rtol=1e-5, atol=1e-6)


def on_trust_after(first, second, sigma=10.0, **options):
    """Whether the second step is kept, after a test of the first, with losses of these functions of x."""
    x = nn.Parameter(torch.ones(3))
    optimizer = SR2([x], sigma=sigma, test_every=4, metric=None, momentum=0.0, **options)
    optimizer.step(lambda: first(x))
    optimizer.step(lambda: second(x))
    return optimizer.counts["untested"] == 1


@pytest.mark.parametrize("capturable", [False, True])
def test_the_largest_loss_is_of_either_sign_and_known_though_the_first_test_fails(capturable):
    f = lambda x: x.square().sum()  # noqa: E731
    assert on_trust_after(lambda x: f(x) - 9, lambda x: f(x) + 9, capturable=capturable)
    assert not on_trust_after(lambda x: f(x) - 9, lambda x: f(x) + 900, capturable=capturable)
    assert on_trust_after(f, f, sigma=0.4, capturable=capturable)  # rho is -1.5
    assert on_trust_after(lambda x: 0 * f(x), f, capturable=capturable)  # as of a hinge
    if capturable:  # on the host that is an error
        assert not on_trust_after(lambda x: 0 * f(x), lambda x: f(x) / 0, capturable=True)


@pytest.mark.parametrize("capturable", [False, True])
def test_a_step_on_trust_says_nothing_of_stationarity(capturable):
    model, optimizer = train(1, test_every=4, capturable=capturable)
    before = optimizer.stationarity
    train(3, model, optimizer, first=1)
    assert optimizer.counts["untested"] == 3
    assert optimizer.stationarity == before


@pytest.mark.parametrize("capturable", [False, True])
def test_a_null_step_on_trust_leaves_sigma(capturable):
    x = nn.Parameter(torch.zeros(3))
    optimizer = SR2([x], L1(10.0), sigma=50.0, rule=Tolerant(usual=1.0), test_every=4, capturable=capturable)
    for _ in range(3):
        optimizer.step(lambda: x.sum())
    assert optimizer.counts["null"] == 3
    assert optimizer.sigma == 50.0


def test_auto_tests_one_of_so_many_at_least():
    auto, pace, tested = Auto(most=4, after=1), Pace(), []
    for _ in range(16):
        tested.append(auto.due(pace, lambda: 0))
        pace.go_on(tested=tested[-1])
    assert [t for t, due in enumerate(tested) if due] == [0, 2, 6, 10, 14]


def test_a_null_step_on_trust_leaves_x():
    x = nn.Parameter(torch.ones(3))
    optimizer = SR2([x], sigma=10.0, test_every=8, metric=None, momentum=0.0, weight_decay=0.0)
    for _ in range(3):
        optimizer.step(lambda: x.square().sum())
    before = x.detach().clone()
    optimizer.step(lambda: (0.0 * x).sum())
    assert torch.equal(x, before)
