"""The loop and the flat path compute the same thing, on every shape and dtype; and a step reads the host once."""

import pytest
import torch
from torch import nn

from sr2 import L0, L1, SR2, L0Ball, Lp
from sr2.optim.moves.moments import laid_like
from sr2.optim.parts.rules import Evidence
from tests.optimizers import BASELINES, OPTIMIZERS, SETS, named
from tests.registry import FEW
from tests.tools import HostReads, Operations

every = pytest.mark.parametrize("case", OPTIMIZERS, ids=named)
every_set = pytest.mark.parametrize(("case", "options"), SETS, ids=named)
REGULARIZERS = [None, *(c.scaled(0.04) if c.scaled else c.regularizer for c in FEW)]


def parameters(dtype=torch.float64):
    """A matrix, a vector, a number, an empty tensor, channels_last, and two that are not contiguous."""
    torch.manual_seed(0)
    tensors = [
        torch.randn(3, 4, dtype=dtype),
        torch.randn(5, dtype=dtype),
        torch.randn((), dtype=dtype),
        torch.randn(0, 3, dtype=dtype),
        torch.randn(2, 3, 4, 4, dtype=dtype).to(memory_format=torch.channels_last),
        torch.randn(4, 6, dtype=dtype).T,
        torch.randn(8, 3, dtype=dtype)[::2],
    ]
    return [nn.Parameter(t) for t in tensors]


def loss(xs, t):
    """Different at every step, neither convex nor separable."""
    total = sum(((x.double() - 0.3 * t).square() + 0.2 * (5 * x.double()).cos()).sum() for x in xs)
    return total / 30 + 0.01 * total.sin()


def run(case, R, foreach, options="plain", steps=12, xs=None, **more):
    xs = parameters() if xs is None else xs
    strides = [x.stride() for x in xs]
    optimizer = case.make(xs, R, options, foreach=foreach, **{**case.lively, **more})
    infos = []
    for t in range(steps):
        optimizer.step(lambda t=t: loss(xs, t % 3))
        infos.append(optimizer.last_step if case.judges else None)
    assert [x.stride() for x in xs] == strides
    return xs, infos


PAIRS = [
    (case, R, options)
    for R in REGULARIZERS
    for case, options in SETS
    if case.takes(R) and (isinstance(R, L1) or not options.startswith("momentum "))  # both together: once
]


@pytest.mark.parametrize(("case", "R", "options"), PAIRS, ids=named)
def test_the_loop_and_the_flat_path_agree(case, R, options):
    start = [x.detach() for x in parameters()]
    start = start if R is None else R.prox(start, 1.0)  # where R is finite
    one, other = ([nn.Parameter(x.clone(memory_format=torch.preserve_format)) for x in start] for _ in range(2))
    slow, a = run(case, R, False, options, xs=one)
    fast, b = run(case, R, True, options, xs=other)
    for x, y in zip(slow, fast, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-12)
    assert any(not torch.equal(x, s) for x, s in zip(slow, start, strict=True))
    if case.judges:
        assert [i.accepted for i in a] == [i.accepted for i in b]
        assert [i.sigma for i in a] == [i.sigma for i in b]
        for i, j in zip(a, b, strict=True):
            for field in ("loss", "trial_loss", "predicted", "actual", "step_norm"):
                assert getattr(i, field) == pytest.approx(getattr(j, field), rel=1e-9, abs=1e-12)
        assert any(i.accepted for i in a)


@every_set
def test_the_default_path_agrees_too(case, options):
    slow, _ = run(case, L1(0.02), False, options)
    default, _ = run(case, L1(0.02), None, options)
    for x, y in zip(slow, default, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-12)


@every_set
@pytest.mark.parametrize("foreach", [False, True, None])
def test_mixed_dtypes_in_one_group(case, options, foreach):
    dtypes = [torch.float32, torch.float64, torch.bfloat16, torch.float32]
    torch.manual_seed(0)
    xs = [nn.Parameter(torch.randn(4, dtype=torch.float64).to(d)) for d in dtypes]
    start = [x.detach().clone() for x in xs]
    run(case, L1(0.02), foreach, options, xs=xs)
    assert [x.dtype for x in xs] == dtypes
    assert all(x.isfinite().all() for x in xs)
    assert all(not torch.equal(x, s) for x, s in zip(xs, start, strict=True))


@every
@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_lower_precision_follows_float64(case, foreach, dtype):
    """One step from the same point: the result is the float64 one, rounded."""
    rounded = [p.detach().to(dtype) for p in parameters()]
    exact, _ = run(case, L1(0.02), False, steps=1, xs=[nn.Parameter(p.double()) for p in rounded])
    mine, _ = run(case, L1(0.02), foreach, steps=1, xs=[nn.Parameter(p) for p in rounded])
    for x, y in zip(mine, exact, strict=True):
        torch.testing.assert_close(x.double(), y, rtol=4 * torch.finfo(dtype).eps, atol=4 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("R", [L1(1e-3), L0(1e-3), L0Ball(density=0.9)], ids=repr)
def test_bfloat16_parameters_train(R):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1)).bfloat16()
    with torch.no_grad():
        weights = [model[0].weight, model[2].weight]
        for w, z in zip(weights, R.prox(weights, 1.0), strict=True):
            w.copy_(z)
    x = torch.randn(64, 6)
    y = x[:, :1] - x[:, 1:2]
    optimizer = SR2(model, R, sigma=4.0, reach=None)
    losses = [optimizer.step(lambda: (model(x.bfloat16()).float() - y).square().mean()).item() for _ in range(200)]
    assert losses[-1] < 0.5 * losses[0]
    assert all(p.dtype == torch.bfloat16 for p in model.parameters())


# ---- host reads


JUDGES = [case for case in OPTIMIZERS if case.judges]
READING = [(case, L1(0.02), options) for case in JUDGES for options in case.options]
READING += [(case, R, "plain") for case in JUDGES for R in (L0(0.01), Lp(0.02, 0.7), L0Ball(density=0.4))]


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize(("case", "R", "options"), READING, ids=named)
def test_one_host_read_per_step(case, R, options, foreach, monkeypatch):
    """Nothing reads a number before those of the step are moved, once, all together."""
    torch.manual_seed(0)
    xs = [nn.Parameter(x) for x in R.prox([torch.randn(3, 4), torch.randn(5)], 1.0)]
    optimizer = case.make(xs, R, options, sigma=300.0, foreach=foreach)
    f = lambda: sum(x.square().sum() for x in xs)  # noqa: E731
    optimizer.step(f)  # the first looks whether R(x_0) is finite
    before, gather = [], Evidence.gather

    with HostReads(of_the_host=case.on_host(optimizer)) as reads:

        def counting(*args, **options):
            before.append(list(reads.seen))
            return gather(*args, **options)

        monkeypatch.setattr(Evidence, "gather", counting)
        optimizer.step(f)
        assert before == [[]]
        reads.seen.clear()
        optimizer.step(f)
    assert before == [[], []]
    assert optimizer.counts["accepted"] == 3


@pytest.mark.parametrize(("case", "options"), [(c, o) for c in BASELINES for o in c.options], ids=named)
def test_the_baselines_read_nothing(case, options):
    xs = [nn.Parameter(torch.randn(3, 4)), nn.Parameter(torch.randn(5))]
    optimizer = case.make(xs, L1(0.02), options)
    with HostReads(of_the_host=case.on_host(optimizer)) as reads:
        for _ in range(3):
            optimizer.step(lambda: sum(x.square().sum() for x in xs))
    assert reads.seen == []


# ---- operations


def operations(work):
    with Operations() as seen:
        work()
    return seen.count


@pytest.mark.parametrize(("test_every", "most"), [(1, 80), (10**9, 72)], ids=["tested", "on trust"])
def test_a_step_asks_little_of_torch_beside_the_networks_work(test_every, most):
    """On a small network the number of operations is the time. AdamW has 62 here."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    x, y = torch.randn(64, 10), torch.randn(64, 1)
    f = lambda: nn.functional.mse_loss(model(x), y)  # noqa: E731
    optimizer = SR2(model, steps=1000, test_every=test_every)
    for _ in range(5):  # the first three are looked at closely
        optimizer.step(f)
    network = operations(lambda: f().backward()) + (operations(f) if test_every == 1 else 0)
    assert optimizer.last_step.accepted
    assert operations(lambda: optimizer.step(f)) - network <= most


def test_the_kernel_copies_no_gradient_that_lies_as_its_parameter_does():
    """A 1 x 1 convolution's weight and gradient may differ in strides that address nothing."""
    x = torch.randn(8, 4, 1, 1).to(memory_format=torch.channels_last)
    same, other = torch.randn(8, 4, 1, 1), torch.randn(4, 8, 1, 1).transpose(0, 1)
    assert x.stride() != same.stride()
    assert laid_like(same, x) is same
    laid = laid_like(other, x)
    assert laid is not other
    assert torch.equal(laid, other)
    assert laid.stride() == x.stride()
