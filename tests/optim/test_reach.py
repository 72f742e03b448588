"""reach=(first, last): R comes to its full strength, and a budget is had exactly."""

import copy
import io

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sr2 import L1, NM, SR2, L0Ball, Rank
from sr2.numerics import Rounding
from sr2.optim import CapturedStep
from sr2.optim.parts.rules import Evidence
from sr2.optim.processes import ALONE
from sr2.rules import Follow, Ratio, Tolerant
from sr2.schedules import Reach
from tests.tools import remembered

from .reaching import ADAM, CASES, PLAIN, nonzeros, problem, run, trained, weights


@torch.no_grad()
def finite(R, model):
    return bool(R.value(weights(model)).isfinite())


# ---- the path


def test_the_budget_follows_a_cubic():
    model, closures = problem()
    own, n = 24, 240
    optimizer = SR2(model, L0Ball(k=own), reach=(5, 25), **ADAM)
    for t in range(1, 31):
        before, had = [p.detach().clone() for p in weights(model)], nonzeros(model)
        optimizer.step(closures[t % 20])
        u = min(max(t - 5, 0) / 20, 1)
        budget = round(own + (n - own) * (1 - u) ** 3)
        if optimizer.last_step.accepted:
            assert nonzeros(model) == budget
        else:
            assert nonzeros(model) == had
            assert all(torch.equal(p, old) for p, old in zip(weights(model), before, strict=True))
    assert nonzeros(model) == own
    assert optimizer.counts["accepted"] >= 25


@pytest.mark.parametrize("R", [L0Ball(density=0.1), NM(1, 4), L0Ball(density=0.25, groups="rows"), L1(1e-2)], ids=str)
@pytest.mark.parametrize("rule", [Ratio(), Tolerant(), Follow()], ids=lambda rule: type(rule).__name__)
def test_from_the_last_step_on_it_is_r(R, rule):
    model, closures = problem()
    optimizer = SR2(model, R, reach=(2, 12), **{**ADAM, "rule": rule})
    run(optimizer, closures, 11)
    for t in range(11, 40):
        optimizer.step(closures[t % 20])
        if optimizer.last_step.accepted:
            assert finite(R, model)
    assert finite(R, model)
    assert optimizer.param_groups[0]["regularizer"] is R
    assert float(optimizer._search.share) == 1.0


def test_singular_values_too():
    model, closures = problem()
    optimizer = SR2(model, Rank(2), reach=(2, 15), **PLAIN, sigma=5.0, gamma3=0.9)
    run(optimizer, closures, 40)
    assert [int(torch.linalg.matrix_rank(p)) for p in weights(model)] == [2, 2]


# ---- how steps are judged


def twin(x, A, b, k, reach, sigma, steps, rule, momentum):
    """f = (x - b)'A(x - b) / 2 under a budget: NumPy, which knows of no R but the budget."""
    m, weight = np.zeros_like(x), 0.0
    for t in range(1, steps + 1):
        u = min(max((t - reach[0]) / (reach[1] - reach[0]), 0), 1)
        budget = round(k + (x.size - k) * (1 - u) ** 3)
        g = A @ (x - b)
        m_new, weight_new = momentum * m + (1 - momentum) * g, momentum * weight + (1 - momentum)
        v = m_new / weight_new
        z = x - v / sigma
        z[np.argsort(-np.abs(z), kind="stable")[budget:]] = 0.0
        s = z - x
        slack = 10 * np.finfo(float).eps * max(1.0, abs((x - b) @ A @ (x - b) / 2 + (g - v) @ s))
        rise = s @ A @ s / 2  # f(x + s) - f(x) - g's
        forced = np.count_nonzero(x) > budget
        predicted = sigma * s @ s if forced else -v @ s
        rho = (predicted - rise + slack) / (predicted + slack)
        accepted = rho >= (rule.eta1 if isinstance(rule, Ratio) else -rule.rise)
        if accepted or not rule.forgets:
            m, weight = m_new, weight_new
        if accepted:
            x = z
            sigma = rule.gamma3 * sigma if rho >= rule.eta2 else sigma
        else:
            sigma = rule.gamma1 * sigma
        yield x, sigma, rho, accepted, forced


@pytest.mark.parametrize(
    "rule", [Ratio(gamma3=0.5, eta2=0.4, gamma1=2.0), Tolerant(rise=0.2, gamma3=0.5, eta2=0.4)], ids=str
)
@pytest.mark.parametrize("momentum", [0.0, 0.8])
@pytest.mark.parametrize("capturable", [False, True])
def test_forced_steps_are_judged_by_the_curvature(rule, momentum, capturable):
    rng = np.random.default_rng(1)
    B = rng.standard_normal((12, 12))
    A, b, x0 = B @ B.T / 4 + np.eye(12), 3 * rng.standard_normal(12), rng.standard_normal(12)
    expected = list(twin(x0, A, b, 3, (4, 20), 1.0, 40, rule, momentum))
    x = nn.Parameter(torch.tensor(x0))
    A_, b_ = torch.tensor(A), torch.tensor(b)
    options = {"reach": (4, 20), "sigma": 1.0, "momentum": momentum, "metric": None, "capturable": capturable}
    optimizer = SR2([x], L0Ball(k=3), rule=rule, average=False, **options)
    for z, sigma, rho, accepted, _ in expected:
        optimizer.step(lambda: (x - b_) @ A_ @ (x - b_) / 2)
        assert optimizer.last_step.accepted is bool(accepted)
        assert optimizer.last_step.rho == pytest.approx(rho, rel=1e-6, abs=1e-9)
        assert optimizer.sigma == pytest.approx(sigma)
        np.testing.assert_allclose(x.detach().numpy(), z, rtol=1e-9, atol=1e-12)
    fates = [(bool(accepted), bool(forced)) for *_, accepted, forced in expected]
    assert {(True, True), (False, True), (True, False)} <= set(fates)  # every kind of step was seen
    assert np.count_nonzero(expected[-1][0]) == 3


def test_what_is_taken_for_the_decrease_of_r():
    """v's + s'Bs where R(x) is infinite, so that rho is 1 - curvature / 2; elsewhere R's own decrease."""
    numbers = [torch.tensor(n, dtype=torch.float64) for n in (2.0, 2.0, 2.5)]
    rounding, cpu = Rounding(0.0, 0.0), torch.device("cpu")
    for dR, expected in ((np.inf, 4.0), (0.25, 0.25), (-np.inf, -np.inf)):
        model = [torch.tensor(n, dtype=torch.float64) for n in (-1.0, dR, 2.0, 5.0)]
        evidence = Evidence.gather(numbers, model, rounding, ALONE, cpu, reaching=True)
        assert float(evidence.dR) == expected
        assert float(Evidence.gather(numbers, model, rounding, ALONE, cpu).dR) == dR
        if dR == np.inf:
            assert float(evidence.actual / evidence.predicted) == pytest.approx(1 - float(evidence.curvature) / 2)


def test_rejected_until_sigma_bounds_the_curvature():
    """The loss is steep where the budget wants to go: x stays as it is, and goes in the end."""
    x = nn.Parameter(torch.tensor([1.0, 1.01, 3.0, 4.0], dtype=torch.float64))
    optimizer = SR2([x], L0Ball(k=2), sigma=1.0, reach=(1, 2), **{**ADAM, "metric": None})

    def steep():
        return 50 * (x[0] - 1) ** 2 + 50 * (x[1] - 1.01) ** 2

    optimizer.step(steep)
    assert optimizer.last_step.accepted is None  # at the optimum, with all of the budget: a null step
    while optimizer.step(steep) is not None and not optimizer.last_step.accepted:
        assert torch.count_nonzero(x) == 4
        assert optimizer.last_step.rho == pytest.approx(1 - 50 * 2.0201 / (2.0201 * optimizer.sigma / 1.5))
    assert optimizer.counts["rejected"] == 7  # 1.5^7 > 12.5: the curvature is 100, and sigma / 8 of it is enough
    assert torch.equal(x.detach(), torch.tensor([0.0, 0.0, 3.0, 4.0], dtype=torch.float64))


def test_a_lambda_is_the_same_at_both_ends_of_a_step():
    lam, x0, b, sigma = 0.3, np.array([2.0, -1.0, 0.2]), np.array([1.0, 0.5, 0.0]), 2.0
    x = nn.Parameter(torch.tensor(x0))
    optimizer = SR2([x], L1(lam), sigma=sigma, reach=(2, 6), rule=Ratio(eta2=0.999, gamma3=0.8), **PLAIN)
    for t in range(1, 9):
        now, old = min(max(t - 2, 0) / 4, 1) * lam, x.detach().numpy().copy()
        optimizer.step(lambda: 0.5 * (x - torch.tensor(b)).square().sum())
        u = old - (old - b) / sigma
        z = np.sign(u) * np.maximum(np.abs(u) - now / sigma, 0)
        dR = now * (np.abs(old).sum() - np.abs(z).sum())
        predicted = dR - (old - b) @ (z - old)
        assert optimizer.last_step.predicted == pytest.approx(predicted, rel=1e-12)
        np.testing.assert_allclose(x.detach().numpy(), z, rtol=1e-12)
        assert optimizer.last_step.accepted


# ---- the ways of moving, and what lasts


def same(one, other, **tolerance):
    for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, **{"rtol": 0, "atol": 0, **tolerance})


@pytest.mark.parametrize("name", CASES)
def test_the_loop_and_the_flat_ways_agree(name):
    (one, a, _), (other, b, _) = trained(name, foreach=False), trained(name, foreach=True)
    assert a.counts == b.counts
    same(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_on_the_device_as_on_the_host(name):
    rule = CASES[name][1].get("rule", Tolerant())
    rule = Tolerant(longest=1.0) if rule.asks else rule  # with `capturable` batches are not asked how far they agree
    (one, a, _), (other, b, _) = trained(name, rule=rule), trained(name, rule=rule, capturable=True)
    assert (a.counts, a.sigma) == (b.counts, b.sigma)
    if a.metric is None:
        same(one, other)
    else:  # 1 / sigma over the metric is rounded otherwise where it is a tensor
        same(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("capturable", [False, True])
def test_resumed_in_the_middle(name, capturable):
    model, optimizer, closures = trained(name, 11, capturable=capturable)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    again, closures_again = problem()
    again.load_state_dict(model.state_dict())
    R, options = CASES[name]
    resumed = SR2(again, R, reach=(3, 20), capturable=capturable, **options)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    run(optimizer, closures, 19, 11)
    run(resumed, closures_again, 19, 11)
    assert (optimizer.counts, optimizer.sigma) == (resumed.counts, resumed.sigma)
    same(model, again)


def test_a_copy_has_its_own_share():
    model, optimizer, closures = trained("budget", 11)
    twin_model, twin = copy.deepcopy((model, optimizer))
    run(optimizer, closures, 19, 11)
    assert nonzeros(model) == 24
    assert twin.reach == Reach(3, 20)
    assert float(twin._search.share) == (11 - 3) / 17
    assert nonzeros(twin_model) > 24


@pytest.mark.parametrize("evaluation", [1, 2])
def test_an_interrupt_changes_nothing(evaluation):
    model, optimizer, closures = trained("budget", 11)
    before, saved = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    calls = []

    def interrupted():
        calls.append(1)
        if len(calls) == evaluation:
            raise KeyboardInterrupt
        return closures[11]()

    with pytest.raises(KeyboardInterrupt):
        optimizer.step(interrupted)
    assert all(torch.equal(a, b) for a, b in zip(before.values(), model.state_dict().values(), strict=True))
    assert remembered(optimizer.state_dict()) == remembered(saved)
    run(optimizer, closures, 19, 11)
    same(model, trained("budget", 30)[0])


@pytest.mark.parametrize("capturable", [False, True])
def test_steps_on_trust_reach_it_too(capturable):
    model, *_ = trained("budget", 60, test_every=4, capturable=capturable)
    assert nonzeros(model) == 24
    assert finite(L0Ball(density=0.1), model)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("R", [L0Ball(density=0.1), L0Ball(density=0.25, groups="rows"), NM(1, 4), L1(1e-2)], ids=str)
@pytest.mark.parametrize("captured", [False, True])
def test_on_an_accelerator(R, captured):
    """Steps that were captured follow the path; eager ones have the share on the host."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 20), nn.Tanh(), nn.Linear(20, 4)).cuda()
    x, y = torch.randn(64, 8).cuda(), torch.randint(4, (64,)).cuda()
    optimizer = SR2(model, R, reach=(6, 30), capturable=captured, **ADAM)

    def body():
        return optimizer.step(lambda: F.cross_entropy(model(x), y))

    step = CapturedStep(optimizer, body) if captured else body
    run_so_far, had = 3 if captured else 0, []
    for _ in range(run_so_far, 60):
        step()
        had.append(nonzeros(model))
    assert float(optimizer._search.share) == 1.0
    assert finite(R, model)
    if isinstance(R, L0Ball) and R.groups is None:
        assert had[-1] == 24
        assert len(set(had)) > 15  # not at once


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_singular_values_on_an_accelerator():
    model = nn.Linear(6, 6).cuda()
    x = torch.randn(64, 6).cuda()
    optimizer = SR2(model, Rank(2), reach=(2, 15), **PLAIN, sigma=5.0, gamma3=0.9)
    for _ in range(30):
        optimizer.step(lambda: (model(x) - x).square().mean())
    assert int(torch.linalg.matrix_rank(model.weight)) == 2


def test_at_once_is_told_that_there_is_a_path():
    model, closures = problem()
    with pytest.warns(UserWarning, match=r"moved to its prox; SR2\(..., steps=n\) or reach=\(first, last\) would"):
        run(SR2(model, L0Ball(density=0.05), reach=None, **ADAM), closures, 2)
    assert nonzeros(model) == 12


# ---- where nobody says how many steps there will be


@pytest.mark.parametrize("R", [L0Ball(density=0.1), NM(1, 4), Rank(1), L0Ball(density=0.25, groups="rows")], ids=str)
def test_a_budget_is_reached_without_a_number_of_steps(R):
    model, closures = problem()
    optimizer = SR2(model, R)
    run(optimizer, closures, 99)
    assert nonzeros(model) == 240, "it has begun too early"
    run(optimizer, closures, 60, 99)
    between = nonzeros(model)
    run(optimizer, closures, 51, 159)
    assert finite(R, model)
    assert nonzeros(model) <= between < 240 or isinstance(R, Rank)


def test_algorithm_1_begins_within_the_budget():
    for options in (SR2.paper_defaults(), {"eta2": 0.9}):
        assert SR2(nn.Linear(3, 3), L0Ball(k=2), **options).reach is None
    assert SR2(nn.Linear(3, 3), L1(0.1)).reach is None


@pytest.mark.parametrize("options", [{}, {"steps": 40}, {"reach": (5, 20)}], ids=str)
@pytest.mark.parametrize("capturable", [False, True])
def test_a_network_within_its_budget_stays_there(options, capturable):
    """A sparse network is trained on, not made dense: the path is for those that are not."""
    model, closures = problem()
    weights = [p for p in model.parameters() if p.dim() > 1]
    with torch.no_grad():
        for x, z in zip(weights, L0Ball(density=0.1).prox(weights, 1.0), strict=True):
            x.copy_(z)
    optimizer = SR2(model, L0Ball(density=0.1), capturable=capturable, **options)
    for t in range(30):
        run(optimizer, closures, 1, t)
        assert nonzeros(model) <= 24
    saved = optimizer.state_dict()
    again = SR2(model, L0Ball(density=0.1), capturable=capturable, **options)
    again.load_state_dict(saved)
    run(again, closures, 1, 30)
    assert nonzeros(model) <= 24


def test_a_layer_that_begins_at_zero_is_fresh():
    model, closures = problem()
    with torch.no_grad():
        for p in model.parameters():
            p.zero_() if p.dim() > 1 else p.fill_(0.1)
    run(SR2(model, L0Ball(k=3), reach=(10, 20)), closures, 5)
    assert nonzeros(model) > 3
