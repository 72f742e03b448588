"""A budget of entries on the CPU, strip by strip. Oracle: the loop, tensor by tensor, to the bit."""

import copy
from dataclasses import replace
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from sr2 import L1, NM, SR2, L0Ball, Ridge
from sr2.optim.moves import budgeted, choose, flat, laid
from sr2.optim.moves.base import Proposal
from sr2.optim.moves.budgeted import Budgeted
from sr2.optim.parts.directions import Average
from sr2.optim.parts.metrics import Adam
from sr2.regularizers.base import ZERO
from tests.tools import Interrupt

SHAPES = [(5, 3), (7,), (), (2, 3, 2, 2), (0, 3), (40,), (4, 9)]
LEVELS = {
    "many": torch.linspace(-2.0, 2.0, 997),
    "few": torch.tensor([-1.0, -0.0, 0.0, 0.0, 0.5, 1.0]),
    "equal": torch.tensor([-1.0, 1.0]),
    "zeros": torch.tensor([0.0, -0.0]),
    "special": torch.tensor([0.0, 1.0, 1e-45, 3e38, torch.inf, -torch.inf, torch.nan]),
}
EVERYTHING = [
    *(L0Ball(density=0.05), L0Ball(density=0.3), L0Ball(density=0.3, floor=1), L0Ball(density=0.9, floor=0.0)),
    *(L0Ball(k=0), L0Ball(k=1), L0Ball(k=20), L0Ball(k=1000)),
]


def tensors(shapes, levels, dtype, generator):
    values = LEVELS[levels]
    made = [values[torch.randint(len(values), shape, generator=generator)].to(dtype) for shape in shapes]
    return [x.to(memory_format=torch.channels_last) if x.dim() == 4 else x.T if x.dim() == 2 else x for x in made]


def proposals(R, given, of_x, of_g, dtype, seed, *, adaptive, decay):
    """A group under R and one without, after a step that momentum and metric remember."""
    generator = torch.Generator().manual_seed(seed)
    parts = (Adam() if adaptive else None, Average(0.9) if adaptive else None)
    made = []
    for regularizer, shapes in ((R, given), (ZERO, SHAPES[:2])):
        xs = tensors(shapes, of_x, dtype, generator)
        gs = [torch.empty_like(x).copy_(g) for x, g in zip(xs, tensors(shapes, of_g, dtype, generator), strict=True)]
        past = [torch.rand(x.shape, generator=generator).to(budgeted._wide(dtype)) for x in xs]
        states = [{"square": p * p, "square_weight": 0.5, "momentum": p - 0.5, "momentum_weight": 0.3} for p in past]
        decaying = [x.numel() if x.dim() > 1 else 0 for x in xs]
        states = states if adaptive else [{} for _ in xs]
        made.append(Proposal(regularizer, xs, gs, 0.25, *parts, states, decay, decaying, 4.0))
    return made


def moved(ps, **options):
    own = lambda ts: [t.clone(memory_format=torch.preserve_format) for t in ts]  # noqa: E731
    ps = [replace(p, xs=own(p.xs), gs=own(p.gs), states=copy.deepcopy(p.states)) for p in ps]
    kept = {x: torch.full_like(x, 9.0) for p in ps for x in p.xs}
    move = choose.choose(ps, kept, **{"foreach": None, "compile": False, "capturable": False, **options})
    with torch.no_grad():
        move.use(ps)
        model = move.to_trial()
    return ps, move, model


def same(a, b):
    """To the bit, but for the bits of a NaN."""
    bits = {torch.float32: torch.int32, torch.float64: torch.int64, torch.bfloat16: torch.int16}[a.dtype]
    same = (a.contiguous().view(bits) == b.contiguous().view(bits)) | (a.isnan() & b.isnan())
    return a.shape == b.shape and bool(same.all())


@settings(max_examples=400, deadline=None)
@given(
    R=st.sampled_from(EVERYTHING),
    share=st.sampled_from([None, 0.0, 0.3, 1.0]),
    shapes=st.lists(st.sampled_from(SHAPES), min_size=1, max_size=6),
    of_x=st.sampled_from(list(LEVELS)),
    of_g=st.sampled_from(list(LEVELS)),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    cut=st.sampled_from(["laid", "some cut", "cut"]),
    adaptive=st.booleans(),
    decay=st.sampled_from([0.0, 0.1]),
    seed=st.integers(0, 9999),
)
def test_strips_are_the_loop(R, share, shapes, of_x, of_g, dtype, cut, adaptive, decay, seed):
    """Ties, zeros of both signs, floors, all equal, what is not finite; tensors end to end, cut, and both; x is put
    back."""
    R = R if share is None else R.at_strength(torch.tensor(share, dtype=torch.float64))
    decay = 0.0 if of_x == "special" else decay  # end to end, what does not decay has a decay of 0: not of infinities
    ps = proposals(R, shapes, of_x, of_g, dtype, seed, adaptive=adaptive, decay=decay)
    small = {"laid": 10**6, "some cut": 15, "cut": -1}[cut]
    with (
        mock.patch.multiple(choose, SMALL=small),
        mock.patch.multiple(budgeted, HELD=-1 if cut == "cut" else 10**6),
        mock.patch.multiple(laid, STRIP=16),
        mock.patch.object(flat, "_run", return_value=4),
    ):
        (fast, move, model), (slow, _, expected) = moved(ps), moved(ps, foreach=False)
    assert isinstance(move._layouts[0], Budgeted)
    assert len(move._layouts) == 1
    found, wanted = ([x for p in ps for x in p.xs] for ps in (fast, slow))
    assert [x.stride() for x in found] == [x.stride() for x in wanted]
    if not all(same(x, y) for x, y in zip(found, wanted, strict=True)):
        # Of two NaN the larger is the one with the larger bits, which arithmetic leaves open: a budget full of them.
        nans = int(move._layouts[0]._scores.isnan().sum())
        assert nans > R.budget(sum(x.numel() for x in fast[0].xs))
        return
    # Terms cancel: what they may be off by is a rounding of their sizes, which |s|^2 and s'Bs have.
    scale = float(max((abs(n) for n in expected if n is not None and n.isfinite()), default=0.0))
    rounding = 1e-13 if dtype == torch.float64 else 1e-6
    for a, b in zip(model, expected, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b, rtol=rounding, atol=rounding * scale, equal_nan=True)
    move.put_back()
    assert all(same(x, y) for p, q in zip(fast, ps, strict=True) for x, y in zip(p.xs, q.xs, strict=True))
    for kept, p in zip(move.kept, ps, strict=True):
        assert all(same(old, x) for old, x in zip(kept, p.xs, strict=True))


def test_what_is_not_a_budget_of_entries_alone_is_the_loops():
    """Groups, a ridge beside it, tensors that are not dense or not of one dtype, and a metric that couples entries."""
    plain = proposals(L0Ball(k=3), SHAPES, "many", "many", torch.float32, 0, adaptive=True, decay=0.0)[0]
    assert budgeted.is_budget(plain)
    for R in (L0Ball(k=3, groups="rows"), Ridge(0.1, L0Ball(k=3)), L1(0.1), NM()):
        assert not budgeted.is_budget(replace(plain, regularizer=R))
    assert budgeted.is_budget(replace(plain, regularizer=Ridge(0.0, L0Ball(k=3))))
    assert not budgeted.is_budget(replace(plain, xs=[torch.ones(4, 4)[:, ::2]]))
    assert not budgeted.is_budget(replace(plain, xs=[torch.ones(4), torch.ones(4, dtype=torch.float64)]))
    assert budgeted.is_budget(replace(plain, xs=[torch.ones(4), torch.ones(4, dtype=torch.bfloat16)]))


def test_a_metric_in_float64_of_float32_tensors_is_compared_in_float64():
    class Wide(Adam):
        entrywise = True

        def update(self, xs, gs, states):
            D, news = super().update(xs, gs, states)
            return [d.double() for d in D], news

    ps = proposals(L0Ball(density=0.3), SHAPES, "many", "many", torch.float32, 0, adaptive=True, decay=0.0)
    ps = [replace(p, metric=Wide()) for p in ps]
    (fast, move, _), (slow, _, _) = moved(ps), moved(ps, foreach=False)
    assert move._layouts[0]._scores.dtype == torch.float64
    assert all(same(x, y) for p, q in zip(fast, slow, strict=True) for x, y in zip(p.xs, q.xs, strict=True))


@pytest.mark.parametrize(("held", "times"), [(10**6, 1), (0, 2)])
def test_all_tensors_are_one_to_the_metric(held, times, monkeypatch):
    """Also those without R; of a large network twice, once more for the sums."""
    seen = []

    class Seen(Adam):
        entrywise = True

        def update(self, xs, gs, states):
            seen.append(len(xs))
            return super().update(xs, gs, states)

    monkeypatch.setattr(budgeted, "HELD", held)
    model = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 3))
    x = torch.randn(20, 6)
    optimizer = SR2(model, L0Ball(density=0.3), sigma=20.0, metric=Seen(), reach=(4, 5))
    for step in range(1, 8):
        seen.clear()
        optimizer.step(lambda: model(x).square().mean())
        assert seen == [1] * (times if step > 4 else 1)  # before, everything is within the budget


@pytest.mark.parametrize("cut", [False, True])
def test_an_interrupt_anywhere_in_the_move_leaves_x(cut, monkeypatch):
    monkeypatch.setattr(choose, "SMALL", -1 if cut else 10**6)
    monkeypatch.setattr(budgeted, "HELD", -1 if cut else 10**6)
    monkeypatch.setattr(laid, "STRIP", 16)
    monkeypatch.setattr(flat, "_run", lambda size: 4)
    ps = proposals(L0Ball(density=0.3), SHAPES, "many", "many", torch.float32, 0, adaptive=True, decay=0.1)
    start = [x.clone() for p in ps for x in p.xs]
    move = choose.choose(ps, {}, foreach=None, compile=False, capturable=False)
    assert isinstance(move._layouts[0], Budgeted)
    at = 0
    while True:
        with torch.no_grad():
            move.use(ps)
            try:
                with Interrupt(at):
                    move.to_trial()
            except KeyboardInterrupt:
                move.put_back()
                assert all(same(x, y) for x, y in zip([x for p in ps for x in p.xs], start, strict=True)), at
                for p in ps:
                    p.vs = []
                at += 1
            else:
                break
    assert at > 40
    assert not all(same(x, y) for x, y in zip([x for p in ps for x in p.xs], start, strict=True))
