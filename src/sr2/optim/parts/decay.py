"""Weight decay: which w stands in w x'Dx / 2, the term beside f, with D the metric.

A step takes the share w / sigma of a weight, as AdamW takes lr * weight_decay. With Adam's metric, whose steps are
about 1 / sigma, the weights of a normalized layer settle where w |x|^2 = 1 / (2 sigma), and a step turns them by
sqrt(2 w / sigma). w has the unit of 1 / x: "auto" is `SHARE` / size, with the root mean square of the weights at x_0.
So twice as large a start is the same run, in other units. A w for all networks is not: 0.3 is right for a ResNet-18
whose weights begin at 0.012, and five times too much for a DenseNet-121 that begins at 0.055 (docs/defaults.md).

A share per step, kappa, is w = kappa sigma: the same at every step, as in the recipes of SGD. It is stronger medicine:
where sigma is large, steps are short, and what they learn is lost again (0.04 / sqrt(t + 64) ruined a GPT).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ...regularizers.base import Regularizer, Step, check_number

PER_STEP = "/step"
AUTO = "auto"
SHARE = 0.0036
"""w times the size of the first weights: where a step is a tenth of them, 0.036 % of a weight is lost."""


def share(weight_decay: float | str) -> float | None:
    """kappa of "5e-4/step"; None of a number. What is neither is an error: a user may write it into a group.

    >>> share("5e-4/step"), share(0.1)
    (0.0005, None)
    """
    if not isinstance(weight_decay, str):
        check_number("SR2", "weight_decay", weight_decay, 0)
        return None
    number, per_step, rest = weight_decay.partition(PER_STEP)
    try:
        kappa = float(number) if per_step and not rest else -1.0
    except ValueError:
        kappa = -1.0
    if not 0 <= kappa < 1:
        kinds = "a number as in AdamW, a share as '5e-4/step', or 'auto'"
        raise ValueError(f"SR2: weight_decay must be {kinds}, and is {weight_decay!r}")
    return kappa


def weight(weight_decay: float | str, sigma: Step) -> Step:
    """w of a group.

    >>> weight(0.1, 300.0), weight("5e-4/step", 300.0)
    (0.1, 0.15)
    """
    if weight_decay == AUTO:
        raise ValueError(
            "SR2: weight_decay='auto' is what the first weights say, before the first step: name a number now"
        )
    kappa = share(weight_decay)
    return weight_decay if kappa is None else kappa * sigma  # type: ignore[return-value]


class Decay(NamedTuple):
    """What a group has that names no `weight_decay`."""

    said: float | str | None
    unsaid: float | str

    @staticmethod
    def of(given: float | str, default: float | str) -> Decay:
        """What was said; "auto" is the default."""
        if given == AUTO:
            return Decay(None, default)
        share(given)  # or an error
        return Decay(given, default)

    def under(self, regularizer: Regularizer | None) -> float | str:
        """What was said; else the default, but nothing under a penalty: it shrinks the weights itself.

        >>> from sr2 import L1, L0Ball
        >>> [Decay(None, AUTO).under(R) for R in (None, L0Ball(density=0.1), L1(1e-4))]
        ['auto', 'auto', 0.0]
        """
        if self.said is not None:
            return self.said
        return self.unsaid if regularizer is None or not regularizer.penalizes else 0.0

    def given_to(self, group: Mapping[str, Any], regularizer: Regularizer | None) -> dict[str, Any]:
        """The group with what it names, or else what stands under its R; `regularizer` is that of groups without."""
        own = Decay.of(group.get("weight_decay", AUTO), self.unsaid)
        decay = (self if own.said is None else own).under(group.get("regularizer", regularizer))
        return {**group, "weight_decay": decay}


def undecided(groups: Iterable[Mapping[str, Any]]) -> bool:
    """Whether a group waits for the first weights."""
    return any(group["weight_decay"] == AUTO for group in groups)


def decide(groups: Iterable[dict[str, Any]], size: float) -> None:
    """What "auto" is, as a number that is saved with the group; `size` 0 is of a metric that it says nothing in.

    >>> groups = [{"weight_decay": "auto"}, {"weight_decay": 0.1}]
    >>> decide(groups, 0.012)
    >>> [round(group["weight_decay"], 6) for group in groups]
    [0.3, 0.1]
    """
    for group in groups:
        if group["weight_decay"] == AUTO:
            group["weight_decay"] = SHARE / size if size > 0 else 0.0
