"""The average of the iterates: what settles while x still moves, without a schedule and without a horizon to name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...numerics import capturing, local
from ...regularizers.base import check_number
from ..processes import ALONE, Processes
from .metrics import State

__all__ = ["Averaging", "Polynomial"]

NAME = "average"
"""Of the average in a parameter's state."""

Toward = Callable[[Sequence[Tensor], Sequence[Tensor], Tensor], None]


class Averaging(ABC):
    """How much the newest iterate counts."""

    @abstractmethod
    def weight(self, t: Tensor) -> Tensor:
        """The weight of x_t in the average of x_1, ..., x_t: a 0-dim tensor, without a host read."""

    def update(self, params: Sequence[Tensor], states: Mapping[Any, State], t: Tensor, toward: Toward) -> None:
        """x_bar <- x_bar + weight (x - x_bar), in place; one buffer per tensor, which is made by the first step.

        toward: does it, given the averages, x and the weight.
        """
        xs = [local(p) for p in params]
        for p, x in zip(params, xs, strict=True):
            if NAME not in states[p]:
                if capturing():
                    raise RuntimeError("an average needs a step before a CUDA graph is captured")
                states[p][NAME] = x.detach().clone(memory_format=torch.preserve_format)  # also where x joins late
        toward([states[p][NAME] for p in params], xs, self.weight(t))


@dataclass(frozen=True)
class Polynomial(Averaging):
    """x_bar_t = x_bar_{t-1} + (k + 1) / (k + t) (x_t - x_bar_{t-1}): about the last 1 / (k + 1) of the steps count.

    The window grows with t, so that the average is as good at any t: nobody has to say when the run ends.

    >>> Polynomial(8.0).weight(torch.tensor([1.0, 10.0, 1000.0])).tolist()
    [1.0, 0.5, 0.008928571428571428]

    Args:
        k: the larger, the shorter the window; 0 is the plain mean.
    """

    k: float = 8.0

    def __post_init__(self) -> None:
        check_number(self, "k", self.k, 0)

    def weight(self, t: Tensor) -> Tensor:
        return (self.k + 1) / (self.k + t.double())


@contextmanager
def averaged(
    groups: Iterable[Mapping[str, Any]],
    states: Mapping[Any, State],
    before_steps: Callable[[Any], Any],
    together: Processes = ALONE,
) -> Iterator[None]:
    """The average in place of x, zero where a penalized x is zero; afterwards x again, to the bit.

    before_steps: registers what is called before a step, which would be lost here.
    """
    swapped: list[tuple[Tensor, Tensor]] = []
    guard = before_steps(_no_step)
    try:
        with torch.no_grad():
            for group in groups:
                for p in group["params"]:
                    if NAME not in states.get(p, {}):
                        continue  # frozen, or before the first step
                    x = local(p)
                    swapped.append((x, x.clone(memory_format=torch.preserve_format)))
                    zero = (x == 0) & (group["regularizer"] is not None)
                    x.copy_(states[p][NAME].masked_fill(zero, 0.0))
        together.reshard()
        yield
    finally:
        guard.remove()
        with torch.no_grad():
            for x, old in swapped:
                x.copy_(old)
        together.reshard()


def _no_step(*_: object) -> None:
    raise RuntimeError(
        "a step inside averaged() would be lost with the average: leave the with block before you train on"
    )


def as_averaging(average: object) -> Averaging | None:
    """What `average=` stands for: True is `Polynomial()`.

    >>> as_averaging(True)
    Polynomial(k=8.0)
    """
    if average is True:
        return Polynomial()
    if average is None or average is False:
        return None
    if not isinstance(average, Averaging):
        raise TypeError(f"SR2: average must be True, False or an object of sr2.averaging, and is {average!r}")
    return average
