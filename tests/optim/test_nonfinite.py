"""What is not finite: rejected at the trial point, an error at x_t, and a domain that is entered once."""

import copy
import math
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sr2 import L0, L1, NM, SR2, Box, L0Ball, Nuclear, Rank
from sr2.metrics import Andrei
from sr2.rules import Ratio
from tests.tools import algorithm_1, same_bits

NAN, INF = math.nan, math.inf
X = torch.randn(24, 8, generator=torch.Generator().manual_seed(1))
Y = torch.arange(24) % 3


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 3))


def flatten(tree):
    """Every number of a nested state, as tensors."""
    if isinstance(tree, dict):
        return {f"{k}.{name}": t for k, v in tree.items() for name, t in flatten(v).items()}
    if isinstance(tree, (list, tuple)):
        return flatten(dict(enumerate(tree)))
    return {"": tree.detach().clone() if isinstance(tree, torch.Tensor) else tree}


def everything(model, optimizer):
    return {**flatten(copy.deepcopy(optimizer.state_dict())), **flatten(dict(model.state_dict()))}


def assert_untouched(before, after):
    assert before.keys() == after.keys()
    for name, value in before.items():
        same = torch.equal(value, after[name]) if isinstance(value, torch.Tensor) else value == after[name]
        assert same, name


# ---- at the trial point


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("foreach", [False, True, None])
@pytest.mark.parametrize("R", [None, L1(0.01), L0Ball(k=20)], ids=repr)
def test_a_trial_that_is_not_finite_is_rejected(bad, foreach, R):
    model = network()
    if R is not None:
        with torch.no_grad():
            for i in (0, 3):
                model[i].weight.copy_(R.prox(model[i].weight, 1.0))
            model[3].weight.zero_()
    optimizer = SR2(model, R, sigma=2.0, gamma1=2.0, gamma2=3.0, foreach=foreach)
    calls = []

    def closure():
        calls.append(0)
        loss = F.cross_entropy(model(X), Y)
        return loss if len(calls) % 2 else loss + bad

    before = [p.detach().clone() for p in model.parameters()]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss = optimizer.step(closure)
    assert loss.isfinite()
    last = optimizer.last_step
    assert last.accepted is False
    assert math.isnan(last.rho)
    assert last.sigma == optimizer.sigma == 6.0  # gamma2
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))
    assert model[1].num_batches_tracked == 1
    assert optimizer.counts["rejected"] == 1


@pytest.mark.parametrize("foreach", [False, True, None])
@pytest.mark.parametrize("R", [None, L1(1.0), L0(1.0), Box(-INF, INF)], ids=repr)
def test_a_step_that_overflows_is_rejected(R, foreach):
    x = nn.Parameter(torch.tensor([1.0, -2.0]))
    optimizer = algorithm_1([x], R, sigma=1e-30, sigma_min=1e-30, foreach=foreach)
    norms = []
    for _ in range(80):
        before = x.detach().clone()
        optimizer.step(lambda: (1e5 * x).square().sum())
        if optimizer.last_step.accepted is False:
            assert torch.equal(x, before)
            norms.append(optimizer.last_step.step_norm)
        assert x.isfinite().all()
    assert norms[0] == INF
    assert math.isfinite(norms[-1])
    assert x.abs().max() < 0.1


# ---- at x_t


@pytest.mark.parametrize("bad", ["loss NaN", "loss inf", "gradient NaN", "gradient inf", "objective NaN"])
@pytest.mark.parametrize(
    "options",
    [{}, {"momentum": 0.9}, {"metric": "adam"}, {"momentum": 0.9, "metric": "andrei"}],
    ids=str,
)
@pytest.mark.parametrize("R", [L1(0.01), Box(-1.0, 1.0), None], ids=repr)
def test_not_finite_at_x_is_an_error_that_touches_nothing(bad, options, R):
    model, twin = network(), network()
    optimizer, other = (SR2(m, R, sigma=2.0, **options) for m in (model, twin))
    for _ in range(3):
        optimizer.step(lambda: F.cross_entropy(model(X), Y))
        other.step(lambda: F.cross_entropy(twin(X), Y))
    before = everything(model, optimizer)
    last = optimizer.last_step

    def closure():
        loss = F.cross_entropy(model(X + 1), Y)
        if bad == "loss NaN":
            return loss * NAN
        if bad == "loss inf":
            return loss + INF
        if bad == "gradient NaN":  # sqrt'(0) * 0
            return loss + ((model[3].weight[0, 0] * 0).square()).sqrt()
        if bad == "gradient inf":
            return loss + (model[3].weight[0, 0] - model[3].weight[0, 0].detach()).abs().sqrt().clamp_max(1)
        return loss

    words = {"loss": "the loss at x_t is (nan|inf)", "gradient": "its gradient is not", "objective": "objective"}
    objective = (lambda: F.cross_entropy(model(X), Y) * NAN) if bad.startswith("objective") else None
    with pytest.raises(FloatingPointError, match=words[bad.split()[0]] + ".*skip this batch"):
        optimizer.step(closure, objective)
    assert_untouched(before, everything(model, optimizer))
    assert optimizer.last_step == last
    # Training goes on, to the same bits as if the batch had never been.
    for _ in range(3):
        optimizer.step(lambda: F.cross_entropy(model(X), Y))
        other.step(lambda: F.cross_entropy(twin(X), Y))
    assert_untouched(everything(twin, other), everything(model, optimizer))


def test_the_generator_too_is_as_before_a_step_that_is_called_off():
    model = nn.Sequential(nn.Linear(8, 3), nn.Dropout(0.5))
    optimizer = SR2(model, L1(0.01), sigma=2.0)
    before = torch.get_rng_state()
    with pytest.raises(FloatingPointError):
        optimizer.step(lambda: F.cross_entropy(model(X), Y) * NAN)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("R", [Rank(1), Nuclear(0.1), NM(2, 4), L0Ball(k=3)], ids=repr)
@pytest.mark.parametrize("bad", [NAN, INF])
def test_a_gradient_that_is_not_finite_under_a_regularizer_that_is_not_separable(R, bad):
    w = nn.Parameter(R.prox(torch.randn(4, 4), 1.0))
    optimizer = SR2([w], R, sigma=1.0)
    before = w.detach().clone()

    class Bad(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.sum()

        @staticmethod
        def backward(ctx, g):
            return torch.full((4, 4), bad)

    with pytest.raises(FloatingPointError, match="its gradient is not"):
        optimizer.step(lambda: Bad.apply(w))
    assert torch.equal(w, before)
    optimizer.step(lambda: w.square().sum())
    assert optimizer.last_step.accepted is not None


@pytest.mark.parametrize("R", [Rank(1), Nuclear(0.1)], ids=repr)
def test_a_trial_that_overflows_under_a_regularizer_that_is_not_separable(R):
    w = nn.Parameter(R.prox(torch.randn(4, 4), 1.0))
    before = w.detach().clone()
    optimizer = algorithm_1([w], R, sigma=1e-6)
    optimizer.step(lambda: 1e36 * w.sum())
    assert optimizer.last_step.accepted is False
    assert torch.equal(w, before)


# ---- the domain of R


OUTSIDE = [L0Ball(k=5), L0Ball(density=0.1), Box(-0.1, 0.1), NM(2, 4), Rank(1)]


@pytest.mark.parametrize("R", OUTSIDE, ids=repr)
def test_an_x0_outside_the_domain_is_moved_once_and_said(R):
    model = network()
    projected = R.prox([model[0].weight, model[3].weight], 0.5)
    biases = [model[0].bias.detach().clone(), model[3].bias.detach().clone()]
    optimizer = SR2(model, R, sigma=2.0, reach=None)
    seen = []

    def closure():
        seen.append((model[0].weight.detach().clone(), model[0].bias.detach().clone()))
        return F.cross_entropy(model(X), Y)

    with pytest.warns(UserWarning, match=r"R\(x_0\) is infinite.*moved to its prox") as record:
        optimizer.step(closure)
    assert len(record) == 1
    assert repr(R) in str(record[0].message)
    assert record[0].filename == __file__  # it points at the user's own line
    assert torch.equal(seen[0][0], projected[0])
    assert torch.equal(seen[0][1], biases[0])
    for _ in range(5):  # warnings are errors: it is said once
        optimizer.step(closure)
        assert R.value([model[0].weight.detach(), model[3].weight.detach()]).isfinite()


@pytest.mark.parametrize("R", OUTSIDE, ids=repr)
def test_no_word_after_load_state_dict(R):
    model = network()
    optimizer = SR2(model, R, sigma=2.0, reach=None)
    closure = lambda: F.cross_entropy(model(X), Y)  # noqa: E731
    with pytest.warns(UserWarning, match="moved to its prox"):
        optimizer.step(closure)
    again = SR2(model, R, sigma=2.0, reach=None)
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    again.step(closure)


@pytest.mark.parametrize("R", OUTSIDE, ids=repr)
def test_an_x_that_left_the_domain_is_brought_back(R):
    model = network()
    with torch.no_grad():
        for p, z in zip(
            (model[0].weight, model[3].weight), R.prox([model[0].weight, model[3].weight], 1.0), strict=True
        ):
            p.copy_(z)
    optimizer = SR2(model, R, sigma=2.0)
    calls = []

    def closure():
        calls.append(0)
        return F.cross_entropy(model(X), Y)

    optimizer.step(closure)
    hooked = []
    optimizer.register_step_post_hook(lambda *a: hooked.append(0))
    with torch.no_grad():
        nn.init.normal_(model[0].weight)
    with pytest.warns(UserWarning, match="moved to its prox") as record:
        optimizer.step(closure)
    assert record[0].filename == __file__
    assert len(hooked) == 1  # one step, though it was begun twice
    assert R.value([model[0].weight.detach(), model[3].weight.detach()]).isfinite()
    assert model[1].num_batches_tracked == 2
    optimizer.step(closure)
    assert sum(optimizer.counts.values()) == 3


def test_a_group_that_is_added_outside_its_domain_is_moved_too():
    a, b = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.ones(3))
    optimizer = SR2([a], Box(-0.1, 0.1), sigma=2.0)
    optimizer.step(lambda: a.square().sum() + b.sum())
    optimizer.add_param_group({"params": [b], "regularizer": Box(-0.5, 0.5)})
    with pytest.warns(UserWarning, match=r"Box\(lo=-0.5, hi=0.5\) \(group 1\)"):
        optimizer.step(lambda: a.square().sum() + b.sum())
    assert (b.abs() <= 0.5).all()


# ---- null steps, and rounding


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_null_step_changes_nothing(momentum):
    x = nn.Parameter(torch.zeros(3))
    optimizer = SR2([x], L1(1.0), sigma=2.0, momentum=momentum)
    for t in range(1, 4):
        optimizer.step(lambda: 0.5 * x.sum())
        last = optimizer.last_step
        assert last.accepted is None
        assert math.isnan(last.rho)
        assert (last.sigma, last.step_norm) == (2.0, 0.0)
        assert (x == 0).all()
        assert optimizer.counts["null"] == t
    assert optimizer.counts["accepted"] == optimizer.counts["rejected"] == 0


@pytest.mark.parametrize(("R", "momentum"), [(None, 0.0), (L1(0.1), 0.9), (L0(0.01), 0.0)], ids=repr)
def test_sigma_does_not_run_away_at_convergence_in_float32(R, momentum):
    """f(x) - f(x + s) is all rounding there: without a slack every second step is rejected, for good."""
    torch.manual_seed(4)
    A, y = torch.randn(40, 10), 3 + torch.randn(40)
    x = nn.Parameter(torch.randn(10))
    optimizer = algorithm_1([x], R, sigma=1.0, momentum=momentum)
    L = torch.linalg.eigvalsh(A.T @ A / 40)[-1].item()
    f = lambda: (A @ x - y).square().mean() / 2  # noqa: E731
    for _ in range(800):
        optimizer.step(f)
        assert optimizer.sigma <= 5.56 * 50 * L  # gamma1 sigma_succ: the paper's sigma_max
    assert f().item() < 0.99 * (y.square().mean() / 2)
    assert optimizer.sigma <= 10 * L


def test_the_slack_is_in_both_parts_of_rho():
    """A step far below the rounding of f: actual is 0, predicted 1e-18, and rho is near 1, not 0 and not 2000."""
    x = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = algorithm_1([x], sigma=1.0)
    optimizer.step(lambda: 1.0 + 1e-9 * x.sum())
    last = optimizer.last_step
    assert last.actual == 0.0
    assert last.predicted == pytest.approx(1e-18)
    slack = 10 * torch.finfo(torch.float64).eps
    assert last.rho == pytest.approx(slack / (1e-18 + slack), rel=1e-12)
    assert last.accepted


def test_andreis_metric_starts_at_one_after_a_first_batch_that_taught_nothing():
    def second(spoil):
        x = nn.Parameter(torch.ones(3))
        optimizer = SR2([x], sigma=40.0, metric=Andrei(), rule=Ratio(gamma3=0.8), capturable=True)
        if spoil:
            optimizer.step(lambda: math.nan * x.sum())
        for _ in range(2):
            optimizer.step(lambda: x.square().sum())
        return x.detach().clone(), optimizer.state[x]["curvature"].clone()

    assert same_bits(second(True), second(False))
