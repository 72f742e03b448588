"""Batches that grow: assumption 3 as a test of each step, and the noise behind it against brute force."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sr2 import L1, SR2, BatchGrowth
from sr2.optim.closure.losses import loss_and_gradients
from sr2.optim.theory.batch_growth import GradientNoise
from tests.tools import algorithm_1

rng = np.random.default_rng(0)
N = 256
A, B = torch.tensor(rng.normal(size=(N, 6))), torch.tensor(rng.normal(size=N) * 3)
L = torch.linalg.eigvalsh(A.T @ A / N)[-1].item()  # of the full least-squares loss


def loss(x, rows):
    return (A[rows] @ x - B[rows]).square().mean() / 2


def halves(x, rows):
    half = len(rows) // 2
    return [loss(x, rows[:half]), loss(x, rows[half:])]


def run(optimizer, x, steps, closure=halves, seed=3):
    """Yields after every step on a batch of the size that the optimizer asks for."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        rows = torch.randperm(N, generator=generator)[: optimizer.batch_size]
        optimizer.step(lambda rows=rows: closure(x, rows))
        yield rows


# ---- the test at every step


def test_the_batch_grows_where_gradients_are_noise():
    x = nn.Parameter(torch.full((6,), 5.0, dtype=torch.float64))
    growth = BatchGrowth(kappa=4 * L, batch=4, largest=N)
    optimizer = SR2([x], L1(0.01), sigma=2 * L, sigma_min=2 * L, batch_growth=growth)
    sizes, failed = [optimizer.batch_size], 0
    for _ in run(optimizer, x, 200):
        failed += optimizer.last_step.accepted is None and sizes[-1] < N  # there, steps of length 0 are null
        sizes.append(optimizer.batch_size)
    assert sizes == sorted(sizes)
    assert sizes[0] == 4
    assert sizes[-1] == N
    assert set(sizes) == {4, 8, 16, 32, 64, 128, 256}
    assert failed == 6
    # far from the solution gradients are larger than their noise: the smallest batch does for a while
    assert sizes.index(8) > 3


def test_a_failed_batch_is_not_stepped_on():
    x = nn.Parameter(torch.zeros(6, dtype=torch.float64))
    model = nn.ParameterList([x])
    optimizer = SR2(model, L1(0.01), sigma=2.0, penalize="all", batch_growth=BatchGrowth(1e-6, 4, largest=64))
    for size in (4, 8, 16, 32):
        assert optimizer.batch_size == size
        before, sums = x.detach().clone(), optimizer.stationarity
        for _ in run(optimizer, x, 1):
            pass
        last = optimizer.last_step
        assert torch.equal(x.detach(), before)
        assert last.accepted is None
        assert last.step_norm > 0  # one was tried
        assert last.sigma == optimizer.sigma == 2.0
        assert math.isnan(last.rho)
        assert math.isnan(sums.mean)  # a step that was not taken says nothing of stationarity
    # at the largest batch the step is judged by rho alone, and goes on
    for _ in run(optimizer, x, 5):
        assert optimizer.batch_size == 64
        assert optimizer.last_step.accepted
    assert optimizer.counts == {"accepted": 5, "rejected": 0, "null": 4, "broken": 0}


def test_batch_norm_has_seen_a_batch_that_is_not_stepped_on():
    model, x = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), torch.randn(8, 3)
    optimizer = SR2(model, sigma=2.0, batch_growth=BatchGrowth(1e-6, 8, largest=64))
    optimizer.step(lambda: [model(half).square().mean() for half in (x[:4], x[4:])])
    assert optimizer.counts["null"] == 1
    assert int(model[1].num_batches_tracked) == 2


def test_the_test_is_the_formula():
    """Every step's verdict, from the numbers of the step and a brute-force noise."""
    x = nn.Parameter(torch.full((6,), 2.0, dtype=torch.float64))
    kappa, seen = 3 * L, set()
    optimizer = SR2([x], sigma=2 * L, sigma_min=2 * L, batch_growth=BatchGrowth(kappa, 4, factor=1.2, largest=N))
    before, size = x.detach().clone(), 4
    for rows in run(optimizer, x, 60):
        if size == N:
            break
        h = [torch.autograd.grad(part, (y,))[0] for y in [before.clone().requires_grad_()] for part in halves(y, rows)]
        g = (h[0] + h[1]) / 2
        s = -g / (2 * L)
        noise = ((h[0] - h[1]).norm() / 2).item()  # of the mean of two
        curvature = torch.stack(halves(before + s, rows)).mean() - torch.stack(halves(before, rows)).mean() - g @ s
        passes = abs(curvature.item()) + noise * s.norm().item() <= kappa * s.square().sum().item()
        assert (optimizer.last_step.accepted is not None) == passes
        assert optimizer.batch_size == (size if passes else math.ceil(1.2 * size))
        seen.add(passes)
        before, size = x.detach().clone(), optimizer.batch_size
    assert seen == {True, False}


@pytest.mark.parametrize("sigma", [0.6 * L, L, 10 * L])
def test_assumption_3_holds_on_the_full_batch(sigma):
    """kappa = L / 2 and g = grad f: the test never fails; below L / 2 it does."""
    everything = torch.arange(N)
    for kappa, fails in ((L / 2 * (1 + 1e-9), False), (L / 2 * 0.5, True)):
        x = nn.Parameter(torch.full((6,), 5.0, dtype=torch.float64))
        optimizer = SR2([x], sigma=sigma, sigma_min=sigma, batch_growth=BatchGrowth(kappa, 4, factor=1.0001))
        for _ in range(100):
            optimizer.step(lambda x=x: loss(x, everything))
        assert (optimizer.batch_size > 4) == fails
        assert (optimizer.counts["null"] > 0) == fails


def test_with_the_full_objective_the_test_is_exact():
    """|f(x + s) - f(x) - g's| <= kappa |s|^2 with the full f has the noise in it: none is added to it."""
    everything, x = torch.arange(N), nn.Parameter(torch.full((6,), 1.0, dtype=torch.float64))
    kappa, seen = 1.5 * L, set()
    optimizer = SR2([x], sigma=2 * L, sigma_min=2 * L, batch_growth=BatchGrowth(kappa, 4, factor=1.1, largest=N))
    generator = torch.Generator().manual_seed(3)
    while optimizer.batch_size < N and len(seen) < 2:
        rows = torch.randperm(N, generator=generator)[: optimizer.batch_size]
        before = x.detach().clone().requires_grad_()
        g = torch.autograd.grad(loss(before, rows), before)[0]
        s = -g / (2 * L)
        error = loss(before + s, everything) - loss(before, everything) - g @ s
        passes = abs(error.item()) <= kappa * s.square().sum().item()
        optimizer.step(lambda rows=rows: halves(x, rows), objective=lambda: loss(x, everything))
        tested = optimizer.last_step.accepted is not None
        assert tested == passes
        seen.add(passes)
    assert seen == {True, False}


def test_one_part_knows_no_noise():
    """A closure with one loss: only the batch's own curvature is tested, which kappa >= L / 2 always passes."""
    x = nn.Parameter(torch.zeros(6, dtype=torch.float64))
    optimizer = SR2([x], sigma=2 * L, batch_growth=BatchGrowth(100 * L, 8))
    for _ in run(optimizer, x, 30, closure=loss):
        assert optimizer.batch_size == 8


# ---- the noise


def network():
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1)).double()


def parts_of(model, M, per=8):
    rows = torch.arange(M * per).view(M, per)
    return [lambda part=part: F.mse_loss(model(A[part])[:, 0], B[part]) for part in rows]


@pytest.mark.parametrize("M", [2, 3, 7])
@pytest.mark.parametrize("kind", ["micro-batches", "several losses"])
def test_the_estimate_is_the_sample_variance(M, kind):
    model = network()
    parameters, parts = list(model.parameters()), parts_of(model, M)
    h = [torch.cat([g.flatten() for g in torch.autograd.grad(part(), parameters)]) for part in parts]
    variance = torch.stack(h).var(0, unbiased=True).sum().item() / M  # of the mean of M

    def micro():
        for p in parameters:
            p.grad = None
        total = 0.0
        for part in parts:
            value = part() / M
            value.backward()
            total += value.detach()
        return total

    with GradientNoise(parameters) as noise:
        loss_and_gradients(micro if kind == "micro-batches" else lambda: [part() for part in parts], parameters)
    assert noise.estimate() ** 2 == pytest.approx(variance, rel=1e-10)
    assert not any(p._backward_hooks for p in parameters)  # the hooks are gone
    torch.testing.assert_close(
        torch.cat([p.grad.flatten() for p in parameters]), torch.stack(h).mean(0), rtol=1e-12, atol=1e-14
    )


def test_a_parameter_that_only_some_parts_see():
    """A part without a gradient for it has the gradient zero."""
    a, b = nn.Parameter(torch.tensor([1.0]).double()), nn.Parameter(torch.tensor([2.0]).double())
    with GradientNoise([a, b]) as noise:
        loss_and_gradients(lambda: [3 * a.sum(), 5 * a.sum() + 4 * b.sum()], [a, b])
    # h = (3, 0) and (5, 4): their variance is 2 + 8, of the mean of two half of it
    assert noise.estimate() ** 2 == pytest.approx(5.0)


def test_the_estimate_is_unbiased():
    """Monte Carlo: parts drawn anew, against the variance of the mean of M = 3 parts of 4, known from all data."""
    x = torch.full((6,), 0.5, dtype=torch.float64).requires_grad_()
    single = torch.stack([torch.autograd.grad(loss(x, torch.tensor([i])), x)[0] for i in range(N)])
    exact = (single - single.mean(0)).square().sum(1).mean().item() / 12  # drawn with replacement
    generator, found = torch.Generator().manual_seed(8), []
    for _ in range(1500):
        rows = torch.randint(N, (3, 4), generator=generator)
        with GradientNoise([x]) as noise:
            loss_and_gradients(lambda rows=rows: [loss(x, part) for part in rows], [x])
        found.append(noise.estimate() ** 2)
    error = np.std(found) / math.sqrt(len(found))
    assert abs(np.mean(found) - exact) < 3 * error
    assert error < 0.05 * exact


@pytest.mark.parametrize("closure", [loss, halves], ids=["one loss", "two halves"])
def test_the_same_bits_as_without_growth(closure):
    """Watching changes nothing: where no test fails, the run is the plain one."""
    ends = []
    for growth in (None, BatchGrowth(1e9, 16)):
        x = nn.Parameter(torch.full((6,), 2.0, dtype=torch.float64))
        optimizer = algorithm_1([x], L1(0.01), sigma=0.1, batch_growth=growth)
        generator = torch.Generator().manual_seed(3)
        for _ in range(40):
            rows = torch.randperm(N, generator=generator)[:16]
            optimizer.step(lambda x=x, rows=rows: closure(x, rows))
        ends.append((x.detach(), optimizer.sigma, optimizer.counts, optimizer.last_step))
    assert torch.equal(ends[0][0], ends[1][0])
    assert ends[0][1:] == ends[1][1:]
    assert ends[0][2]["rejected"] > 0


def test_two_halves_are_the_whole_batch():
    ends = []
    for closure in (loss, halves):
        x = nn.Parameter(torch.full((6,), 2.0, dtype=torch.float64))
        optimizer = SR2([x], L1(0.01), sigma=2.0, batch_growth=BatchGrowth(1e9, 16))
        for _ in run(optimizer, x, 40, closure):
            pass
        ends.append(x.detach())
    torch.testing.assert_close(*ends, rtol=1e-12, atol=1e-14)


# ---- state and arguments


@pytest.mark.parametrize("done", [0, 3, 20])
def test_resumed_to_the_same_size(done, tmp_path):
    def make():
        x = nn.Parameter(torch.full((6,), 5.0, dtype=torch.float64))
        return x, SR2([x], L1(0.01), eta2=0.99, batch_growth=BatchGrowth(4 * L, 4, largest=N))

    def go(x, optimizer, steps):
        generator = torch.Generator().manual_seed(3)
        for i in range(60):
            rows = torch.randperm(N, generator=generator)
            if i in steps:
                optimizer.step(lambda rows=rows: halves(x, rows[: optimizer.batch_size]))

    x, straight = make()
    go(x, straight, range(60))
    y, first = make()
    go(y, first, range(done))
    torch.save([y.detach(), first.state_dict()], tmp_path / "saved")
    point, state = torch.load(tmp_path / "saved", weights_only=True)
    z, again = make()
    z.data.copy_(point)
    again.load_state_dict(state)
    assert again.batch_size == first.batch_size
    go(z, again, range(done, 60))
    assert torch.equal(x, z)
    assert again.batch_size == straight.batch_size == N
    assert again.counts == straight.counts


WRONG = [
    ({"kappa": 0.0}, "kappa must be a number above 0"),
    ({"kappa": math.nan}, "kappa must be a number above 0"),
    ({"kappa": 1.0, "factor": 1.0}, "factor must be a number above 1"),
    ({"kappa": 1.0, "factor": math.inf}, "factor must be a number above 1"),
    ({"kappa": 1.0, "batch": 0}, "batch must be an integer of at least 1"),
    ({"kappa": 1.0, "batch": 12.5}, "batch must be an integer"),
    ({"kappa": 1.0, "batch": 64, "largest": 32}, "largest must be an integer of at least 64, and is 32"),
]


@pytest.mark.parametrize(("options", "words"), WRONG, ids=str)
def test_wrong_arguments(options, words):
    with pytest.raises(ValueError, match=words):
        BatchGrowth(**options)


@pytest.mark.parametrize("options", [{"capturable": True}, {"momentum": 0.9}], ids=str)
def test_what_does_not_go_with_it(options):
    with pytest.raises(ValueError, match="no capturable, no momentum"):
        SR2([nn.Parameter(torch.ones(1))], batch_growth=BatchGrowth(1.0), **options)


def test_the_next_size():
    assert BatchGrowth(1.0, 3, 1.01, 100).next(3) == 4  # always larger
    assert BatchGrowth(1.0, 3, 2.0, 100).next(64) == 100
    assert SR2([nn.Parameter(torch.ones(1))]).batch_size is None
