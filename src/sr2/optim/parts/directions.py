"""v_t: the direction of a step, from the gradients seen so far.

A direction is a frozen dataclass of constants. `update` is a pure function of a group's gradients and states: it
returns v and the new states, and writes nothing, so that a step which is called off leaves no trace. No direction at
all is the plain gradient, v = g.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ...checks import check_number
from ...regularizers.base import Step
from .metrics import State, corrected

__all__ = ["Average", "Direction"]


class Direction(ABC):
    """v from g."""

    entrywise: ClassVar[bool] = False
    """Whether each entry of v needs that entry of the gradients alone."""

    def __init_subclass__(cls, **arguments: object) -> None:
        """A subclass with a v of its own is not its parent's average: no kernel computes it."""
        super().__init_subclass__(**arguments)
        if "update" in cls.__dict__ and "entrywise" not in cls.__dict__:
            cls.entrywise = False
        if "update" in cls.__dict__ and "beta" not in cls.__dict__:
            cls.beta = property(lambda self: None)  # type: ignore[assignment, method-assign]

    @property
    def beta(self) -> float | None:
        """The constant of a bias-corrected average: the fused kernel takes it where it is declared."""
        return None

    @abstractmethod
    def update(self, gs: Sequence[Tensor], states: Sequence[State]) -> tuple[list[Tensor], list[State]]:
        """v for the gradients g, and the states that replace the old ones if the step stands."""


@dataclass(frozen=True)
class Average(Direction):
    """v_t = m_t / (1 - beta^t),  m_t = beta m_{t-1} + (1 - beta) g_t: what Adam calls its first moment.

    >>> vs, _ = Average(0.9).update([torch.ones(2)], [{}])
    >>> vs
    [tensor([1., 1.])]

    Args:
        momentum: beta, 0 < beta < 1.
    """

    momentum: float
    entrywise = True

    def __post_init__(self) -> None:
        check_number(self, "momentum", self.momentum, 0, 1)

    @property
    def beta(self) -> float:
        return self.momentum

    def update(self, gs: Sequence[Tensor], states: Sequence[State]) -> tuple[list[Tensor], list[State]]:
        return corrected("momentum", gs, states, self.momentum)


@dataclass(frozen=True)
class Toward(Direction):
    """v_t = v_{t-1} + weight (g_t - v_{t-1}) from v_0 = 0: ProxSGD's, whose weight falls from step to step."""

    weight: Step
    entrywise = True

    def update(self, gs: Sequence[Tensor], states: Sequence[State]) -> tuple[list[Tensor], list[State]]:
        old = [state.get("v", torch.zeros_like(g)) for g, state in zip(gs, states, strict=True)]
        vs = [between(v, g, self.weight) for v, g in zip(old, gs, strict=True)]
        return vs, [{"v": v} for v in vs]


def between(x: Tensor, z: Tensor, weight: Step) -> Tensor:
    """x + weight (z - x)."""
    return torch.lerp(x, z, weight.to(x.dtype) if isinstance(weight, Tensor) else weight)


def as_direction(owner: str, momentum: float) -> Direction | None:
    """The direction that `momentum=` stands for; none at 0."""
    check_number(owner, "momentum", momentum, 0, 1)
    return Average(momentum) if momentum else None
