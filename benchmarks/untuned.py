"""The libraries that people use to have no learning rate, for `sr2 train --optimizer benchmarks.untuned:ScheduleFree`.

Schedule-Free AdamW, Prodigy and DoG with their own defaults, constant, without weight decay, as `sr2 bench --panel` has
them. What counts as their average is what their authors evaluate: of Schedule-Free its x, of DoG the polynomial
average. Batch norm is estimated anew there, as for SR2.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from dog import DoG as _DoG
from prodigyopt import Prodigy as _Prodigy
from schedulefree import AdamWScheduleFree
from torch import nn

from sr2.experiments.baselines import Baseline
from sr2.numerics import Number
from sr2.optim.parts.averaging import Averaging
from sr2.regularizers import Regularizer


class _Own(Averaging):
    """The optimizer keeps its own."""

    def weight(self, t: Number) -> Number:
        return t

    def update(self, *_: Any) -> None:
        pass


class _Constant(Baseline):
    """A baseline that keeps its own learning rate."""

    def before_step(self, step: int) -> None:
        self._t.fill_(step + 1)


class ScheduleFree(_Constant, AdamWScheduleFree):  # type: ignore[misc]  # a step without a closure is none here
    """AdamWScheduleFree(params)."""

    def __init__(self, params: nn.Module, regularizer: Regularizer | None = None, penalize: str = "weights") -> None:
        AdamWScheduleFree.__init__(self, params.parameters())
        self._set_up(params, 1.0, 1, 0.0, average=_Own(), capturable=False)
        self.train()

    def averaged(self) -> AbstractContextManager[None]:
        return self._at_x()

    @contextmanager
    def _at_x(self) -> Iterator[None]:
        self.eval()
        try:
            yield
        finally:
            self.train()


class Prodigy(_Constant, _Prodigy):  # type: ignore[misc]
    """Prodigy(params): evaluated at its last iterate."""

    def __init__(self, params: nn.Module, regularizer: Regularizer | None = None, penalize: str = "weights") -> None:
        _Prodigy.__init__(self, params.parameters())
        self._set_up(params, 1.0, 1, 0.0, average=False, capturable=False)


class DoG(_Constant, _DoG):  # type: ignore[misc]
    """DoG(params), with the average of eighth order that its authors ask for, which is SR2's too."""

    def __init__(self, params: nn.Module, regularizer: Regularizer | None = None, penalize: str = "weights") -> None:
        _DoG.__init__(self, [{"params": [*params.parameters()], "penalized": False}])
        self._set_up(params, 1.0, 1, 0.0, average=True, capturable=False)
