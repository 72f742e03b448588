"""How far do batches agree at x_0? Under penalties steps may be as long as that says.

Long steps make zeros, and batches of a few examples do not bear them. The first batches are asked for their gradients
at x_0, g_1 to g_K. A first step in Adam's metric goes along the signs of a gradient, so that

    c = sum_{i != j} sign(g_i)'g_j / ((K - 1) sum_i |g_i|_1)

is the share of what one batch promises of it that another one confirms: 1 where all agree, 0 where all is noise. It
grows with the number B of examples in a batch, about as 1 / (1 + B_noise / B), and so does the best step (McCandlish,
Kaplan, Amodei, *An empirical model of large-batch training*). Later steps tell less, and too late for the first one
(docs/choices.md#how-far-batches-agree).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

BATCHES = 4
"""K: x stays for the first three, and the step of the fourth knows c."""


@dataclass
class Agreement:
    """What was asked so far. Plain data, which is saved with the search.

    >>> agreement = Agreement()
    >>> for confirmed in (0.0, 1.0, 2.0, 3.0):
    ...     agreement.take(confirmed, promised=1.0)
    >>> agreement.over, agreement.share
    (True, 0.5)
    """

    asked: int = 0
    """Batches."""
    confirmed: float = 0.0
    """The sum of sign(g_i)'g_j over pairs."""
    promised: float = 0.0
    """The sum of |g_i|_1."""

    def take(self, confirmed: float, promised: float) -> None:
        """Of one more batch: sign(g_i)'g_j with all before, either way, and |g|_1."""
        self.asked += 1
        self.confirmed += confirmed
        self.promised += promised

    @property
    def over(self) -> bool:
        """Enough batches were asked."""
        return self.asked >= BATCHES

    @property
    def share(self) -> float:
        """c; 0 where there were no gradients, or none that are finite."""
        promised = (self.asked - 1) * self.promised
        return self.confirmed / promised if promised > 0 and math.isfinite(self.confirmed) else 0.0
