"""sigma_0 against the exact top eigenvalue, what it must not touch, and what it says where it cannot."""

import copy
import logging
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.function import once_differentiable
from torch.func import functional_call

from sr2 import SR2
from sr2.optim.curvature import LARGEST, estimate_sigma0
from tests.tools import algorithm_1

X = torch.randn(24, 6, generator=torch.Generator().manual_seed(1))
Y = torch.randint(0, 3, (24,), generator=torch.Generator().manual_seed(2))

SPECTRA = {
    "spread": torch.linspace(0.1, 10, 60),
    "many decades": torch.logspace(-4, 1, 60),
    "clustered at the top": torch.cat([torch.linspace(9.5, 10, 30), torch.linspace(0, 1, 30)]),
    "one above a bulk": torch.cat([torch.linspace(0, 1, 59), torch.tensor([1.2])]),
    "one far above": torch.cat([torch.linspace(0, 1, 59), torch.tensor([50.0])]),
    "all equal": torch.full((60,), 7.0),
    "indefinite": torch.linspace(-100, 20, 60),
    "one positive among large negative": torch.cat([torch.linspace(-100, -1, 59), torch.tensor([5.0])]),
    "one dimension": torch.tensor([3.0]),
}


def quadratic(spectrum, seed=0, dtype=torch.float64):
    """x'Hx/2 + b'x, H dense with these eigenvalues; split into two parameters."""
    n, generator = len(spectrum), torch.Generator().manual_seed(seed)
    Q = torch.linalg.qr(torch.randn(n, n, generator=generator, dtype=torch.float64))[0]
    H, b = ((Q * spectrum.double()) @ Q.T).to(dtype), torch.randn(n, generator=generator).to(dtype)
    xs = [nn.Parameter(torch.randn(k, generator=generator).to(dtype)) for k in (n - n // 3, n // 3)]

    def loss(through=lambda x: x):
        x = through(torch.cat(xs))
        return x @ H @ x / 2 + b @ x

    return xs, loss


def network(norm=True):
    torch.manual_seed(3)
    layers = [nn.Linear(6, 8), nn.BatchNorm1d(8) if norm else nn.Identity(), nn.Tanh(), nn.Linear(8, 3)]
    return nn.Sequential(*layers).double()


def dense_hessian(model, loss):
    """By torch, column by column, with the buffers of the moment."""
    names, shapes = zip(*((n, p.shape) for n, p in model.named_parameters()), strict=True)
    sizes = [math.prod(s) for s in shapes]
    model = copy.deepcopy(model)

    def f(flat):
        parts = {n: v.view(s) for n, v, s in zip(names, flat.split(sizes), shapes, strict=True)}
        return loss(lambda x: functional_call(model, parts, (x,)))

    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    return torch.autograd.functional.hessian(f, flat)


# ---- the number


@pytest.mark.parametrize("name", SPECTRA)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_the_largest_eigenvalue_of_a_quadratic(name, dtype, seed):
    xs, loss = quadratic(SPECTRA[name], seed, dtype)
    assert estimate_sigma0(loss, None, xs) == pytest.approx(SPECTRA[name].max().item(), rel=0.05)


@pytest.mark.parametrize("norm", [False, True], ids=["plain", "batch norm in training mode"])
@pytest.mark.parametrize("scale", [0.3, 1.0, 4.0])
def test_the_largest_eigenvalue_of_a_network(norm, scale):
    model = network(norm)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(scale)
    exact = torch.linalg.eigvalsh(dense_hessian(model, lambda net: F.cross_entropy(net(X.double()), Y)))
    found = estimate_sigma0(lambda: F.cross_entropy(model(X.double()), Y), model, list(model.parameters()))
    assert exact[0] < 0 < exact[-1]
    assert found == pytest.approx(exact[-1].item(), rel=0.05)


def test_training_statistics_are_used():
    """In eval mode the same network has another curvature, so the test above can tell them apart."""
    model = network()
    train = estimate_sigma0(lambda: F.cross_entropy(model(X.double()), Y), model, list(model.parameters()))
    model.eval()
    assert estimate_sigma0(lambda: F.cross_entropy(model(X.double()), Y), model, list(model.parameters())) < 0.9 * train


def test_parameters_that_the_loss_does_not_see():
    xs, loss = quadratic(SPECTRA["spread"])
    unused = nn.Parameter(torch.ones(3))
    assert estimate_sigma0(loss, None, [unused, *xs]) == pytest.approx(10.0, rel=0.05)
    linear = nn.Parameter(torch.ones(2).double())
    assert estimate_sigma0(lambda: loss() + linear.sum(), None, [*xs, linear]) == pytest.approx(10.0, rel=0.05)


def test_parameters_without_entries():
    none, x = nn.Parameter(torch.zeros(0, 3)), nn.Parameter(torch.ones(2))
    assert estimate_sigma0(lambda: none.square().sum(), None, [none]) == 1.0  # there is no curvature
    assert estimate_sigma0(lambda: none.square().sum() + 2 * x.square().sum(), None, [none, x]) == pytest.approx(4.0)


def test_parts_of_a_batch_are_averaged():
    model = network(norm=False)
    whole = estimate_sigma0(lambda: F.cross_entropy(model(X.double()), Y), None, list(model.parameters()))

    def halves():
        return [F.cross_entropy(model(X[part].double()), Y[part]) for part in (slice(12), slice(12, None))]

    assert estimate_sigma0(halves, None, list(model.parameters())) == pytest.approx(whole, rel=1e-6)


@pytest.mark.parametrize(
    "loss",
    [
        lambda x: x.sum(),
        lambda x: (x * 0).sum(),
        lambda x: x.pow(4).sum() * 0,
        lambda x: -3 * x.square().sum(),
        lambda x: -x.pow(4).sum(),
        lambda x: (1e30 * x.square()).sum(),
        lambda x: (1e-30 * x.square()).sum(),
        lambda x: (x - x.detach()).abs().sqrt().sum(),  # its gradient at 0 is not finite
    ],
    ids=["linear", "zero", "zero twice", "concave", "quartic concave", "huge", "tiny", "not finite"],
)
@pytest.mark.filterwarnings("ignore:sigma_0 came out as")
def test_it_is_positive_and_bounded(loss):
    x = nn.Parameter(torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64))
    found = estimate_sigma0(lambda: loss(x), None, [x])
    assert 0 < found <= LARGEST
    optimizer = SR2([x], capturable=True)  # one that counts a broken loss instead of raising
    optimizer.step(lambda: loss(x))
    if optimizer.counts["broken"]:  # nothing was learnt from it: the next batch is asked
        assert math.isnan(optimizer.sigma)
    else:
        assert optimizer.sigma_min <= optimizer.sigma < 10 * LARGEST


def test_a_concave_loss_gives_the_modulus():
    x = nn.Parameter(torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64))
    assert estimate_sigma0(lambda: -3 * x.square().sum(), None, [x]) == pytest.approx(6.0)


# ---- no trace


def fingerprint(model):
    state = {**{k: v.clone() for k, v in model.state_dict().items()}, "rng": torch.get_rng_state()}
    return state, [None if p.grad is None else (id(p.grad), p.grad.clone()) for p in model.parameters()]


def same(a, b):
    assert all(torch.equal(a[0][k], b[0][k]) for k in a[0])
    for x, y in zip(a[1], b[1], strict=True):
        assert (x is None) == (y is None)
        assert x is None or (x[0] == y[0] and torch.equal(x[1], y[1]))


@pytest.mark.parametrize("kind", ["forward only", "LBFGS kind", "no double backward"])
@pytest.mark.filterwarnings("ignore:sigma_0 by finite differences")
def test_nothing_is_touched_and_it_is_deterministic(kind):
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, 3))
    parameters = list(model.parameters())
    parameters[0].grad = torch.ones_like(parameters[0])  # some have a gradient, some have none

    def closure():
        logits = model(X)
        loss = F.cross_entropy(Once.apply(logits) if kind == "no double backward" else logits, Y)
        if kind == "LBFGS kind":
            for p in parameters:
                p.grad = None
            loss.backward()
        return loss

    before = fingerprint(model)
    found = estimate_sigma0(closure, model, parameters)
    same(before, fingerprint(model))
    assert estimate_sigma0(closure, model, parameters) == found
    assert found > 0


def test_an_error_of_the_closure_is_raised_and_leaves_no_trace():
    model = network()
    before = fingerprint(model)

    def closure():
        model(X.double())
        raise RuntimeError("disk on fire")

    with pytest.raises(RuntimeError, match="disk on fire"):
        estimate_sigma0(closure, model, list(model.parameters()))
    same(before, fingerprint(model))


# ---- without second derivatives


class Once(torch.autograd.Function):
    """The identity, which cannot be differentiated twice."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return g.clone()


def test_the_fallback_says_so_and_is_right_along_the_gradient():
    """|H g| / |g|, which is between the least and the largest modulus of an eigenvalue."""
    xs, loss = quadratic(SPECTRA["spread"])
    g = torch.autograd.grad(loss(), xs, create_graph=True)
    Hg = torch.autograd.grad(g, xs, grad_outputs=[v.detach() for v in g])
    exact = (torch.cat(Hg).norm() / torch.cat(g).norm()).item()
    words = r"sigma_0 by finite differences: no second derivative \(.*differentiated twice\)"
    with pytest.warns(UserWarning, match=words):
        found = estimate_sigma0(lambda: loss(Once.apply), None, xs)
    assert found == pytest.approx(exact, rel=1e-4)


def filling(xs, loss):
    """A closure of the LBFGS kind."""

    def closure():
        for x in xs:
            x.grad = None
        value = loss()
        value.backward()
        return value

    return closure


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_closure_that_fills_the_gradients(dtype, caplog):
    xs, loss = quadratic(torch.full((12,), 4.0), dtype=dtype)  # H = 4 I: every direction has the same curvature
    with caplog.at_level(logging.INFO, "sr2"):
        assert estimate_sigma0(filling(xs, loss), None, xs) == pytest.approx(4.0, rel=0.02)
    assert "the closure fills the gradients itself" in caplog.text


@pytest.mark.parametrize("scale", [1e-3, 0.5, 1e6])
@pytest.mark.parametrize("dtypes", ["bfloat16", "float32", "float64", "bfloat16 float64"])
def test_a_finite_difference_is_longer_than_a_rounding(dtypes, scale):
    generator = torch.Generator().manual_seed(0)
    kinds = [getattr(torch, name) for name in dtypes.split()]
    xs = [nn.Parameter((scale * torch.randn(10_000, generator=generator)).to(kind)) for kind in kinds]
    closure = filling(xs, lambda: sum(h / 2 * x.double().square().sum() for x, h in zip(xs, (100, 1), strict=False)))
    assert estimate_sigma0(closure, None, xs) == pytest.approx(100.0, rel=0.02)


def test_a_finite_difference_knows_how_far_it_went():
    """From 1 to 1.1406 and not 1.1437, which bfloat16 does not have."""
    x = nn.Parameter(torch.ones(9, dtype=torch.bfloat16))
    assert estimate_sigma0(filling([x], lambda: 50 * x.double().square().sum()), None, [x]) == pytest.approx(100, 0.01)


def test_in_float64_a_finite_difference_is_short():
    """Of x^4 at 1 it errs by h."""
    x = nn.Parameter(torch.ones(1, dtype=torch.float64))
    assert estimate_sigma0(filling([x], lambda: x.pow(4).sum()), None, [x]) == pytest.approx(12.0, rel=1e-5)


def test_a_zero_gradient_in_the_fallback():
    x = nn.Parameter(torch.zeros(3))
    with pytest.warns(UserWarning, match="finite differences"):
        assert estimate_sigma0(lambda: Once.apply(x).square().sum(), None, [x]) == 1.0


def test_the_warning_points_at_the_users_line():
    x = nn.Parameter(torch.ones(3))
    optimizer = algorithm_1([x])
    with pytest.warns(UserWarning, match="finite differences") as caught:
        optimizer.step(lambda: Once.apply(x).square().sum())
    assert caught[0].filename == __file__


@pytest.mark.parametrize("inside", [False, True], ids=["around the step", "inside the closure"])
def test_autocast(inside):
    model = network(norm=False).float()
    exact = torch.linalg.eigvalsh(dense_hessian(model, lambda net: F.cross_entropy(net(X), Y)))[-1].item()

    def closure():
        with torch.autocast("cpu", torch.bfloat16, enabled=inside):
            return F.cross_entropy(model(X).float(), Y)

    with torch.autocast("cpu", torch.bfloat16, enabled=not inside):
        found = estimate_sigma0(closure, model, list(model.parameters()))
        SR2(model).step(closure)
    assert found == pytest.approx(exact, rel=0.1)


# ---- in the optimizer


def test_the_first_step_is_accepted_with_sigma_0():
    """On a quadratic L = sigma gives rho >= 1/2."""
    for name, spectrum in SPECTRA.items():
        xs, loss = quadratic(spectrum)
        optimizer = SR2(xs)
        optimizer.step(loss)
        assert optimizer.last_step.accepted, name
        assert optimizer.last_step.rho >= 0.48
