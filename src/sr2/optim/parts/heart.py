"""Are the examples learnt by heart? Where two batches no longer agree, weights decay faster.

Two batches of one epoch, which share no example, are asked for their gradients at one x. Let an epoch have K batches, S
be the squared gradient of all examples, and N the noise of a batch. Then

    E g_a'g_b = S - N / (K - 1),    E (|g_a|^2 + |g_b|^2) / 2 = S + N.

If there were nothing more to learn, S would be N / (K - 1): the noise of the mean over all examples. So

    q = (K - 1) S / N

is about 1 where what is left of the gradient is particular to these examples, and steps along it learn them by heart
(Mahsereci, Balles, Lassner and Hennig, *Early stopping without a validation set*). A training loss does not show it: it
falls to 0 where labels are clean, and where half of a target is noise.

How much decay helps then grows with the noise: in ridge regression the best one is proportional to its variance. Of
clean examples that are fitted no noise is left, and decay only harms (docs/choices.md#learnt-by-heart).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .decay import AUTO, MOST, SHARE, Decay
from .epoch import Epoch

FASTER = 2.8
"""w times the size of the first weights times K, where all is learnt by heart: at the usual sigma 28 % of a weight are
lost per epoch."""
LEARNT = 3.0
"""Where q is less, examples are learnt by heart."""
KEEPS = 0.7
"""What the running means keep at each pair."""
KNOWN = 2
"""So many pairs must be there."""
APART = 5
"""Steps at which x stays are so many steps apart, or more."""
FEWEST, MOST_BATCHES = 3, 40
"""Batches of an epoch. Of two, one may be the small rest of a `DataLoader`; where there are many, a few pairs do not
tell q."""


@dataclass
class ByHeart:
    """Once per epoch x stays for a step, so that the next batch is asked at the same x. Its numbers are the host's, and
    are saved with the search. K may be found (see `epoch.py`): w then stays what it is until examples are learnt by
    heart.

    >>> heart = ByHeart(batches=6)
    >>> [t for t in range(30) if heart.due(t)]
    [8, 14, 20, 26]
    >>> for product in (0.8, 0.0, 0.1, -0.1):
    ...     heart.take(product, 1.0)
    ...     print(f"{heart.ratio:.1f} {heart.share:.1f}")
    25.0 0.0
    3.9 0.0
    2.7 1.0
    1.6 1.0
    """

    batches: int
    """K; 0 while it is not known."""
    autos: list[float] = field(default_factory=list)
    """What "auto" is, in each group that has it and no R: only such a w becomes another."""
    stayed: int = -1
    """The last step at which x stayed."""
    pairs: int = 0
    agreement: float = 0.0
    """The sum, each pair forgotten by `KEEPS`, of g_a'g_b over the mean of |g_a|^2 and |g_b|^2."""
    log_square: float = 0.0
    """The same of the logarithm of that mean."""
    log_squares: float = 0.0
    """The mean of all these logarithms, which no single spike decides."""
    relative: float = MOST
    """w times the size of the first weights, while nothing is learnt by heart."""
    epoch: Epoch | None = None
    """What has found K, or looks for it; None where K was said."""

    @staticmethod
    def of(decay: Decay, capturable: bool, looks: bool) -> ByHeart | None:
        """Where w is "auto" and epochs are short, but not with `capturable`, where the host does not look.

        looks: for K, where it is not said.
        """
        n = decay.steps_per_epoch
        if capturable or decay.said is not None or decay.unsaid != AUTO:
            return None
        if n is None:
            return ByHeart(0, relative=SHARE, epoch=Epoch(MOST_BATCHES)) if looks else None
        return ByHeart(n) if FEWEST <= n <= MOST_BATCHES else None

    def came(self, marks: list[int], t: int) -> bool:
        """Takes the examples of step t. Returns whether there is anything to ask for, now or later. There is nothing
        where K cannot be found, where no group has a w of "auto", or where a step was not looked at."""
        epoch = self.epoch
        if epoch is None or epoch.over:
            return True
        over = epoch.take(marks) if epoch.taken == t else False
        self.batches = epoch.batches
        missed = epoch.taken <= t or not self.autos
        return not missed and (not over or FEWEST <= self.batches <= MOST_BATCHES)

    def of_a_pair(self, t: int) -> bool:
        """Whether the batch of step t is one of two that are asked at one x."""
        return self.due(t) or self.stayed == t - 1 >= 0

    def due(self, t: int) -> bool:
        """Whether x stays at step t, counted from 0. It and the next step are of one epoch. Neither is its last step,
        whose batch may be a small one. It is not the first epoch, since what was not seen is not known by heart."""
        if not self.batches:
            return False
        every = self.batches * math.ceil(APART / self.batches)
        return t >= self.batches and t % every == (self.batches - 2) // 2

    def take(self, product: float, square: float) -> None:
        """A pair with this g_a'g_b and this mean of |g_a|^2 and |g_b|^2; one that is broken says nothing."""
        if not (math.isfinite(product) and 0 < square < math.inf):
            return
        self.pairs += 1
        self.agreement = KEEPS * self.agreement + (1 - KEEPS) * product / square
        self.log_square = KEEPS * self.log_square + (1 - KEEPS) * math.log(square)
        self.log_squares += (math.log(square) - self.log_squares) / self.pairs

    @property
    def ratio(self) -> float:
        """q, of the last pairs; inf before the first one, and where batches agree entirely."""
        if not self.pairs:
            return math.inf
        noise = (1 - self.agreement / self._weight) * (self.batches - 1) / self.batches
        return (self.batches - 1) * (1 - noise) / noise if noise > 0 else math.inf

    @property
    def share(self) -> float:
        """How much of the further decay is taken: none while there is something to learn; then as much as the noise is
        of what it has been."""
        if self.pairs < KNOWN or self.ratio >= LEARNT:
            return 0.0
        return math.exp(min(0.0, self.log_square / self._weight - self.log_squares))

    @property
    def _weight(self) -> float:
        """Of all pairs in the running means."""
        return 1 - KEEPS**self.pairs

    def decay(self, w: float) -> float:
        """w of a group, faster where it is "auto" and examples are learnt by heart."""
        if not self.batches or w not in self.autos:
            return w
        return w * (1 + self.share * (FASTER / (self.batches * self.relative) - 1))

    def saved(self) -> dict[str, Any]:
        """As plain data."""
        return {**vars(self), "epoch": None if self.epoch is None else self.epoch.saved()}

    def gone_on(self, saved: Mapping[str, Any] | None) -> ByHeart | None:
        """This one as it was saved, also with the K that was said or found there. A state without one has no "auto":
        nothing is asked. Where K is another one, no saved pair counts."""
        if not saved and not self.batches:
            return None
        saved = saved or {}
        self.autos, self.stayed = list(saved.get("autos", [])), int(saved.get("stayed", -1))
        self.relative = float(saved.get("relative", MOST))
        if self.epoch is not None:
            self.batches, epoch = int(saved.get("batches", 0)), saved.get("epoch")
            self.epoch = None if epoch is None else Epoch.of(epoch)
        of_this = {} if saved.get("batches") != self.batches else saved
        self.pairs = int(of_this.get("pairs", 0))
        for name in ("agreement", "log_square", "log_squares"):
            setattr(self, name, float(of_this.get(name, 0.0)))
        return self
