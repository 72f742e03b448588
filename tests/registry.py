"""Every regularizer under test, each with its slow twin; wrong arguments as data. Generic tests run over these lists.

A new regularizer is one `RegularizerCase` (or a few) and its `Wrong` arguments, and gets every generic test. Formulas
are those of the literature, case by case. `optimizers.py` has the list of optimizers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf, sqrt
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sr2.regularizers import (
    L0,
    L1,
    MCP,
    NM,
    SCAD,
    Box,
    ElasticNet,
    GroupL0,
    GroupL2,
    Heads,
    KeepZeros,
    L0Ball,
    Lp,
    Nuclear,
    Rank,
    Regularizer,
    Ridge,
)

from . import oracles
from .oracles import Array, Penalty


@dataclass(frozen=True)
class Tie:
    """A threshold hit exactly: prox(x, step) = z, bit for bit."""

    x: Any
    step: float
    z: Any


@dataclass(frozen=True)
class Wrong:
    """A call that must fail with this error and these words (a regular expression)."""

    call: Callable[[], object]
    error: type[Exception]
    words: str


@dataclass(frozen=True)
class RegularizerCase:
    """A regularizer and what is known of it.

    Sums over entries give `penalty` (r of one entry), `slope` (r' for u > 0, r'(0+) at 0, where r has one) and the
    `points` where r jumps or bends; all others give the slow `value` and `prox`. `scaled(c)` is the same regularizer
    with its constants c times as large, to try scales.
    """

    regularizer: Regularizer
    separable: bool = False
    convex: bool = False
    penalty: Penalty | None = None
    slope: Callable[[Array], Array] | None = None
    points: Sequence[float] = ()
    slow_value: Callable[[list[Array]], float] | None = None
    slow_prox: Callable[[list[Array], float], list[Array]] | None = None
    metric_prox: Callable[[list[Array], list[Array]], list[Array]] | None = None  # one step per entry
    scaled: Callable[[float], Regularizer] | None = None
    hard: bool = False  # entries are kept as they are, or 0
    indicator: bool = False  # R is 0 or +inf
    ties: Sequence[Tie] = field(default=())

    @property
    def diagonal(self) -> bool:
        return self.separable or self.metric_prox is not None

    @property
    def decomposes(self) -> bool:
        """Whether the prox takes a matrix apart: all others have one step per entry."""
        return not self.diagonal

    @property
    def name(self) -> str:
        return repr(self.regularizer).split(" at 0x")[0]

    def is_not_among(self, others: Sequence[RegularizerCase]) -> bool:
        return all(type(other.regularizer) is not type(self.regularizer) for other in others)

    def value(self, xs: list[Array]) -> float:
        if self.penalty is not None:
            return float(sum(self.penalty(x).sum() for x in xs))
        assert self.slow_value is not None
        return self.slow_value(xs)

    def prox(self, xs: list[Array], step: float) -> list[Array]:
        if (penalty := self.penalty) is not None:
            one = np.vectorize(lambda x: oracles.prox_scalar(penalty, x, step, self.points), otypes=[float])
            return [one(x) if x.size else x for x in xs]
        assert self.slow_prox is not None
        return self.slow_prox(xs, step)


def pairs_of_entries(x: Tensor) -> Tensor:
    """Groups of two neighbours, numbered with gaps."""
    return 7 * (torch.arange(x.numel(), device=x.device) // 2).reshape(x.shape)


def each_entry(x: Tensor) -> Tensor:
    """Groups of one."""
    return torch.arange(x.numel(), device=x.device).reshape(x.shape)


def _separable(
    regularizer: Regularizer,
    penalty: Penalty,
    slope: Callable[[Array], Array] | None = None,
    scaled: Callable[[float], Regularizer] | None = None,
    **more: Any,
) -> RegularizerCase:
    return RegularizerCase(regularizer, separable=True, penalty=penalty, slope=slope, scaled=scaled, **more)


def _l1(lam: float) -> RegularizerCase:
    return _separable(
        L1(lam),
        penalty=lambda x: lam * np.abs(x),
        slope=lambda u: np.full_like(u, lam),
        scaled=lambda c: L1(c * lam),
        convex=True,
        ties=[Tie([lam, -lam, 0.0], 1.0, [0.0, 0.0, 0.0])],
    )


def _l0(lam: float) -> RegularizerCase:
    return _separable(
        L0(lam),
        penalty=lambda x: lam * (x != 0),
        slope=lambda u: np.where(u == 0, inf, 0.0),
        scaled=lambda c: L0(c * lam),
        hard=True,
        ties=[Tie([2.0, -2.0, 2.5, 0.0], 2.0 / lam, [0.0, 0.0, 2.5, 0.0])],
    )


def _lp(lam: float, p: float) -> RegularizerCase:
    def slope(u: Array) -> Array:
        with np.errstate(divide="ignore"):
            return lam * p * u ** (p - 1)

    threshold = (2 - p) / (2 * (1 - p)) * (2 * (1 - p) * 1.0) ** (1 / (2 - p))  # t = 1
    ties = [Tie([threshold, -threshold, 0.0], 1 / lam, [0.0, 0.0, 0.0])] if lam * (1 / lam) == 1 else []
    return _separable(Lp(lam, p), lambda x: lam * np.abs(x) ** p, slope, lambda c: Lp(c * lam, p), ties=ties)


def _elastic_net(lam1: float, lam2: float) -> RegularizerCase:
    return _separable(
        ElasticNet(lam1, lam2),
        penalty=lambda x: lam1 * np.abs(x) + lam2 / 2 * x**2,
        slope=lambda u: lam1 + lam2 * u,
        scaled=lambda c: ElasticNet(c * lam1, c * lam2),
        convex=True,
        ties=[Tie([lam1, -lam1, 0.0], 1.0, [0.0, 0.0, 0.0])],
    )


def _mcp(lam: float, gamma: float, *ties: Tie) -> RegularizerCase:
    def penalty(x: Array) -> Array:
        """Zhang (2010), equation 2.1."""
        u = np.abs(x)
        return np.where(u <= gamma * lam, lam * u - u**2 / (2 * gamma), gamma * lam**2 / 2)

    return _separable(
        MCP(lam, gamma),
        penalty,
        slope=lambda u: np.maximum(lam - u / gamma, 0.0),
        scaled=lambda c: MCP(c * lam, gamma),
        points=(gamma * lam, -gamma * lam),
        ties=ties,
    )


def _scad(lam: float, a: float, *ties: Tie) -> RegularizerCase:
    def penalty(x: Array) -> Array:
        """Fan and Li (2001)."""
        u = np.abs(x)
        between = (2 * a * lam * u - u**2 - lam**2) / (2 * (a - 1))
        return np.select([u <= lam, u <= a * lam], [lam * u, between], lam**2 * (a + 1) / 2)

    return _separable(
        SCAD(lam, a),
        penalty,
        slope=lambda u: np.clip((a * lam - u) / (a - 1), 0.0, lam),
        scaled=lambda c: SCAD(c * lam, a),
        points=(lam, -lam, a * lam, -a * lam),
        ties=ties,
    )


def _box(lo: float, hi: float) -> RegularizerCase:
    finite = [b for b in (lo, hi) if abs(b) < inf]
    return _separable(
        Box(lo, hi),
        penalty=lambda x: np.where((lo <= x) & (x <= hi), 0.0, np.inf),
        convex=True,
        indicator=True,
        points=finite,
        ties=[Tie(finite, 1.0, finite)],
    )


def _numbers(x: Array, groups: Any) -> Any:
    """Each entry's group."""
    return groups(torch.from_numpy(x)).numpy() if callable(groups) else oracles.group_numbers(x, groups)


def _l0_ball(
    k: int | None = None, density: float | None = None, groups: Any = None, floor: float | None = None
) -> RegularizerCase:
    share = floor if floor is not None else 0.1 if k is None else 0.0

    def limits(xs: list[Array]) -> tuple[list[Any], int, list[int]]:
        """Each entry's group, the budget, and what every tensor has of it for itself."""
        numbers = [_numbers(x, groups or each_entry) for x in xs]
        sizes = [len(np.unique(n)) for n in numbers]
        budget = k if k is not None else round((density or 0.0) * sum(sizes))
        return numbers, budget, oracles.floors(sizes, budget, 0.0 if callable(groups) else share)

    def value(xs: list[Array]) -> float:
        numbers, budget, floors = limits(xs)
        nonzero = [len(np.unique(n[x != 0])) for x, n in zip(xs, numbers, strict=True)]
        return 0.0 if sum(map(max, nonzero, floors)) <= budget else inf

    return RegularizerCase(
        L0Ball(k=k, density=density, groups=groups, floor=floor),
        slow_value=value,
        slow_prox=lambda xs, step: oracles.budget_prox(xs, [np.ones_like(x) for x in xs], *limits(xs)),
        metric_prox=lambda xs, steps: oracles.budget_prox(xs, steps, *limits(xs)),
        indicator=True,
        hard=True,
        ties=[Tie([1.0, -2.0, 2.0, 2.0, -2.0], 1.0, [0.0, -2.0, 2.0, 0.0, 0.0])] if k == 2 and not groups else (),
    )


def _nm(n: int, m: int) -> RegularizerCase:
    return RegularizerCase(
        NM(n, m),
        slow_value=lambda xs: sum(oracles.nm_value(x, n, m) for x in xs),
        slow_prox=lambda xs, step: [oracles.nm_prox(x, n, m) for x in xs],
        metric_prox=lambda xs, steps: [
            np.where(oracles.nm_prox(x / np.sqrt(s), n, m) != 0, x, 0.0) for x, s in zip(xs, steps, strict=True)
        ],
        indicator=True,
        hard=True,
        ties=[Tie([[1.0, -1.0, 1.0, 1.0, 0.5, 2.0, -2.0]], 1.0, [[1.0, -1.0, 0.0, 0.0, 0.0, 2.0, -2.0]])]
        if (n, m) == (2, 4)
        else (),
    )


def _group(cls: type[GroupL2] | type[GroupL0], lam: float, groups: Any, *ties: Tie) -> RegularizerCase:
    def numbers(x: Array) -> Any:
        return _numbers(x, groups)

    def term(norm: float) -> float:
        return lam * norm if cls is GroupL2 else lam * (norm > 0)

    def shrink(norm: float, step: float) -> float:
        if cls is GroupL2:
            return max(1 - lam * step / norm, 0.0) if norm > 0 else 0.0
        return float(norm > sqrt(2 * lam * step))

    return RegularizerCase(
        cls(lam, groups),
        convex=cls is GroupL2,
        slow_value=lambda xs: sum(oracles.group_value(x, numbers(x), term) for x in xs),
        slow_prox=lambda xs, step: [oracles.group_prox(x, numbers(x), lambda norm: shrink(norm, step)) for x in xs],
        metric_prox=lambda xs, steps: [
            (oracles.group_l2_metric if cls is GroupL2 else oracles.group_l0_metric)(x, s, numbers(x), lam)
            for x, s in zip(xs, steps, strict=True)
        ],
        scaled=lambda c: cls(c * lam, groups),
        hard=cls is GroupL0,
        ties=ties,
    )


def _nuclear(lam: float) -> RegularizerCase:
    return RegularizerCase(
        Nuclear(lam),
        convex=True,
        slow_value=lambda xs: sum(lam * np.linalg.norm(oracles.as_matrix(x), "nuc") for x in xs if x.size),
        slow_prox=lambda xs, step: [oracles.singular_prox(x, lambda s: np.maximum(s - lam * step, 0.0)) for x in xs],
        scaled=lambda c: Nuclear(c * lam),
        ties=[Tie([[lam, 0.0], [0.0, lam]], 1.0, [[0.0, 0.0], [0.0, 0.0]])],
    )


def _rank(r: int) -> RegularizerCase:
    return RegularizerCase(
        Rank(r),
        slow_value=lambda xs: sum(
            inf if np.linalg.matrix_rank(oracles.as_matrix(x)) > r else 0.0 for x in xs if x.size
        ),
        slow_prox=lambda xs, step: [
            oracles.singular_prox(x, lambda s: np.where(np.arange(s.size) < r, s, 0.0)) for x in xs
        ],
        indicator=True,
    )


def _ridge(lam: float, beside: RegularizerCase | None = None) -> RegularizerCase:
    """lam / 2 |x|^2, alone or beside a sum over entries: the prox by search, as of every such sum."""
    other = beside or _separable(L1(0.0), np.zeros_like, np.zeros_like, lambda c: L1(0.0), convex=True)
    penalty, slope, scaled = other.penalty, other.slope, other.scaled
    assert penalty is not None
    assert slope is not None
    assert scaled is not None
    return _separable(
        Ridge(lam, None if beside is None else beside.regularizer),
        penalty=lambda x: penalty(x) + lam / 2 * x**2,
        slope=lambda u: slope(u) + lam * u,
        scaled=lambda c: Ridge(c * lam, None if beside is None else scaled(c)),
        convex=other.convex,
        ties=[Tie([2.0, -1.0, 0.0], 1 / lam, [1.0, -0.5, 0.0])] if beside is None else (),
    )


def _ridge_budget(lam: float, k: int) -> RegularizerCase:
    budget = _l0_ball(k=k)
    assert budget.slow_value is not None
    infinite = budget.slow_value
    return RegularizerCase(
        Ridge(lam, L0Ball(k=k)),
        slow_value=lambda xs: infinite(xs) + lam / 2 * sum(float((x**2).sum()) for x in xs),
        slow_prox=lambda xs, step: oracles.ridge_budget(xs, [np.full_like(x, step) for x in xs], lam, k),
        metric_prox=lambda xs, steps: oracles.ridge_budget(xs, steps, lam, k),
        ties=[Tie([1.0, -2.0, 2.0, 2.0, -2.0], 1 / lam, [0.0, -1.0, 1.0, 0.0, 0.0])] if k == 2 else (),
    )


def _ridge_groups(lam: float, of_norms: float) -> RegularizerCase:
    def numbers(x: Array) -> Any:
        return _numbers(x, "filters")

    def metric_prox(xs: list[Array], steps: list[Array]) -> list[Array]:
        return [oracles.ridge_group_l2(x, s, numbers(x), of_norms, lam) for x, s in zip(xs, steps, strict=True)]

    def term(norm: float) -> float:
        return of_norms * norm + lam / 2 * norm**2

    return RegularizerCase(
        Ridge(lam, GroupL2(of_norms)),
        convex=True,
        slow_value=lambda xs: sum(oracles.group_value(x, numbers(x), term) for x in xs),
        slow_prox=lambda xs, step: metric_prox(xs, [np.full_like(x, step) for x in xs]),
        metric_prox=metric_prox,
        scaled=lambda c: Ridge(c * lam, GroupL2(c * of_norms)),
    )


def _ridge_nuclear(lam: float, of_norms: float) -> RegularizerCase:
    def value(x: Array) -> float:
        return of_norms * float(np.linalg.norm(oracles.as_matrix(x), "nuc")) + lam / 2 * float((x**2).sum())

    def shrink(s: Array, step: float) -> Array:
        """Of each singular value, whose squares sum to |x|^2: what the elastic net does to an entry."""
        return np.maximum(s - of_norms * step, 0.0) / (1 + lam * step)

    return RegularizerCase(
        Ridge(lam, Nuclear(of_norms)),
        convex=True,
        slow_value=lambda xs: sum(value(x) for x in xs if x.size),
        slow_prox=lambda xs, step: [oracles.singular_prox(x, lambda s: shrink(s, step)) for x in xs],
        scaled=lambda c: Ridge(c * lam, Nuclear(c * of_norms)),
    )


REGULARIZERS: list[RegularizerCase] = [
    _l1(0.5),
    _l0(0.5),
    *(_lp(0.5, p) for p in (0.5, 2 / 3, 0.001, 0.1, 0.3, 0.8, 0.95, 0.999)),
    _elastic_net(0.5, 0.25),
    # steps 0.5 < gamma: firm; 2 = gamma; 8 > gamma: threshold lam sqrt(gamma step)
    _mcp(
        1.0,
        2.0,
        Tie([0.5, -0.5, 2.0], 0.5, [0.0, 0.0, 2.0]),
        Tie([2.0], 2.0, [0.0]),
        Tie([4.0, -4.5], 8.0, [0.0, -4.5]),
    ),
    _mcp(0.3, 0.1),
    # steps below a - 1; between a - 1 and a + 1: lam (a + 1 + step) / 2; beyond: lam sqrt((a + 1) step)
    _scad(
        1.0,
        3.0,
        Tie([1.0, -1.0, 2.0, 3.0], 1.0, [0.0, 0.0, 1.0, 3.0]),
        Tie([3.0, -3.5], 2.0, [1.0, -3.5]),
        Tie([3.5, -3.5], 3.0, [0.5, -0.5]),
        Tie([8.0, -8.5], 16.0, [0.0, -8.5]),
    ),
    _scad(0.3, 3.7),
    _box(-1.0, 0.5),
    _box(0.25, 0.25),
    _box(-inf, 1.0),
    _box(-0.5, inf),
    _l0_ball(k=2),
    _l0_ball(k=0),
    _l0_ball(k=50),
    _l0_ball(k=4, floor=0.5),
    _l0_ball(density=0.3),
    _l0_ball(density=0.3, floor=0.0),
    _l0_ball(density=0.5, floor=1.0),
    _l0_ball(density=0.5, groups="filters"),
    _l0_ball(k=2, groups="columns"),
    _l0_ball(density=0.5, groups=pairs_of_entries),
    _group(GroupL2, 0.5, "filters"),
    _group(GroupL2, 5.0, "rows", Tie([[3.0, 4.0], [6.0, 8.0]], 1.0, [[0.0, 0.0], [3.0, 4.0]])),
    _group(GroupL2, 0.5, "columns"),
    _group(GroupL2, 0.5, pairs_of_entries),
    _group(GroupL0, 12.5, "filters", Tie([[3.0, 4.0], [6.0, 8.0]], 1.0, [[0.0, 0.0], [6.0, 8.0]])),
    _group(GroupL0, 0.5, "rows"),
    _group(GroupL0, 0.5, "columns"),
    _group(GroupL0, 0.5, pairs_of_entries),
    _nm(2, 4),
    _nm(1, 3),
    _nuclear(0.5),
    _rank(1),
    _rank(0),
    _ridge(0.5),
    _ridge(0.5, _l1(0.25)),
    _ridge(0.25, _l0(0.5)),
    _ridge_budget(0.5, k=2),
    _ridge_groups(0.25, 0.5),
    _ridge_nuclear(0.25, 0.5),
]

ONE_OF_EACH = [c for i, c in enumerate(REGULARIZERS) if c.is_not_among(REGULARIZERS[:i])]
"""The first case of every class."""
LAST = [c for i, c in enumerate(REGULARIZERS) if c.separable and c.is_not_among(REGULARIZERS[i + 1 :])]
FEW = ONE_OF_EACH + [c for c in LAST if c not in ONE_OF_EACH]
"""Also the last case where R is a sum over entries: there the prox often takes another branch."""

_X = torch.tensor([1.0, 2.0])

WRONG_REGULARIZERS: list[Wrong] = [
    *(
        Wrong(lambda make=make, lam=lam: make(lam), ValueError, r"lam\d? must be a number at least 0 and finite")
        for make in (
            L1,
            L0,
            Nuclear,
            GroupL2,
            GroupL0,
            Ridge,
            lambda lam: Lp(lam, 0.5),
            lambda lam: MCP(lam, 2.0),
            lambda lam: SCAD(lam, 3.0),
            lambda lam: ElasticNet(lam, 1.0),
            lambda lam: ElasticNet(1.0, lam),
        )
        for lam in (-1.0, float("nan"), inf, "1", None, True, 1j)
    ),
    *(Wrong(lambda p=p: Lp(1.0, p), ValueError, "p must be a number above 0 and below 1") for p in (0, 1, -1, 2.0)),
    *(Wrong(lambda g=g: MCP(1.0, g), ValueError, "gamma must be a number above 0") for g in (0, -1, inf)),
    *(Wrong(lambda a=a: SCAD(1.0, a), ValueError, "a must be a number above 2") for a in (2, 1.0, inf)),
    Wrong(lambda: Ridge(1.0, L1), TypeError, r"regularizer must be a Regularizer or None"),
    Wrong(lambda: Box(1.0, 0.0), ValueError, "lo <= hi"),
    Wrong(lambda: Box(float("nan"), 0.0), ValueError, "lo <= hi"),
    Wrong(lambda: Box("0", 1.0), ValueError, "must be numbers"),
    Wrong(lambda: Box(inf, inf), ValueError, "a finite number between"),
    Wrong(lambda: L0Ball(), ValueError, "exactly one of k and density"),
    Wrong(lambda: L0Ball(k=1, density=0.5), ValueError, "exactly one of k and density"),
    *(Wrong(lambda k=k: L0Ball(k=k), ValueError, "k must be an integer of at least 0") for k in (-1, 1.5, 2.0, True)),
    Wrong(lambda: L0Ball(0.05), ValueError, "k is a number of nonzeros, and is 0.05: a share is density=0.05"),
    *(
        Wrong(
            lambda d=d: L0Ball(density=d), ValueError, "density must be the share that stays, .*density=0.05 keeps 5 %"
        )
        for d in (-0.1, 1.1, 5, "1", True, float("nan"))
    ),
    *(Wrong(lambda r=r: Rank(r), ValueError, "r must be an integer of at least 0") for r in (-1, 1.0)),
    *(Wrong(lambda f=f: L0Ball(1, floor=f), ValueError, "floor must be a number") for f in (-0.1, 1.1, "1")),
    Wrong(lambda: L0Ball(1, groups="kernels"), ValueError, "L0Ball: groups must be .* a callable, and is 'kernels'"),
    Wrong(lambda: L0Ball(1, groups=each_entry).at_strength(0.5), TypeError, "share must be a 0-dim tensor"),
    Wrong(lambda: L1(1.0).at_strength(torch.ones(2)), TypeError, "share must be a 0-dim tensor"),
    *(
        Wrong(lambda n=n: Heads(n), ValueError, "Heads: number must be an integer of at least 1")
        for n in (0, 2.0, True)
    ),
    Wrong(lambda: GroupL2(1.0, Heads(3)).prox(_X, 1.0), ValueError, r"2 rows \(of \(2,\)\) are not 3 heads"),
    Wrong(lambda: KeepZeros().prox(_X, 1.0), RuntimeError, r"no zeros to keep yet: call start\(xs\)"),
    Wrong(lambda: KeepZeros().start([_X]).value(_X[:1]), ValueError, r"started on .*\(2,\).*given \[\(1,\)\]"),
    Wrong(lambda: NM(0, 4), ValueError, "n must be an integer of at least 1"),
    Wrong(lambda: NM(1, 4.0), ValueError, "m must be an integer of at least 1"),
    Wrong(lambda: NM(5, 4), ValueError, "n must be at most m, and they are 5 and 4"),
    Wrong(lambda: GroupL2(1.0, "kernels"), ValueError, "'filters', 'rows', 'columns' or a callable, and is 'kernels'"),
    Wrong(lambda: GroupL0(1.0, None), ValueError, "'filters', 'rows', 'columns' or a callable, and is None"),
    Wrong(
        lambda: GroupL2(1.0, lambda x: each_entry(x)[:1]).prox(_X, 1.0),
        ValueError,
        r"integer tensor of x's shape \(2,\)",
    ),
    Wrong(lambda: GroupL0(1.0, lambda x: x).value(_X), ValueError, "integer tensor .* gave torch.float32"),
    Wrong(lambda: GroupL0(1.0, lambda x: x > 0).value(_X), ValueError, "integer tensor .* gave torch.bool"),
    Wrong(lambda: GroupL0(1.0, lambda x: 0).value(_X), ValueError, "integer tensor .* gave 0"),
    *(
        Wrong(lambda s=s: L1(1.0).prox(_X, s), ValueError, "step must be positive and finite")
        for s in (0, -1.0, inf, float("nan"))
    ),
    *(Wrong(lambda s=s: L1(1.0).prox(_X, s), ValueError, "step must be a number, a tensor") for s in (None, True)),
    Wrong(lambda: L1(1.0).prox(_X, torch.tensor([1.0, 0.0])), ValueError, "step must be positive and finite"),
    Wrong(lambda: L1(1.0).prox(_X, torch.ones(3)), ValueError, r"shape \(2,\) needs steps of that shape, not \(3,\)"),
    Wrong(lambda: L1(1.0).prox([_X, _X], [torch.ones(2)]), ValueError, "2 tensors need 2 tensors of steps, and got 1"),
    Wrong(lambda: L1(1.0).prox([_X], [1.0]), ValueError, r"shape \(2,\) needs steps of that shape, not 1.0"),
    *(
        Wrong(lambda r=r: r.prox(_X, torch.ones(2)), ValueError, "its step is one number per tensor, not per entry")
        for r in (c.regularizer for c in ONE_OF_EACH if not c.diagonal)
    ),
    Wrong(lambda: L1(1.0).prox(_X.half(), 1.0), ValueError, "float32, float64 or bfloat16, not torch.float16"),
    Wrong(lambda: L1(1.0).value(torch.arange(3)), ValueError, "float32, float64 or bfloat16, not torch.int64"),
    Wrong(lambda: L1(1.0).value([_X, 1.0]), TypeError, "expected tensors and got a float"),
    Wrong(lambda: L1(1.0).decrease(_X, _X[:1]), ValueError, "tensors of the same shapes"),
]
