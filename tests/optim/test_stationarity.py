"""The running estimate of E|s|^2: against brute force, its weights, its uncertainty, and when it says converged."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sr2 import L0, L1, SR2
from sr2.optim.records import Moments
from sr2.optim.state import sums_after
from sr2.optim.theory.stationarity import FORGET, LEAST, Stationarity

N, BATCH = 48, 4
rng = np.random.default_rng(0)
A, B = torch.tensor(rng.normal(size=(N, 5))), torch.tensor(rng.normal(size=N))


def running(values):
    sums = torch.zeros(4, dtype=torch.float64)
    for v in values:
        sums = sums_after(sums, torch.tensor(v, dtype=torch.float64), torch.tensor(True))
    return Stationarity.of(Moments(*sums))


def loss(x, rows):
    return (A[rows] @ x - B[rows]).square().mean() / 2


# ---- the sums


def test_the_weights():
    """The mean, its standard error and the number of draws, written out."""
    values = np.random.default_rng(1).exponential(size=57)
    w = FORGET ** np.arange(57)[::-1]
    mean = np.sum(w * values) / np.sum(w)
    draws = np.sum(w) ** 2 / np.sum(w**2)  # Kish's effective number
    unbiased = np.sum(w * (values - mean) ** 2) / np.sum(w) / (1 - 1 / draws)
    found = running(values)
    assert found.mean == pytest.approx(mean, rel=1e-12)
    assert found.draws == pytest.approx(draws, rel=1e-12)
    assert found.standard_error == pytest.approx(math.sqrt(unbiased / draws), rel=1e-10)
    assert found.upper == pytest.approx(mean + 2 * math.sqrt(unbiased / draws), rel=1e-10)


def test_before_the_first_step():
    optimizer = SR2([nn.Parameter(torch.ones(1))], epsilon=1.0)
    assert math.isnan(optimizer.stationarity.mean)
    assert optimizer.stationarity.draws == 0
    assert not optimizer.converged


def test_the_standard_error_is_that_of_the_mean():
    """Over many repetitions the means scatter by what each of them says."""
    found = [running(row) for row in np.random.default_rng(2).exponential(size=(400, 60))]
    scatter = np.std([f.mean for f in found])
    assert math.sqrt(np.mean([f.standard_error**2 for f in found])) == pytest.approx(scatter, rel=0.15)
    assert np.mean([abs(f.mean - 1) < 2 * f.standard_error for f in found]) > 0.88  # exponentials are skew


def test_how_many_draws_it_takes():
    least = next(n for n in range(1, 100) if running([0.0] * n).draws >= LEAST)
    assert 30 <= least <= 31
    assert running([0.0] * 1000).draws == pytest.approx(99, abs=0.1)


def test_converged_needs_enough_draws():
    x = nn.Parameter(torch.zeros(3, dtype=torch.float64))
    optimizer = SR2([x], sigma=2.0, epsilon=1e-3)  # starts at the minimizer: every step is null
    seen = []
    for _ in range(40):
        optimizer.step(lambda: x.square().sum())
        seen.append(optimizer.converged)
    assert not any(seen[:29])
    assert all(seen[31:])
    assert optimizer.counts["null"] == 40  # null steps count, as |s| = 0
    assert optimizer.stationarity.mean == 0


def test_rejected_steps_do_not_count():
    x = nn.Parameter(torch.ones(3, dtype=torch.float64))
    optimizer = SR2([x], sigma=1e-3, gamma1=2.0, epsilon=1e9)
    while not (optimizer.last_step and optimizer.last_step.accepted):
        optimizer.step(lambda: x.square().sum())
    assert optimizer.counts["rejected"] > 5
    assert optimizer.stationarity.draws == 1
    assert optimizer.stationarity.mean == pytest.approx(optimizer.last_step.step_norm**2, rel=1e-12)


# ---- against brute force


@pytest.mark.parametrize("R", [L1(0.05), L0(0.02), None], ids=repr)
def test_brute_force_at_a_fixed_point(R):
    """The mean of |s|^2 over all batches of a partition, against what 600 random steps from the same x estimate."""
    sigma, parts = 5.0, torch.arange(N).view(-1, BATCH)
    point = torch.tensor(np.random.default_rng(3).normal(size=5)) * 0.3  # its own, whatever test ran before
    brute = []
    for rows in parts:
        x = point.clone().requires_grad_()
        g = torch.autograd.grad(loss(x, rows), x)[0]
        z = point - g / sigma
        z = z if R is None else R.prox(z, 1 / sigma)
        brute.append((z - point).square().sum().item())
    x = nn.Parameter(point.clone())
    optimizer = SR2([x], R, sigma=sigma, sigma_min=sigma, eta2=0.9999)
    generator = torch.Generator().manual_seed(103)
    for _ in range(600):
        rows = parts[torch.randint(len(parts), (), generator=generator)]
        optimizer.step(lambda rows=rows: loss(x, rows))
        assert optimizer.last_step.accepted is not False
        with torch.no_grad():
            x.copy_(point)
    found = optimizer.stationarity
    assert abs(found.mean - np.mean(brute)) < 3 * found.standard_error
    assert found.standard_error == pytest.approx(np.std(brute) / math.sqrt(99), rel=0.35)
    assert found.standard_error < 0.2 * found.mean  # it does say something


# ---- the verdict


@pytest.mark.parametrize("capturable", [False, True])
def test_converged_at_a_minimizer_and_not_far_from_it(capturable):
    x = nn.Parameter(torch.full((5,), 3.0, dtype=torch.float64))
    optimizer = SR2([x], L1(0.05), sigma=20.0, epsilon=1e-3, capturable=capturable)
    everything = torch.arange(N)
    said, norms = [], []
    for _ in range(1600):
        optimizer.step(lambda: loss(x, everything))
        said.append(optimizer.converged)
        norms.append(optimizer.last_step.step_norm)
        if said[-100:] == [True] * 100:
            break
    first, reached = said.index(True), next(t for t, norm in enumerate(norms) if norm <= 1e-3)
    assert all(said[first:])
    # The verdict is late where |s| falls fast, never early: the long first steps are forgotten by 2 % per step, and by
    # 1 % per step in the standard error, a root.
    assert reached < first < reached + 100 * math.log(norms[0] ** 2 / 1e-6)
    assert optimizer.stationarity.upper <= optimizer.epsilon**2
    g = torch.autograd.grad(loss(x, everything), x)[0]
    z = L1(0.05).prox(x.detach() - g / 20, 1 / 20)
    assert (z - x).norm() < 1e-3  # and it is


def test_noise_keeps_it_from_converging():
    """With small batches |s| does not fall below the noise over sigma, however long one waits."""
    x = nn.Parameter(torch.zeros(5, dtype=torch.float64))
    optimizer = SR2([x], L1(0.05), sigma=5.0, sigma_min=5.0, epsilon=1e-3)
    generator = torch.Generator().manual_seed(7)
    for _ in range(300):
        rows = torch.randint(N, (BATCH,), generator=generator)
        optimizer.step(lambda rows=rows: loss(x, rows))
    assert optimizer.stationarity.draws > 30
    assert not optimizer.converged
    assert not SR2([x]).converged  # without an epsilon it never says so


def test_capturable_gives_the_same_numbers():
    found = []
    for capturable in (False, True):
        torch.manual_seed(5)
        model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 1)).double()
        optimizer = SR2(model, L0(1e-3), sigma=0.1, eta2=0.5, epsilon=0.5, capturable=capturable)
        rows = []
        for i in range(60):
            part = torch.arange(i, i + 8) % N
            optimizer.step(lambda model=model, part=part: F.mse_loss(model(A[part])[:, 0], B[part]))
            rows.append((optimizer.stationarity, optimizer.converged))
        found.append((rows, optimizer.counts))
    assert found[0] == found[1]
    assert found[0][1]["rejected"] > 0
    assert any(converged for _, converged in found[0][0])


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.nan, math.inf, "1e-3"])
def test_wrong_epsilon(wrong):
    with pytest.raises(ValueError, match="SR2: epsilon must be a number above 0 and finite"):
        SR2([nn.Parameter(torch.ones(1))], epsilon=wrong)
