"""ProxGEN and ProxSGD: their reductions to torch's optimizers, metrics, schedulers; steps without a closure."""

import numpy as np
import pytest
import torch
from torch import nn

from sr2 import L1, SR2, Nuclear, ProxGEN, ProxSGD
from sr2.optim import ProximalOptimizer
from sr2.optim.parts.metrics import AdaGrad, Adam, Andrei, RMSprop
from tests.optimizers import BASELINES, OPTIMIZERS, named
from tests.oracles import andrei_twin
from tests.registry import ONE_OF_EACH
from tests.tools import same_bits

X, Y = torch.randn(64, 6, generator=torch.Generator().manual_seed(1)), torch.arange(64) % 3


def network(dtype=torch.float32):
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(6, 10), nn.BatchNorm1d(10), nn.Tanh(), nn.Linear(10, 3)).to(dtype)


def train(model, optimizer, steps, scheduler=None, dtype=torch.float32):
    for t in range(steps):
        batch = slice(8 * (t % 8), 8 * (t % 8) + 8)
        x, y = X[batch].to(dtype), Y[batch]
        if isinstance(optimizer, ProximalOptimizer):
            optimizer.step(lambda x=x, y=y: nn.functional.cross_entropy(model(x), y))
        else:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        if scheduler:
            scheduler.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


SCHEDULERS = {
    "none": lambda o: None,
    "StepLR": lambda o: torch.optim.lr_scheduler.StepLR(o, 10, 0.7),
    "Cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 100),
}


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_proxgen_with_adam_is_adamw(scheduler, foreach, dtype):
    mine, theirs = network(dtype), network(dtype)
    a = ProxGEN(mine, lr=3e-3, momentum=0.9, metric="adam", weight_decay=0.1, foreach=foreach)
    b = torch.optim.AdamW(theirs.parameters(), lr=3e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1)
    start = torch.cat([p.detach().flatten() for p in theirs.parameters()])
    x = train(mine, a, 100, SCHEDULERS[scheduler](a), dtype)
    y = train(theirs, b, 100, SCHEDULERS[scheduler](b), dtype)
    # Adam divides by sqrt(g^2): where g is all rounding (the bias before a batch norm) so is the step.
    free = torch.ones_like(x, dtype=torch.bool)
    free[60:70] = False
    torch.testing.assert_close(x[free], y[free], rtol=0, atol=1e-11 if dtype == torch.float64 else 1e-5)
    assert (y - start).abs().max() > 0.05


def test_proxgen_with_adam_is_adamw_in_float32():
    """In float32 too, where no gradient is rounding only."""
    torch.manual_seed(0)
    shapes = [(6, 10), (10,), (10, 3), ()]
    targets = [torch.randn(s) for s in shapes]
    mine = [nn.Parameter(torch.zeros(s)) for s in shapes]
    theirs = [nn.Parameter(torch.zeros(s)) for s in shapes]

    def loss(params, t):
        return sum(((p - q) * (1 + t % 3)).square().sum() for p, q in zip(params, targets, strict=True))

    a = ProxGEN(mine, lr=1e-2, momentum=0.9, metric="adam", weight_decay=0.01)
    b = torch.optim.AdamW(theirs, lr=1e-2, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)
    for t in range(100):
        a.step(lambda t=t: loss(mine, t))
        b.zero_grad()
        loss(theirs, t).backward()
        b.step()
        for p, q in zip(mine, theirs, strict=True):
            torch.testing.assert_close(p, q, rtol=0, atol=2e-6)


@pytest.mark.parametrize(
    ("metric", "baseline"),
    [
        ("rmsprop", lambda ps: torch.optim.RMSprop(ps, lr=3e-3, alpha=0.99, eps=1e-8)),
        (RMSprop(beta=0.9, eps=1e-4), lambda ps: torch.optim.RMSprop(ps, lr=3e-3, alpha=0.9, eps=1e-4)),
        ("adagrad", lambda ps: torch.optim.Adagrad(ps, lr=3e-3, eps=1e-10)),
        (AdaGrad(eps=1e-3), lambda ps: torch.optim.Adagrad(ps, lr=3e-3, eps=1e-3)),
        (Adam(beta=0.95, eps=1e-3), lambda ps: torch.optim.Adam(ps, lr=3e-3, betas=(0.0, 0.95), eps=1e-3)),
        (None, lambda ps: torch.optim.SGD(ps, lr=3e-3)),
    ],
    ids=lambda m: repr(m) if not callable(m) else "",
)
def test_metrics_are_torchs(metric, baseline):
    mine, theirs = network(torch.float64), network(torch.float64)
    x = train(mine, ProxGEN(mine, lr=3e-3, metric=metric), 60, dtype=torch.float64)
    y = train(theirs, baseline(theirs.parameters()), 60, dtype=torch.float64)
    free = torch.ones_like(x, dtype=torch.bool)
    free[60:70] = False
    torch.testing.assert_close(x[free], y[free], rtol=0, atol=1e-9)


@pytest.mark.parametrize("capturable", [False, True])
def test_proxsgd_goes_no_further_than_its_proximal_point(capturable):
    """lr / sqrt(5) = 4.5, and 1 is where x^ = x - g = 0 is."""
    w = nn.Parameter(torch.ones(3, dtype=torch.float64))
    ProxSGD([w], lr=10.0, rho=None, metric=None, capturable=capturable).step(lambda: w.square().sum() / 2)
    assert not w.any()


def test_proxsgd_defaults_are_its_papers():
    group = ProxSGD([nn.Parameter(torch.ones(1))]).param_groups[0]
    assert (group["lr"], group["lr_decay"], group["rho"], group["rho_decay"]) == (0.06, 0.5, 0.9, 0.5)


NOT_CONVEX = [c.regularizer for c in ONE_OF_EACH if not c.convex]


@pytest.mark.parametrize("case", [case for case in OPTIMIZERS if case.convex], ids=named)
@pytest.mark.parametrize("R", NOT_CONVEX, ids=repr)
def test_a_convex_regularizer_is_asked_for(case, R):
    model = nn.Linear(4, 4)
    with pytest.raises(ValueError, match=rf"is not convex, which {case.name} needs: use SR2 or ProxGEN") as error:
        case.make(model, R)
    assert repr(R) in str(error.value)
    with pytest.raises(ValueError, match="not convex"):
        case.make([{"params": model.parameters(), "regularizer": R}])
    optimizer = case.make([model.weight], L1(0.1))
    with pytest.raises(ValueError, match="not convex"):
        optimizer.add_param_group({"params": [model.bias], "regularizer": R})
    assert len(optimizer.param_groups) == 1


@pytest.mark.parametrize("metric", [None, "adam"])
def test_proxsgd_takes_a_convex_regularizer_that_couples_entries(metric):
    model, x = nn.Linear(4, 4), torch.ones(2, 4)
    optimizer = ProxSGD(model, Nuclear(0.1), metric=metric)
    before = model.weight.detach().clone()
    optimizer.step(lambda: model(x).square().mean())
    assert not torch.equal(model.weight, before)


@pytest.mark.parametrize("case", BASELINES, ids=named)
@pytest.mark.parametrize("name", ["StepLR", "Cosine", "OneCycle", "Lambda"])
def test_schedulers(case, name):
    schedulers = torch.optim.lr_scheduler
    model = network()
    optimizer = case.make(model, L1(1e-3), lr=0.1)
    start = optimizer.param_groups[0]["lr"]
    scheduler = {
        "StepLR": lambda: schedulers.StepLR(optimizer, 2, 0.5),
        "Cosine": lambda: schedulers.CosineAnnealingLR(optimizer, 10),
        "OneCycle": lambda: schedulers.OneCycleLR(
            optimizer, 0.2, total_steps=11, cycle_momentum="momentum" in optimizer.defaults
        ),
        "Lambda": lambda: schedulers.LambdaLR(optimizer, lambda t: 0.0 if t >= 5 else 1.0),
    }[name]()
    lrs, moves = [], []
    for _ in range(10):
        lrs.append(optimizer.param_groups[0]["lr"])
        before = model[0].weight.detach().clone()
        train(model, optimizer, 1, scheduler)
        moves.append((model[0].weight.detach() - before).norm().item())
    assert len(set(lrs)) > 1
    assert all(np.isfinite(moves))
    if name == "Lambda":  # lr = 0: the step is really scaled by it
        assert lrs[0] == start
        assert all(m > 0 for m in moves[:5])
        assert all(m == 0 for m in moves[5:])


@pytest.mark.parametrize(("case", "options"), [(c, o) for c in BASELINES for o in c.options], ids=named)
def test_gradients_that_are_there_are_used_without_a_closure(case, options):
    a, b = network(), network()
    x, y = case.make(a, L1(1e-3), options), case.make(b, L1(1e-3), options)
    for _ in range(3):
        x.step(lambda: nn.functional.cross_entropy(a(X), Y))
        y.zero_grad()
        nn.functional.cross_entropy(b(X), Y).backward()
        assert y.step() is None
    assert same_bits(a.parameters(), b.parameters())


def test_momentum_of_proxgen_is_an_average():
    """v = (1 - b) sum b^k g_{t-k} / (1 - b^t): on constant gradients v = g from the first step on."""
    w = nn.Parameter(torch.zeros(3, dtype=torch.float64))
    optimizer = ProxGEN([w], lr=0.1, momentum=0.9)
    for t in range(1, 6):
        optimizer.step(lambda: w.sum())
        torch.testing.assert_close(w.detach(), torch.full((3,), -0.1 * t, dtype=torch.float64), rtol=1e-12, atol=0)


@pytest.mark.parametrize("kind", [SR2, ProxGEN])
def test_andreis_metric_is_its_twin(kind):
    """Over two tensors of one group, B as one vector; and the weak secant equation s'Bs = s'y."""
    rng = np.random.default_rng(4)
    H = torch.tensor(np.diag(np.linspace(0.5, 3.0, 6)) + 0.1 * np.ones((6, 6)))
    a, b = nn.Parameter(torch.tensor(rng.normal(size=(2, 2)))), nn.Parameter(torch.tensor(rng.normal(size=2)))
    flat = lambda: torch.cat([a.flatten(), b])  # noqa: E731
    f = lambda: flat() @ H @ flat() / 2  # noqa: E731
    options = {"sigma": 0.3, "eta2": 0.5} if kind is SR2 else {"lr": 0.02}
    optimizer = kind([a, b], metric="andrei", **options)
    xs, gs, Bs = [], [], []
    for _ in range(12):
        xs.append(flat().detach().numpy().copy())
        optimizer.step(f)
        gs.append(np.concatenate([a.grad.numpy().ravel(), b.grad.numpy()]))
        Bs.append(np.concatenate([optimizer.state[p]["curvature"].numpy().ravel() for p in (a, b)]))
        if len(xs) > 1 and (s := xs[-1] - xs[-2]).any():
            assert s @ (Bs[-1] * s) == pytest.approx(s @ (gs[-1] - gs[-2]), rel=1e-9)
    for mine, theirs in zip(Bs, andrei_twin(xs, gs), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-8, atol=1e-10)
    assert np.ptp(Bs[-1]) > 0.1


def test_andreis_step_uses_the_floored_diagonal():
    w = nn.Parameter(torch.tensor([1.0, 2.0], dtype=torch.float64))
    metric = Andrei(floor=0.25)
    states = [{"curvature": torch.tensor([0.5, 3.0], dtype=torch.float64), "x": w.detach(), "g": torch.zeros(2)}]
    (diagonal,), (new,) = metric.update([w.detach()], [torch.ones(2, dtype=torch.float64)], states)
    assert diagonal.tolist() == [0.5, 3.0]  # s = 0: B stays
    states[0]["curvature"] = torch.tensor([0.1, 3.0], dtype=torch.float64)
    (diagonal,), (new,) = metric.update([w.detach()], [torch.ones(2, dtype=torch.float64)], states)
    assert diagonal.tolist() == [0.25, 3.0]
    assert new["curvature"].tolist() == [0.1, 3.0]


@pytest.mark.parametrize("metric", ["adam", "adagrad", "rmsprop", "andrei"])
def test_sr2_steps_with_sigma_times_the_metric(metric):
    w = nn.Parameter(torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64))
    c = torch.tensor([1.0, 3.0, 0.2], dtype=torch.float64)
    optimizer = SR2([w], L1(0.1), sigma=20.0, metric=metric)
    x, g = w.detach().clone(), c * w.detach()
    optimizer.step(lambda: (c * w.square()).sum() / 2)
    D = {"adam": g.abs() + 1e-8, "adagrad": g.abs() + 1e-10, "rmsprop": 0.1 * g.abs() + 1e-8, "andrei": 1.0}[metric]
    D = 20.0 * D
    u = x - g / D
    expected = u.sign() * (u.abs() - 0.1 / D).clamp_min(0)
    assert optimizer.last_step.accepted
    torch.testing.assert_close(w.detach(), expected, rtol=1e-12, atol=0)
