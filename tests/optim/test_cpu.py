"""The CPU's paths on tensors of many runs: chunk by chunk, and compiled. Oracle: the loop, tensor by tensor."""

import math
import shutil
import threading
import weakref
from collections import namedtuple

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from sr2 import L0, L1, MCP, SR2, Box, ElasticNet, ProxGEN
from sr2.numerics import RUN, exact_sum
from sr2.optim.moves import choose, compiled, flat, laid
from sr2.optim.moves.base import ByGroup, Proposal
from tests.tools import Interrupt

compiles = pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs g++")
SIGMA = 2.0
BITS = {torch.float32: torch.int32, torch.float64: torch.int64, torch.bfloat16: torch.int16}


@pytest.fixture(autouse=True, params=[0, 4 * RUN], ids=["in chunks", "some end to end"])
def small_chunks(monkeypatch, request):
    monkeypatch.setattr(flat, "ROWS", 2)
    monkeypatch.setattr(laid, "STRIP", 2 * RUN)
    monkeypatch.setattr(choose, "SMALL", request.param)


def same_bits(x, y, zeros=True):
    """Where `zeros` is False, of any sign: torch's own thresholds leave either, by where in memory an entry lies."""
    x, y = (x, y) if zeros else (x + 0.0, y + 0.0)
    return x.shape == y.shape and torch.equal(x.contiguous().view(BITS[x.dtype]), y.contiguous().view(BITS[y.dtype]))


def tensors(dtype=torch.float32):
    """Five runs and a rest (a prime number), whole runs, less than one, shorter runs, not dense, none."""
    torch.manual_seed(0)
    shapes = [(5 * RUN - 3,), (3, RUN), (40,), (16, 8, 4, 4), (30, 70), (64, 60), (0, 3)]
    made = [torch.randn(shape).to(dtype) for shape in shapes]
    made[3] = made[3].to(memory_format=torch.channels_last)
    made[4] = made[4].T
    made[5] = made[5][::2]
    return made


def special(R, dtype=torch.float32):
    """Ties, zeros of both signs, NaN, infinities, the smallest and the largest, in x and in v, over whole runs."""
    t = R.lam / SIGMA if isinstance(R, L1) else (2 * R.lam / SIGMA) ** 0.5
    low, high = torch.finfo(dtype).tiny, torch.finfo(dtype).max
    numbers = [0.0, -0.0, t, -t, math.nextafter(t, 1), low, -low / 4, high, -high, math.inf, -math.inf, math.nan, 1.0]
    x = torch.tensor([a for a in numbers for _ in numbers], dtype=dtype)
    v = torch.tensor([b for _ in numbers for b in numbers], dtype=dtype)
    return x.repeat(2 * RUN)[: 3 * RUN], v.repeat(2 * RUN)[: 3 * RUN]


Sums = namedtuple("Sums", "vs dR ss sBs")
LOOP, CHUNKS, COMPILED = {"foreach": False}, {"foreach": True}, {"compile": True}


def moved(xs, vs, R, **path):
    """The trial point, the scalars of the model, what was kept, and the move itself."""
    xs = [x.clone() for x in xs]
    proposal = Proposal(R, xs, vs, 1 / SIGMA, None, None, [{} for _ in xs])
    options = {"foreach": None, "compile": False, "capturable": False} | path
    move = choose.choose([proposal], {x: torch.full_like(x, 9.0) for x in xs}, **options)
    with torch.no_grad():
        move.use([proposal])
        *model, noise = move.to_trial()
    assert noise is None
    return xs, Sums(*model), move.kept[0], move


def check(one, other, xs, vs, lam):
    """x + s to the bit, but for zeros' signs; the sums to the rounding of their terms, not of their number."""
    for x, y in zip(one[0], other[0], strict=True):
        assert same_bits(x, y, zeros=False)
        assert x.stride() == y.stride()
    wide = [(x.double(), v.double(), z.double()) for x, v, z in zip(xs, vs, one[0], strict=True)]
    scales = (
        sum((v * (z - x)).abs().sum() for x, v, z in wide),
        lam * sum((x.abs() - z.abs()).abs().sum() for x, _, z in wide),
        sum((z - x).square().sum() for x, _, z in wide),
        SIGMA * sum((z - x).square().sum() for x, _, z in wide),
    )
    for a, b, scale in zip(one[1], other[1], scales, strict=True):
        assert a.dtype == b.dtype == torch.float64
        assert abs(a - b) <= 1e-6 * scale


PATHS = [pytest.param(CHUNKS, id="chunks"), pytest.param(COMPILED, marks=compiles, id="compiled")]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("R", [L1(0.3), L0(0.1), MCP(0.3, 2.5), L1(0.0), L1(1e300)], ids=repr)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_all_paths_agree_and_x_comes_back(path, R, dtype):
    xs = tensors(dtype)
    vs = [torch.randn(x.shape).to(dtype) for x in xs]
    vs[:5] = [torch.empty_like(x).copy_(v) for x, v in zip(xs[:5], vs[:5], strict=True)]
    one, other = moved(xs, vs, R, **LOOP), moved(xs, vs, R, **path)
    check(one, other, xs, vs, R.lam)
    assert all(same_bits(x, kept) for x, kept in zip(xs, other[2], strict=True))
    other[3].put_back()
    assert all(same_bits(x, z) for x, z in zip(xs, other[0], strict=True))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("R", [L1(0.3), MCP(0.3, 2.5)], ids=repr)
def test_a_gradient_that_lies_otherwise_in_memory(path, R):
    torch.manual_seed(0)
    xs, vs = [torch.randn(RUN, 3)], [torch.randn(3, RUN).T]
    check(moved(xs, vs, R, **LOOP), moved(xs, vs, R, **path), xs, vs, R.lam)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("R", [L1(0.3), L0(0.1)], ids=repr)
def test_ties_and_numbers_that_are_not_finite(path, R, dtype):
    x, v = special(R, dtype)
    (a,), one, _, _ = moved([x], [v], R, **LOOP)
    (b,), other, (kept,), move = moved([x], [v], R, **path)
    nan = a.isnan()
    assert torch.equal(nan, b.isnan())
    assert same_bits(a[~nan], b[~nan], zeros=False)
    torch.testing.assert_close(torch.stack(one), torch.stack(other), equal_nan=True)
    move.put_back()
    assert same_bits(b, x)
    assert same_bits(kept, x)


@pytest.mark.parametrize("R", [L1(0.3), L0(0.1)], ids=repr)
@pytest.mark.parametrize("path", PATHS)
def test_sums_are_as_good_as_the_rounding_of_their_terms(R, path):
    """A million terms; float32 alone would lose a digit or two. A count is exact."""
    torch.manual_seed(1)
    x, v = torch.rand(1 << 20), 1e-3 * torch.rand(1 << 20)
    (z,), (vs, dR, ss, _), _, _ = moved([x], [v], R, **path)
    s = z.double() - x.double()
    eps = torch.finfo(torch.float32).eps
    assert vs == pytest.approx((v.double() * s).sum().item(), rel=eps)
    assert ss == pytest.approx(s.square().sum().item(), rel=eps)
    exact = 0.1 * (x.count_nonzero() - z.count_nonzero()).double() if isinstance(R, L0) else R.decrease(x, z)
    assert dR == (exact if isinstance(R, L0) else pytest.approx(exact.item(), rel=eps))


def test_a_small_decrease_of_a_large_sum():
    """|x|_1 is 1e6 times |s|_1: what is summed is the difference, entry by entry."""
    x = torch.full((8 * RUN,), 1.0)
    v = torch.full((8 * RUN,), 2.0**-18)
    (z,), parts, _, _ = moved([x], [v], L1(2.0**-18), **CHUNKS)
    assert parts.dR == 2.0**-18 * (x.double() - z.double()).sum()
    assert parts.dR > 0


class Meanwhile(TorchDispatchMode):
    """Before every operation another thread does its whole work."""

    def __init__(self, work):
        super().__init__()
        self.work = work

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        thread = threading.Thread(target=self.work)
        thread.start()
        thread.join()
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("R", [L1(0.3), L0(0.1)], ids=repr)
def test_threads_do_not_share_scratch(R):
    xs, vs, ones = [torch.randn(5 * RUN)], [torch.randn(5 * RUN)], [torch.ones(5 * RUN)]
    alone = moved(xs, vs, R, **CHUNKS)
    with Meanwhile(lambda: moved(ones, ones, R, **CHUNKS)):
        beside = moved(xs, vs, R, **CHUNKS)
    assert same_bits(alone[0][0], beside[0][0])
    assert torch.equal(torch.stack(alone[1]), torch.stack(beside[1]))


def test_scratch_goes_with_its_thread():
    seen = []
    thread = threading.Thread(target=lambda: seen.append(weakref.ref(flat._scratch.buffers(torch.half, 3)[0])))
    thread.start()
    thread.join()
    assert seen[0]() is None


@pytest.mark.parametrize("numbers", [1, 3])
@pytest.mark.parametrize("kind", [SR2, ProxGEN])
def test_a_parameter_that_is_one_number_has_its_own_step(kind, numbers):
    """With a metric: CLIP's temperature comes first of its parameters."""
    ends = []
    for foreach in (True, False):
        torch.manual_seed(0)
        scales = [nn.Parameter(torch.tensor(2.0 + i)) for i in range(numbers)]
        xs = [*scales, nn.Parameter(torch.randn(40)), nn.Parameter(torch.randn(6, 5))]
        options = {"sigma": SIGMA} if kind is SR2 else {"lr": 0.1}
        optimizer = kind(xs, L1(0.01), metric="adam", foreach=foreach, **options)
        for _ in range(3):
            optimizer.step(lambda xs=xs: sum(((i + 1) * x - 0.7).square().sum() for i, x in enumerate(xs)))
        ends.append([x.detach().clone() for x in xs])
    for a, b in zip(*ends, strict=True):
        assert same_bits(a, b, zeros=False)


def test_many_small_tensors_are_several_pieces(monkeypatch):
    monkeypatch.setattr(choose, "SMALL", 100)
    monkeypatch.setattr(choose, "JOINED", 250)
    xs = [torch.randn(90) for _ in range(7)] + [torch.randn(300)]
    vs = [torch.randn_like(x) for x in xs]
    one, other = moved(xs, vs, L1(0.3), **CHUNKS), moved(xs, vs, L1(0.3), **LOOP)
    check(one, other, xs, vs, 0.3)
    assert [len(xs) for xs, _ in one[3]._moved] == [2, 2, 2, 1, 1]


def quadratic(xs):
    return sum((x - 0.7).square().sum() for x in xs)


@pytest.mark.parametrize("foreach", [True, False])
@pytest.mark.parametrize("R", [L1(0.3), L0(0.1), ElasticNet(0.1, 0.1)], ids=repr)
def test_an_interrupt_anywhere_in_the_move_leaves_x(R, foreach, monkeypatch):
    xs = [nn.Parameter(x) for x in tensors()]
    start = [x.detach().clone() for x in xs]
    optimizer = SR2(xs, R, sigma=SIGMA, foreach=foreach, reach=None)
    optimizer.step(lambda: quadratic(xs))  # what is kept is now another point, which nobody may come back to
    with torch.no_grad():
        for x, old in zip(xs, start, strict=True):
            x.copy_(old)
    inside = {}
    kind = type(optimizer._moves._made[0][1])  # with what it does around `ByGroup`'s
    assert issubclass(kind, ByGroup)
    move = kind.to_trial

    def interrupted(*args, **kwargs):
        with inside["mode"]:
            return move(*args, **kwargs)

    monkeypatch.setattr(kind, "to_trial", interrupted)
    at = 0
    while True:
        inside["mode"] = Interrupt(at)
        try:
            optimizer.step(lambda: quadratic(xs))
        except KeyboardInterrupt:
            assert all(same_bits(x.detach(), old) for x, old in zip(xs, start, strict=True)), at
            at += 1
        else:
            break
    assert at > 40
    assert not same_bits(xs[0].detach(), start[0])


@compiles
@pytest.mark.parametrize("before", [True, False])
def test_an_interrupt_around_the_compiled_work_leaves_x(before, monkeypatch):
    xs = [nn.Parameter(x) for x in tensors()]
    start = [x.detach().clone() for x in xs]
    work = compiled._compiler()

    def interrupted(*args):
        if not before:
            work(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(compiled, "_compiler", lambda: interrupted)
    with pytest.raises(KeyboardInterrupt):
        SR2(xs, L1(0.3), sigma=SIGMA, compile=True).step(lambda: quadratic(xs))
    assert all(same_bits(x.detach(), old) for x, old in zip(xs, start, strict=True))


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=compiles)])
@pytest.mark.parametrize("R", [L1(0.3), L0(0.1)], ids=repr)
def test_a_rejected_step_restores_every_bit(R, compiled):
    xs = [nn.Parameter(x) for x in tensors()]
    with torch.no_grad():
        xs[0][:3] = torch.tensor([-0.0, 1e-45, 0.0])
    start = [x.detach().clone() for x in xs]
    optimizer = SR2(xs, R, sigma=1e-3, compile=compiled, reach=None)
    optimizer.step(lambda: quadratic(xs) + sum(x.abs().sum() for x in xs))
    assert optimizer.counts["rejected"] == 1
    assert all(same_bits(x.detach(), old) for x, old in zip(xs, start, strict=True))


@compiles
@pytest.mark.parametrize(
    ("R", "options"),
    [(L1(0.02), {}), (L0(0.01), {}), (Box(-9.0, 9.0), {}), (None, {}), (L1(0.02), {"metric": "adam"})],
    ids=repr,
)
def test_compiled_steps_follow_the_loop(R, options):
    found = []
    for path in ({"foreach": False}, {"compile": True}):
        xs = [nn.Parameter(x) for x in tensors(torch.float64)]
        optimizer = SR2(xs, R, sigma=SIGMA, reach=None, **options, **path)
        for t in range(6):
            optimizer.step(lambda xs=xs, t=t: quadratic(xs) + 0.1 * sum((9 * x + t).cos().sum() for x in xs))
        found.append((xs, optimizer.counts, optimizer.sigma))
    (one, counts, sigma), (other, *same) = found
    assert [counts, sigma] == same
    for x, y in zip(one, other, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-12)


def test_the_baselines_take_the_same_chunks():
    found = []
    for foreach in (True, False):
        xs = [nn.Parameter(x) for x in tensors()]
        optimizer = ProxGEN(xs, L1(0.02), 0.1, foreach=foreach)
        for _ in range(3):
            optimizer.step(lambda xs=xs: quadratic(xs))
        found.append([x.detach() for x in xs])
    assert all(same_bits(x, y, zeros=False) for x, y in zip(*found, strict=True))


@pytest.mark.parametrize(
    "shape", [(3, RUN), (3, 300), (RUN,), (5 * RUN + 3,), (7,), (0,), (2, 3, RUN), (129 * RUN - 1,)], ids=str
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_exact_sum(shape, dtype):
    x = torch.randn(shape).to(dtype)
    assert exact_sum(x).dtype == torch.float64
    assert exact_sum(x) == pytest.approx(x.double().sum().item(), abs=1e-7 * x.double().abs().sum().item())


def test_a_small_run_beside_a_large_one_counts():
    x = torch.zeros(2, RUN)
    x[:, 0] = torch.tensor([2.0**24, 1.0])
    assert exact_sum(x) == 2**24 + 1


@pytest.mark.parametrize("path", [LOOP, CHUNKS], ids=str)
def test_the_step_of_a_bfloat16_parameter_is_not_rounded_to_it(path):
    x, v = torch.randn(2, 3 * RUN).bfloat16()
    (z,), (vs, _, ss, _), _, _ = moved([x], [v], L1(0.0), **path)
    s = z.double() - x.double()
    assert vs == pytest.approx((v.double() * s).sum().item(), rel=1e-6)
    assert ss == pytest.approx(s.square().sum().item(), rel=1e-6)


class Both(L1):
    """lam (|x|_1 + |x|_0)."""

    coefficients = property(lambda self: (self.lam, self.lam, 0.0))

    def terms(self, x):
        return super().terms(x) + self.lam * (x != 0).double()

    def prox_tensor(self, x, step):
        z = super().prox_tensor(x, step)
        return torch.where(z.abs() > (2 * self.lam * step) ** 0.5, z, 0.0)


def test_l1_and_l0_together_are_not_taken_for_one_of_them():
    xs = tensors()
    vs = [torch.randn(x.shape) for x in xs]
    one, other = (moved(xs, vs, Both(0.1), **path) for path in (LOOP, CHUNKS))
    assert all(same_bits(x, y, zeros=False) for x, y in zip(one[0], other[0], strict=True))
    assert one[1].dR == pytest.approx(float(other[1].dR), rel=1e-6)
