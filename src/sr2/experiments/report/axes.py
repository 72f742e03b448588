"""Axes of the figures: their ends, and ticks with texts, the same on paper and on the page."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from matplotlib.ticker import MaxNLocator


@dataclass(frozen=True)
class Axis:
    """A label, the two ends and the ticks with their texts."""

    label: str
    ends: tuple[float, float]
    ticks: tuple[tuple[float, str], ...]
    log: bool = False


def depth(percent: float) -> float:
    """How near to 100 %, on a scale that opens up there: -log10 of the share that is left, at most 3.5."""
    return -math.log10(max(1 - percent / 100, 10**-3.5))


def linear(label: str, values: Iterable[float], *, whole: bool = False, percent: bool = False) -> Axis:
    """An axis around the values; `whole` numbers end where the values do, `percent` has no ticks beyond 0 and 100."""
    lo, hi = _spread(values, 2.0 if percent else 1e-3)
    lo, hi = (max(lo, 0.0), min(hi, 100.0)) if percent else (lo, hi)
    pad = 0.0 if whole else 0.04 * (hi - lo)
    ticks = MaxNLocator(4, integer=whole, steps=[1, 2, 2.5, 5, 10]).tick_values(lo, hi)
    inside = [float(t) for t in ticks if lo - pad <= t <= hi + pad and not (percent and not 0 <= t <= 100)]
    return Axis(label, (lo - pad, hi + pad), _texts(inside))


def marked(values: Iterable[float], marks: Sequence[tuple[float, str]]) -> Axis:
    """A linear axis around values and marks; marks are ticks with texts of their own, and other ticks keep away.

    Marks that are too near to one another for texts have none: their lines are drawn, and the legend has the values.
    """
    axis = linear("", [*values, *(at for at, _ in marks)])
    near = 0.09 * (axis.ends[1] - axis.ends[0])
    ticks = [
        (at, text)
        for i, (at, text) in enumerate(marks)
        if all(abs(at - b) >= near for b, _ in (*marks[:i], *marks[i + 1 :]))
    ]
    ticks += [tick for tick in axis.ticks if all(abs(tick[0] - at) >= near for at, _ in ticks)]
    return replace(axis, ticks=tuple(sorted(ticks)))


def logarithmic(label: str, values: Iterable[float]) -> Axis:
    """Ticks at powers of ten, or at 1, 2, 5 times them where those are too few."""
    lo, hi = _spread(map(math.log10, values), 0.3)
    lo, hi = lo - 0.04 * (hi - lo), hi + 0.04 * (hi - lo)
    powers = range(math.floor(lo), math.ceil(hi) + 1)
    for leaders in ((1,), (1, 3), (1, 2, 5), range(1, 10)):
        ticks = [
            lead * 10.0**power for power in powers for lead in leaders if lo <= math.log10(lead * 10.0**power) <= hi
        ]
        if len(ticks) >= 3:
            break
    every = math.ceil(len(ticks) / 6)
    shown = ticks[::every]
    plain = shown[0] > 9e-5 and shown[-1] < 1e5  # one way of writing per axis
    return Axis(label, (10**lo, 10**hi), tuple((t, f"{t:g}" if plain else _scientific(t)) for t in shown), log=True)


def opening(label: str, depths: Iterable[float]) -> Axis:
    """The axis of depths, with ticks in percent that keep a distance."""
    lo, hi = _spread(depths, 0.2)
    lo, hi = lo - 0.04 * (hi - lo), hi + 0.04 * (hi - lo)
    ticks: list[float] = []
    for percent in (
        0,
        99.9,
        99,
        90,
        50,
        98,
        80,
        95,
        70,
        99.5,
        85,
        30,
        97,
        93,
        60,
        96,
        88,
        75,
        92,
        99.7,
        98.5,
        99.95,
        94,
        91,
    ):
        apart = min((abs(depth(percent) - depth(other)) for other in ticks), default=math.inf)
        if lo <= depth(percent) <= hi and apart >= 0.08 * (hi - lo):
            ticks.append(percent)
    return Axis(label, (lo, hi), _texts(sorted(ticks), depth))


def _spread(values: Iterable[float], least: float = 1e-3) -> tuple[float, float]:
    known = list(values)
    lo, hi = min(known), max(known)
    middle, half = (lo + hi) / 2, max((hi - lo) / 2, least / 2, abs(hi) * 1e-3)
    return middle - half, middle + half


def _texts(ticks: Iterable[float], place: Callable[[float], float] = float) -> tuple[tuple[float, str], ...]:
    return tuple((place(tick), f"{tick:g}") for tick in ticks)


def _scientific(number: float) -> str:
    """
    >>> _scientific(1.0), _scientific(10.0), _scientific(2e6), _scientific(5e-5)
    ('1', '1e1', '2e6', '5e-5')
    """
    k = math.floor(math.log10(number) + 1e-9)
    return f"{number / 10.0**k:.4g}e{k}" if k else f"{number:.4g}"


def power(k: int) -> str:
    """10^k as the text of a tick."""
    return "1" if k == 0 else f"1e{k}"
