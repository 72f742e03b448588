"""Accept? Next sigma? The part of Algorithm 1 that knows nothing of how s was found."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral
from typing import NamedTuple

import torch
from torch import Tensor

from ..regularizers.base import check_number

GAMMA3 = 0.8
"""The paper's, and the fastest that "auto" chooses."""
GAIN = 2.0
"""What R may gain, about, by one fall of sigma at x_0."""
COOLEST = 0.02
"""The share of its step length that a cooldown leaves. Were it to end at 0, a weight that a batch takes from zero in
the last steps could not come back."""


def gamma3_for(R: float) -> float:
    r"""gamma_3 = 1 - min(0.2, 2 GAIN / R(x_0)): the larger R, the slower sigma falls.

    Under l0 a fall of sigma raises the threshold by a share (1 - gamma_3) / 2 and takes about that share of R. Where
    that is more than the loss can outweigh, rho is 1 whatever becomes of the loss, each fall causes the next, and
    nothing is left of the network.

    >>> gamma3_for(24.0), gamma3_for(4e4)
    (0.8333333333333334, 0.9999)
    """
    return 1 - min(1 - GAMMA3, 2 * GAIN / R) if 0 < R < math.inf else GAMMA3


def as_cooldown(steps: object) -> tuple[int, int]:
    """(first, last) of a cooldown, or an error that says what is wrong with it.

    >>> as_cooldown([800, 1000])
    (800, 1000)
    """
    pair = list(steps) if isinstance(steps, (tuple, list)) else []
    if len(pair) != 2 or not all(isinstance(s, Integral) and not isinstance(s, bool) for s in pair):
        raise ValueError(f"SR2: cooldown must be its first and last step, as (800, 1000), and is {steps!r}")
    first, last = map(int, pair)
    if not 1 <= first < last:
        raise ValueError(f"SR2: cooldown must have 1 <= first < last, as (800, 1000), and is {(first, last)}")
    return first, last


def cooling(t: Tensor, cooldown: tuple[int, int]) -> Tensor:
    """What a cooldown leaves of the step length after t steps: all up to its first, then along a line to COOLEST.

    >>> cooling(torch.tensor([0, 800, 900, 1000]), (800, 1000)).tolist()
    [1.0, 1.0, 0.5, 0.02]
    """
    first, last = cooldown
    return ((last - t).double() / (last - first)).clamp(COOLEST, 1.0)


def cooled(sigma: Tensor, sigma_first: Tensor, t: Tensor, cooldown: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """sigma after t steps, from the first step of the cooldown on at least sigma_first / `cooling`.

    sigma_first is 0 before there is one, and comes back beside sigma. All are 0-dim tensors. Where the line is given to
    a run that is past its first step, sigma_first is such that it begins at the sigma there is.
    """
    begun, left = t >= cooldown[0], cooling(t, cooldown)
    sigma_first = torch.where(begun & (sigma_first == 0), sigma * left, sigma_first)
    return torch.where(begun, torch.maximum(sigma, sigma_first / left), sigma), sigma_first


def rounding(f: Tensor, f_trial: Tensor, eps: float, coarse: float) -> Tensor:
    """What rounding may make of f(x) - f(x + s): 10 eps max(1, |f(x)|), or coarse |f| max(1, -log |f|), f = f(x + s),
    where that is more.

    eps is of the loss, whose last operations have numbers of the size of 1; what is rounded before them, by autocast,
    changes the loss by a share of itself. A small cross-entropy f is e^-m of a margin m that is rounded to a share of
    m, hence the -log. Momentum shifts f(x), and f(x + s) is what was evaluated.
    """
    size = f_trial.abs()
    margin = -size.clamp_min(torch.finfo(size.dtype).tiny).log()
    return torch.maximum(10 * eps * f.abs().clamp_min(1.0), coarse * size * margin.clamp_min(1.0))


class Decision(NamedTuple):
    """The fate of a step, as 0-dim tensors."""

    accepted: Tensor
    null: Tensor
    rho: Tensor
    sigma: Tensor


@dataclass(frozen=True)
class Search:
    """The constants of Algorithm 1, and its two questions."""

    eta1: float
    eta2: float
    gamma1: float
    gamma2: float
    gamma3: float
    sigma_min: float

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise ValueError(f"SR2: {name} must be a number, and is {value!r}")
        check_number("SR2", "sigma_min", self.sigma_min, 0, open_low=True)
        if not 0 < self.eta1 <= self.eta2 < 1:
            raise ValueError(f"SR2 needs 0 < eta1 <= eta2 < 1, and got eta1={self.eta1}, eta2={self.eta2}")
        if not 0 < self.gamma3 <= 1:
            raise ValueError(f"SR2 needs 0 < gamma3 <= 1, and got gamma3={self.gamma3}")
        if not 1 < self.gamma1 <= self.gamma2 < math.inf:
            raise ValueError(
                f"SR2 needs 1 < gamma1 <= gamma2 (Algorithm 1), and got gamma1={self.gamma1}, gamma2={self.gamma2}: "
                "leave gamma2=None to use gamma1"
            )

    def decide(self, sigma: Tensor, actual: Tensor, predicted: Tensor, slack: Tensor, ss: Tensor) -> Decision:
        """rho = actual / predicted against eta1 and eta2, without dividing; all tensors float64 and 0-dim."""
        null = ss == 0
        finite = actual.isfinite() & predicted.isfinite() & ss.isfinite()
        actual, predicted = actual + slack, predicted + slack
        usable = finite & ~null & (predicted > 0)
        accepted = usable & (actual >= self.eta1 * predicted)
        very = accepted & (actual >= self.eta2 * predicted)
        lower = (self.gamma3 * sigma).clamp_min(self.sigma_min)
        higher = torch.where(finite, self.gamma1 * sigma, self.gamma2 * sigma)
        sigma = torch.where(null | (accepted & ~very), sigma, torch.where(very, lower, higher))
        return Decision(accepted, null, torch.where(usable, actual / predicted, math.nan), sigma)
