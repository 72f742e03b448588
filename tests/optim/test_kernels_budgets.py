"""Budgets on the Triton kernels, run by the interpreter: what stays is chosen between two launches."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sr2 import L0, L1, SR2, L0Ball, Ridge
from sr2.metrics import Adam
from sr2.optim.moves import fused
from sr2.optim.moves.fused import FusedMove
from tests.tools import by_loop

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="Triton compiles where there is a CUDA device")
F64 = torch.float64
BUDGETS = [L0Ball(density=0.05), L0Ball(k=40), L0Ball(density=1.0), Ridge(0.3, L0Ball(density=0.3, floor=0))]


@pytest.mark.parametrize(
    ("R", "options"),
    [
        (BUDGETS[0], {}),
        (BUDGETS[1], {"metric": None, "momentum": 0.0}),
        (BUDGETS[2], {"reach": (1, 5)}),
        (BUDGETS[3], {"reach": (1, 5)}),
        (BUDGETS[0], {"weight_decay": 0.0}),
        (None, {"cooldown": (2, 5)}),
        (L1(1e-3), {"weight_decay": "0.05/step"}),
        (L1(1e-3), {"weight_decay": 0.5, "metric": None}),
        (L0(1e-3), {"weight_decay": 0.5, "momentum": 0.0}),
    ],
    ids=str,
)
def test_a_budget_is_chosen_between_two_launches(R, options, monkeypatch):
    """Many whole steps beside those of the loop: within the budget at the end, on its way there, or from within."""
    monkeypatch.setattr(FusedMove, "fits", lambda _: True)

    def run(foreach):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(12, 30), nn.Tanh(), nn.Linear(30, 20), nn.Tanh(), nn.Linear(20, 1))
        weights = [p for p in model.parameters() if p.dim() > 1]
        if R is not None and "reach" not in options:  # from within: nothing is told
            with torch.no_grad():
                for p, z in zip(weights, R.prox(weights, 1e-6), strict=True):
                    p.copy_(z)
        optimizer = SR2(model, R, sigma=30.0, foreach=foreach, capturable=True, **options)
        x, y = torch.randn(64, 12), torch.randn(64, 1)
        kinds = set()
        for _ in range(6):
            optimizer.step(lambda: F.mse_loss(model(x), y))
            kinds.add(type(next(iter(optimizer._moves._made.values()))[1]).__name__)
        assert R is None or bool(R.value(weights).isfinite())
        return [p.detach().clone() for p in model.parameters()], optimizer.counts, optimizer.sigma, kinds

    slow, counts, sigma, _ = run(False)
    quick, other_counts, other_sigma, kinds = run(None)
    assert kinds == {"FusedMove"}
    assert counts == other_counts
    assert other_sigma == pytest.approx(sigma, rel=1e-6)
    for a, b in zip(slow, quick, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("metric", [None, Adam()], ids=str)
@pytest.mark.parametrize("levels", [1, 3])
@pytest.mark.parametrize(
    "share", [None, pytest.param(0.0, marks=pytest.mark.torture), 0.4, pytest.param(1.0, marks=pytest.mark.torture)]
)
@torch.no_grad()
def test_equal_scores_are_chosen_by_order_in_every_group(levels, share, metric, monkeypatch):
    """Two budgets and a group without one; what decreases is infinite, or the forced one, only where x has too much."""
    monkeypatch.setattr(fused, "CHUNK", 512)
    on_device = None if share is None else torch.tensor(share, dtype=F64)

    def made():
        torch.manual_seed(0)
        shapes = [(70, 60), (1,), (40, 13), (9,), (5, 3)]
        xs = [nn.Parameter(torch.randint(levels, shape) / 2.0 + 0.5 * (levels == 1)) for shape in shapes]
        for x in xs:
            x.grad = torch.zeros_like(x)
        groups = [
            {"params": xs[:3], "regularizer": L0Ball(density=0.3)},
            {"params": xs[3:4], "regularizer": None},
            {"params": xs[4:], "regularizer": Ridge(0.2, L0Ball(k=6))},
        ]
        reach = None if share is None else (1, 8)
        optimizer = SR2(groups, sigma=3.0, momentum=0.0, metric=metric, capturable=True, reach=reach, weight_decay=0.3)
        if on_device is not None:
            optimizer._search.share.copy_(on_device)
        return xs, optimizer._proposals()

    (xs, plain), (zs, quick) = made(), made()
    one, other = by_loop(plain), FusedMove(capturable=True)
    other.use(quick)
    a, b = one.to_trial(), other.to_trial()
    assert all(torch.equal(x, z) for x, z in zip(xs, zs, strict=True))
    if share is not None and a.dR.isinf():  # for the loop it is `Reach` that says what is predicted then
        a = a._replace(dR=a.vs + a.sBs)
    torch.testing.assert_close(torch.stack(a[:4]), torch.stack(b[:4]), rtol=1e-6, atol=1e-9)
    assert any(x.count_nonzero() < x.numel() for x in zs) or share == 0.0


@torch.no_grad()
def test_beside_a_budget_a_zero_that_has_none_steps_as_ever():
    def made():
        xs = [nn.Parameter(torch.ones(40)), nn.Parameter(torch.zeros(30))]
        for x in xs:
            x.grad = torch.linspace(-1, 1, x.numel())
        groups = [{"params": xs[:1], "regularizer": L0Ball(k=40)}, {"params": xs[1:], "regularizer": None}]
        return xs, SR2(groups, sigma=3.0, momentum=0.0, capturable=True, weight_decay=0.0)._proposals()

    (xs, plain), (zs, quick) = made(), made()
    move = FusedMove(capturable=True)
    move.use(quick)
    by_loop(plain).to_trial(), move.to_trial()
    for x, z in zip(xs, zs, strict=True):
        torch.testing.assert_close(x, z)


@pytest.mark.filterwarnings("ignore:R\\(x_0\\) is infinite")
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # numpy's, of the interpreter
@pytest.mark.parametrize("fits", [False, True])
def test_a_smaller_budget_that_is_given_between_steps_is_entered(fits, monkeypatch):
    """On the device nobody looks whether x has left R's domain: any step into it is accepted, and sigma stays."""
    monkeypatch.setattr(FusedMove, "fits", staticmethod(lambda _: fits))
    model, x, y = nn.Linear(12, 10), torch.randn(64, 12), torch.randn(64, 10)
    optimizer = SR2(model, L0Ball(k=60), sigma=30.0, capturable=True, reach=None)
    for _ in range(3):
        optimizer.step(lambda: F.mse_loss(model(x), y))
    before = optimizer.sigma
    next(g for g in optimizer.param_groups if g["regularizer"])["regularizer"] = L0Ball(k=12)
    optimizer.step(lambda: F.mse_loss(model(x), y))
    assert optimizer.last_step.accepted
    assert optimizer.sigma == before
    assert model.weight.count_nonzero() <= 12
