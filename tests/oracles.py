"""Slow and obviously right: what the fast code is held against. numpy in float64, brute force where it can be."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from itertools import combinations, product
from math import ceil, floor

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq

Array = npt.NDArray[np.float64]
Penalty = Callable[[Array], Array]
"""r, of R(x) = sum r(x_i), entry by entry."""

# ---- the prox of a sum over entries, by search alone


def objective(penalty: Penalty, z: Array, x: float, step: float) -> Array:
    return penalty(z) + (z - x) ** 2 / (2 * step)


def prox_scalar(penalty: Penalty, x: float, step: float, points: Sequence[float] = (), n: int = 2001) -> float:
    """A grid over [-|x|, |x|], then a finer one around its best points, again and again.

    `points` are added as candidates; 0 and x always are (jumps of r sit there).
    """
    reach = 1.01 * max(abs(x), *map(abs, points), 1e-300)
    grid = np.linspace(-reach, reach, n)
    kinks = np.array([0.0, x, *points])
    f = objective(penalty, grid, x, step)
    best = [float(b) for b in kinks]
    for start in grid[np.argsort(f)[:3]]:
        low, high = start - reach / n * 4, start + reach / n * 4
        for _ in range(14):
            fine = np.linspace(low, high, 41)
            i = int(np.argmin(objective(penalty, fine, x, step)))
            low, high = fine[max(i - 2, 0)], fine[min(i + 2, 40)]
        best.append(float(fine[i]))
    return best[int(np.argmin(objective(penalty, np.array(best), x, step)))]


# ---- whole groups


def l0_ball_prox(xs: Sequence[Array], k: int) -> list[Array]:
    """Every subset of k entries tried; of equally good ones the first (combinations come in order)."""
    flat = np.concatenate([x.ravel() for x in xs]) if xs else np.zeros(0)
    k = min(k, flat.size)
    kept = max(combinations(range(flat.size), k), key=lambda c: sum(sorted(flat[list(c)] ** 2)))
    out = np.zeros_like(flat)
    out[list(kept)] = flat[list(kept)]
    return _split(out, xs)


def nm_prox(x: Array, n: int, m: int) -> Array:
    """Block by block, every subset tried."""
    out = np.zeros_like(x)
    matrix, z = (x, out) if x.ndim >= 2 else (x.reshape(-1, 1), out.reshape(-1, 1))
    for i in range(matrix.shape[0]):
        for rest in product(*map(range, matrix.shape[2:])):
            for start in range(0, matrix.shape[1], m):
                at = (i, slice(start, start + m), *rest)
                z[at] = l0_ball_prox([matrix[at]], n)[0]
    return out


def nm_value(x: Array, n: int, m: int) -> float:
    matrix = x if x.ndim >= 2 else x.reshape(-1, 1)
    for start in range(0, matrix.shape[1], m):
        if (np.count_nonzero(matrix[:, start : start + m], axis=1) > n).any():
            return np.inf
    return 0.0


def group_numbers(x: Array, groups: str) -> npt.NDArray[np.int64]:
    """Each entry's group, by its index."""
    matrix = np.zeros((x.shape[0] if x.ndim else 1, x.size // max(x.shape[0] if x.ndim else 1, 1)), dtype=np.int64)
    rows, columns = np.indices(matrix.shape)
    return (columns if groups == "columns" else rows).reshape(x.shape)


def group_prox(x: Array, numbers: npt.NDArray[np.int64], shrink: Callable[[float], float]) -> Array:
    """shrink(norm) gives the factor of a group."""
    out = np.zeros_like(x)
    for g in np.unique(numbers):
        members = numbers == g
        out[members] = x[members] * shrink(float(np.linalg.norm(x[members])))
    return out


def group_value(x: Array, numbers: npt.NDArray[np.int64], term: Callable[[float], float]) -> float:
    return sum(term(float(np.linalg.norm(x[numbers == g]))) for g in np.unique(numbers))


def singular_prox(x: Array, shrink: Callable[[Array], Array]) -> Array:
    if x.size == 0:
        return x.copy()
    u, s, vh = np.linalg.svd(as_matrix(x), full_matrices=False)
    return ((u * shrink(s)) @ vh).reshape(x.shape)


def as_matrix(x: Array) -> Array:
    return x.reshape(x.shape[0], -1) if x.ndim >= 2 else x.reshape(-1, 1)


def _split(flat: Array, xs: Sequence[Array]) -> list[Array]:
    ends = np.cumsum([x.size for x in xs])[:-1] if xs else []
    return [part.reshape(x.shape) for part, x in zip(np.split(flat, ends), xs, strict=True)] if xs else []


# ---- one step per entry


def floors(sizes: Sequence[int], k: int, share: float) -> list[int]:
    """What each of several tensors has for itself of a budget of k: see `L0Ball`."""
    if len(sizes) < 2 or k >= sum(sizes):
        return [0] * len(sizes)
    shares = [Fraction(str(share)) * k * size / sum(sizes) for size in sizes]
    up = [ceil(s) for s in shares]
    return up if sum(up) <= k / 2 else [floor(s) for s in shares]


def budget_prox(
    xs: Sequence[Array],
    steps: Sequence[Array],
    numbers: Sequence[npt.NDArray[np.int64]],
    k: int,
    least: Sequence[int],
) -> list[Array]:
    """Every set of k groups tried that has `least` of each tensor; of equally good ones the first."""
    groups = [(i, g) for i, n in enumerate(numbers) for g in dict.fromkeys(n.ravel().tolist())]
    gains = {(i, g): float((xs[i] ** 2 / steps[i])[numbers[i] == g].sum()) for i, g in groups}

    def gain(kept: tuple[tuple[int, int], ...]) -> float:
        counts = [sum(j == i for j, _ in kept) for i in range(len(xs))]
        if any(c < f for c, f in zip(counts, least, strict=True)):
            return -1.0
        return sum(sorted(gains[group] for group in kept))

    kept = max(combinations(groups, min(k, len(groups))), key=gain)
    return [
        np.where(np.isin(numbers[i], [g for j, g in kept if j == i]), x, 0.0) if x.size else x.copy()
        for i, x in enumerate(xs)
    ]


def group_l2_metric(x: Array, step: Array, numbers: npt.NDArray[np.int64], lam: float) -> Array:
    """z_i = x_i r / (r + lam step_i), r from the condition 0 in lam z / |z| + (z - x) / step by scipy's root."""
    out = np.zeros_like(x)
    for g in np.unique(numbers):
        at = numbers == g
        xg, t = x[at], lam * step[at]
        if np.linalg.norm(xg / t) > 1 if lam else xg.any():
            r = brentq(lambda r: np.linalg.norm(xg / (r + t)) - 1, 0.0, np.linalg.norm(xg), xtol=1e-300, rtol=1e-15)  # noqa: B023
            out[at] = xg * (r / (r + t))
    return out


def group_l0_metric(x: Array, step: Array, numbers: npt.NDArray[np.int64], lam: float) -> Array:
    out = np.zeros_like(x)
    for g in np.unique(numbers):
        at = numbers == g
        if (x[at] ** 2 / (2 * step[at])).sum() > lam:
            out[at] = x[at]
    return out


# ---- parts of optimizers


def ridge_budget(xs: Sequence[Array], steps: Sequence[Array], lam: float, k: int) -> list[Array]:
    """The k entries that gain the most if they may be other than 0; of equal ones the first."""
    x, t = (np.concatenate([a.ravel() for a in rows]) if rows else np.zeros(0) for rows in (xs, steps))
    z = x / (1 + lam * t)  # where lam z + (z - x) / t = 0
    gain = x**2 / (2 * t) - (lam / 2 * z**2 + (z - x) ** 2 / (2 * t))
    out = np.zeros_like(x)
    kept = np.argsort(-gain.round(12), kind="stable")[:k]
    out[kept] = z[kept]
    return _split(out, xs)


def ridge_group_l2(x: Array, step: Array, numbers: npt.NDArray[np.int64], of_norms: float, lam: float) -> Array:
    """Group by group the norm of z at which (of_norms / |z| + lam + 1 / t) z = x / t, by a root finder."""
    out = np.zeros_like(x)
    for number in np.unique(numbers):
        own = numbers == number
        u, t = x[own], step[own]
        if np.linalg.norm(u / t) <= of_norms:  # 0 is a minimizer
            continue
        at = lambda norm: u / t / (of_norms / norm + lam + 1 / t)  # noqa: B023, E731 - used at once
        norm = brentq(lambda n: np.linalg.norm(at(n)) / n - 1, 1e-12, 2 * np.linalg.norm(u) + 1e-12, xtol=1e-15)  # noqa: B023
        out[own] = at(norm)
    return out


def soft(x: Array, t: Array | float) -> Array:
    """The prox of t |x|_1."""
    return np.sign(x) * np.maximum(np.abs(x) - t, 0)


def hard(x: Array, t: Array | float) -> Array:
    """The prox of t |x|_0."""
    return np.where(np.abs(x) > np.sqrt(2 * t), x, 0.0)


def andrei_twin(xs: Sequence[Array], gs: Sequence[Array]) -> Iterator[Array]:
    """B_t for each point of a trajectory, before the floor: the formula term by term."""
    B = np.ones_like(xs[0])
    yield B
    for x0, x1, g0, g1 in zip(xs, xs[1:], gs, gs[1:], strict=False):
        s, y = x1 - x0, g1 - g0
        if s.any():
            B = B + (s @ y + s @ s - s @ (B * s)) / np.sum(s**4) * s**2 - 1
        yield B
