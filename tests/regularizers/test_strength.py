"""On the way to full strength: lambda grows from 0, a budget shrinks from everything, by a number of the device."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from sr2.optim.shards import InParts
from sr2.regularizers import (
    L0,
    L1,
    MCP,
    NM,
    Box,
    ElasticNet,
    GroupL0,
    GroupL2,
    KeepZeros,
    L0Ball,
    Lp,
    Nuclear,
    Rank,
    Regularizer,
    Ridge,
    budget,
)
from tests.cases import RegularizerCase, pairs_of_entries
from tests.registry import REGULARIZERS
from tests.tools import HostReads

every = pytest.mark.parametrize("case", REGULARIZERS, ids=lambda case: case.name)
X = torch.randn(6, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 2


def share(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


@every
def test_at_full_strength_it_is_itself(case: RegularizerCase) -> None:
    strong = case.regularizer.at_strength(share(1.0))
    xs = [X, X[0]]
    kinds = [0.5, share(0.5)] + [[torch.rand_like(x) + 0.5 for x in xs]] * case.diagonal
    for step in kinds:
        for z, expected in zip(strong.prox(xs, step), case.regularizer.prox(xs, step), strict=True):
            torch.testing.assert_close(z, expected, rtol=1e-12, atol=1e-12)
        assert strong.value(strong.prox(xs, step)) == case.regularizer.value(case.regularizer.prox(xs, step))
    assert repr(strong) == repr(case.regularizer)
    assert (strong.separable, strong.diagonal, strong.convex) == (case.separable, case.diagonal, case.convex)


@every
def test_without_strength_it_is_nothing(case: RegularizerCase) -> None:
    if isinstance(case.regularizer, Box):
        return  # a box of no strength is the box
    if isinstance(case.regularizer, Ridge):
        return  # which has its full strength at once: the next test
    weak = case.regularizer.at_strength(share(0.0))
    for step in [0.5] + [torch.rand_like(X) + 0.5] * case.diagonal:
        torch.testing.assert_close(weak.prox(X, step), X, rtol=1e-14, atol=1e-14)
    assert weak.value(X) == 0
    assert weak.prox(torch.zeros(2, 2), 1.0).tolist() == [[0.0, 0.0], [0.0, 0.0]]


@pytest.mark.parametrize("beside", [None, L1(0.3), L0(0.3), L0Ball(k=2), GroupL2(0.3)], ids=repr)
def test_a_ridge_has_its_full_strength_at_once(beside: L1 | None) -> None:
    ridge, weak = Ridge(0.5), Ridge(0.5, beside).at_strength(share(0.0))
    torch.testing.assert_close(weak.prox(X, 0.7), ridge.prox(X, 0.7), rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(weak.value(X), 0.25 * X.square().sum())
    torch.testing.assert_close(weak.decrease(X, X / 2), ridge.decrease(X, X / 2))


@pytest.mark.parametrize(
    ("regularizer", "half"),
    [
        (L1(0.6), L1(0.3)),
        (L0(0.6), L0(0.3)),
        (Lp(0.6, 0.3), Lp(0.3, 0.3)),
        (ElasticNet(0.6, 0.2), ElasticNet(0.3, 0.1)),
        (GroupL2(0.6), GroupL2(0.3)),
        (GroupL0(0.6), GroupL0(0.3)),
        (Nuclear(0.6), Nuclear(0.3)),
    ],
    ids=repr,
)
def test_half_of_lambda(regularizer: L1, half: L1) -> None:
    weak = regularizer.at_strength(share(0.5))
    torch.testing.assert_close(weak.prox(X, 0.7), half.prox(X, 0.7))
    torch.testing.assert_close(weak.value(X), half.value(X))
    torch.testing.assert_close(weak.decrease(X, X / 2), half.decrease(X, X / 2))


def test_a_concave_penalty_is_scaled_as_a_whole() -> None:
    weak = MCP(1.0, 2.0).at_strength(share(0.5))
    torch.testing.assert_close(weak.value(X), MCP(1.0, 2.0).value(X) / 2)
    torch.testing.assert_close(weak.prox(X, 3.0), MCP(1.0, 2.0).prox(X, 1.5))


def test_budgets_shrink_along_a_cubic() -> None:
    now = share(0.0)
    x = torch.rand(1000, generator=torch.Generator().manual_seed(0)).view(20, 50) + 0.1
    budget, blocks, rank = (r.at_strength(now) for r in (L0Ball(density=0.05), NM(1, 5), Rank(2)))
    for value in (0.0, 0.1, 0.3, 0.5, 0.9, 1.0):
        now.fill_(value)
        missing = (1 - value) ** 3
        z = budget.prox(x, 1.0)
        assert int(z.count_nonzero()) == round(50 + 950 * missing)
        assert budget.value(z) == 0
        assert budget.value(x) == (0 if value == 0 else torch.inf)
        kept = blocks.prox(x, 1.0).view(20, 10, 5).count_nonzero(-1)
        assert (kept == round(1 + 4 * missing)).all()
        low = rank.prox(x.double(), 1.0)
        assert int(torch.linalg.matrix_rank(low)) == round(2 + 18 * missing)
        assert rank.value(low) == 0
        assert budget.budget(200_000_001) == round(10_000_000 + 190_000_001 * missing)  # more than float32 counts
    now.fill_(0.0)
    assert torch.equal(rank.prox(x.double(), 1.0), x.double())


@pytest.mark.parametrize("R", [L0Ball(k=10**18), Rank(10**18)], ids=repr)
def test_a_budget_of_more_than_there_is_keeps_everything(R: L0Ball | Rank) -> None:
    for value in (0.0, 0.5, 1.0):
        strong = R.at_strength(share(value))
        assert torch.equal(strong.prox(X, 1.0), X)
        assert strong.value(X) == 0


def test_the_host_counts_as_a_device_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a share that it may look at it makes a number, the same one to the last bit before it is rounded."""
    share = torch.zeros((), dtype=torch.float64)
    budgets = [(L0Ball(k=k), n) for k, n in ((0, 1), (3, 10), (20, 10), (500, 10_007), (123_456, 25_000_000))]
    budgets += [(L0Ball(density=0.05), n) for n in (1, 999, 25_000_000)]
    for value in [i / 240 for i in range(241)] + [5e-324, 1 - 2**-53]:
        share.fill_(value)
        here = [R.at_strength(share).budget(n) for R, n in budgets]
        assert all(type(k) is int for k in here)
        with monkeypatch.context() as patch:
            patch.setattr(budget, "here", lambda number: False)
            there = [R.at_strength(share).budget(n) for R, n in budgets]
        assert all(isinstance(k, Tensor) for k in there)
        assert here == [int(k) for k in there]


def test_floors_and_groups_shrink_too() -> None:
    xs = [torch.rand(40, 5) + 1, torch.rand(20, 5) / 100]
    for groups in ("rows", pairs_of_entries, None):
        for value in (0.0, 0.5, 1.0):
            R = L0Ball(density=0.2, groups=groups).at_strength(share(value))
            zs = R.prox(xs, 1.0)
            assert R.value(zs) == 0
            n = {"rows": 60, None: 300}.get(groups if isinstance(groups, str) else None, 300)
            if groups != pairs_of_entries:
                own = round(0.2 * n)
                kept = sum(int((z.abs().sum(1) > 0).sum()) if groups else int(z.count_nonzero()) for z in zs)
                assert kept == round(own + (n - own) * (1 - value) ** 3)
                assert zs[1].any()


@every
def test_the_share_is_never_looked_at(case: RegularizerCase) -> None:
    if case.decomposes:
        return  # decompositions look at themselves
    R = case.regularizer.at_strength(share(0.5))
    with HostReads() as reads:
        zs = R.prox_of([X, X[0]], [0.5, 0.5])
        R.decrease_of(zs, zs)
    assert reads.seen == []


def test_what_has_no_strength() -> None:
    assert Box(-1.0, 1.0).at_strength(share(0.0)) == Box(-1.0, 1.0)
    started = KeepZeros().start([torch.zeros(2)])
    assert not started.at_strength(share(0.0)).prox([torch.ones(2)], 1.0)[0].any()


def test_what_is_taken_from_the_first_point_has_its_share_too() -> None:
    class Started(L1):
        def start(self, xs: Sequence[Tensor]) -> L1:
            return L1(float(xs[0].max()))

    started = Started(9.0).at_strength(share(0.5)).start([torch.full((2,), 4.0)])
    assert started.value(torch.ones(3)) == 6.0


class Nonnegative(Regularizer):
    """x >= 0, as a user writes it."""

    separable = convex = True

    def terms_of(self, xs: Sequence[Tensor]) -> list[Tensor]:
        return [torch.where(x < 0, torch.inf, 0.0) for x in xs]

    def prox_of(self, xs: Sequence[Tensor], steps: Sequence[object]) -> list[Tensor]:
        return [x.clamp_min(0) for x in xs]


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_a_constraint_of_ones_own_holds_at_any_strength(share: float) -> None:
    R = Nonnegative().at_strength(torch.tensor(share, dtype=torch.float64))
    inside, outside = torch.ones(3), torch.tensor([1.0, -1.0])
    assert (R.value(inside), R.value(outside)) == (0.0, torch.inf)
    assert R.decrease_of([outside], [R.prox(outside, 1.0)]) == torch.inf


@pytest.mark.parametrize(
    "R", [L0Ball(density=0.5), Ridge(0.1, L0Ball(k=3)), Box(-1.0, 1.0), NM(2, 4), L1(0.1)], ids=str
)
def test_what_stands_for_a_regularizer_says_of_itself_what_that_says(R: Regularizer) -> None:
    """At a share, or where processes have parts: else "auto" takes a budget for a penalty, on some processes only."""
    processes: Any = SimpleNamespace(mesh=SimpleNamespace(get_coordinate=lambda: [0]), counts=lambda p: True)
    for other in (R.at_strength(share(0.5)), InParts(R, [X], processes)):
        for name in ("separable", "convex", "rowwise", "strict", "penalizes"):
            assert getattr(other, name) == getattr(R, name), f"{name} of {type(other).__name__}"
