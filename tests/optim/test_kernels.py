"""The Triton kernels without a GPU: the interpreter runs them on the CPU, against the paths that are their oracles.

`conftest.py` asks for the interpreter before Triton is imported, where there is no CUDA device; `test_cuda.py` has the
same questions for the compiled kernels.
"""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sr2 import L0, L1, SR2, ElasticNet, L0Ball, numerics
from sr2.metrics import Adam
from sr2.numerics import Rounding
from sr2.optim.moves import fused
from sr2.optim.moves.choose import choose
from sr2.optim.moves.fused import FusedJudge, FusedMove
from sr2.optim.parts.rules import Evidence, Ratio
from sr2.optim.parts.testing import LARGEST
from sr2.optim.processes import ALONE
from sr2.optim.records import Counts
from sr2.optim.state import Outcome, SearchState
from sr2.optim.trust import on_trust
from sr2.rules import Tolerant
from tests.tools import LargeTensors, algorithm_1, by_loop

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="Triton compiles where there is a CUDA device")
F64 = torch.float64
REGULARIZERS = [None, L1(1e-2), L0(1e-3), ElasticNet(1e-2, 0.3)]


def proposals(regularizer, sigma):
    torch.manual_seed(3)
    model = nn.Sequential(nn.Conv2d(3, 7, 3), nn.Conv2d(7, 5, 1, bias=False), nn.Linear(130, 129), nn.Linear(129, 1))
    model = model.to(memory_format=torch.channels_last)
    model[2].weight.data[:3] = 0.0
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    model[1].weight.grad = torch.randn(5, 7, 1, 1)  # other strides, the same memory
    return algorithm_1(model, regularizer, sigma=sigma)._proposals()


def outcome(accepted, sound=True):
    accepted, sound = torch.tensor(accepted), torch.tensor(sound)
    return Outcome(accepted, torch.tensor(False), sound, sound, torch.tensor(1.0), torch.tensor(1.0), None, {})


@pytest.mark.parametrize("regularizer", [*REGULARIZERS, L0Ball(density=0.1), L0Ball(density=0.9, floor=1)], ids=str)
@pytest.mark.parametrize(("sigma", "chunk"), [(0.5, 1024), (41.0, 16384)])
@torch.no_grad()
def test_the_fused_step_is_the_step(regularizer, sigma, chunk, monkeypatch):
    monkeypatch.setattr(fused, "CHUNK", chunk)
    plain, quick = proposals(regularizer, sigma), proposals(regularizer, sigma)
    before = [x.clone() for p in plain for x in p.xs]
    one, other = by_loop(plain), FusedMove(capturable=True)
    other.use(quick)
    a, b = one.to_trial(), other.to_trial()

    def points(proposals):
        return [x for p in proposals for x in p.xs]

    assert all(torch.equal(x, z) for x, z in zip(points(plain), points(quick), strict=True))
    assert all(torch.equal(x, z) for x, z in zip(before, [x for kept in other.kept for x in kept], strict=True))
    torch.testing.assert_close(torch.stack(a[:4]), torch.stack(b[:4]), rtol=1e-6, atol=1e-9)
    other.settle(outcome(True))
    assert all(torch.equal(x, z) for x, z in zip(points(plain), points(quick), strict=True))
    other.settle(outcome(False))
    assert all(torch.equal(x, z) for x, z in zip(before, points(quick), strict=True))


@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize("beta", [0.0, pytest.param(0.3, marks=pytest.mark.torture), 0.9])
@pytest.mark.parametrize(
    ("metric", "regularizer"),
    [(None, L1(1e-2)), *((Adam(), R) for R in REGULARIZERS), (Adam(0.4, 1e-3), ElasticNet(1e-2, 0.3))],
    ids=str,
)
@torch.no_grad()
def test_the_fused_averages_are_the_averages(regularizer, metric, beta, capturable):
    """Three steps: the second is not sound, and must leave no trace in the average."""

    def steps(make):
        torch.manual_seed(0)
        xs = [nn.Parameter(torch.randn(shape)) for shape in ((5,), (40, 30), (3, 2, 1, 1))]
        optimizer, seen, kept = SR2(xs, regularizer, sigma=3.0, momentum=beta, metric=metric, weight_decay=0.3), [], {}
        for number in range(3):
            for x in xs:
                x.grad = torch.randn_like(x)
            proposals = optimizer._proposals()
            move = kept.setdefault("move", make(proposals))
            move.use(proposals)
            for of_batch in (False, True):
                seen += [torch.zeros(()) if n is None else n for n in move.to_trial(of_batch=of_batch)]
                if not of_batch:
                    move.put_back()
            move.settle(outcome(number != 1, number != 1))
            seen += [x.clone() for x in xs]
        states = [optimizer.state[x] for x in xs]
        names = [*(["momentum"] if beta else []), *(["square"] if metric else [])]
        assert all(set(s) == {*names, *(f"{name}_weight" for name in names)} for s in states)
        assert all(isinstance(s[f"{name}_weight"], torch.Tensor) == capturable for s in states for name in names)
        return seen + [torch.as_tensor(s[name], dtype=F64) for s in states for name in sorted(s)]

    def by_group(proposals):
        return choose(proposals, {}, foreach=False, compile=False, capturable=capturable)

    for one, other in zip(steps(by_group), steps(lambda _: FusedMove(capturable=capturable)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # numpy's, of the interpreter
@pytest.mark.parametrize("coarse", [0.0, 0.3])
@pytest.mark.parametrize(
    "rule",
    [
        Ratio(7.5e-4, 0.99, 5.56, 7.0, 0.8),
        Tolerant(0.5),
        Tolerant(rise=3.0, usual=3.0, longest=1.0),
        Tolerant(usual=6.0, longest=2.0),
        Tolerant(usual=5.0, longest=5.0),
        Tolerant(rise=1.0, usual=0.1),
        Tolerant(usual=12.0),
        Tolerant(usual=150.0),
        Tolerant(usual=100.0),
    ],
    ids=str,
)
@pytest.mark.parametrize("trusting", [False, True])
def test_the_kernel_judges_and_records_as_the_rule_and_the_state_do(rule, coarse, trusting):
    sigma_min, generator = 1.0, torch.Generator().manual_seed(0)
    seen = set()

    def number(scale=1.0, dtype=F64):
        return scale * torch.rand((), generator=generator, dtype=dtype)

    for case in range(80):
        loss = number(dtype=torch.float32) - 0.3
        f, f_trial = loss.double() + number(0.1), loss + number(0.4, torch.float32) - 0.2
        vs, dR, ss, sigma = -number(0.2), number(0.1), number(), float(1.0 + number(5))
        if case % 8 == 3:
            f_trial = torch.tensor((math.nan, math.inf)[case % 2])
        if case % 8 == 1:  # rho is -2, on a batch that may be alone
            vs, dR = -number(0.02), 0 * dR
            f_trial = f - 2 * vs
        if case % 8 == 5:
            vs, dR, ss, f_trial, f = 0 * vs, 0 * dR, 0 * ss, loss, loss
        if case % 8 == 4:  # x has left the domain of R
            dR = torch.full_like(dR, math.inf)
        if case % 8 == 6:
            loss = f = torch.tensor(math.nan)
        if case % 16 == 10:
            vs = torch.full_like(vs, math.nan)
        if case % 8 == 7:  # a step as long as rounding: Tolerant leaves sigma
            vs, dR, f_trial, f = -number(1e-6), 0 * dR, loss, loss
        tested = not trusting or case % 5 > 1
        if not tested:
            f = f_trial = loss
        largest = {LARGEST: float(number(0.2)) * (case % 9 > 0)} if trusting else {}  # 0: none is known
        mine, other = SearchState.start(sigma, largest, None), SearchState.start(sigma, largest, None)
        for a, b in zip(mine.moments, other.moments, strict=True):
            a.copy_(b.copy_(number()))
        rounding, of_batch = Rounding(1e-7, coarse), case % 3 > 0
        kernel = FusedJudge(rule, sigma_min, rounding, of_batch, torch.device("cpu"))
        fused_outcome = kernel.judge([loss, f, f_trial], torch.stack([vs, dR, ss, 0 * ss]), mine, tested=tested)
        slacks = (rounding.slack(f.double(), f_trial.double()), rounding.fine(f.double()))
        evidence = Evidence(
            loss.double(), f.double(), f_trial.double(), vs, dR, ss, sigma * ss, *slacks, torch.tensor(True), of_batch
        )
        sound = loss.isfinite() & f.isfinite()
        if tested:
            expected = Outcome.of(rule.judge(evidence, other), evidence, sound, other, sigma_min, rule.forgets)
        else:
            expected = on_trust(evidence, None, rule, other, sigma_min, ALONE, capturable=True)
        other.record(expected)
        assert fused_outcome.tested == tested
        for name in ("accepted", "null", "sound", "learns", "sigma"):
            assert getattr(fused_outcome, name) == getattr(expected, name), name
        assert fused_outcome.failed == ~(expected.accepted | expected.null)
        assert fused_outcome.steps == mine.steps == other.steps
        assert mine.memory == other.memory
        for name in ("sigma", "counts", "moments", "figures"):
            one, two = (
                torch.atleast_1d(torch.stack(v) if isinstance(v, tuple) else v)
                for v in (getattr(mine, name), getattr(other, name))
            )
            torch.testing.assert_close(one, two, rtol=1e-12, atol=0, equal_nan=True)
        counts = mine.counts._asdict()
        assert sum(counts.values()) == 1
        seen |= {name for name, count in counts.items() if count}
    assert seen == set(Counts._fields) - (set() if trusting else {"untested"})


@pytest.mark.parametrize(
    ("regularizer", "metric", "momentum", "autocast"),
    [
        (L1(1e-3), None, 0.0, None),
        (L0(1e-4), None, 0.9, None),
        (L1(1e-3), "adam", 0.9, torch.bfloat16),
        (L0(1e-4), "adam", 0.0, torch.bfloat16),
    ],
    ids=str,
)
@pytest.mark.parametrize("rule", [Ratio(eta2=0.6, gamma3=0.8), Tolerant(rise=0.1, eta2=0.6, usual=29.0)], ids=str)
def test_training_on_the_kernels_is_training(rule, regularizer, metric, momentum, autocast, monkeypatch):
    def train(capturable):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 3))
        options = {"momentum": momentum, "metric": metric, "autocast": autocast, "capturable": capturable}
        optimizer = SR2(model, regularizer, sigma=30.0 if metric else 0.3, rule=rule, average=True, **options)
        x, y, rows = torch.randn(12, 16, 6), torch.randint(3, (12, 16)), []
        for a, b in zip(x, y, strict=True):
            optimizer.step(lambda a=a, b=b: F.cross_entropy(model(a), b))
            rows.append(optimizer.last_step)
        with optimizer.averaged():
            averages = [p.detach().clone() for p in model.parameters()]
        return rows, [*model.parameters(), *averages]

    rows, xs = train(False)
    monkeypatch.setattr(FusedMove, "fits", staticmethod(lambda proposals: True))
    fused_rows, zs = train(True)
    assert [r.accepted for r in rows] == [r.accepted for r in fused_rows]
    for row, other in zip(rows, fused_rows, strict=True):
        assert row.rho == pytest.approx(other.rho, rel=1e-3)
        assert row.sigma == pytest.approx(other.sigma)
    for x, z in zip(xs, zs, strict=True):
        torch.testing.assert_close(x, z, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("weight", [0.009, 0.7, 1.0])
@torch.no_grad()
def test_the_kernels_of_average_and_return_are_lerp_and_choice(weight):
    quick = proposals(L1(1e-2), 1.0)
    move = FusedMove(capturable=True)
    move.use(quick)
    move.to_trial()
    xs = [x for p in quick for x in p.xs]
    others = [torch.randn_like(x) for x in xs]
    assert move._knows(xs, others)
    assert not move._knows(xs[1:], others[1:])
    for tensors in (slice(None), slice(1, None)):  # by the kernel, and without it
        averages = [t.clone(memory_format=torch.preserve_format) for t in others[tensors]]
        move.toward(averages, xs[tensors], torch.tensor(weight, dtype=F64))
        for a, t, x in zip(averages, others[tensors], xs[tensors], strict=True):
            torch.testing.assert_close(a, torch.lerp(t, x, weight), rtol=1e-6, atol=1e-7)
        before = [x.clone() for x in xs]
        move.take_if(torch.tensor(False), xs[tensors], others[tensors])
        assert all(torch.equal(x, y) for x, y in zip(xs, before, strict=True))
        move.take_if(torch.tensor(True), xs[tensors], others[tensors])
        assert all(torch.equal(x, t) for x, t in zip(xs[tensors], others[tensors], strict=True))


@pytest.mark.parametrize("learns", [False, True])
@torch.no_grad()
def test_in_a_graph_of_a_step_on_trust_x_is_not_kept_and_its_averages_are(learns, monkeypatch):
    xs = [nn.Parameter(torch.randn(shape)) for shape in ((5,), (40, 30))]
    optimizer = SR2(xs, sigma=3.0, capturable=True, weight_decay=0.3)
    for x in xs:
        x.grad = torch.randn_like(x)
    move, seen = FusedMove(capturable=True), []
    for number in range(2):
        before = [{name: value.clone() for name, value in optimizer.state[x].items()} for x in xs]
        move.use(optimizer._proposals())
        monkeypatch.setattr(fused, "capturing", lambda number=number: number == 1)
        move.to_trial(tested=False)
        move.settle(outcome(number == 0, learns or number == 0))
        kept = [t.clone() for t in move.kept[0]]
        seen.append((kept, [x.clone() for x in xs]))
    assert all(torch.equal(a, b) for a, b in zip(seen[0][0], seen[1][0], strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(seen[0][1], seen[1][1], strict=True))
    for x, old in zip(xs, before, strict=True):
        for name in ("momentum", "momentum_weight", "square", "square_weight"):
            assert torch.equal(optimizer.state[x][name], old[name]) != learns


@torch.no_grad()
def test_what_was_not_moved_is_not_put_back(monkeypatch):
    """An interrupt before the launch: what is kept is of an earlier step."""
    quick = proposals(L1(1e-2), 1.0)
    move = FusedMove(capturable=False)
    move.use(quick)
    move.to_trial()
    after = [x.clone() for p in quick for x in p.xs]
    move.use(quick)
    monkeypatch.setattr(fused, "kernels", lambda: (_ for _ in ()).throw(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        move.to_trial()
    move.put_back()
    assert all(torch.equal(x, z) for x, z in zip(after, [x for p in quick for x in p.xs], strict=True))


@pytest.mark.filterwarnings(
    "ignore:(invalid value|overflow|divide by zero):RuntimeWarning"
)  # numpy's, of the interpreter
@pytest.mark.parametrize(
    ("make", "slope", "fate"),
    [
        (algorithm_1, 1e38, "rejected"),
        (SR2, 1e38, "null"),  # its square is more than float32 holds, and in that metric the step is 0
        *((make, slope, "broken") for make in (algorithm_1, SR2) for slope in (math.inf, math.nan)),
    ],
)
def test_a_step_that_overflows_is_rejected_and_a_gradient_that_is_not_finite_is_broken(make, slope, fate, monkeypatch):
    def outcome(fits):
        monkeypatch.setattr(FusedMove, "fits", staticmethod(lambda proposals: fits))
        x = nn.Parameter(torch.ones(5))
        optimizer = make([x], L1(1e-3), sigma=1e-3, capturable=True)

        def closure():  # a finite loss, with that gradient
            x.grad = torch.full((5,), slope)
            return torch.zeros(())

        optimizer.step(closure)
        return optimizer.counts, optimizer.sigma, x.tolist()

    assert outcome(True) == outcome(False)
    assert outcome(True)[0][fate] == 1


@pytest.mark.parametrize("capturable", [False, True])
def test_a_state_that_was_loaded_is_nobody_elses(capturable, monkeypatch):
    monkeypatch.setattr(FusedMove, "fits", staticmethod(lambda proposals: True))
    x, y = torch.randn(16, 6), torch.randn(16, 2)

    def make():
        torch.manual_seed(0)
        model = nn.Linear(6, 2)
        return model, SR2(model, L1(1e-3), sigma=5.0, momentum=0.9, capturable=capturable)

    def steps(model, optimizer):
        for _ in range(3):
            optimizer.step(lambda: F.mse_loss(model(x), y))

    (model, one), (_, two) = make(), make()
    steps(model, one)
    two.load_state_dict(one.state_dict())
    before = [two.state[p]["momentum"].clone() for p in two._parameters()]
    steps(model, one)
    assert all(torch.equal(a, two.state[p]["momentum"]) for a, p in zip(before, two._parameters(), strict=True))


@pytest.mark.parametrize("capturable", [False, True])
def test_the_kernels_path_keeps_one_x_and_makes_nothing_else_as_large(capturable, monkeypatch):
    monkeypatch.setattr(FusedMove, "fits", staticmethod(lambda proposals: True))
    monkeypatch.setattr(numerics, "PART", 1000)
    n = 5000
    x, g = nn.Parameter(torch.randn(n)), torch.randn(n)
    optimizer, counter = algorithm_1([x], L1(1e-3), sigma=10.0, capturable=capturable), LargeTensors(n)
    counter.seen = {x.data_ptr(), g.data_ptr()}

    def closure():
        x.grad = g
        return torch.zeros(())

    with counter:
        optimizer.step(closure)
        optimizer.step(closure)
    assert counter.made == 1
