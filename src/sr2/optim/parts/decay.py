"""Weight decay: which share of itself a weight loses per step.

A share, and not a share per learning rate as in AdamW: SR2's steps have the length that their batch allows, and what is
to be forgotten depends on how many steps there were, not on how long they are. The recipes that people found by hand
say so too: lr * weight_decay, summed over momentum, is about 5e-4 for ResNets on CIFAR-10 (2e4 steps or more), 1e-4 on
ImageNet (4.5e5) and 6e-5 for GPT-2 (6e5).
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from ...regularizers.base import Regularizer, Step, check_number

FORGETS, LATE = 0.04, 64.0
"""Of `fading`: chosen on the validation data of the panel and of ResNet-18 (docs/defaults.md)."""


def fading(t: float | Tensor) -> Step:
    """kappa_t = 0.04 / sqrt(t + 64): the longer the run, the longer a weight remembers; nobody says when it ends.

    >>> fading(0.0), fading(1536.0)
    (0.005, 0.001)
    """
    return FORGETS * (t + LATE) ** -0.5


def share(weight_decay: float | str, t: float | Tensor) -> Step:
    """Of a group: a number, or "auto", which fades.

    >>> share(5e-4, 0.0), share("auto", 336.0)
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
