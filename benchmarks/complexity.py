"""Iterations until E|s|^2 <= epsilon^2, beside the bound of the paper's section 4; draws docs/figures/complexity.*

    python benchmarks/complexity.py

The test problem is nonconvex under l0 and has known constants:

    F(u, y) = h_p(u) + mean_i log(1 + (a_i'y - b_i)^2) + lambda |(u, y)|_0

h_p(u) = (1 + u)^(1 - p) / (p - 1) is a tail that never ends: its gradient method needs epsilon^-(1 + 1/p) iterations,
so p -> 1 comes as close to the bound's epsilon^-2 as one likes. The second part, Cauchy regression, is nonconvex and
interpolates: b = A y* with a sparse y*, so that its gradient noise vanishes where it should.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from sr2 import L0, SR2

FIGURES = Path(__file__).parents[1] / "docs" / "figures"
OPTIONS = {"sigma": 0.5, "sigma_min": 0.5, "eta1": 0.25, "eta2": 0.9, "gamma1": 2.0, "gamma3": 0.8}
LAMBDA = 1e-3


@dataclass
class Problem:
    """F, its parts, and what is known of it: L of grad f, and F >= 0."""

    p: float
    batches: int = 1
    rows: int = 128
    columns: int = 4

    def __post_init__(self) -> None:
        rng = np.random.default_rng(0)
        self.A = torch.tensor(rng.normal(size=(self.rows, self.columns)))
        truth = rng.normal(size=self.columns) * (np.arange(self.columns) < 2)
        self.b = self.A @ torch.tensor(truth)
        self.start = torch.cat([torch.zeros(1), torch.tensor(truth + rng.normal(size=self.columns))]).double()
        self.start[0] = 0.1
        curvature = 2 * torch.linalg.eigvalsh(self.A.T @ self.A)[-1].item() / self.rows  # |log(1 + r^2)''| <= 2
        self.L = max(self.p, curvature)
        self.R = L0(LAMBDA)

    def tail(self, u: Tensor) -> Tensor:
        """h_p for u >= 0, continued by its second-order expansion below."""
        above = (1 + u.clamp_min(0)) ** (1 - self.p) / (self.p - 1)
        below = u.clamp_max(0)
        return above - below + self.p / 2 * below**2

    def f(self, x: Tensor, part: int | None = None) -> Tensor:
        """The smooth part: of everything, or of one batch."""
        rows = slice(None) if part is None else slice(part, None, self.batches)
        residual = self.A[rows] @ x[1:] - self.b[rows]
        return self.tail(x[0]) + torch.log1p(residual**2).mean()

    def total(self, x: Tensor) -> float:
        """F = f + R."""
        return float(self.f(x) + self.R.value(x))


@dataclass
class Record:
    """A run, step by step. `measure` is E|s|^2 over the batches that give a success, at the x of the step."""

    problem: Problem
    measure: list[float]
    accepted: list[bool]
    sigma: list[float]
    squares: float  # sum of |s|^2 over accepted steps
    first: float  # F at the start

    def until(self, epsilon: float) -> tuple[int, int]:
        """|S(epsilon)| and |U(epsilon)|: successes and failures before E|s|^2 <= epsilon^2."""
        end = next(t for t, m in enumerate(self.measure) if m <= epsilon**2)
        done = sum(self.accepted[:end])
        return done, end - done

    def bound(self, epsilon: float) -> float:
        """The paper's bound on |S| + |U|, constants and all (F_low = 0)."""
        o = OPTIONS
        successes = 2 * self.first / (o["eta1"] * o["sigma_min"] * epsilon**2)
        return successes + self.failures(successes)

    def failures(self, successes: float) -> float:
        """The second lemma: |U| from |S|."""
        o = OPTIONS
        largest = math.log(self.sigma_max / o["sigma"])
        return (largest + successes * math.log(1 / o["gamma3"])) / math.log(o["gamma1"])

    @property
    def sigma_max(self) -> float:
        """max(sigma_0, gamma2 sigma_succ) with kappa = L / 2."""
        o = OPTIONS
        return max(o["sigma"], o["gamma1"] * self.problem.L / (1 - o["eta2"]))


def expected_square(problem: Problem, x: Tensor, sigma: float) -> float:
    """E|s|^2 over the batches whose step is a success at x, by trying them all."""
    squares = []
    for part in range(problem.batches):
        y = x.detach().clone().requires_grad_()
        (g,) = torch.autograd.grad(problem.f(y, part), y)
        z = problem.R.prox(x.detach() - g / sigma, 1 / sigma)
        s, dR = z - x.detach(), float(problem.R.decrease(x.detach(), z))
        predicted = dR - float(g @ s)
        actual = float(problem.f(x.detach()) - problem.f(z)) + dR
        if actual >= OPTIONS["eta1"] * predicted:
            squares.append(float(s @ s))
    return float(np.mean(squares)) if squares else math.inf


def run(problem: Problem, smallest: float, most: int = 200_000) -> Record:
    """SR2 until E|s|^2 <= smallest^2; rho is computed with the full F, as Algorithm 1 is written."""
    x = nn.Parameter(problem.start.clone())
    optimizer = SR2([x], problem.R, **OPTIONS)
    draws = np.random.default_rng(1).integers(problem.batches, size=most)
    record = Record(problem, [], [], [], 0.0, problem.total(x.detach()))
    for part in draws.tolist():
        if problem.batches > 1:
            record.measure.append(expected_square(problem, x, optimizer.sigma))
            optimizer.step(lambda part=part: problem.f(x, part), objective=lambda: problem.f(x))
        else:  # one batch: the step itself is the expectation, and a rejected step is no success
            optimizer.step(lambda: problem.f(x))
        last = optimizer.last_step
        assert last is not None
        if problem.batches == 1:
            record.measure.append(last.step_norm**2 if last.accepted else math.inf)
        record.accepted.append(bool(last.accepted))
        record.sigma.append(last.sigma)
        record.squares += last.step_norm**2 if last.accepted else 0.0
        if record.measure[-1] <= smallest**2:
            return record
    raise RuntimeError(f"{most} steps did not reach {smallest:g}")


def slope(epsilons: np.ndarray, iterations: np.ndarray) -> float:
    """Of log iterations against log 1 / epsilon, by least squares."""
    return float(np.polyfit(np.log(1 / epsilons), np.log(iterations), 1)[0])


def draw() -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    mpl.rcParams.update({"svg.hashsalt": "sr2", "svg.fonttype": "none", "font.size": 10})
    figure, axes = plt.subplots(figsize=(6.4, 4.2), constrained_layout=True)
    epsilons = np.logspace(0, -3, 25) * 0.5
    cases = [
        (Problem(1.5), "full batch, p = 1.5", "#1f77b4", "o"),
        (Problem(3.0), "full batch, p = 3", "#2ca02c", "s"),
        (Problem(3.0, batches=4), "batches of a quarter, p = 3", "#d62728", "^"),
    ]
    bounds = []
    for problem, label, colour, marker in cases:
        record = run(problem, epsilons[-1])
        total = np.array([sum(record.until(e)) for e in epsilons])
        bounds.append([record.bound(e) for e in epsilons])
        last = epsilons <= 10.01 * epsilons[-1]
        rate = slope(epsilons[last], total[last])
        axes.loglog(1 / epsilons, total, marker, ms=4, color=colour, label=f"{label}: slope {rate:.2f}")
        done, rejected = record.until(epsilons[-1])
        print(f"{label}: {done} accepted and {rejected} rejected to {epsilons[-1]:g}, last slope {rate:.3f}")
    axes.loglog(1 / epsilons, np.min(bounds, axis=0), "k--", lw=1.2, label="the bound of section 4: slope 2")
    axes.set_xlabel(r"1 / $\epsilon$")
    axes.set_ylabel(r"iterations until $E|s|^2 \leq \epsilon^2$")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    FIGURES.mkdir(parents=True, exist_ok=True)
    figure.savefig(FIGURES / "complexity.svg", metadata={"Date": None})
    figure.savefig(FIGURES / "complexity.png", dpi=150, metadata={"Software": None})


if __name__ == "__main__":
    torch.set_num_threads(1)
    draw()
