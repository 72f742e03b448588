"""Weight decay: which share of itself a weight loses per step.

A share, and not a share per learning rate as in AdamW: SR2's steps have the length that their batch allows, and what is
to be forgotten depends on how many steps there were, not on how long they are.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from ...regularizers.base import Regularizer, Step, check_number

FORGETS, LATE = 2.0, 400.0
"""Of `fading`."""


def fading(t: float | Tensor) -> Step:
    """kappa_t = 2 / (t + 400): after any number of steps a weight owes most of itself to about the last half of them.

    >>> fading(0.0), fading(1600.0)
    (0.005, 0.001)
    """
    return FORGETS / (t + LATE)


def share(weight_decay: float | str, t: float | Tensor) -> Step:
    """Of a group: a number, or "auto", which fades.

    >>> share(5e-4, 0.0), share("auto", 600.0)
    (0.0005, 0.002)
    """
    return fading(t) if isinstance(weight_decay, str) else weight_decay


class Decay(NamedTuple):
    """What a group has that names no `weight_decay`."""

    said: float | None
    unsaid: float | str

    @staticmethod
    def of(given: float | str, default: float | str) -> Decay:
        """A share, 0 <= kappa < 1, or "auto", which is the default."""
        if isinstance(given, str) and given == "auto":
            return Decay(None, default)
        check_number("SR2", "weight_decay", given, 0, 1)
        return Decay(float(given), default)

    def under(self, regularizer: Regularizer | None) -> float | str:
        """What was said; else the default, but nothing under a penalty: it shrinks the weights itself.

        >>> from sr2 import L1, L0Ball
        >>> [Decay(None, "auto").under(R) for R in (None, L0Ball(density=0.1), L1(1e-4))]
        ['auto', 'auto', 0.0]
        """
        if self.said is not None:
            return self.said
        return self.unsaid if regularizer is None or not regularizer.penalizes else 0.0
