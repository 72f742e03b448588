"""Every regularizer under test, each with its slow twin. Generic tests run over this list.

A new regularizer is one `RegularizerCase` (or a few), and gets every generic test. Formulas are those of the
literature, case by case. `wrong.py` has wrong arguments, `optimizers.py` the list of optimizers.
"""

from __future__ import annotations

from math import inf, sqrt
from typing import Any

import numpy as np

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
    L0Ball,
    Lp,
    Nuclear,
    Rank,
    Ridge,
)

from . import oracles
from .cases import RegularizerCase, Tie, each_entry, numbers_of, pairs_of_entries, separable
from .oracles import Array


def _l1(lam: float) -> RegularizerCase:
    return separable(
        L1(lam),
        penalty=lambda x: lam * np.abs(x),
        slope=lambda u: np.full_like(u, lam),
        scaled=lambda c: L1(c * lam),
        convex=True,
        ties=[Tie([lam, -lam, 0.0], 1.0, [0.0, 0.0, 0.0])],
    )


def _l0(lam: float) -> RegularizerCase:
    return separable(
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
    return separable(Lp(lam, p), lambda x: lam * np.abs(x) ** p, slope, lambda c: Lp(c * lam, p), ties=ties)


def _elastic_net(lam1: float, lam2: float) -> RegularizerCase:
    return separable(
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

    return separable(
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

    return separable(
        SCAD(lam, a),
        penalty,
        slope=lambda u: np.clip((a * lam - u) / (a - 1), 0.0, lam),
        scaled=lambda c: SCAD(c * lam, a),
        points=(lam, -lam, a * lam, -a * lam),
        ties=ties,
    )


def _box(lo: float, hi: float) -> RegularizerCase:
    finite = [b for b in (lo, hi) if abs(b) < inf]
    return separable(
        Box(lo, hi),
        penalty=lambda x: np.where((lo <= x) & (x <= hi), 0.0, np.inf),
        convex=True,
        indicator=True,
        points=finite,
        ties=[Tie(finite, 1.0, finite)],
    )


def _l0_ball(
    k: int | None = None, density: float | None = None, groups: Any = None, floor: float | None = None
) -> RegularizerCase:
    share = floor if floor is not None else 0.1 if k is None else 0.0

    def limits(xs: list[Array]) -> tuple[list[Any], int, list[int]]:
        """Each entry's group, the budget, and what every tensor has of it for itself."""
        numbers = [numbers_of(x, groups or each_entry) for x in xs]
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
        return numbers_of(x, groups)

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
    other = beside or separable(L1(0.0), np.zeros_like, np.zeros_like, lambda c: L1(0.0), convex=True)
    penalty, slope, scaled = other.penalty, other.slope, other.scaled
    assert penalty is not None
    assert slope is not None
    assert scaled is not None
    return separable(
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
        return numbers_of(x, "filters")

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
