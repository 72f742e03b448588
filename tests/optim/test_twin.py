"""SR2 against a NumPy twin of Algorithm 1, over 300 stochastic steps: the same x, sigma and decisions."""

import numpy as np
import pytest
import torch

from sr2 import L0, L1, SR2

from .oracles import hard, soft, sr2_twin

LAM = 0.02
N, D, BATCH, STEPS = 200, 12, 16, 300
CASES = {
    "none": (None, lambda x: 0.0, lambda u, t: u),
    "l1": (L1(LAM), lambda x: LAM * np.abs(x).sum(), lambda u, t: soft(u, LAM * t)),
    "l0": (L0(LAM), lambda x: LAM * np.count_nonzero(x), lambda u, t: hard(u, LAM * t)),
}
CONSTANTS = {
    "lively": {"sigma": 0.1, "eta1": 0.1, "eta2": 0.75, "gamma1": 2.0, "gamma2": 3.0, "gamma3": 0.7, "sigma_min": 0.1},
    "paper": {
        "sigma": 0.2,
        "eta1": 7.5e-4,
        "eta2": 0.99,
        "gamma1": 5.56,
        "gamma2": 5.56,
        "gamma3": 0.8,
        "sigma_min": 1e-6,
    },
}


def problem():
    """Logistic regression with rows of very different sizes, so that batches disagree about the curvature."""
    rng = np.random.default_rng(3)
    A = rng.normal(size=(N, D)) * np.exp(0.5 * rng.normal(size=(N, 1)))
    y = np.sign(A @ (rng.normal(size=D) * (rng.random(D) < 0.4)) + 2 * rng.normal(size=N))
    batches = [rng.choice(N, BATCH, replace=False) for _ in range(STEPS)]
    return A, y, rng.normal(size=D), batches


def twin(name, constants):
    A, y, x0, batches = problem()

    def f(x, batch):
        return np.logaddexp(0, -y[batch] * (A[batch] @ x)).mean()

    def grad(x, batch):
        margin = y[batch] * (A[batch] @ x)
        return A[batch].T @ (-y[batch] * (1 - np.tanh(margin / 2)) / 2) / len(batch)

    _, R, prox = CASES[name]
    return list(sr2_twin(x0, batches, f, grad, R, prox, **constants))


def ours(name, constants, **options):
    A, y, x0, batches = problem()
    A, y, x = torch.tensor(A), torch.tensor(y), torch.nn.Parameter(torch.tensor(x0))
    optimizer = SR2([x], CASES[name][0], **constants, **options)
    for batch in batches:
        a, b = A[batch], y[batch]
        optimizer.step(lambda a=a, b=b: torch.nn.functional.softplus(-b * (a @ x), threshold=1e9).mean())
        yield x.detach().numpy().copy(), optimizer.sigma, optimizer.last_step.accepted


@pytest.mark.parametrize("constants", CONSTANTS)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("foreach", [False, True])
def test_the_trajectory_is_the_twins(name, constants, foreach):
    expected = twin(name, CONSTANTS[constants])
    for t, (his, mine) in enumerate(zip(expected, ours(name, CONSTANTS[constants], foreach=foreach), strict=True)):
        assert mine[2] == his[2], f"step {t}: accepted"
        assert mine[1] == his[1], f"step {t}: sigma"
        np.testing.assert_allclose(mine[0], his[0], rtol=0, atol=1e-10, err_msg=f"step {t}")


@pytest.mark.parametrize("name", CASES)
def test_the_lively_setting_sees_every_branch(name):
    """Else the test above could not tell a wrong branch: acceptances, rejections, falls, sigma kept, and the floor."""
    constants = CONSTANTS["lively"]
    steps = twin(name, constants)
    sigmas = np.array([constants["sigma"]] + [sigma for _, sigma, _ in steps])
    assert sum(a is True for *_, a in steps) > 50
    assert sum(a is False for *_, a in steps) > 10
    assert (np.diff(sigmas) < 0).sum() > 10
    assert ((np.diff(sigmas) == 0) & (sigmas[1:] > constants["sigma_min"])).sum() > 10
    assert (sigmas[1:] == constants["sigma_min"]).any()
