"""A rule in numbers: what the fused kernel needs, to judge in its place."""

from __future__ import annotations

import math
from typing import NamedTuple


class Constants(NamedTuple):
    """What the fused kernel needs to know of a rule."""

    eta1: float
    eta2: float
    gamma1: float
    gamma2: float
    gamma3: float
    known: float = -1.0
    """sigma falls without slack, where the predicted decrease is more than so much rounding; -1: with it, always."""
    usual: float = math.inf
    """A sigma above this one falls at every step that is accepted."""
    least: float = 0.0
    """A sigma up to this one falls only where the noise is at most `agrees` times the predicted decrease, and rises
    where it is more than `doubts` times that."""
    agrees: float = 1.0
    doubts: float = 1.0
    alone: float = math.inf
    shrinks: float = 0.0
    """Below `shrinks` eta1 is times sigma / shrinks; where the noise is more than `alone` times that, at least -1."""
    far: float = math.inf
    fast: float = 1.0
    """A sigma of more than `far` times usual falls by this factor where rho >= eta2, and not by gamma3."""
    signal: float = -1.0
    noise: float = math.inf
    """Between `least` and usual sigma falls where (g - v)'s is above -`signal` times the predicted decrease, and rises
    where it is below -`noise` times that."""
    beyond: float = 0.0
    """Below it eta1 is at least eta2 - (eta2 - eta1) (sigma / beyond)^2, and a rejection raises sigma to `least` or
    more."""
