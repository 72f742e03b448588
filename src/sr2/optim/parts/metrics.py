"""Diagonal metrics D_t: how each entry's curvature is guessed from the gradients seen so far.

A metric is a frozen dataclass of constants. `update` is a pure function of a group's tensors, gradients and states: it
returns the diagonal and the new states, and writes nothing, so that a step which is called off leaves no trace. Of
bfloat16 gradients both are float32: a change of less than 1/256 of a mean would be rounded away.
"""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...checks import check_number
from ...numerics import add, cast, exact_sum, wide
from ...regularizers.base import Step

__all__ = ["AdaGrad", "Adam", "Andrei", "Metric", "RMSprop"]

State = dict[str, Any]
"""Of one tensor. Beside an average `name` there is its weight, `name_weight`, and there may be room for the next one,
`name_room`: fresh memory costs more than the arithmetic, on the CPU."""


class Metric(ABC):
    """A nonnegative diagonal D_t. SR2 steps with sigma D_t, ProxGEN with D_t / lr, ProxSGD with D_t."""

    entrywise: ClassVar[bool] = False
    """Whether each entry of D needs that entry of x and g alone: a process may then work on its part of a tensor."""
    normalizes: ClassVar[bool] = False
    """Whether D is the usual size of a gradient, so that steps are about 1 / sigma."""

    def __init_subclass__(cls, **arguments: object) -> None:
        """A subclass with a diagonal of its own is not Adam's, whatever its parent is: no kernel computes it."""
        super().__init_subclass__(**arguments)
        if "update" in cls.__dict__ and "entrywise" not in cls.__dict__:
            cls.entrywise = False
        if "update" in cls.__dict__ and "normalizes" not in cls.__dict__:
            cls.normalizes = False
        if "update" in cls.__dict__ and "adam" not in cls.__dict__:
            cls.adam = property(lambda self: None)  # type: ignore[assignment, method-assign]

    @property
    def adam(self) -> tuple[float, float] | None:
        """(beta, eps) of a metric that is Adam's: the fused kernel runs only where they are declared."""
        return None

    @property
    def falls_to(self) -> float:
        """To what share of the first D the second may fall: sigma_0, found with the first, must serve for that too."""
        return 1.0

    @abstractmethod
    def update(
        self, xs: Sequence[Tensor], gs: Sequence[Tensor], states: Sequence[State]
    ) -> tuple[list[Tensor], list[State]]:
        """The diagonal at x for the gradient g, and the states that replace the old ones if the step stands."""


@dataclass(frozen=True)
class Adam(Metric):
    """D_t = sqrt(r_t / (1 - beta^t)) + eps,  r_t = beta r_{t-1} + (1 - beta) g_t^2.

    With momentum, ProxGEN under this metric is AdamW; alone it is the tau_t of ProxSGD.
    """

    beta: float = 0.999
    eps: float = 1e-8
    entrywise = True
    normalizes = True

    def __post_init__(self) -> None:
        check_number(self, "beta", self.beta, 0, 1)
        check_number(self, "eps", self.eps, 0, open_low=True)  # 0 over a gradient of 0 would be no number

    @property
    def adam(self) -> tuple[float, float] | None:
        return (self.beta, self.eps) if self.beta else None

    def update(
        self, xs: Sequence[Tensor], gs: Sequence[Tensor], states: Sequence[State]
    ) -> tuple[list[Tensor], list[State]]:
        squares = _squares(gs)
        means, news = corrected("square", squares, states, self.beta, into=squares)
        torch._foreach_sqrt_(means)
        torch._foreach_add_(means, self.eps)
        return means, news


@dataclass(frozen=True)
class RMSprop(Metric):
    """D_t = sqrt(r_t) + eps,  r_t = beta r_{t-1} + (1 - beta) g_t^2."""

    beta: float = 0.99
    eps: float = 1e-8
    entrywise = True
    normalizes = True

    def __post_init__(self) -> None:
        check_number(self, "beta", self.beta, 0, 1)
        check_number(self, "eps", self.eps, 0, open_low=True)  # 0 over a gradient of 0 would be no number

    def update(
        self, xs: Sequence[Tensor], gs: Sequence[Tensor], states: Sequence[State]
    ) -> tuple[list[Tensor], list[State]]:
        squares = emas("square", _squares(gs), states, self.beta)
        return [r.sqrt().add_(self.eps) for r in squares], [{"square": r} for r in squares]


@dataclass(frozen=True)
class AdaGrad(Metric):
    """D_t = sqrt(g_1^2 + ... + g_t^2) + eps."""

    eps: float = 1e-10
    entrywise = True

    def __post_init__(self) -> None:
        check_number(self, "eps", self.eps, 0, open_low=True)  # 0 over a gradient of 0 would be no number

    def update(
        self, xs: Sequence[Tensor], gs: Sequence[Tensor], states: Sequence[State]
    ) -> tuple[list[Tensor], list[State]]:
        squares = [wide(g) * wide(g) + state.get("square", 0.0) for g, state in zip(gs, states, strict=True)]
        return [r.sqrt().add_(self.eps) for r in squares], [{"square": r} for r in squares]


@dataclass(frozen=True)
class Andrei(Metric):
    """Andrei's diagonal quasi-Newton update, D_t = max(B_t, floor) with B_0 = 1 and, over the whole group,

    B_{t+1} = B_t + (s'y + s's - s'B_t s) / sum(s_i^4) * s^2 - 1,    s = x_{t+1} - x_t,  y = g_{t+1} - g_t,

    so that s'B_{t+1}s = s'y (the weak secant equation). While s = 0 (after a rejected step) B stays. The floor keeps D
    positive where B is not.
    """

    floor: float = 1e-2

    def __post_init__(self) -> None:
        check_number(self, "floor", self.floor, 0, open_low=True)

    @property
    def falls_to(self) -> float:
        """B_1 = 1, and each update takes 1 from the entries that have hardly moved: most are at the floor at once."""
        return min(1.0, self.floor)

    def update(
        self, xs: Sequence[Tensor], gs: Sequence[Tensor], states: Sequence[State]
    ) -> tuple[list[Tensor], list[State]]:
        bs = [wide(_seen(state, "curvature", torch.ones_like(x))) for x, state in zip(xs, states, strict=True)]
        steps = [x - _seen(state, "x", x) for x, state in zip(xs, states, strict=True)]
        ys = [g - _seen(state, "g", g) for g, state in zip(gs, states, strict=True)]
        # s is normalized to |s| = 1 first: s^4 of a short step in float32 would be 0.
        norm = torch.stack([s.double().square().sum() for s in steps]).sum().sqrt()
        moved = norm > 0
        scale = torch.where(moved, norm, 1.0)
        us = [s.double() / scale for s in steps]
        uy = sum((u * y.double()).sum() for u, y in zip(us, ys, strict=True)) / scale
        uBu = sum((u * u * b.double()).sum() for u, b in zip(us, bs, strict=True))
        u4 = torch.stack([u.square().square().sum() for u in us]).sum()
        factor = torch.where(moved, (uy + 1.0 - uBu) / torch.where(moved, u4, 1.0), 0.0)
        news_b = [
            torch.where(moved, b.double() + factor * u * u - 1.0, b.double()).to(b.dtype)
            for b, u in zip(bs, us, strict=True)
        ]
        known = {"curvature_weight": 1.0}
        news = [
            {"curvature": b, "x": x.clone(), "g": g.clone(), **known} for b, x, g in zip(news_b, xs, gs, strict=True)
        ]
        return [b.clamp_min(self.floor) for b in news_b], news


def _seen(state: State, name: str, first: Tensor) -> Tensor:
    """What Andrei's state has, or else the first value. On a device a state of zeros may stand for none, if no batch
    has taught anything yet: its weight is 0."""
    weight = state.get("curvature_weight", 1.0)
    return (
        torch.where(weight > 0, state.get(name, first), first) if isinstance(weight, Tensor) else state.get(name, first)
    )


def one_number(
    D: Sequence[Tensor], by_tensor: bool, over_all: Callable[[list[Tensor]], list[Tensor]] = list
) -> list[Tensor]:
    """The metric of an R that couples entries: the root mean square of D, of each tensor or of the whole group.

    over_all: makes sums over each tensor out of those over what this process has of it.

    >>> one_number([torch.tensor([1.0, 7.0])], by_tensor=True)
    [tensor(5., dtype=torch.float64)]
    """
    squares = over_all([exact_sum(wide(d).square()) for d in D])
    counts = over_all([torch.full_like(square, d.numel()) for square, d in zip(squares, D, strict=True)])
    if not by_tensor:
        squares, counts = [add(squares)] * len(D), [add(counts)] * len(D)
    return [(square / count.clamp_min(1)).sqrt() for square, count in zip(squares, counts, strict=True)]


def steps_in(D: Sequence[Tensor], step: Step) -> list[Tensor]:
    """step / d of each d, as new tensors. To torch a number over a tensor is the reciprocal times the number."""
    if isinstance(step, Tensor):
        return [step / d for d in D]
    steps = list(torch._foreach_reciprocal(list(D)))
    torch._foreach_mul_(steps, step)
    return steps


def _squares(gs: Sequence[Tensor]) -> Sequence[Tensor]:
    wider = [wide(g) for g in gs]
    return torch._foreach_mul(wider, wider)


def emas(name: str, news: Sequence[Tensor], states: Sequence[State], beta: float) -> list[Tensor]:
    """beta * average + (1 - beta) * new of each state, from zero: new tensors, or where there is room."""
    pairs = [(state.get(name), new) for state, new in zip(states, news, strict=True)]
    olds = [new.new_zeros(()) if average is None else cast(average, new.dtype) for average, new in pairs]
    rooms = [state.get(f"{name}_room") for state in states]
    # 1 - beta is formed here, in double precision: lerp(new, average, beta) would form it in float32.
    if all(room is not None and room.dtype == new.dtype for room, new in zip(rooms, news, strict=True)):
        given = zip(olds, news, rooms, strict=True)
        return [torch.lerp(old, new, 1 - beta, out=room) for old, new, room in given]
    return list(torch._foreach_lerp(olds, list(news), 1 - beta))


def corrected(
    name: str, news: Sequence[Tensor], states: Sequence[State], beta: float, into: Sequence[Tensor] | None = None
) -> tuple[list[Tensor], list[State]]:
    """The averages `name` of the states with these new terms, each over its own weight; and the states to come.

    into: tensors that the former may be written to, on the CPU: there fresh memory costs more than the division.
    """
    means = emas(name, news, states, beta)
    # The average of 1 under the same recursion: 1 - beta^t, and right where a state starts later.
    weights = [beta * state.get(f"{name}_weight", 0.0) + (1 - beta) for state in states]
    each = list(zip(means, weights, strict=True))
    # On CUDA torch takes the inverse of a number where it divides one tensor, and not where it divides many.
    at_once = all(mean.is_cpu and not isinstance(weight, Tensor) for mean, weight in each)
    if at_once and into is not None:
        values = [torch.div(mean, weight, out=t) for (mean, weight), t in zip(each, into, strict=True)]
    else:
        values = list(torch._foreach_div(means, weights)) if at_once else [mean / weight for mean, weight in each]
    return values, [{name: mean, f"{name}_weight": weight} for mean, weight in each]


NAMES: dict[str, type[Metric]] = {"adam": Adam, "adagrad": AdaGrad, "rmsprop": RMSprop, "andrei": Andrei}


def as_metric(metric: Metric | str | None) -> Metric | None:
    """A metric, by object or by name with its default constants.

    >>> as_metric("adam")
    Adam(beta=0.999, eps=1e-08)
    """
    if metric is None or isinstance(metric, Metric):
        return metric
    if isinstance(metric, str) and metric.lower() in NAMES:
        return NAMES[metric.lower()]()
    close = difflib.get_close_matches(str(metric).lower(), NAMES, n=1)
    raise ValueError(
        f"metric must be None, one of {', '.join(NAMES)}, or a Metric object, and is {metric!r}"
        + (f": did you mean {close[0]!r}?" if close else "")
    )
