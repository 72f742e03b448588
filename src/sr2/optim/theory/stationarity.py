"""How stationary is x? The measure of the paper's section 4: the mean of |s|^2 over the batches that give a success.

The paper stops at the first t with E[|s^xi|^2] <= epsilon^2, the expectation over batches at x_t. Near such a point x
hardly moves from step to step, so the mean over the last accepted steps, the older ones forgotten, estimates it; and
since each of them is one draw, so is the mean's own uncertainty known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

FORGET = 0.98
"""The weight of a step falls by this factor with every newer one: about a hundred steps count."""
LEAST = 30.0
"""The least number of draws behind a claim of convergence."""


@dataclass(frozen=True)
class Stationarity:
    """A running estimate of E[|s|^2], to be compared with epsilon^2."""

    mean: float
    """of |s|^2 over accepted (and null) steps, the older ones forgotten; NaN before the first."""
    standard_error: float
    """of that mean."""
    draws: float
    """the number of equally weighted draws that the mean is worth."""

    @staticmethod
    def of(sums: Sequence[Tensor]) -> Stationarity:
        """From the sums of the weights, of their squares, of |s|^2 and of |s|^4; waits for the device."""
        weight, squares, first, second = torch.stack(list(sums)).tolist()
        if weight == 0:
            return Stationarity(math.nan, math.nan, 0.0)
        mean, draws = first / weight, weight**2 / squares
        # The variance of |s|^2 about its mean. Both sums are over about a hundred terms: float64 has digits to spare.
        variance = max(0.0, second / weight - mean**2)
        return Stationarity(mean, math.sqrt(variance / max(draws - 1, 1.0)), draws)

    @property
    def upper(self) -> float:
        """Two standard errors above the mean."""
        return self.mean + 2 * self.standard_error

    def below(self, epsilon: float) -> bool:
        """Whether E[|s|^2] <= epsilon^2, two standard errors and thirty draws to be sure."""
        return self.draws >= LEAST and self.upper <= epsilon**2
