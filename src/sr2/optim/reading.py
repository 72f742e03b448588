"""What a user reads of a search: the paper's constants, the average, sigma, the last step, counters, stationarity."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from typing import Any

from .parts.averaging import averaged
from .parts.directions import Direction
from .parts.rules import GAMMA3, Rule
from .parts.testing import Testing
from .records import Figures, StepInfo
from .state import SearchState
from .theory.stationarity import Stationarity

SHOWN = (
    *("schedule", "reach", "direction", "metric", "averaging", "testing"),
    *("autocast", "epsilon", "batch_growth", "capturable"),
)
"""The options that `repr` shows where they are set."""


class Reading:
    """The part of `SR2` that looks and changes nothing."""

    direction: Direction | None
    testing: Testing | None
    rule: Rule
    epsilon: float | None
    sigma_min: float
    _search: SearchState

    @staticmethod
    def paper_defaults() -> dict[str, Any]:
        """Algorithm 1 with the constants of the paper's experiments: no metric, no momentum, no average.

        >>> import torch
        >>> from sr2 import SR2
        >>> SR2([torch.nn.Parameter(torch.ones(2))], **SR2.paper_defaults()).rule
        Ratio(eta1=0.00075, eta2=0.99, gamma1=5.56, gamma2=5.56, gamma3=0.8)
        """
        constants = {"eta1": 7.5e-4, "eta2": 0.99, "gamma1": 5.56, "gamma3": GAMMA3}
        return {**constants, "metric": None, "momentum": 0.0, "weight_decay": 0.0, "average": False}

    def averaged(self) -> AbstractContextManager[None]:
        """Inside `with optimizer.averaged():` the parameters hold the average of the iterates, afterwards the last one.

        Penalized entries that are zero in the last iterate are zero in it. `sr2.recalibrate_` the batch norms inside.
        """
        return averaged(self)  # type: ignore[arg-type]

    @property
    def sigma(self) -> float:
        """sigma_t, as the next step will use it; NaN before the first step where it is to be estimated."""
        return float(self._search.sigma)

    @property
    def momentum(self) -> float:
        """beta of v_t; 0 where v is the gradient."""
        return 0.0 if self.direction is None else self.direction.beta or math.nan

    @property
    def last_step(self) -> StepInfo | None:
        """What the last step saw and did; None before the first. With `capturable`, reading it waits for the device."""
        return self._search.last_step()

    @property
    def figures(self) -> Figures:
        """The numbers behind `last_step` as 0-dim tensors, which every step fills anew."""
        return self._search.figures

    @property
    def counts(self) -> dict[str, int]:
        """How many steps were accepted, rejected, null, and (with `capturable`) broken: not finite at x_t; with
        `test_every` also those that were kept on trust."""
        return self._search.counted(untested=self.testing is not None)

    @property
    def stationarity(self) -> Stationarity:
        """The mean of |s|^2 over the last accepted steps, an estimate of the paper's measure, with its uncertainty."""
        return Stationarity.of(self._search.moments)

    @property
    def converged(self) -> bool:
        """Whether that measure is below `epsilon` squared, its uncertainty included; False without an epsilon."""
        return self.epsilon is not None and self.stationarity.below(self.epsilon)

    @property
    def batch_size(self) -> int | None:
        """The size that `batch_growth` asks of the next batch; None without it."""
        return self._search.batch

    def _options_of(self, group: dict[str, Any]) -> str:
        decay = group["weight_decay"]
        if not decay or all(p.dim() <= 1 for p in group["params"]):
            return ""
        return f", weight_decay={decay}" if isinstance(decay, str) else f", weight_decay={decay:g}"

    def _options(self) -> str:
        sigma = f"{self.sigma:g}" if self._search.sigma_known else "auto"
        words = (f", {name}={value!r}" for name in SHOWN if (value := getattr(self, name)))
        return f"sigma={sigma}, sigma_min={self.sigma_min:g}, rule={self.rule!r}{''.join(words)}"
