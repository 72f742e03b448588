"""SR2 on the full batch ends where scikit-learn does, and under nonconvex R at a proximal fixed point."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn

from sr2 import L0, L1, MCP, SCAD, SR2, ElasticNet, GroupL2, Lp, Nuclear


def data(n=80, d=20, seed=0):
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(n, d)) * np.linspace(0.5, 2.0, d)
    w = rng.normal(size=d) * (rng.random(d) < 0.3)
    return A, A @ w + 1.5 + 0.3 * rng.normal(size=n), rng


def linear(d):
    model = nn.Linear(d, 1, dtype=torch.float64)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    return model


def run(model, closure, R, steps, **options):
    optimizer = SR2(model, R, sigma=1.0, **options)
    for _ in range(steps):
        optimizer.step(closure)
    return optimizer


PAPER = {"eta1": 7.5e-4}  # which brings the rest of Algorithm 1


@pytest.mark.parametrize(
    "options",
    [{}, PAPER, {**PAPER, "momentum": 0.9}, {**PAPER, "metric": "adam"}],
    ids=["", "paper", "momentum", "adam"],
)
def test_lasso(options):
    from sklearn.linear_model import Lasso

    A, y, _ = data()
    lam, n = 0.2, len(y)
    theirs = Lasso(alpha=lam, tol=1e-14, max_iter=100_000).fit(A, y)

    def objective(w, b):
        return ((y - A @ w - b) ** 2).sum() / (2 * n) + lam * np.abs(w).sum()

    model, At, yt = linear(A.shape[1]), torch.tensor(A), torch.tensor(y)
    run(model, lambda: (yt - model(At)[:, 0]).square().sum() / (2 * n), L1(lam), 400, **options)
    w, b = model.weight.detach().numpy()[0], model.bias.item()
    best = objective(theirs.coef_, theirs.intercept_)
    assert abs(objective(w, b) - best) <= 1e-8 * best
    assert objective(0 * w, 0.0) > 2 * best  # it was not there from the start
    np.testing.assert_array_equal(w == 0, theirs.coef_ == 0)
    assert 3 < (w == 0).sum() < len(w)


def test_logistic_l1():
    from sklearn.linear_model import LogisticRegression

    A, y, rng = data(seed=1)
    y = np.where(y + rng.normal(size=len(y)) > 1.5, 1.0, -1.0)
    C, n = 1.0, len(y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the spelling of l1 changes between versions
        theirs = LogisticRegression(
            penalty="l1", C=C, solver="saga", tol=1e-13, max_iter=100_000, random_state=0, l1_ratio=1.0
        ).fit(A, y)

    def objective(w, b):  # scikit-learn's, over n C
        return np.logaddexp(0, -y * (A @ w + b)).mean() + np.abs(w).sum() / (n * C)

    model, At, yt = linear(A.shape[1]), torch.tensor(A), torch.tensor(y)
    closure = lambda: nn.functional.softplus(-yt * model(At)[:, 0], threshold=1e9).mean()  # noqa: E731
    run(model, closure, L1(1 / (n * C)), 1200)
    w, b = model.weight.detach().numpy()[0], model.bias.item()
    best = objective(theirs.coef_[0], theirs.intercept_[0])
    assert abs(objective(w, b) - best) <= 1e-8 * best
    assert objective(0 * w, 0.0) > 1.1 * best
    np.testing.assert_array_equal(w == 0, theirs.coef_[0] == 0)
    assert (w == 0).any()


@pytest.mark.parametrize("sigma", [0.26, 0.3, 0.4, 1.0])
@pytest.mark.parametrize("momentum", [0.0, 0.2, 0.9])
@pytest.mark.parametrize("metric", [None, "adam"])
def test_the_default_rule_converges_with_any_momentum(metric, momentum, sigma):
    """A rise as large as what was promised, accepted without momentum, took f to 1e193 at sigma = 0.3."""
    x, c = nn.Parameter(torch.ones(20, dtype=torch.float64)), torch.logspace(0, -1, 20, dtype=torch.float64)
    optimizer = SR2([x], sigma=sigma, metric=metric, momentum=momentum)
    for _ in range(300):
        optimizer.step(lambda: (c * x.square()).sum() / 2)
    assert optimizer.last_step.loss <= 1e-8


@pytest.mark.parametrize(
    ("R", "options"),
    [
        (L0(0.05), {}),
        (Lp(0.05, 0.5), {}),
        (L0(0.05), PAPER),
        (Lp(0.05, 0.5), PAPER),
        (Lp(0.05, 0.3), PAPER),
        (L0(0.05), {**PAPER, "momentum": 0.9}),
        (Lp(0.05, 0.5), {**PAPER, "metric": "rmsprop"}),
    ],
    ids=str,
)
def test_nonconvex_ends_at_a_proximal_fixed_point(R, options):
    A, y, _ = data(seed=2)
    model, At, yt = linear(A.shape[1]), torch.tensor(A), torch.tensor(y)
    closure = lambda: (yt - model(At)[:, 0]).square().mean() / 2  # noqa: E731
    optimizer = run(model, closure, R, 900, **options)
    # Seen from sigma = L, as every step from there decreases F: at convergence sigma_t itself probes smaller values.
    sigma = np.linalg.eigvalsh(np.c_[A, np.ones(len(y))].T @ np.c_[A, np.ones(len(y))] / len(y))[-1]
    gw, gb = torch.autograd.grad(closure(), [model.weight, model.bias])
    w = model.weight.detach()
    residual = sigma * (w - R.prox(w - gw / sigma, 1 / sigma)).abs().max()
    assert residual <= 1e-6
    assert gb.abs() <= 1e-6
    assert 0 < (w == 0).sum() < w.numel()
    assert optimizer.counts["accepted"] > 10


@pytest.mark.parametrize(
    "R", [L1(0.1), ElasticNet(0.1, 1e-9), GroupL2(0.1), Lp(0.1, 0.5), MCP(0.1, 1e9), SCAD(1.0, 1e7), Nuclear(0.1)]
)
def test_sigma_stays_where_r_is_a_thousand_times_f(R):
    """f is known to its last digit here, and R's decrease must be too: what it lacks is taken for a rise of F."""
    generator = torch.Generator().manual_seed(0)
    centre, curvature, start = (torch.randn(6, 5, generator=generator, dtype=torch.float64) for _ in range(3))
    x = nn.Parameter(1e3 * centre + start)
    curvature = 0.1 + curvature.abs().clamp_max(1.0)

    def closure():
        return ((x - 1e3 * centre).square() * curvature).sum() / 2

    optimizer = SR2([x], R, **SR2.paper_defaults())
    sigmas = []
    for _ in range(600):
        optimizer.step(closure)
        sigmas.append(optimizer.sigma)
    assert max(sigmas) < 20
    assert R.value(x.detach()) > 100 * closure()
