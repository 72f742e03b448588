"""What the paper proves about a step, on functions whose constants are known."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from sr2 import L0, L1, MCP, NM, GroupL2, L0Ball, Lp, Ridge
from sr2.metrics import Metric
from tests.tools import algorithm_1

ETA2 = 0.9
RS = [None, L1(0.3), L0(0.2), Lp(0.2, 0.5), MCP(0.3, 3.0), L0Ball(k=4), NM(2, 4), GroupL2(0.2, "rows")]


def quadratic(seed, L=3.0, shape=(4, 8), least=None):
    """f(x) = x'Hx/2 - b'x with the eigenvalues of H in [least, L], least = -L where not given, both ends taken."""
    rng = np.random.default_rng(seed)
    n = shape[0] * shape[1]
    Q = np.linalg.qr(rng.normal(size=(n, n)))[0]
    H = torch.tensor(Q * np.linspace(-L if least is None else least, L, n) @ Q.T)
    b = torch.tensor(rng.normal(size=n))
    x = torch.nn.Parameter(torch.tensor(rng.normal(size=shape)))
    return x, lambda: x.flatten() @ H @ x.flatten() / 2 - b @ x.flatten()


def start(R, x, **options):
    if R is not None:
        with torch.no_grad():
            x.copy_(R.prox(x, 1.0))  # inside its domain
    return algorithm_1([x], R, **options)


@pytest.mark.parametrize("R", RS, ids=repr)
@pytest.mark.parametrize("seed", range(5))
def test_first_theorem(R, seed):
    """sigma >= 2 kappa / (1 - eta2), kappa = L / 2: every step is accepted with rho >= eta2."""
    L = 3.0
    sigma = L / (1 - ETA2)
    x, f = quadratic(seed, L)
    optimizer = start(R, x, sigma=sigma, sigma_min=sigma, eta2=ETA2)  # sigma_min holds sigma there
    steps = 0
    for _ in range(40):
        optimizer.step(f)
        last = optimizer.last_step
        if last.accepted is None:
            break
        assert last.accepted
        assert last.rho >= ETA2
        assert last.sigma == sigma
        steps += 1
    assert steps > 0


@dataclass(frozen=True, eq=False)
class Fixed(Metric):
    """The same D at every step."""

    D: torch.Tensor

    def update(self, xs, gs, states):
        return [self.D.view(x.shape) for x in xs], [{} for _ in xs]


@pytest.mark.parametrize("R", [*RS, Ridge(0.4, L0Ball(k=4))], ids=repr)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("seed", range(3))
def test_first_theorem_in_a_metric(R, momentum, seed):
    """The same where L is the curvature in the metric: |eigenvalues| of D^-1/2 H D^-1/2. v may be an average."""
    x, f = quadratic(seed, 3.0)
    D = torch.tensor(np.random.default_rng(seed).uniform(0.1, 5.0, x.numel()))
    g = torch.autograd.grad(f(), x, create_graph=True)[0].flatten()
    H = torch.stack([torch.autograd.grad(entry, x, retain_graph=True)[0].flatten() for entry in g])
    L = float(torch.linalg.eigvalsh(H / (D.sqrt()[:, None] * D.sqrt())).abs().max())
    sigma = L / (1 - ETA2)
    optimizer = start(R, x, sigma=sigma, sigma_min=sigma, eta2=ETA2, metric=Fixed(D), momentum=momentum)
    for _ in range(30):
        optimizer.step(f)
        last = optimizer.last_step
        if last.accepted is None:
            break
        assert last.accepted
        assert last.rho >= ETA2
    assert optimizer.counts["accepted"] > 0
    assert optimizer.counts["rejected"] == 0


def test_the_bound_of_the_first_theorem_is_needed():
    """Just below it, the test above would fail: on the steepest eigenvector rho = 1 - L / (2 sigma) < eta2."""
    x = torch.nn.Parameter(torch.tensor([1.0], dtype=torch.float64))
    sigma = 0.49 * 3.0 / (1 - ETA2)
    optimizer = algorithm_1([x], sigma=sigma, eta2=ETA2)
    optimizer.step(lambda: 1.5 * x.square().sum())
    assert optimizer.last_step.rho < ETA2
    assert optimizer.last_step.rho == pytest.approx(1 - 3.0 / (2 * sigma), rel=1e-12)
    assert optimizer.sigma == sigma


@pytest.mark.parametrize("R", [None, L1(0.3), L0(0.2), Lp(0.2, 0.5)], ids=repr)
@pytest.mark.parametrize("sigma", [1e-3, 1.0, 1e3])
def test_sigma_max(R, sigma):
    """sigma_t <= max(sigma_0, gamma2 sigma_succ), and on the full batch every accepted step decreases F."""
    L, gamma = 3.0, 4.0
    x, f = quadratic(7, L, least=0.1)
    optimizer = start(R, x, sigma=sigma, eta2=ETA2, gamma1=gamma)
    value = (lambda: 0.0) if R is None else (lambda: R.value(x.detach()).item())
    rejected, most = 0, 0.0
    for _ in range(100):
        before = f().item() + value()
        optimizer.step(f)
        after = f().item() + value()
        last = optimizer.last_step
        most = max(most, last.sigma)
        rejected += last.accepted is False
        if last.accepted:  # up to the rounding of f
            assert after < before + 1e-14 * max(1.0, abs(before))
            assert before - after == pytest.approx(last.actual, rel=1e-9, abs=1e-12)
        else:
            assert after == before
    assert most <= max(sigma, gamma * L / (1 - ETA2))
    assert rejected > 0 or sigma > 1e-3


@pytest.mark.parametrize("R", RS, ids=repr)
@pytest.mark.parametrize("sigma", [0.5, 5.0, 50.0])
def test_predicted_decrease(R, sigma):
    """R(x) - R(x + s) - v's >= sigma |s|^2 / 2, since s minimizes the model."""
    x, f = quadratic(11)
    optimizer = start(R, x, sigma=sigma)
    seen = 0
    for _ in range(10):
        sigma = optimizer.sigma
        optimizer.step(f)
        last = optimizer.last_step
        assert last.predicted >= sigma / 2 * last.step_norm**2 * (1 - 1e-12) - 1e-15
        seen += last.step_norm > 0
    assert seen


@pytest.mark.parametrize("R", [None, L1(0.0), L0(0.0), Lp(0.0, 0.5), MCP(0.0, 3.0)], ids=repr)
@pytest.mark.parametrize("foreach", [False, True])
def test_without_a_penalty_the_step_is_the_plain_one(R, foreach):
    x, f = quadratic(13)
    sigma = 20.0
    optimizer = algorithm_1([x], R, sigma=sigma, foreach=foreach)
    for _ in range(5):
        before, (g,) = x.detach().clone(), torch.autograd.grad(f(), [x])
        sigma = optimizer.sigma
        optimizer.step(f)
        assert optimizer.last_step.accepted
        torch.testing.assert_close(x.detach(), before - g / sigma, rtol=1e-14, atol=0)


def test_rho_is_actual_over_predicted():
    x, f = quadratic(17)
    optimizer = algorithm_1([x], L1(0.3), sigma=10.0)
    loss, before = f().item(), x.detach().clone()
    g = torch.autograd.grad(f(), [x])[0]
    assert optimizer.step(f).item() == loss
    last, s = optimizer.last_step, x.detach() - before
    dR = 0.3 * (before.abs().sum() - x.detach().abs().sum()).item()
    assert last.loss == loss
    assert last.trial_loss == f().item()
    assert last.step_norm == pytest.approx(s.norm().item(), rel=1e-12)
    assert last.predicted == pytest.approx(dR - (g * s).sum().item(), rel=1e-12)
    assert last.actual == pytest.approx(loss - f().item() + dR, rel=1e-12)
    assert last.rho == pytest.approx(last.actual / last.predicted, rel=1e-10)
