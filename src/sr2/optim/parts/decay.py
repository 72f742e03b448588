"""Weight decay: which w stands in w x'Dx / 2, the term beside f, with D the metric.

A step takes the share w / sigma of a weight, as AdamW takes lr * weight_decay. With Adam's metric, whose steps are
about 1 / sigma, the weights of a normalized layer settle where w |x|^2 = 1 / (2 sigma), and a step turns them by
sqrt(2 w / sigma). w has the unit of 1 / x: "auto" is `SHARE` / size of the weights at x_0.
So twice as large a start is the same run, in other units. A w for all networks is not: 0.3 is right for a ResNet-18
whose weights begin at 0.012, and five times too much for a DenseNet-121 that begins at 0.055
(docs/measured/networks.md).

How much a network should forget depends on how soon it sees an example again. Decay makes the weights an average of the
updates of the last sigma / w steps, and that window is best counted in epochs (Wang and Aitchison, *How to set AdamW's
weight decay as you scale model and dataset size*). Where the number of batches of an epoch is said
(`SR2(steps_per_epoch=len(loader))`), "auto" is `PER_EPOCH` / (number size), at most `MOST` / size: for the 391 batches
of CIFAR-10 twice `SHARE` / size. Under a budget it stays `SHARE` / size. Where epochs have 3 to 40 batches, `heart.py`
finds out whether more is better.

A share per step, kappa, is w = kappa sigma: the same at every step, as in the recipes of SGD. It is stronger medicine:
where sigma is large, steps are short, and what they learn is lost again (0.04 / sqrt(t + 64) ruined a GPT).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ...checks import check_integer, is_real, shown
from ...regularizers.base import Regularizer

PER_STEP = "/step"
MOST_AT_ONCE = 0.1
"""The largest share of a weight that a decay takes in one step under R. Where sigma falls far below the usual one, as
where the solution is far from x_0, w / sigma may exceed 2, and each step would turn the weights around."""
AUTO = "auto"
SHARE = 0.0036
"""w times the size of the first weights: where a step is a tenth of them, 0.036 % of a weight is lost."""
PER_EPOCH = 2.8
"""The same times the steps of an epoch: 28 % of a weight are lost per epoch. The window is three and a half epochs."""
MOST = 0.01
"""The bound where epochs are short: targets with noise want three times as much, those without a third of it
(docs/choices.md)."""


def share(weight_decay: float | str) -> float | None:
    """kappa of "5e-4/step"; None of a number. What is neither is an error: a user may write it into a group.

    >>> share("5e-4/step"), share(0.1)
    (0.0005, None)
    """
    if is_real(weight_decay) and 0 <= weight_decay < math.inf:  # type: ignore[operator]
        return None
    number, per_step, rest = weight_decay.partition(PER_STEP) if isinstance(weight_decay, str) else ("", "", "")
    try:
        kappa = float(number) if per_step and not rest else -1.0
    except ValueError:
        kappa = -1.0
    if not 0 <= kappa < 1:
        kinds = "a finite Python number >= 0 as in AdamW, a share below 1 as '5e-4/step', or 'auto'"
        raise ValueError(f"SR2: weight_decay must be {kinds}, and is {shown(weight_decay)}")
    return kappa


class Decay(NamedTuple):
    """What a group has that names no `weight_decay`."""

    said: float | str | None
    unsaid: float | str
    steps_per_epoch: int | None = None

    @staticmethod
    def of(given: float | str, default: float | str, steps_per_epoch: int | None = None) -> Decay:
        """What was said; "auto" is the default."""
        if steps_per_epoch is not None:
            check_integer("SR2", "steps_per_epoch (len(loader))", steps_per_epoch, 1)
        if isinstance(given, str) and given == AUTO:
            return Decay(None, default, steps_per_epoch)
        share(given)  # or an error
        return Decay(given, default, steps_per_epoch)

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

    def decide(self, groups: Iterable[dict[str, Any]], size: float) -> list[float]:
        """What "auto" is at the step that first meets it, as a number that is saved with the group; returns those of
        groups without R.

        Args:
            groups: those of the optimizer.
            size: of the weights at x_0; 0 in a metric in which it says nothing.

        >>> groups = [{"weight_decay": "auto"}, {"weight_decay": 0.1}]
        >>> autos = Decay(None, AUTO).decide(groups, 0.012)
        >>> [round(group["weight_decay"], 6) for group in groups], len(autos)
        ([0.3, 0.1], 1)
        """
        autos: list[float] = []
        steps = self.steps_per_epoch
        known = SHARE if steps is None else min(PER_EPOCH / steps, MOST)
        for group in groups:
            if group["weight_decay"] == AUTO:
                relative = known if group.get("regularizer") is None else SHARE  # a budget keeps from learning by heart
                group["weight_decay"] = w = relative / size if size > 0 else 0.0
                autos += [w] if group.get("regularizer") is None and w > 0 else []
        return autos
