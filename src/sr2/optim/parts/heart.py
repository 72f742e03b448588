"""Are the examples learnt by heart? Where two batches no longer agree, weights decay faster.

Two batches without a common example are asked for their gradients at one x. Let an epoch have K batches, S be the
squared gradient of all examples, and N the noise of a batch. Then

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
from dataclasses import dataclass

from ...numerics import Number
from .decay import AUTO_DECAY, MOST, Decay

FASTER = 2.8
"""w times the size of the first weights times K, where all is learnt by heart: 28 % of a weight are lost per epoch."""
LEARNT = 3.0
"""Where q is less, examples are learnt by heart: a third or more of S is noise."""
KEEPS = 0.7
"""What the running means keep at each pair."""
LEAST, MOST_BATCHES = 5, 40
"""x stays at one of so many steps at the most; of longer epochs q is not known well enough by a few pairs."""
KNOWN = 2
"""So many pairs must be there: what was seen once is not known by heart."""
PAIRS, AGREEMENT, SQUARE, SQUARES = "pairs", "agreement", "square", "squares"
"""What is remembered beside the w that "auto" is: how many pairs; the running means, which began at 0, of g_a'g_b over
the square (|g_a|^2 + |g_b|^2) / 2 and of the square; the mean of all squares."""


@dataclass(frozen=True)
class ByHeart:
    """Once per epoch x stays for a step, so that the next batch is asked at the same x.

    >>> heart = ByHeart(batches=6)
    >>> [t for t in range(20) if heart.due(t)]
    [3, 9, 15]
    >>> memory = heart.memory()
    >>> for product in (0.8, 0.0, 0.1, -0.1):
    ...     memory |= heart.after(memory, product, 1.0)
    ...     print(f"{heart.ratio(memory):.1f} {heart.share(memory):.1f}")
    25.0 0.0
    3.9 0.0
    2.7 1.0
    1.6 1.0

    Args:
        batches: K, at least 2.
    """

    batches: int

    @staticmethod
    def of(decay: Decay, capturable: bool) -> ByHeart | None:
        """Where w is "auto" and epochs are short, but not with `capturable`, where the host does not look."""
        n = decay.steps_per_epoch
        if n is None or capturable or decay.said is not None:
            return None
        return ByHeart(n) if 1 < n <= MOST_BATCHES else None

    def memory(self) -> dict[str, float]:
        """What is remembered from pair to pair: names and first values. It is saved with the optimizer."""
        return dict.fromkeys((AUTO_DECAY, PAIRS, AGREEMENT, SQUARE, SQUARES), 0.0)

    def due(self, t: int) -> bool:
        """Whether x stays at step t, counted from 0: amid an epoch, so that the two batches are of the same one."""
        every = max(LEAST, self.batches)
        return t % every == every // 2

    def after(self, memory: Mapping[str, Number], product: float, square: float) -> dict[str, float]:
        """The memory after a pair with this g_a'g_b and this mean of |g_a|^2 and |g_b|^2; of none that is broken."""
        if not (math.isfinite(product) and 0 < square < math.inf):
            return {}
        pairs = float(memory[PAIRS]) + 1
        return {
            PAIRS: pairs,
            AGREEMENT: KEEPS * float(memory[AGREEMENT]) + (1 - KEEPS) * product / square,
            SQUARE: KEEPS * float(memory[SQUARE]) + (1 - KEEPS) * square,
            SQUARES: float(memory[SQUARES]) + (square - float(memory[SQUARES])) / pairs,
        }

    def ratio(self, memory: Mapping[str, Number]) -> float:
        """q, of the last pairs; inf before the first one, and where batches agree entirely."""
        if not (pairs := float(memory[PAIRS])):
            return math.inf
        noise = (1 - float(memory[AGREEMENT]) / (1 - KEEPS**pairs)) * (self.batches - 1) / self.batches
        return (self.batches - 1) * (1 - noise) / noise if noise > 0 else math.inf

    def share(self, memory: Mapping[str, Number]) -> float:
        """How much of the further decay is taken: none while there is something to learn; then as much as there is
        noise, by what it has been."""
        if float(memory[PAIRS]) < KNOWN or self.ratio(memory) >= LEARNT:
            return 0.0
        square: float = float(memory[SQUARE]) / (1 - KEEPS ** float(memory[PAIRS]))
        return min(1.0, square / float(memory[SQUARES]))

    def decay(self, w: float, memory: Mapping[str, Number]) -> float:
        """w of a group, faster where it is the one of "auto" and examples are learnt by heart."""
        if w == 0 or w != float(memory[AUTO_DECAY]):
            return w
        return w * (1 + self.share(memory) * (FASTER / (self.batches * MOST) - 1))
