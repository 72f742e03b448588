"""Accept? Next sigma? A rule judges a step by what was seen of it, and knows nothing of how s was found.

Here is what every rule is made of, and `Ratio`, Algorithm 1's own; all others are in `steering.py`.

A rule of one's own subclasses `Rule` and writes `judge`, out of 0-dim tensors and without looking at them, so that
the same lines serve on the host, on a device and in a CUDA graph. Those of this library are given plain numbers where
the host decides (`Rule.plain`).

>>> from torch import nn
>>> from sr2 import SR2
>>> class Halve(Rule):
...     def judge(self, evidence, state):
...         accepted = evidence.actual >= 0
...         sigma = torch.where(accepted, 0.5, 2.0) * state.sigma
...         return Verdict(accepted, sigma, rho=evidence.actual / evidence.predicted)
>>> _ = torch.manual_seed(0)
>>> model, x = nn.Linear(3, 1), torch.ones(5, 3)
>>> optimizer = SR2(model, rule=Halve(), sigma=8.0)
>>> _ = optimizer.step(lambda: model(x).square().mean())
>>> optimizer.sigma
4.0
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from ...checks import is_real, shown
from ...numerics import Number, Plain, Rounding, finite, read, stacked, where
from ..processes import Processes
from .constants import Constants

__all__ = ["Constants", "Evidence", "Ratio", "Rule", "Verdict"]

GAMMA3 = 0.8
"""The paper's, and the fastest that "auto" chooses."""
GAIN = 2.0
"""What R may gain, about, by one fall of sigma at x_0."""
_NOTHING: Mapping[str, Number] = MappingProxyType({})


@dataclass(eq=False)
class Evidence:
    """What was seen of one step, the same on all processes: 0-dim float64 tensors, or floats that the host has read."""

    loss: Number
    """The closure's loss at x."""
    f: Number
    """f(x), as it is compared with f_trial: the loss, or the full objective, with momentum + (g - v)'s."""
    f_trial: Number
    """f(x + s)."""
    vs: Number
    """v's, what the model promises of f."""
    dR: Number
    """R(x) - R(x + s); to first order, v's + s'Bs, where R(x) is infinite because a budget has shrunk (`Reach`)."""
    ss: Number
    """|s|^2."""
    sBs: Number
    """s'Bs, twice the model's quadratic term: B is sigma, or sigma times the metric."""
    slack: Number
    """What rounding may make of f(x) - f(x + s), at the worst."""
    fine: Number
    """The same without what autocast rounds, which is no bound but noise, with a mean of about 0."""
    all_finite: Number
    """Whether each of the numbers is."""
    of_batch: bool = True
    """f is the closure's loss, and not an objective beside it."""

    @staticmethod
    def gather(
        losses: Sequence[Tensor],
        model: Sequence[Tensor],
        rounding: Rounding,
        together: Processes,
        device: torch.device,
        *,
        reaching: bool = False,
        of_batch: bool = True,
        plain: bool = False,
    ) -> Evidence:
        """One reduction point, so that processes agree; and the one host read of a step, where the host decides.

        Args:
            losses: the loss, f(x) and f(x + s), of this process.
            model: v's, R(x) - R(x + s), |s|^2 and s'Bs, of the parts that this process counts.
            rounding, together, device: how well f is known, the processes that decide, and where.
            reaching: where R(x) is infinite the budget has shrunk, and R's decrease is v's + s'Bs (see `Reach`).
            of_batch, plain: see the field; read the numbers, since the host decides and the rule takes floats.
        """
        if together.groups:
            values = torch.stack([t.to(model[0].device, torch.float64) for t in losses])
            losses, model = together.mean(values).unbind(), together.sum(torch.stack(list(model))).unbind()
        numbers = [*model, *losses]
        vs, dR, ss, sBs, loss, f, f_trial = read(numbers) if plain else stacked(numbers).to(device).unbind()
        if reaching:
            dR = where(dR == math.inf, vs + sBs, dR)
        seen = (loss, f, f_trial, vs, dR, ss, sBs)
        fine = rounding.fine(f)
        slack = rounding.slack(f, f_trial) if rounding.coarse else fine
        return Evidence(*seen, slack, fine, finite(*seen), of_batch)

    @cached_property
    def actual(self) -> Number:
        """f(x) - f(x + s) + R(x) - R(x + s)."""
        return self.f - self.f_trial + self.dR

    @cached_property
    def predicted(self) -> Number:
        """R(x) - R(x + s) - v's."""
        return self.dR - self.vs

    @property
    def noise(self) -> Number:
        """(g - v)'s, with a decay its change too: what this batch says of s beyond what v says. 0 for an objective."""
        return self.f - self.loss if self.of_batch else 0.0 * self.f

    @property
    def curvature(self) -> Number:
        """2 (f(x + s) - f(x) - v's) / s'Bs: of f along s, over the model's. Without R, rho is 1 - curvature / 2."""
        return 2 * (self.f_trial - self.f - self.vs) / self.sBs

    @cached_property
    def finite(self) -> Number:
        """Whether the trial can be compared at all."""
        return finite(self.actual, self.predicted, self.ss)

    @property
    def compared(self) -> Compared:
        """The actual decrease beside the predicted one, as rho has them."""
        predicted, finite = self.predicted + self.slack, self.finite
        return Compared(self.actual + self.slack, predicted, finite, finite & (predicted > 0))


class Compared(NamedTuple):
    """The two decreases whose quotient is rho, each with the rounding slack: ask for it once per step."""

    actual: Number
    predicted: Number
    finite: Number
    usable: Number
    """Finite, and a decrease was predicted: else there is no rho."""

    def at_least(self, eta: Number) -> Number:
        """rho >= eta, without dividing; false where there is no rho."""
        return self.usable & (self.actual >= eta * self.predicted)

    @property
    def rho(self) -> Number:
        """actual / predicted; NaN where there is none."""
        return self.actual / where(self.usable, self.predicted, math.nan)


class Verdict(NamedTuple):
    """The fate of a step: 0-dim tensors, or plain numbers where the evidence has them."""

    accepted: Number
    sigma: Number
    """Of the next step; SR2 keeps it at sigma_min or above."""
    rho: Number
    memory: Mapping[str, Number] = _NOTHING
    """New values of what the rule remembers."""


class Searched(Protocol):
    """What a rule may read of the search so far."""

    @property
    def sigma(self) -> Number:
        """sigma_t, of this step."""

    @property
    def memory(self) -> Mapping[str, Number]:
        """What the rule remembers, by name."""

    @property
    def steps(self) -> Number:
        """How many steps were taken before this one."""


class Rule(Plain, ABC):
    """Accept? Next sigma? Null steps (s = 0) and batches that are not finite at x are not its question."""

    forgets: ClassVar[bool] = False
    """Whether momentum and metric forget the gradient of a batch whose step is rejected."""

    def __init_subclass__(cls, **arguments: object) -> None:
        """A subclass with a verdict of its own is not what its parent's constants say: no kernel judges for it."""
        super().__init_subclass__(**arguments)
        if "judge" in cls.__dict__ and "constants" not in cls.__dict__:
            cls.constants = property(lambda self: None)  # type: ignore[assignment, method-assign]

    @abstractmethod
    def judge(self, evidence: Evidence, state: Searched) -> Verdict:
        """The verdict on one step. Nothing is written: what a rule remembers goes into the verdict."""

    def on_trust(self, sigma: Number) -> Number:
        """sigma after a step that was kept without a test (`test_every`)."""
        return sigma

    def memory(self) -> dict[str, float]:
        """What the rule remembers from step to step: names and first values. It is saved with the optimizer."""
        return {}

    @property
    def constants(self) -> Constants | None:
        """Those of Algorithm 1, for a rule of its form: the fused kernel judges only where they are declared."""
        return None

    @property
    def usual_sigma(self) -> float:
        """The sigma of usual steps: below it a step takes no larger share of a weight. inf where it knows none."""
        return math.inf

    @property
    def least_sigma(self) -> float:
        """Up to this one sigma falls only where batches agree; without R "auto" finds no smaller sigma_0."""
        return 0.0

    @property
    def undecided(self) -> bool:
        """Whether `choose` has something to take from x_0."""
        return False

    def choose(self, R: float, size: float) -> dict[str, Any]:
        """Constants that follow from x_0, by name, in place of "auto" or None in this rule; saved with the optimizer.

        `R` is R(x_0), and `size` that of the weights (`start.Seen`), 0 also of a network that was trained before.
        """
        return {}

    @property
    def asks(self) -> bool:
        """Whether `agreed` has something to take from how far the first batches agree. They are asked under penalties
        alone, and only where `usual_sigma` is known."""
        return False

    def agreed(self, share: float) -> dict[str, Any]:
        """Constants that follow from that, as in `choose`. `share` is 0 where all is noise, and 1 where batches agree
        (`parts/agreement.py`)."""
        return {}

    def way_out(self, rho: float) -> str:
        """What to do where sigma has stood still for long at this mean of rho; empty where that is usual."""
        return ""


@dataclass(frozen=True)
class Ratio(Rule):
    r"""Algorithm 1: rho = actual / predicted against eta1 and eta2.

    x moves if rho >= eta1. sigma becomes gamma3 sigma if rho >= eta2, gamma1 sigma if rho < eta1, and stays in between.
    A trial point that is not finite is rejected with gamma2 sigma.

    >>> Ratio(gamma3=0.8)
    Ratio(eta1=0.00075, eta2=0.99, gamma1=5.56, gamma2=5.56, gamma3=0.8)

    Args:
        eta1, eta2: 0 < eta1 <= eta2 < 1, the ratios that accept a step and that lower sigma.
        gamma1, gamma2: 1 < gamma1 <= gamma2, the factors that raise sigma; gamma2=None means gamma1.
        gamma3: 0 < gamma3 <= 1, the factor that lowers sigma; "auto" takes it from R(x_0), the nearer to 1 the larger.
    """

    eta1: float = 7.5e-4
    eta2: float = 0.99
    gamma1: float = 5.56
    gamma2: float | None = None
    gamma3: float | str = "auto"
    plain = True

    def __post_init__(self) -> None:
        if self.gamma2 is None:
            object.__setattr__(self, "gamma2", self.gamma1)
        for name, value in vars(self).items():
            if not isinstance(value, (int, float)) or not is_real(value):
                if name == "gamma3" and value == "auto":
                    continue
                words = "a number or 'auto'" if name == "gamma3" else "a number"
                raise ValueError(f"SR2: {name} must be {words}, and is {shown(value)}")
        if not 0 < self.eta1 <= self.eta2 < 1:
            raise ValueError(f"SR2 needs 0 < eta1 <= eta2 < 1, and got eta1={self.eta1}, eta2={self.eta2}")
        if not self.undecided and not 0 < self.gamma3 <= 1:  # type: ignore[operator]
            raise ValueError(f"SR2 needs 0 < gamma3 <= 1, and got gamma3={self.gamma3}")
        if not 1 < self.gamma1 <= self.gamma2 < math.inf:  # type: ignore[operator]
            got = f"gamma1={self.gamma1}, gamma2={self.gamma2}: leave gamma2=None to use gamma1"
            raise ValueError(f"SR2 needs 1 < gamma1 <= gamma2 (Algorithm 1), and got {got}")

    @property
    def constants(self) -> Constants | None:
        return self._numbers()

    def _numbers(self) -> Constants:
        gamma2, gamma3 = self.gamma2, GAMMA3 if isinstance(self.gamma3, str) else self.gamma3
        assert gamma2 is not None
        return Constants(self.eta1, self.eta2, self.gamma1, gamma2, gamma3)

    @property
    def undecided(self) -> bool:
        return isinstance(self.gamma3, str)

    def choose(self, R: float, size: float) -> dict[str, Any]:
        return {"gamma3": gamma3_for(R)} if self.undecided else {}

    def judge(self, evidence: Evidence, state: Searched) -> Verdict:
        eta1, eta2, gamma1, gamma2, gamma3, *_ = self._numbers()
        sigma, compared = state.sigma, evidence.compared
        accepted, very = compared.at_least(eta1), compared.at_least(eta2)
        higher = where(compared.finite, gamma1 * sigma, gamma2 * sigma)
        sigma = where(very, gamma3 * sigma, where(accepted, sigma, higher))
        return Verdict(accepted, sigma, compared.rho)

    def way_out(self, rho: float) -> str:
        """A rho near 1 and below eta2: along s sigma is 1 / (2 (1 - rho)) times the curvature, and does not fall."""
        if self.constants is None or not 0.9 <= rho < self.eta2:
            return ""
        longer = f"steps could be {1 / (2 * (1 - rho)):.0f} times as long"
        return f"{longer}; leave out the constants of Algorithm 1 and its rule, or take eta2={rho - 0.05:.2g}"


def gamma3_for(R: float) -> float:
    r"""gamma_3 = 1 - min(0.2, 2 GAIN / R(x_0)): the larger R, the slower sigma falls.

    Under l0 a fall of sigma raises the threshold by a share (1 - gamma_3) / 2 and takes about that share of R. Where
    the loss cannot outweigh that, rho is 1, each fall causes the next, and nothing is left of the network.

    >>> gamma3_for(24.0), gamma3_for(4e4)
    (0.8333333333333334, 0.9999)
    """
    return 1 - min(1 - GAMMA3, 2 * GAIN / R) if 0 < R < math.inf else GAMMA3
