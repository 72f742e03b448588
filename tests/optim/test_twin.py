"""Every optimizer against its NumPy twin, over hundreds of stochastic steps: the same x, sigma and decisions."""

import numpy as np
import pytest
import torch

from sr2 import L0, L1
from tests.optimizers import DEFAULTS, LIVELY, OPTIMIZERS, Problem, named, sr2_twin
from tests.oracles import hard, soft

LAM = 0.02
N, D, BATCH, STEPS = 200, 12, 16, 200
REGULARIZERS = {
    "none": (None, lambda x: 0.0, lambda u, t: u),
    "l1": (L1(LAM), lambda x: LAM * np.abs(x).sum(), lambda u, t: soft(u, LAM * t)),
    "l0": (L0(LAM), lambda x: LAM * np.count_nonzero(x), lambda u, t: hard(u, LAM * t)),
}
PATHS = {"loop": {"foreach": False}, "flat": {"foreach": True}, "device": {"capturable": True}}
CASES = [
    (case, constants, name)
    for case in OPTIMIZERS
    for constants in case.constants
    for name, (R, *_) in REGULARIZERS.items()
    if case.takes(R)
]


def logistic(name):
    """Logistic regression with rows of very different sizes, so that batches disagree about the curvature."""
    rng = np.random.default_rng(3)
    A = rng.normal(size=(N, D)) * np.exp(0.5 * rng.normal(size=(N, 1)))
    y = np.sign(A @ (rng.normal(size=D) * (rng.random(D) < 0.4)) + 2 * rng.normal(size=N))
    rows = [rng.choice(N, BATCH, replace=False) for _ in range(STEPS)]

    def f(x, batch):
        A, y = batch
        return np.logaddexp(0, -y * (A @ x)).mean()

    def gradient(x, batch):
        A, y = batch
        margin = y * (A @ x)
        return A.T @ (-y * (1 - np.tanh(margin / 2)) / 2) / len(y)

    _, R, prox = REGULARIZERS[name]
    return Problem(rng.normal(size=D), [(A[r], y[r]) for r in rows], f, gradient, R, prox)


@pytest.mark.parametrize(("case", "constants", "name"), CASES, ids=named)
@pytest.mark.parametrize("path", PATHS)
def test_the_trajectory_is_the_twins(case, constants, name, path):
    problem, constants = logistic(name), case.constants[constants]
    x = torch.nn.Parameter(torch.tensor(problem.x))
    optimizer = case.kind([x], REGULARIZERS[name][0], **constants, **PATHS[path])
    for t, (batch, twin) in enumerate(zip(problem.batches, case.twin(problem, **constants), strict=True)):
        A, y = map(torch.tensor, batch)
        optimizer.step(lambda A=A, y=y: torch.nn.functional.softplus(-y * (A @ x), threshold=1e9).mean())
        if case.judges:
            assert optimizer.last_step.accepted == twin.accepted, f"step {t}"
            assert optimizer.sigma == twin.sigma, f"step {t}"
        np.testing.assert_allclose(x.detach().numpy(), twin.x, rtol=1e-6, atol=1e-7, err_msg=f"step {t}")
    assert np.abs(twin.x - problem.x).max() > 0.1


@pytest.mark.parametrize("name", REGULARIZERS)
def test_the_lively_setting_sees_every_branch(name):
    """Else the test above could not tell a wrong branch: acceptances, rejections, falls, sigma kept, and the floor."""
    steps = list(sr2_twin(logistic(name), **LIVELY))
    sigmas = np.array([LIVELY["sigma"]] + [step.sigma for step in steps])
    assert sum(step.accepted is True for step in steps) > 50
    assert sum(step.accepted is False for step in steps) > 10
    assert (np.diff(sigmas) < 0).sum() > 10
    assert ((np.diff(sigmas) == 0) & (sigmas[1:] > LIVELY["sigma_min"])).sum() > 10
    assert (sigmas[1:] == LIVELY["sigma_min"]).any()


def test_the_defaults_see_every_branch():
    steps = {name: list(sr2_twin(logistic(name), **DEFAULTS)) for name in REGULARIZERS}
    sigmas = {name: np.array([DEFAULTS["sigma"]] + [step.sigma for step in found]) for name, found in steps.items()}
    assert sum(step.accepted is False for found in steps.values() for step in found) > 5
    assert all((np.diff(found) < 0).sum() > 2 for found in sigmas.values())
    assert all((np.diff(found) == 0).sum() > 50 for found in sigmas.values())
