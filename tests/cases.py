"""What tests know of a regularizer: its slow twin and its thresholds; and a call that must fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sr2.regularizers import Regularizer

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


def separable(
    regularizer: Regularizer,
    penalty: Penalty,
    slope: Callable[[Array], Array] | None = None,
    scaled: Callable[[float], Regularizer] | None = None,
    **more: Any,
) -> RegularizerCase:
    return RegularizerCase(regularizer, separable=True, penalty=penalty, slope=slope, scaled=scaled, **more)


def numbers_of(x: Array, groups: Any) -> Any:
    """Each entry's group."""
    return groups(torch.from_numpy(x)).numpy() if callable(groups) else oracles.group_numbers(x, groups)
