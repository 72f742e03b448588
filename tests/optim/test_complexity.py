"""The counts of section 4: iterations grow no faster than epsilon^-2; and what the full objective is good for."""

import math
import operator
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import sr2
from benchmarks.complexity import OPTIONS, Problem, run, slope
from sr2 import L1, SR2

EPSILONS = 0.5 * np.logspace(0, -3, 13)


@pytest.fixture(scope="module", params=[1, pytest.param(4, marks=pytest.mark.torture)], ids=["full batch", "batches"])
def record(request):
    torch.set_num_threads(1)
    return run(Problem(3.0, batches=request.param), EPSILONS[-1])


def test_iterations_grow_no_faster_than_the_bound(record):
    """Over three decades. The tail of the problem makes it slow, or there would be nothing to see."""
    total = np.array([sum(record.until(e)) for e in EPSILONS])
    assert slope(EPSILONS, total) <= 2
    assert slope(EPSILONS[-5:], total[-5:]) <= 2.05  # the last decade alone
    assert slope(EPSILONS[-5:], total[-5:]) > 1
    assert total[-1] > 1000
    assert np.mean(record.accepted) < 0.95  # with rejections among them
    for epsilon, n in zip(EPSILONS, total, strict=True):
        assert n <= record.bound(epsilon)


def test_the_lemmas_constants(record):
    """|S| and |U| apart; and, stronger than the first lemma, the sum of |s|^2 over the accepted steps."""
    o = OPTIONS
    for epsilon in EPSILONS:
        accepted, rejected = record.until(epsilon)
        assert accepted <= 2 * record.first / (o["eta1"] * o["sigma_min"] * epsilon**2)
        assert rejected <= record.failures(accepted)
    assert record.squares <= 2 * record.first / (o["eta1"] * o["sigma_min"])


def test_sigma_stays_below_its_bound(record):
    assert max(record.sigma) <= record.sigma_max
    assert min(record.sigma) >= OPTIONS["sigma_min"]
    assert max(record.sigma) > OPTIONS["sigma"]


def test_the_problem_is_what_it_says():
    """Nonconvex, L-smooth with that L, never below 0, and the tail's gradient method as slow as claimed."""
    problem, rng = Problem(3.0), np.random.default_rng(2)
    least, most = math.inf, -math.inf
    for _ in range(50):
        x = torch.tensor(rng.normal(size=5) * rng.choice([0.3, 3.0]))
        eigenvalues = torch.linalg.eigvalsh(torch.autograd.functional.hessian(problem.f, x))
        least, most = min(least, eigenvalues[0].item()), max(most, eigenvalues[-1].item())
        assert problem.total(x) >= 0
    assert -problem.L <= least < -1e-3
    assert problem.L / 4 < most <= problem.L
    u, count = 0.0, {}
    for t in range(40_000):
        g = (1 + u) ** -3.0
        for e in (1e-1, 1e-2, 1e-3):
            if g <= e:
                count.setdefault(e, t)
        u += g
    assert math.log10(count[1e-3] / count[1e-2]) == pytest.approx(1 + 1 / 3, abs=0.05)


# ---- sampled and full objective

N = 60
rng = np.random.default_rng(3)
A, B, R = torch.tensor(rng.normal(size=(N, 6))), torch.tensor(rng.normal(size=N)), L1(0.05)


def train(full, steps=400):
    """Lasso on batches of four; what each accepted step does to the full F."""
    x = nn.Parameter(torch.full((6,), 2.0, dtype=torch.float64))
    optimizer = SR2([x], R, sigma=5.0, eta2=0.9)
    generator = torch.Generator().manual_seed(0)

    def loss(rows=slice(None)):
        return (A[rows] @ x - B[rows]).square().mean() / 2

    changes, batch_changes = [], []
    for _ in range(steps):
        rows = torch.randperm(N, generator=generator)[:4]
        before = (loss().item(), loss(rows).item(), R.value(x.detach()).item())
        optimizer.step(lambda rows=rows: loss(rows), objective=loss if full else None)
        if optimizer.last_step.accepted:
            changes.append(loss().item() + R.value(x.detach()).item() - before[0] - before[2])
            batch_changes.append(loss(rows).item() + R.value(x.detach()).item() - before[1] - before[2])
    return np.array(changes), np.array(batch_changes), optimizer


def test_with_the_full_objective_every_accepted_step_decreases_f():
    changes, _, optimizer = train(full=True)
    assert len(changes) > 50
    assert (changes < 1e-14).all()
    assert optimizer.counts["rejected"] > 10


def test_with_the_sampled_objective_it_decreases_the_batchs_and_not_always_f():
    changes, batch_changes, _ = train(full=False)
    assert (batch_changes < 1e-14).all()
    assert 0.2 < np.mean(changes > 1e-6) < 0.8


# ---- docs/theory.md

PAGE = Path(__file__).parents[2] / "docs" / "theory.md"


def test_every_name_on_the_page_exists():
    text = PAGE.read_text()
    tests = set(re.findall(r"`(test_\w+\.py)::(test_\w+)`", text))
    assert len(tests) > 25
    for file, name in tests:
        assert re.search(rf"^def {name}\(", (Path(__file__).parent / file).read_text(), re.MULTILINE), (file, name)
    names = set(re.findall(r"`(sr2(?:\.\w+)+)`", text))
    assert len(names) > 15
    for name in names:
        assert operator.attrgetter(name.removeprefix("sr2."))(sr2), name
    for figure in re.findall(r"\]\((figures/[^)]+)\)", text):
        assert (PAGE.parent / figure).exists()
    for number in ("Theorem 1", "Theorem 2", "Theorem 3", "Theorem 4", "Lemmas 1 and 2", "Corollary 1"):
        assert f"| {number}" in text
