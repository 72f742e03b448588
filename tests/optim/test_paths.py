"""The loop and the flat path compute the same thing, on every shape and dtype; and a step reads the host once."""

import pytest
import torch
from torch import nn

import sr2
from sr2 import L0, L1, MCP, SCAD, SR2, Box, ElasticNet, L0Ball, Lp, ProxGEN, ProxSGD
from sr2.optim.moves.fused import _laid_like
from sr2.optim.parts.rules import Evidence
from tests.tools import HostReads

SEPARABLE = [
    L1(0.02),
    L0(0.01),
    Lp(0.02, 0.5),
    Lp(0.02, 0.7),
    ElasticNet(0.02, 0.1),
    MCP(0.05, 2.5),
    SCAD(0.05, 3.7),
    Box(-3.0, 3.0),
]


def test_every_separable_regularizer_is_here():
    public = [getattr(sr2, name) for name in sr2.__all__]
    separable = {r for r in public if isinstance(r, type) and issubclass(r, sr2.Regularizer) and r.separable}
    assert separable == {type(R) for R in SEPARABLE}


def parameters(dtype=torch.float64, seed=0):
    """A matrix, a vector, a number, an empty tensor, channels_last, and two that are not contiguous."""
    torch.manual_seed(seed)
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


def run(kind, R, foreach, steps=12, dtype=torch.float64, xs=None, **options):
    xs = parameters(dtype) if xs is None else xs
    strides = [x.stride() for x in xs]
    optimizer = kind(xs, R, foreach=foreach, **({"sigma": 0.2} if kind is SR2 else {}), **options)
    infos = []
    for t in range(steps):
        optimizer.step(lambda t=t: loss(xs, t % 3))
        infos.append(getattr(optimizer, "last_step", None))
    assert [x.stride() for x in xs] == strides
    return xs, infos


OPTIONS = {
    "plain": {},
    "adam": {"metric": "adam"},
    "momentum": {"momentum": 0.9},
    "both": {"momentum": 0.9, "metric": "rmsprop"},
    "andrei": {"metric": "andrei"},
}


def fits(kind, R, options):
    """ProxSGD takes a convex R and has no momentum option; a metric needs a separable R."""
    if kind is ProxSGD and ((R is not None and not R.convex) or options not in ("plain", "adam")):
        return False
    return not (isinstance(R, L0Ball) and "metric" in OPTIONS[options])


PAIRS = [
    pytest.param(kind, R, options, id=f"{kind.__name__}-{R!r}-{options}")
    for kind in (SR2, ProxGEN, ProxSGD)
    for R in (*SEPARABLE, None, L0Ball(density=0.4))
    for options in OPTIONS
    if fits(kind, R, options)
]


@pytest.mark.parametrize(("kind", "R", "options"), PAIRS)
def test_the_loop_and_the_flat_path_agree(kind, R, options):
    keywords = OPTIONS[options]
    if kind is ProxSGD and options == "plain":
        keywords = {"metric": None}
    xs = parameters()
    if isinstance(R, L0Ball):
        with torch.no_grad():
            for x, z in zip(xs, R.prox(xs, 1.0), strict=True):
                x.copy_(z)
    start = [x.detach().clone() for x in xs]
    slow, a = run(kind, R, False, xs=xs, **keywords)
    again = [nn.Parameter(x.clone(memory_format=torch.preserve_format)) for x in start]
    fast, b = run(kind, R, True, xs=again, **keywords)
    for x, y in zip(slow, fast, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-12)
    assert any(not torch.equal(x, s) for x, s in zip(slow, start, strict=True))
    if kind is SR2:
        assert [i.accepted for i in a] == [i.accepted for i in b]
        assert [i.sigma for i in a] == [i.sigma for i in b]
        for i, j in zip(a, b, strict=True):
            for field in ("loss", "trial_loss", "predicted", "actual", "step_norm"):
                assert getattr(i, field) == pytest.approx(getattr(j, field), rel=1e-9, abs=1e-12)
        assert any(i.accepted for i in a)


@pytest.mark.parametrize("kind", [SR2, ProxGEN])
@pytest.mark.parametrize("options", ["plain", "both"])
def test_the_default_path_agrees_too(kind, options):
    slow, _ = run(kind, L1(0.02), False, **OPTIONS[options])
    default, _ = run(kind, L1(0.02), None, **OPTIONS[options])
    for x, y in zip(slow, default, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", [SR2, ProxGEN, ProxSGD])
@pytest.mark.parametrize("foreach", [False, True, None])
@pytest.mark.parametrize("options", ["plain", "adam", "andrei"])
def test_mixed_dtypes_in_one_group(kind, foreach, options):
    dtypes = [torch.float32, torch.float64, torch.bfloat16, torch.float32]
    torch.manual_seed(0)
    xs = [nn.Parameter(torch.randn(4, dtype=torch.float64).to(d)) for d in dtypes]
    start = [x.detach().clone() for x in xs]
    keywords = {"metric": None, "rho": None} if kind is ProxSGD and options == "plain" else OPTIONS[options]
    if kind is not SR2:
        keywords = {"lr": 0.3, **keywords}
    run(kind, L1(0.02), foreach, xs=xs, **keywords)
    assert [x.dtype for x in xs] == dtypes
    assert all(x.isfinite().all() for x in xs)
    assert all(not torch.equal(x, s) for x, s in zip(xs, start, strict=True))


@pytest.mark.parametrize("kind", [SR2, ProxGEN, ProxSGD])
@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_lower_precision_follows_float64(kind, foreach, dtype):
    """One step from the same point: the result is the float64 one, rounded."""
    options = {"lr": 0.3} if kind is not SR2 else {}
    exact, _ = run(
        kind, L1(0.02), False, steps=1, xs=[nn.Parameter(p.to(dtype).double()) for p in parameters()], **options
    )
    mine, _ = run(
        kind, L1(0.02), foreach, steps=1, dtype=dtype, xs=[nn.Parameter(p.to(dtype)) for p in parameters()], **options
    )
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
    optimizer = SR2(model, R, sigma=4.0)
    losses = [optimizer.step(lambda: (model(x.bfloat16()).float() - y).square().mean()).item() for _ in range(200)]
    assert losses[-1] < 0.5 * losses[0]
    assert all(p.dtype == torch.bfloat16 for p in model.parameters())


# ---- host reads


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize(
    ("R", "options"),
    [(L1(0.02), o) for o in OPTIONS] + [(R, "plain") for R in (L0(0.01), Lp(0.02, 0.7), L0Ball(density=0.4))],
    ids=repr,
)
def test_one_host_read_per_step(R, foreach, options, monkeypatch):
    """Nothing reads a number before those of the step are moved, once, all together."""
    torch.manual_seed(0)
    xs = [nn.Parameter(x) for x in R.prox([torch.randn(3, 4), torch.randn(5)], 1.0)]
    optimizer = SR2(xs, R, sigma=300.0, foreach=foreach, **OPTIONS[options])
    f = lambda: sum(x.square().sum() for x in xs)  # noqa: E731
    optimizer.step(f)  # the first looks whether R(x_0) is finite
    before, gather = [], Evidence.gather

    with HostReads(of_the_host=[optimizer._search.sigma]) as reads:

        def counting(*args):
            before.append(list(reads.seen))
            return gather(*args)

        monkeypatch.setattr(Evidence, "gather", counting)
        optimizer.step(f)
        assert before == [[]]
        reads.seen.clear()
        optimizer.step(f)
    assert before == [[], []]
    assert optimizer.counts["accepted"] == 3


@pytest.mark.parametrize("kind", [ProxGEN, ProxSGD])
@pytest.mark.parametrize("metric", [None, "adam", "andrei"])
def test_the_baselines_read_nothing(kind, metric):
    xs = [nn.Parameter(torch.randn(3, 4)), nn.Parameter(torch.randn(5))]
    optimizer = kind(xs, L1(0.02), metric=metric)
    with HostReads(of_the_host=[optimizer._count.t] if kind is ProxSGD else []) as reads:
        for _ in range(3):
            optimizer.step(lambda: sum(x.square().sum() for x in xs))
    assert reads.seen == []


def test_the_kernel_copies_no_gradient_that_lies_as_its_parameter_does():
    """A 1 x 1 convolution's weight and gradient may differ in strides that address nothing."""
    x = torch.randn(8, 4, 1, 1).to(memory_format=torch.channels_last)
    same, other = torch.randn(8, 4, 1, 1), torch.randn(4, 8, 1, 1).transpose(0, 1)
    assert x.stride() != same.stride()
    assert _laid_like(same, x) is same
    laid = _laid_like(other, x)
    assert laid is not other
    assert torch.equal(laid, other)
    assert laid.stride() == x.stride()
