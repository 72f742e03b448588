"""What depends on the number of steps: the end of a run, where steps become short."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral

import torch
from torch import Tensor

__all__ = ["Cooldown", "Schedule"]

COOLEST = 0.02
"""The share of its step length that a cooldown leaves. Were it to end at 0, a weight that a batch takes from zero in
the last steps could not come back."""


class Schedule(ABC):
    """Changes sigma by the number of steps alone, after the rule has spoken."""

    @abstractmethod
    def apply(self, sigma: Tensor, t: Tensor, memory: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """sigma of the next step after t steps, and the new values of what is remembered; no host read."""

    def memory(self) -> dict[str, float]:
        """What the schedule remembers from step to step: names and first values."""
        return {}


@dataclass(frozen=True)
class Cooldown(Schedule):
    """Between two steps, 1 / sigma is brought down along a line to a fiftieth, as a learning rate is at the end.

    The noise of the batches stays while x settles, and no rho asks for shorter steps. From `first` on,

        sigma_t >= sigma_first / max(0.02, (last - t) / (last - first)).

    >>> Cooldown(800, 1000).left(torch.tensor([0, 800, 900, 1000])).tolist()
    [1.0, 1.0, 0.5, 0.02]

    Args:
        first, last: 1 <= first < last, the steps between which sigma rises. For a run of n steps, (round(0.8 n), n).
    """

    first: int
    last: int

    def __post_init__(self) -> None:
        pair: tuple[object, object] = (self.first, self.last)
        if not all(isinstance(s, Integral) and not isinstance(s, bool) for s in pair):
            raise ValueError(f"SR2: cooldown must be its first and last step, as (800, 1000), and is {pair}")
        object.__setattr__(self, "first", int(self.first))
        object.__setattr__(self, "last", int(self.last))
        if not 1 <= self.first < self.last:
            raise ValueError(f"SR2: cooldown must have 1 <= first < last, as (800, 1000), and is {pair}")

    def __str__(self) -> str:
        return f"cooldown={(self.first, self.last)}"

    def left(self, t: Tensor) -> Tensor:
        """What is left of the step length after t steps: all up to `first`, then along a line to COOLEST."""
        return ((self.last - t).double() / (self.last - self.first)).clamp(COOLEST, 1.0)

    def memory(self) -> dict[str, float]:
        return {"sigma_first": 0.0}  # not known before the cooldown has begun

    def apply(self, sigma: Tensor, t: Tensor, memory: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Where the line is given to a run that is past its first step, it begins at the sigma there is."""
        begun, left, sigma_first = t >= self.first, self.left(t), memory["sigma_first"]
        sigma_first = torch.where(begun & (sigma_first == 0), sigma * left, sigma_first)
        sigma = torch.where(begun, torch.maximum(sigma, sigma_first / left), sigma)
        return sigma, {"sigma_first": sigma_first}


def as_cooldown(steps: object) -> Cooldown:
    """A Cooldown from its (first, last), or an error that says what is wrong with it.

    >>> as_cooldown([800, 1000])
    Cooldown(first=800, last=1000)
    """
    if not isinstance(steps, (tuple, list)) or len(steps) != 2:
        raise ValueError(f"SR2: cooldown must be its first and last step, as (800, 1000), and is {steps!r}")
    return Cooldown(*steps)
