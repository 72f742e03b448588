"""What a user reads of steps: the last one, how many of each fate, and the sums behind `stationarity`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor


class Figures(NamedTuple):
    """What the last step saw and did, as 0-dim float64 tensors: NaN before the first step, filled anew by every one."""

    loss: Tensor
    trial_loss: Tensor
    rho: Tensor
    sigma: Tensor
    predicted: Tensor
    actual: Tensor
    step_norm: Tensor
    accepted: Tensor
    null: Tensor


@dataclass(frozen=True)
class StepInfo:
    """What the last step of SR2 saw and did."""

    loss: float
    """f(x_t), the loss at the starting point."""
    trial_loss: float
    """f(x_t + s_t)."""
    rho: float
    """actual / predicted, with rounding slack in both; NaN for a null step."""
    sigma: float
    """As the next step will use it."""
    accepted: bool | None
    """True: x moved. False: rejected, x put back. None: a null step, s = 0."""
    predicted: float
    """R(x) - R(x + s) - v's."""
    actual: float
    """f(x) - f(x + s) + R(x) - R(x + s), and with momentum + (g - v)'s."""
    step_norm: float
    """|s_t|, of the step that was tried."""


class Read(NamedTuple):
    """A search as the host has read it: plain numbers."""

    sigma: float
    memory: Mapping[str, float]
    steps: int
    """How many were taken."""


class Counts(NamedTuple):
    """How many steps were accepted, rejected, null, and (with `capturable`) broken: not finite at x_t; and how many
    were not tested."""

    accepted: Tensor
    rejected: Tensor
    """Also where a step on trust failed."""
    null: Tensor
    broken: Tensor
    untested: Tensor
    """x moved on trust."""


class Moments(NamedTuple):
    """The sums behind `stationarity`, as 0-dim tensors: they start at zero."""

    weight: Tensor
    """of the steps' weights"""
    weight_squared: Tensor
    square: Tensor
    """of |s|^2"""
    fourth: Tensor
    """of |s|^4"""
