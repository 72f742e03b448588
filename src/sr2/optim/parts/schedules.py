"""What depends on the number of steps: the path of a budget, and the end of a run, where steps become short."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from numbers import Integral

from ...checks import check_integer
from ...numerics import Number, Plain, at_least, between, double, where
from ...regularizers.base import Regularizer

__all__ = ["Cooldown", "Reach", "Schedule"]

COOLEST = 0.02
"""The share of its step length that a cooldown leaves. Were it to end at 0, a weight that a batch takes from zero in
the last steps could not come back."""
SHRINKS = (0.1, 0.7)
"""Where only the number of steps is known, a budget shrinks between these shares of the run."""
COOLS_FROM = {"no R": 0.5, "R": 0.7}
"""From this share on steps become short. Under R it is later: a budget is to be reached by then, and long steps make
zeros."""
SOON = (100, 200)
"""Where that number is not known either, a budget shrinks over these steps: few, so that a short run reaches it too."""


class Schedule(Plain, ABC):
    """Changes sigma by the number of steps alone, after the rule has spoken."""

    @abstractmethod
    def apply(self, sigma: Number, t: Number, memory: Mapping[str, Number]) -> tuple[Number, dict[str, Number]]:
        """sigma of the next step after t steps, and the new values of what is remembered; no host read."""

    def memory(self) -> dict[str, float]:
        """What the schedule remembers from step to step: names and first values."""
        return {}


@dataclass(frozen=True)
class Cooldown(Schedule):
    """Between two steps, 1 / sigma is brought down along a line to a fiftieth, as a learning rate is at the end.

    The noise of the batches stays while x settles, and no rho asks for shorter steps. From `first` on,

        sigma_t >= sigma_first / max(0.02, (last - t) / (last - first)).

    >>> [Cooldown(800, 1000).left(t) for t in (0, 800, 900, 1000)]
    [1.0, 1.0, 0.5, 0.02]

    Args:
        first, last: 1 <= first < last, the steps between which sigma rises. For a run of n steps, (round(0.8 n), n).
    """

    first: int
    last: int
    plain = True

    def __post_init__(self) -> None:
        _check_steps(self, "cooldown", "(800, 1000)")

    def __str__(self) -> str:
        return f"cooldown={(self.first, self.last)}"

    def left(self, t: Number) -> Number:
        """What is left of the step length after t steps: all up to `first`, then along a line to COOLEST."""
        return between(double(self.last - t) / (self.last - self.first), COOLEST, 1.0)

    def memory(self) -> dict[str, float]:
        return {"sigma_first": 0.0}  # not known before the cooldown has begun

    def apply(self, sigma: Number, t: Number, memory: Mapping[str, Number]) -> tuple[Number, dict[str, Number]]:
        """Where the line is given to a run that is past its first step, it begins at the sigma there is."""
        begun, left, sigma_first = t >= self.first, self.left(t), memory["sigma_first"]
        sigma_first = where(begun & (sigma_first == 0), sigma * left, sigma_first)
        sigma = where(begun, at_least(sigma, sigma_first / left), sigma)
        return sigma, {"sigma_first": sigma_first}


@dataclass(frozen=True)
class Reach:
    """Between two steps, R comes to its full strength: the path of a budget.

    Step t, counted from 1, is taken under R_t = `R.at_strength(u_t)` with

        u_t = (t - first) / (last - first), between 0 and 1.

    A budget shrinks along a cubic: 1 - (1 - u)^3 of what it is to remove is removed. A lambda grows along a line,
    u lambda. From step `last` on R_t is R, and what is accepted then has R(x) finite. rho uses the same R_t at x and
    at x + s.

    **Steps that a budget forces.** Where the budget has shrunk below what x has, R_t(x) is infinite and x must move,
    downhill or not: R_t(x) - R_t(x + s) compares with nothing. R's decrease is then taken to first order. s solves
    v + B s + r = 0, r a (limiting) subgradient of R_t at x + s, so that it is -r's = v's + s'Bs, and

        rho = (f(x) - f(x + s) + v's + s'Bs) / s'Bs = 1 - (f(x + s) - f(x) - v's) / s'Bs,

    which is what rho is without any R: 1 - curvature / 2, whether sigma bounds the curvature of f along s. The rule
    judges it with its own thresholds. A rejected step puts x back, with its nonzeros, and raises sigma; s then goes
    towards the projection of x, which is not 0, s'Bs without bound and rho to 1: in the end a step is accepted.

    >>> [Reach(100, 700).share(t) for t in (1, 100, 250, 700, 1000)]
    [0.0, 0.0, 0.25, 1.0, 1.0]

    Args:
        first, last: 1 <= first < last, the steps between which R grows.
    """

    first: int
    last: int

    def __post_init__(self) -> None:
        _check_steps(self, "reach", "(100, 700)")

    def share(self, t: Number) -> Number:
        """The share of R's strength at step t, counted from 1; no host read."""
        return between(double(t - self.first) / (self.last - self.first), 0.0, 1.0)


def as_cooldown(steps: object) -> Cooldown:
    """A Cooldown from its (first, last), or an error that says what is wrong with it.

    >>> as_cooldown([800, 1000])
    Cooldown(first=800, last=1000)
    """
    return Cooldown(*_pair(steps, "cooldown", "(800, 1000)"))


def cools_from(regularizers: Iterable[Regularizer | None]) -> float:
    """The share of a run from which on steps become short, under these regularizers.

    >>> from sr2 import L1
    >>> cools_from([L1(0.1), None]), cools_from([None])
    (0.7, 0.5)
    """
    return COOLS_FROM["R" if any(r is not None for r in regularizers) else "no R"]


def planned_cooldown(
    given: object, steps: int | None, regularizers: Iterable[Regularizer | None] = ()
) -> Cooldown | None:
    """The cooldown that was given, or that of a run of so many steps.

    >>> planned_cooldown(None, 1000)
    Cooldown(first=500, last=1000)
    """
    if steps is not None:
        check_integer("SR2", "steps (epochs * len(loader))", steps, 2)
    if given is not None:
        return as_cooldown(given)
    return None if steps is None else Cooldown(max(1, round(cools_from(regularizers) * steps)), steps)


def planned_reach(
    given: object, steps: int | None, otherwise: tuple[int, int] | None, regularizers: Iterable[Regularizer | None]
) -> Reach | None:
    """The reach that was given; where one of the regularizers is a budget, "auto" is that of a run of so many steps, or
    `otherwise` where nobody knows how many.

    >>> from sr2 import L1, L0Ball
    >>> planned_reach("auto", 1000, SOON, [L0Ball(density=0.05)])
    Reach(first=100, last=700)
    >>> planned_reach("auto", None, SOON, [L0Ball(density=0.05)])
    Reach(first=100, last=200)
    >>> planned_reach("auto", 1000, SOON, [L1(0.1), None])
    """
    if given is None:
        return None
    if given != "auto":
        return Reach(*_pair(given, "reach", "(100, 700)"))
    if not any(r is not None and r.strict for r in regularizers):
        return None
    if steps is None:
        return None if otherwise is None else Reach(*otherwise)
    first = max(1, round(SHRINKS[0] * steps))
    return Reach(first, max(first + 1, round(SHRINKS[1] * steps)))


def _pair(steps: object, name: str, example: str) -> tuple[int, int]:
    if not isinstance(steps, (tuple, list)) or len(steps) != 2:
        raise ValueError(f"SR2: {name} must be its first and last step, as {example}, and is {steps!r}")
    return steps[0], steps[1]


def _check_steps(schedule: Cooldown | Reach, name: str, example: str) -> None:
    """Two integers, 1 <= first < last."""
    pair: tuple[object, object] = (schedule.first, schedule.last)
    if not all(isinstance(s, Integral) and not isinstance(s, bool) for s in pair):
        raise ValueError(f"SR2: {name} must be its first and last step, as {example}, and is {pair}")
    object.__setattr__(schedule, "first", int(schedule.first))
    object.__setattr__(schedule, "last", int(schedule.last))
    if not 1 <= schedule.first < schedule.last:
        raise ValueError(f"SR2: {name} must have 1 <= first < last, as {example}, and is {pair}")
