"""Weight decay: which w stands in w x'Dx / 2, the term beside f, with D the metric.

A step takes the share w / sigma of a weight. With Adam's metric, whose steps are about 1 / sigma at most, w = 0.1 keeps
every weight below 10 or so and hurts nobody, whatever sigma is. A share that one gives, as kappa = 5e-4, is
w = kappa sigma: the same at every step, as in the recipes of SGD. It is stronger medicine: where sigma is large, steps
are short, and what they can learn is lost again (a GPT was ruined by 0.04 / sqrt(t + 64), which ResNets like).
"""

from __future__ import annotations

from typing import NamedTuple

from ...regularizers.base import Regularizer, Step, check_number

AUTO = 0.1
"""AdamW's weight decay where people train transformers; docs/defaults.md has what the panel says of it."""


def weight(weight_decay: float | str, sigma: Step) -> Step:
    """w of a group: that of "auto", or a share times sigma.

    >>> weight("auto", 300.0), weight(5e-4, 300.0)
    (0.1, 0.15)
    """
    return AUTO if isinstance(weight_decay, str) else weight_decay * sigma


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
