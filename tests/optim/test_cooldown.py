"""cooldown=(first, last): 1/sigma falls to a fiftieth along a line, whatever rho says."""

import copy
import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sr2 import L0, L1, SR2
from tests.tools import remembered


def problem(seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 3))
    x, y = torch.randn(32, 6), torch.randint(3, (32,))
    return model, lambda: F.cross_entropy(model(x), y)


def sigmas(optimizer, closure, steps):
    """sigma of each step, and of the one after the last."""
    found = [optimizer.sigma]
    for _ in range(steps):
        optimizer.step(closure)
        found.append(optimizer.sigma)
        assert optimizer.last_step.sigma == optimizer.sigma
    return found


@pytest.mark.parametrize("capturable", [False, True])
def test_the_step_length_falls_along_a_line(capturable):
    model, closure = problem()
    # eta2 is out of reach and nothing is rejected: only the cooldown moves sigma
    optimizer = SR2(model, L1(1e-3), sigma=4.0, eta2=1 - 1e-9, cooldown=(5, 105), capturable=capturable)
    found = sigmas(optimizer, closure, 110)
    assert optimizer.counts["accepted"] == 110
    expected = [4.0] * 6 + [4.0 * 100 / (105 - t) for t in range(6, 104)] + [200.0] * 7
    assert found == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("capturable", [False, True])
def test_it_is_a_least_sigma(capturable):
    """sigma still falls after a good step and rises after a rejected one, but not below the line."""
    model, closure = problem()
    falls = SR2(model, L1(1e-3), sigma=1e3, eta2=0.01, gamma3=0.5, cooldown=(4, 10), capturable=capturable)
    found = sigmas(falls, closure, 10)
    assert found[:5] == [1e3, 500, 250, 125, 62.5]  # sigma_4 is where the cooldown begins
    assert found[5:] == pytest.approx([62.5 * 6 / max(0.12, 10 - t) for t in range(5, 11)], rel=1e-14)

    model, closure = problem()
    rises = SR2(model, None, sigma=1e-3, gamma1=3.0, gamma3=1.0, cooldown=(1, 100), capturable=capturable)
    found = sigmas(rises, closure, 3)
    assert rises.counts["rejected"] == 3
    assert found == pytest.approx([1e-3, 3e-3, 9e-3, 27e-3], rel=1e-14)


def test_capturable_decides_alike():
    def run(capturable):
        model, closure = problem()
        optimizer = SR2(model, L0(1e-4), sigma=1.0, gamma3=0.8, cooldown=(10, 40), capturable=capturable)
        return sigmas(optimizer, closure, 45), [p.detach().clone() for p in model.parameters()]

    (one, xs), (other, zs) = run(False), run(True)
    assert one == other
    assert all(torch.equal(x, z) for x, z in zip(xs, zs, strict=True))


@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize("stop", [3, 12])
def test_resumed_before_and_within_the_cooldown(capturable, stop):
    options = {"sigma": 1.0, "gamma3": 0.8, "cooldown": (5, 20), "capturable": capturable}
    model, closure = problem()
    optimizer = SR2(model, L0(1e-4), **options)
    sigmas(optimizer, closure, stop)
    again, closure_again = problem()
    again.load_state_dict(model.state_dict())
    resumed = SR2(again, L0(1e-4), **options)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert sigmas(resumed, closure_again, 8) == sigmas(optimizer, closure, 8)
    assert all(torch.equal(x, z) for x, z in zip(model.parameters(), again.parameters(), strict=True))


def test_a_run_without_one_can_be_cooled_down_from_its_checkpoint():
    """The steps before the first of the cooldown are those of a run without one."""
    model, closure = problem()
    plain = SR2(model, L1(1e-3), sigma=4.0, eta2=1 - 1e-9)
    sigmas(plain, closure, 7)
    state = plain.state_dict()
    del remembered(state)["memory"], remembered(state)["schedule"]  # as in earlier versions
    optimizer = SR2(model, L1(1e-3), sigma=4.0, eta2=1 - 1e-9, cooldown=(8, 12))
    optimizer.load_state_dict(state)
    assert sigmas(optimizer, closure, 4) == pytest.approx([4.0, 4.0, 16 / 3, 8.0, 16.0])  # sigma_8 is 4


@pytest.mark.parametrize("capturable", [False, True])
def test_given_late_the_line_begins_at_the_sigma_there_is(capturable):
    options = {"sigma": 4.0, "eta2": 1 - 1e-9, "capturable": capturable}
    model, closure = problem()
    plain = SR2(model, L1(1e-3), **options)
    sigmas(plain, closure, 15)
    within = SR2(model, L1(1e-3), **options, cooldown=(10, 20))
    within.load_state_dict(plain.state_dict())
    assert sigmas(within, closure, 3) == pytest.approx([4.0, 4.0, 4.0 * 4 / 3, 8.0])  # 4 of 10 steps left, 3, 2
    after = SR2(model, L1(1e-3), **options, cooldown=(5, 10))
    after.load_state_dict(plain.state_dict())
    assert sigmas(after, closure, 3) == [4.0] * 4


@pytest.mark.parametrize("capturable", [False, True])
def test_another_cooldown_forgets_the_one_before(capturable):
    options = {"sigma": 1.0, "eta2": 0.01, "gamma3": 0.5, "capturable": capturable}
    model, closure = problem()
    one = SR2(model, L1(1e-3), **options, cooldown=(2, 6))
    sigmas(one, closure, 6)
    assert one.sigma == 0.25 * 50
    other = SR2(model, L1(1e-3), **options, cooldown=(10, 12))
    other.load_state_dict(one.state_dict())
    found = sigmas(other, closure, 5)
    assert found == pytest.approx([12.5 * 0.5**k for k in range(4)] + [12.5 * 0.5**4, 12.5 * 0.5**4 * 2])


def test_a_broken_first_batch_begins_nothing():
    model, closure = problem()
    optimizer = SR2(model, L1(1e-3), gamma3=1.0, cooldown=(1, 100), capturable=True)
    optimizer.step(lambda: closure() * float("nan"))
    assert optimizer.counts["broken"] == 1
    optimizer.step(closure)
    assert float(optimizer._search.memory["sigma_first"]) == pytest.approx(optimizer.sigma * 98 / 99)
    assert optimizer.sigma > 0.1


def test_noise_is_averaged_out():
    """Lasso by batches of one: at a fixed sigma x wanders about the optimum, with a cooldown it settles near it."""
    torch.manual_seed(0)
    a, b = torch.randn(200, 10, dtype=torch.float64), torch.randn(200, dtype=torch.float64)
    rows = torch.randint(200, (1500,))

    def distance(cooldown):
        x = nn.Parameter(torch.zeros(10, dtype=torch.float64))
        optimizer = SR2([x], L1(0.02), sigma=40.0, eta2=1 - 1e-12, cooldown=cooldown)
        for i in rows.tolist():
            optimizer.step(lambda i=i: 0.5 * (a[i] @ x - b[i]) ** 2)
        return float((x.detach() - optimum).norm())

    optimum = nn.Parameter(torch.zeros(10, dtype=torch.float64))
    full = SR2([optimum], L1(0.02), sigma=5.0)
    for _ in range(200):
        full.step(lambda: 0.5 * (a @ optimum - b).square().mean())
    optimum = optimum.detach()
    assert distance((1000, 1500)) < 0.5 * distance(None)


@pytest.mark.parametrize(
    ("cooldown", "words"),
    [
        (0.2, "cooldown must be its first and last step, as \\(800, 1000\\), and is 0.2"),
        ((1, 2, 3), "first and last step"),
        ((80.0, 100), "first and last step, as \\(800, 1000\\), and is \\(80.0, 100\\)"),
        ((True, 10), "first and last step"),
        ((0, 5), "must have 1 <= first < last, as \\(800, 1000\\), and is \\(0, 5\\)"),
        ((5, 5), "must have 1 <= first < last"),
    ],
)
def test_what_is_no_cooldown(cooldown, words):
    with pytest.raises(ValueError, match=words):
        SR2(nn.Linear(2, 1), cooldown=cooldown)


def test_not_with_epsilon():
    with pytest.raises(ValueError, match=re.escape("leave out cooldown=(5, 10) or epsilon=0.001")):
        SR2(nn.Linear(2, 1), cooldown=(5, 10), epsilon=1e-3)


def test_it_is_shown():
    assert "schedule=Cooldown(first=5, last=10)" in repr(
        SR2(nn.Linear(2, 1), cooldown=[torch.tensor(5).numpy()[()], 10])
    )
