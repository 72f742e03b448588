"""Rules beyond Algorithm 1's: a new one belongs here. These are for steps along an average of noisy gradients."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from ...checks import check_number, is_real, shown
from ...numerics import Number, where
from .constants import Constants
from .decay import AUTO
from .rules import Evidence, Rule, Searched, Verdict

__all__ = ["Follow", "Tolerant"]

KNOWN = 2.0
"""A predicted decrease of so many times its slack is more than rounding."""
USUAL = 0.1
"""A step of this share of the weights' size is usual: AdamW's best learning rates are near it (docs/steps.md)."""
RISE = 3.0
"""A step may lose so many times the decrease that it promised (docs/choices.md)."""
AGREES, DOUBTS = 0.25, 2.0
"""Of long steps sigma falls where the batch's noise is at most `AGREES` of the predicted decrease, and rises where the
noise is more than `DOUBTS` times that."""
PER_SHARE, MOST = 7.0, 4.0
"""Under penalties steps may be so many times the share that other batches confirm, in usual steps, and so many at most
(docs/choices.md#how-far-batches-agree)."""
SIGNAL, NOISE = 0.4, 0.8
"""Of steps between the usual length and the longest: sigma falls where (g - v)'s is above -`SIGNAL` times the predicted
decrease, and rises where it is below -`NOISE` times that. It is about -0.9 where v is nothing but noise, with momentum
0.9, since a tenth of v is g."""
ROOM = 2.0
"""Steps of so many times the longest usual one may lose `rise` times what they promised, and longer ones no more than
those."""
FAR, FAST = 30.0, 0.8
"""A sigma of more than so many times the usual one falls by this factor where a step gains what it promised; and steps
of more than so many times the longest usual one must gain."""
ALONE = 7.0
"""A batch with so much noise, by the same measure, is nearly all of v (9 is all of it, with momentum 0.9): it may be a
broken one, and its step may lose no more than it promised."""


@dataclass(frozen=True)
class Tolerant(Rule):
    r"""Algorithm 1's rule for noisy steps along an average: a step may raise what it was judged on, within a bound.

    x moves unless the objective rises by more than `rise` times the decrease that was predicted: rho >= -rise. sigma
    becomes gamma3 sigma if rho >= eta2 and the predicted decrease is more than rounding, and gamma1 sigma where x is
    put back. In between it stays. Momentum and metric forget a batch whose step was rejected. With rise > 0 the
    theorems about Algorithm 1 no longer hold.

    While sigma > `usual` it falls at every accepted step: a warm-up, which is fast above 30 usual where rho >= eta2.
    The first step, along the signs of one gradient, asks for a sigma that is ten times too large in large networks; and
    with momentum, steps that single batches call too long (rho < 0) are AdamW's best.

    Steps that are more than `longest` times as long as usual need batches that agree with v. Where sigma <= usual /
    longest, it falls only if |(g - v)'s| is at most 0.25 of the predicted decrease, and rises where that is more than
    twice the decrease. For a rho near 1 means little there: of batches of a few examples most have no curvature along
    s, and a policy gradient promises gains that the next batch does not confirm. Where the solution is far, batches
    agree. Between usual / longest and usual (g - v)'s says whether v is signal or noise: sigma falls where it is above
    -0.4 times the predicted decrease, and rises where it is below -0.8 times that.

    What a long step promises is so much that it bounds nothing. One of more than twice that length may lose no more
    than `rise` times what one of twice that length would promise: rho >= -rise q, where q = 2 longest sigma / usual.
    Where sigma is less than b = usual / (30 longest) it must be rho >= eta2 - (eta2 + rise) (sigma / b)^2 too: a far
    longer step must gain eta2 of its promise. Else sigma becomes usual / longest, at least. So one that is far too
    small rises before it does harm.

    >>> Tolerant()
    Tolerant(rise=3.0, eta2=0.9, gamma1=1.5, gamma3=0.98, usual='auto', longest='auto')

    Args:
        rise: >= 0, the rise that is accepted, as a share of the predicted decrease. For a batch that is nearly all of v
            it counts as 1 at most. More than 2 beta / (1 - beta), beta the momentum, is more than later steps make
            good, and x may run away: SR2's default has no more.
        eta2: 0 < eta2 < 1, the ratio that lowers sigma.
        gamma1: the factor above 1 by which a rejection raises sigma.
        gamma3: 0 < gamma3 <= 1, the factor that lowers sigma.
        usual: > 0, where the warm-up ends, and without R the least sigma_0 that "auto" finds; inf for neither. "auto"
            is 10 / (size of the weights at x_0, sqrt(pi/2) times their mean |x|) where steps are about 1 / sigma, as in
            Adam's metric, and inf for a network that was trained before: one with a norm whose scale differs from entry
            to entry.
        longest: >= 1, how many times the usual step one may be where a batch does not agree with v; inf for any. "auto"
            is 1; under penalties it is up to 4, by how far the first four batches agree, for three of which x stays.
            They are not asked where sigma is named, nor with `capturable`.
    """

    rise: float = RISE
    eta2: float = 0.9
    gamma1: float = 1.5
    gamma3: float = 0.98
    usual: float | str = AUTO
    longest: float | str = AUTO
    forgets = True
    plain = True

    def __post_init__(self) -> None:
        check_number(self, "rise", self.rise, 0)
        check_number(self, "eta2", self.eta2, 0, 1, open_low=True)
        check_number(self, "gamma1", self.gamma1, 1, open_low=True)
        check_number(self, "gamma3", self.gamma3, 0, open_low=True)
        if self.gamma3 > 1:
            raise ValueError(f"Tolerant: gamma3 must be at most 1, and is {self.gamma3}")
        if self.usual != AUTO and not (is_real(self.usual) and self.usual > 0):  # type: ignore[operator]
            kinds = "a sigma above 0, math.inf for no warm-up, or 'auto'"
            raise ValueError(f"Tolerant: usual must be {kinds}, and is {shown(self.usual)}")
        if self.longest != AUTO and not (is_real(self.longest) and self.longest >= 1):  # type: ignore[operator]
            kinds = "a number of at least 1, math.inf for any step, or 'auto'"
            raise ValueError(f"Tolerant: longest must be {kinds}, and is {shown(self.longest)}")

    @property
    def undecided(self) -> bool:
        return self.usual == AUTO

    def choose(self, R: float, size: float) -> dict[str, Any]:
        return {"usual": 1 / (USUAL * size) if size > 0 else math.inf} if self.undecided else {}

    @property
    def asks(self) -> bool:
        return self.longest == AUTO

    def agreed(self, share: float) -> dict[str, Any]:
        return {"longest": min(max(1.0, PER_SHARE * share), MOST)} if self.asks else {}

    @property
    def constants(self) -> Constants | None:
        falls = (self.gamma3, KNOWN, self.usual_sigma, self.least_sigma)
        noise, fast = (AGREES, DOUBTS, ALONE), (FAR, min(FAST, self.gamma3))
        shrinks, long = self.least_sigma / ROOM, (SIGNAL, NOISE, self.least_sigma / FAR)
        return Constants(-self.rise, self.eta2, self.gamma1, self.gamma1, *falls, *noise, shrinks, *fast, *long)

    @property
    def usual_sigma(self) -> float:
        return math.inf if isinstance(self.usual, str) else self.usual

    @property
    def least_sigma(self) -> float:
        longest = 1.0 if isinstance(self.longest, str) else self.longest
        return self.usual_sigma / longest if self.usual_sigma < math.inf else 0.0

    def judge(self, evidence: Evidence, state: Searched) -> Verdict:
        sigma, compared = state.sigma, evidence.compared
        noise, predicted, least = abs(evidence.noise), evidence.predicted, self.least_sigma
        eta1, shrinks, beyond = -self.rise, least / ROOM, least / FAR
        if least > 0:
            must_gain = self.eta2 - (self.eta2 - eta1) * (sigma / beyond) ** 2
            may_lose = eta1 * (sigma / shrinks)
            eta1 = where(sigma < shrinks, where(must_gain > may_lose, must_gain, may_lose), eta1)
        accepted = compared.at_least(eta1) & ((noise <= ALONE * predicted) | compared.at_least(-1.0))
        agrees = (sigma > least) | (noise <= AGREES * predicted)
        # A step is forgiven what rounding may have done to it, but sigma falls by what was seen: a slack of autocast
        # that is larger than any decrease would hold it for good, and rounding is as often for a step as against it.
        gains = agrees & (evidence.actual >= self.eta2 * predicted)
        usual = self.usual_sigma if least > 0 else 0.0
        between = (sigma > least) & (sigma <= usual)
        falls = where(between, evidence.noise > -SIGNAL * predicted, gains | (sigma > self.usual_sigma))
        doubts = where(sigma < least, noise > DOUBTS * predicted, evidence.noise < -NOISE * predicted)
        rises = (sigma < usual) & doubts
        very, doubted = accepted & falls & (predicted > KNOWN * evidence.fine), accepted & rises
        back = where(sigma > self.gamma3 * usual, usual, sigma / self.gamma3)
        fast = where(gains & (sigma > FAR * self.usual_sigma), min(FAST, self.gamma3) * sigma, self.gamma3 * sigma)
        kept = where(very, fast, where(doubted, back, sigma))
        raised = self.gamma1 * sigma
        raised = where((sigma < beyond) & (raised < least), least, raised)
        return Verdict(accepted, where(accepted, kept, raised), compared.rho)

    def on_trust(self, sigma: Number) -> Number:
        return where(sigma > self.usual_sigma, self.gamma3 * sigma, sigma)

    def way_out(self, rho: float) -> str:
        """In between sigma may rest: momentum makes good what single steps lose. Not next to the bound."""
        if self.constants is None or rho >= -0.8 * self.rise:
            return ""
        return f"take a larger batch, or rule=Tolerant(rise={self.rise / 2:g}), which rejects more of these steps"


@dataclass(frozen=True)
class Follow(Rule):
    r"""sigma follows the curvature: a running mean of c = sigma * curvature along s is kept, and sigma goes towards

        c_mean / (2 (1 - aim)),

    at which rho would be `aim` on the average, by a factor of at most exp(rate) per step. So sigma rises before steps
    fail, and falls without waiting for a rho near 1. x moves if rho >= eta1; a rejected step raises sigma by gamma1.
    Where the predicted decrease drowns in rounding, sigma stays.

    >>> Follow(aim=0.7)
    Follow(aim=0.7, rate=0.05, decay=0.95, eta1=0.001, gamma1=1.5)

    Args:
        aim: 0 < aim < 1, the ratio of actual to predicted decrease that is aimed at: the larger, the shorter the steps.
        rate: the most that log sigma changes per accepted step.
        decay: 0 <= decay < 1, the weight of the past in the running mean.
        eta1: 0 < eta1 < aim, the ratio that accepts a step.
        gamma1: the factor above 1 by which a rejection raises sigma.
    """

    aim: float = 0.7
    rate: float = 0.05
    decay: float = 0.95
    eta1: float = 1e-3
    gamma1: float = 1.5

    def __post_init__(self) -> None:
        check_number(self, "aim", self.aim, 0, 1, open_low=True)
        check_number(self, "rate", self.rate, 0, open_low=True)
        check_number(self, "decay", self.decay, 0, 1)
        check_number(self, "eta1", self.eta1, 0, self.aim, open_low=True)
        check_number(self, "gamma1", self.gamma1, 1, open_low=True)

    def memory(self) -> dict[str, float]:
        return {"curvature": 0.0, "seen": 0.0}

    def judge(self, evidence: Evidence, state: Searched) -> Verdict:
        sigma, compared = state.sigma, evidence.compared
        accepted = compared.at_least(self.eta1)
        known = compared.usable & (evidence.predicted > KNOWN * evidence.slack)  # else the difference is rounding
        # One batch has one vote: what it says of the curvature is bounded.
        latest = torch.where(known, evidence.curvature.clamp(-1.0, 4.0), 0.0) * sigma
        seen = state.memory["seen"]
        past = torch.clamp_max(seen / (seen + 1), self.decay)
        mean = past * state.memory["curvature"] + (1 - past) * latest
        target = mean.clamp_min(torch.finfo(mean.dtype).tiny) / (2 * (1 - self.aim))
        change = (target / sigma).log().clamp(-self.rate, self.rate).exp()
        sigma = torch.where(accepted, torch.where(known, change * sigma, sigma), self.gamma1 * sigma)
        memory = {"curvature": torch.where(known, mean, state.memory["curvature"]), "seen": seen + known}
        return Verdict(accepted, sigma, compared.rho, memory)
