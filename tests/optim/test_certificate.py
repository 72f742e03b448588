"""The certificate on least squares + l1, where every number can be computed by hand; and that it moves nothing."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from sr2 import L1, GroupL2, ProxGEN, certificate
from sr2.optim.theory.certificate import Estimate
from tests.tools import algorithm_1

N, D, LAM, SIGMA = 96, 5, 0.1, 6.0


def problem(seed=0, batch=8, scale=1.0):
    """f(x, batch) = mean((a'x - b)^2) over equal batches; x is the weight of a linear layer."""
    rng = np.random.default_rng(seed)
    A, b = rng.normal(size=(N, D)), rng.normal(size=N) * scale
    model = nn.Linear(D, 1, bias=False).double()
    with torch.no_grad():
        model.weight.copy_(torch.tensor(rng.normal(size=(1, D)) * 0.3))
        model.weight[0, 1] = 0.0
    rows = np.arange(N).reshape(-1, batch)
    data = [(torch.tensor(A[r]), torch.tensor(b[r])[:, None]) for r in rows]
    return model, data, A, b, rows


def soft(x, t):
    return np.sign(x) * np.maximum(np.abs(x) - t, 0)


def slow(x, A, b, rows, lam, sigma, L, eta1=7.5e-4):
    """Everything of the certificate, and E dist(0, dF(x + s))^2, in NumPy."""

    def value(x, r):
        return np.mean((A[r] @ x - b[r]) ** 2)

    def gradient(x, r):
        return 2 * A[r].T @ (A[r] @ x - b[r]) / len(r)

    def distance2(z):
        g = gradient(z, np.arange(len(b)))
        return np.sum(np.where(z != 0, g + lam * np.sign(z), np.maximum(np.abs(g) - lam, 0)) ** 2)

    full = gradient(x, np.arange(len(b)))
    squares, noises, distances = [], [], []
    for r in rows:
        g = gradient(x, r)
        z = soft(x - g / sigma, lam / sigma)
        s = z - x
        predicted = lam * (np.abs(x).sum() - np.abs(z).sum()) - g @ s
        actual = value(x, r) - value(z, r) + lam * (np.abs(x).sum() - np.abs(z).sum())
        if actual >= eta1 * predicted:
            squares.append(s @ s)
            noises.append(np.sum((g - full) ** 2))
            distances.append(distance2(z))
    n = len(squares)
    z = soft(x - full / sigma, lam / sigma)
    factor = 3 * (L**2 + sigma**2)
    return {
        "step": factor * np.mean(squares),
        "step half": factor * 1.96 * np.std(squares, ddof=1) / math.sqrt(n),
        "variance": 3 * np.mean(noises),
        "variance half": 3 * 1.96 * np.std(noises, ddof=1) / math.sqrt(n),
        "delta": math.sqrt(max(squares)),
        "residual": sigma * np.linalg.norm(z - x),
        "accepted": n,
        "distance": np.mean(distances),
    }


@pytest.mark.parametrize("sigma", [2.2, SIGMA, 50.0], ids=["some rejected", "middle", "large"])
@pytest.mark.parametrize("seed", range(4))
def test_every_number_and_the_inequality(sigma, seed):
    model, data, A, b, rows = problem(seed)
    found = certificate(model, data, algorithm_1(model, L1(LAM), sigma=sigma), loss=F.mse_loss)
    first = np.linalg.eigvalsh(2 * A[rows[0]].T @ A[rows[0]] / 8)[-1]
    assert found.lipschitz == pytest.approx(first, rel=0.05)
    x = model.weight.detach().numpy()[0]
    exact = slow(x, A, b, rows, LAM, sigma, found.lipschitz)
    assert found.step_term.mean == pytest.approx(exact["step"], rel=1e-9)
    assert found.step_term.half_width == pytest.approx(exact["step half"], rel=1e-9)
    assert found.variance_term.mean == pytest.approx(exact["variance"], rel=1e-9)
    assert found.variance_term.half_width == pytest.approx(exact["variance half"], rel=1e-9)
    assert found.delta == pytest.approx(exact["delta"], rel=1e-9)
    assert found.residual == pytest.approx(exact["residual"], rel=1e-9)
    assert (found.batches, found.accepted) == (12, exact["accepted"])
    assert found.bound == found.step_term.mean + found.variance_term.mean
    # theorem 4, with the exact distance of 0 to the subdifferential of F
    assert exact["distance"] <= found.bound
    assert found.sigma == sigma


def test_some_of_those_were_rejected():
    model, data, *_ = problem(0)
    found = certificate(model, data, algorithm_1(model, L1(LAM), sigma=2.2), loss=F.mse_loss)
    assert 2 < found.accepted < found.batches


def test_at_the_solution_the_residual_is_zero_and_the_noise_remains():
    model, data, A, b, _ = problem(0)
    x = np.zeros(D)
    for _ in range(3000):
        x = soft(x - 2 * A.T @ (A @ x - b) / N / 10, LAM / 10)
    with torch.no_grad():
        model.weight.copy_(torch.tensor(x)[None])
    found = certificate(model, data, algorithm_1(model, L1(LAM), sigma=SIGMA), loss=F.mse_loss)
    assert found.residual < 1e-9
    assert found.variance_term.mean > 0.1
    # the full batch has no noise: both terms vanish there
    whole = [(torch.tensor(A), torch.tensor(b)[:, None])]
    found = certificate(model, whole, algorithm_1(model, L1(LAM), sigma=SIGMA), loss=F.mse_loss)
    assert found.bound < 1e-16
    assert math.isnan(found.step_term.half_width)  # one draw knows no spread


def test_the_intervals_cover():
    """Draws of batches, against the expectation over all of them: about 95 % of the intervals hold it."""
    model, _, A, b, _ = problem(3)
    optimizer = algorithm_1(model, L1(LAM), sigma=40.0)
    rng = np.random.default_rng(1)
    x = model.weight.detach().numpy()[0]
    many = slow(x, A, b, rng.integers(N, size=(20000, 4)), LAM, 40.0, 0.0)
    hits = []
    for _ in range(60):
        rows = rng.integers(N, size=(40, 4))
        data = [(torch.tensor(A[r]), torch.tensor(b[r])[:, None]) for r in rows]
        found = certificate(model, data, optimizer, loss=F.mse_loss)
        step = many["step"] * (found.lipschitz**2 + 40.0**2) / 40.0**2
        for term, exact in ((found.step_term, step), (found.variance_term, many["variance"])):
            hits.append(abs(term.mean - exact) <= term.half_width)
        assert found.residual_error == pytest.approx(1.96 * math.sqrt(found.variance_term.mean / 3 / 40))
    assert 0.85 <= np.mean(hits) <= 1.0


def test_estimate():
    values = [1.0, 2.0, 4.0, 9.0]
    found = Estimate.of(values, 3.0)
    assert found.mean == 12.0
    assert found.half_width == pytest.approx(3 * 1.96 * np.std(values, ddof=1) / 2)
    assert math.isnan(Estimate.of([]).mean)
    assert str(Estimate(0.5, 0.25)) == "0.5 ± 0.25"


# ---- no trace


@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize("loader", [False, True], ids=["list", "shuffled loader"])
def test_nothing_is_moved(capturable, loader):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.ReLU(), nn.Linear(8, 3))
    x, y = torch.randn(32, 6), torch.randint(0, 3, (32,))
    data = [(x[i : i + 8], y[i : i + 8]) for i in range(0, 32, 8)]
    if loader:
        data = DataLoader(TensorDataset(x, y), 8, shuffle=True)
    optimizer = algorithm_1(model, L1(1e-3), eta2=0.5, capturable=capturable)
    for _ in range(5):
        optimizer.step(lambda: F.cross_entropy(model(x), y))
    next(iter(model.parameters())).grad = None

    def everything():
        gradients = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
        state = {k: v.clone() for k, v in model.state_dict().items()}
        own = (optimizer.sigma, optimizer.counts, optimizer.stationarity, optimizer.last_step)
        return state, gradients, torch.get_rng_state(), own, model.training

    before = everything()
    found = certificate(model, data, optimizer)
    after = everything()
    assert found.batches == 4
    assert found.accepted > 0
    assert found.bound > 0
    for name in before[0]:
        assert torch.equal(before[0][name], after[0][name]), name
    for a, b in zip(before[1], after[1], strict=True):
        assert (a is None) == (b is None)
        assert a is None or torch.equal(a, b)
    assert torch.equal(before[2], after[2])
    assert before[3:] == after[3:]
    if not loader:
        assert certificate(model, data, optimizer) == found


def test_before_the_first_step_sigma_is_estimated_and_not_kept():
    model, data, *_ = problem(0)
    optimizer = algorithm_1(model, L1(LAM))
    found = certificate(model, data, optimizer, loss=F.mse_loss)
    assert found.sigma == found.lipschitz
    assert math.isnan(optimizer.sigma)
    assert found.accepted > 0


def test_several_groups():
    """The residual of a regularizer over rows, and of a group without one."""
    torch.manual_seed(1)
    model = nn.Linear(4, 3).double()
    x, y = torch.randn(16, 4).double(), torch.randn(16, 3).double()
    found = certificate(model, [(x, y)], algorithm_1(model, GroupL2(0.1, "rows"), sigma=3.0), loss=F.mse_loss)
    gw, gb = torch.autograd.grad(F.mse_loss(model(x), y), [model.weight, model.bias])
    u = model.weight - gw / 3
    z = u * (1 - 0.1 / 3 / u.norm(dim=1, keepdim=True)).clamp_min(0)
    exact = 3 * math.sqrt((z - model.weight).square().sum().item() + (gb / 3).square().sum().item())
    assert found.residual == pytest.approx(exact, rel=1e-9)


def test_it_prints_and_is_plain_data():
    model, data, *_ = problem(0)
    found = certificate(model, data, algorithm_1(model, L1(LAM), sigma=SIGMA), loss=F.mse_loss)
    words = str(found)
    for name in (
        "E dist(0, dF(x + s))^2 at most",
        "step term",
        "variance term",
        "delta",
        "proximal residual",
        "L, sigma",
    ):
        assert name in words
    assert found.as_dict()["bound"] == found.bound
    assert found.as_dict()["step_term"] == {"mean": found.step_term.mean, "half_width": found.step_term.half_width}


def test_errors():
    model, data, *_ = problem(0)
    with pytest.raises(ValueError, match="at least one batch"):
        certificate(model, [], algorithm_1(model))
    with pytest.raises(ValueError, match="at least one batch"):
        certificate(model, iter(()), algorithm_1(model))
    with pytest.raises(ValueError, match="momentum=0 and metric=None"):
        certificate(model, data, algorithm_1(model, momentum=0.9), loss=F.mse_loss)
    for decay in (0.1, "5e-4/step"):
        with pytest.raises(ValueError, match=f"knows no weight decay, and weight_decay is {decay!r}"):
            certificate(model, data, algorithm_1(model, weight_decay=decay), loss=F.mse_loss)
    with pytest.raises(ValueError, match="momentum=0 and metric=None"):
        certificate(model, data, algorithm_1(model, metric="adam"), loss=F.mse_loss)
    with pytest.raises(TypeError, match="needs the SR2 that trains the model, and got a ProxGEN"):
        certificate(model, data, ProxGEN(model, L1(0.1), lr=0.1), loss=F.mse_loss)


def test_an_interrupt_in_a_certificate_leaves_x():
    class Interrupted(L1):
        coefficients = None

        def decrease_of(self, *args, **kwargs):
            raise KeyboardInterrupt

    model, x, y = nn.Linear(10, 3), torch.randn(8, 10), torch.arange(8) % 3
    optimizer = algorithm_1(model, Interrupted(0.1), sigma=5.0)
    before = model.weight.detach().clone()
    with pytest.raises(KeyboardInterrupt):
        certificate(model, [(x, y)], optimizer)
    assert torch.equal(model.weight, before)
