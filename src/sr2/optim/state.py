"""SearchState: sigma, counters and memories of a search, as named 0-dim tensors, on the host or on the device."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..numerics import Number, as_tensor, at_least, by_torch, finite, vector, where
from ..regularizers.base import Step
from ..telling import tell
from .notices import say_past
from .parts.agreement import Agreement
from .parts.decay import MOST_AT_ONCE, share
from .parts.heart import ByHeart
from .parts.rules import Evidence, Searched, Verdict
from .parts.schedules import Reach, Schedule
from .parts.testing import LARGEST, Pace
from .records import Counts, Figures, Moments, Read, StepInfo
from .saving import saved_search
from .theory.stationarity import FORGET


class Outcome(NamedTuple):
    """What becomes of a step: 0-dim tensors, or plain numbers where the evidence has them."""

    accepted: Number
    null: Number
    """s = 0, or called off: neither accepted nor rejected, and sigma stays."""
    sound: Number
    """f and its gradient are finite at x."""
    learns: Number
    """Momentum and metric take this batch in: it is sound, and accepted where the rule forgets what it rejects."""
    rho: Number
    sigma: Number
    evidence: Evidence | None
    """What it was judged by; None where a kernel has judged, and written the state itself."""
    memory: Mapping[str, Number]
    tested: bool = True
    """False: x + s was not evaluated."""
    failed: Tensor | None = None
    """Neither accepted nor null, where a kernel has said so."""
    steps: Number = None
    """How many were taken with this one."""

    @staticmethod
    def of(
        verdict: Verdict, evidence: Evidence, sound: Number, state: Searched, sigma_min: float, forgets: bool = False
    ) -> Outcome:
        """The rule's verdict, but for null steps, batches that are not finite at x, and points outside R's domain."""
        if not isinstance(verdict, Verdict):
            raise TypeError(f"a rule's judge must return Verdict(accepted, sigma, rho), and returned {verdict!r}")
        still = evidence.ss == 0
        null = still & sound
        # x has left the domain of R, F(x) is infinite, and x + s is back in it: any finite F is less.
        enters = (evidence.dR == math.inf) & finite(evidence.f_trial) & sound
        judged = sound ^ (null | enters)
        # Between tests x may have come on trust to where f is not finite: with the same sigma it would come there anew.
        moves_sigma = judged | (sound ^ True) if LARGEST in state.memory else judged
        accepted = (verdict.accepted & judged) | enters
        return Outcome(
            accepted=accepted,
            null=null,
            sound=sound,
            learns=sound & (accepted | null) if forgets else sound,
            rho=where(still, math.nan, verdict.rho),
            sigma=where(moves_sigma, at_least(verdict.sigma, sigma_min), state.sigma),
            evidence=evidence,
            memory={name: where(judged, new, state.memory[name]) for name, new in verdict.memory.items()},
            steps=state.steps + 1,
        )

    @staticmethod
    def called_off(evidence: Evidence, state: Searched) -> Outcome:
        """Algorithm 1's s = 0 where the batch does not meet assumption 3: nothing is learnt from it."""
        return Outcome(False, True, False, False, math.nan, state.sigma, evidence, {}, steps=state.steps + 1)


def sums_after(sums: Tensor, ss: Number, counts: Number) -> Tensor:
    """The sums behind `Moments` after one more step, where `counts` is true; no host read."""
    after: Tensor = where(counts, _left_of_sums(sums.device) * sums + vector([1.0, 1.0, ss, ss * ss]), sums)
    return after


@functools.cache
def _left_of_sums(device: torch.device) -> Tensor:
    """What a step leaves of each of them."""
    return torch.tensor([FORGET, FORGET**2, FORGET, FORGET], dtype=torch.float64, device="cpu").to(device)


@dataclass
class SearchState:
    """What SR2 remembers from step to step that belongs to no single parameter.

    Numbers that a step changes are 0-dim tensors, on the device with `capturable` and on the host otherwise; what is
    settled before the first step is plain.
    """

    sigma: Tensor
    fates: Tensor
    """How many steps had each fate, in the order of `Counts`."""
    sums: Tensor
    """Of |s|^2 over accepted steps, behind `stationarity`, in the order of `Moments`."""
    seen: Tensor
    """What the last step saw and did, in the order of `Figures`."""
    memory: dict[str, Tensor]
    """What the rule, the schedule and the tests remember, by name."""
    share: Tensor
    """Of R's full strength, at this step: it follows from the number of steps and is not saved."""
    sigma_known: bool
    """False: sigma_0 is to be estimated."""
    entered: bool = False
    """x is where R is finite."""
    chosen: dict[str, float] = field(default_factory=dict)
    """Constants that the rule took from R(x_0)."""
    batch: int | None = None
    """The batch size that `batch_growth` asks for."""
    pace: Pace = field(default_factory=Pace)
    """Where it stands between two tests."""
    schedule: str = "None"
    """The schedule that `memory` belongs to."""
    lr: Tensor | None = None
    """1 / sigma as a tensor that groups share, with `capturable`."""
    shown: float | None = None
    """What `show` wrote last, or the version of the tensor that it wrote; None in a copy."""
    told: bool = False
    """Whether it was said that nobody reads an `lr` which a scheduler writes."""
    end: int | None = None
    """How many steps there will be, where that was said and is not passed yet."""
    heart: ByHeart | None = None
    fresh: ByHeart | None = None
    """What looks whether examples are learnt by heart, unless that has ended; and what a saved one is read into."""
    agreement: Agreement | None = None
    """While the first batches are asked how far they agree."""

    @staticmethod
    def start(
        sigma: float | str, memory: Mapping[str, float], schedule: Schedule | None, heart: ByHeart | None = None
    ) -> SearchState:
        """On the host; a sigma that is a word is to be estimated."""
        return SearchState(
            sigma=_float(math.nan if isinstance(sigma, str) else float(sigma)),
            fates=torch.zeros(len(Counts._fields), dtype=torch.int64, device="cpu"),
            sums=torch.zeros(len(Moments._fields), dtype=torch.float64, device="cpu"),
            seen=torch.full((len(Figures._fields),), math.nan, dtype=torch.float64, device="cpu"),
            memory={name: _float(value) for name, value in memory.items()},
            share=_float(1.0),
            sigma_known=not isinstance(sigma, str),
            schedule=repr(schedule),
            heart=heart,
            fresh=heart and replace(heart),
        )

    @property
    def steps(self) -> Tensor:
        """How many steps were taken, whatever became of them."""
        return self.fates.sum()

    @property
    def counts(self) -> Counts:
        """The counters by name, as views."""
        return Counts(*self.fates.unbind())

    @property
    def moments(self) -> Moments:
        """The sums by name, as views."""
        return Moments(*self.sums.unbind())

    @functools.cached_property
    def figures(self) -> Figures:
        """What the last step saw and did by name, as views."""
        return Figures(*self.seen.unbind())

    def read(self) -> Read:
        """What rules and schedules may see of it, for those that take plain numbers."""
        return Read(float(self.sigma), {name: float(n) for name, n in self.memory.items()}, sum(self.fates.tolist()))

    def decay_of(self, group: Mapping[str, Any], usual: float = math.inf) -> Step:
        """w of the decay w x'Dx / 2 of a group: a step takes at most w / usual of a weight, or `MOST_AT_ONCE` under R.
        A share per step is one of sigma as that is without the cooldown."""
        w = group["weight_decay"] if self.heart is None else self.heart.decay(group["weight_decay"])
        kappa = None if isinstance(w, float) and 0 <= w < math.inf else share(w)
        if kappa is None:
            if w == 0 or usual == math.inf:
                return float(w)
            most = float(w) / usual if group.get("regularizer") is None else MOST_AT_ONCE
            sigma = self._read(self.sigma)
            return torch.clamp_max(most * sigma, float(w)) if isinstance(sigma, Tensor) else min(most * sigma, float(w))
        first = self.memory.get("sigma_first")
        least = self.sigma if first is None else torch.where(first > 0, torch.minimum(self.sigma, first), self.sigma)
        return kappa * self._read(least)

    def _read(self, number: Tensor) -> Step:
        return number if self.lr is not None else float(number)

    def counted(self, *, untested: bool) -> dict[str, int]:
        """The counters by name, with or without that one."""
        counts = dict(zip(Counts._fields, self.fates.tolist(), strict=True))
        return counts if untested else {name: n for name, n in counts.items() if name != "untested"}

    def failures(self) -> int:
        """How many steps were rejected or broken; waits for the device."""
        return int(self.counts.rejected + self.counts.broken)

    # ---- one step

    def strengthen(self, reach: Reach | None) -> None:
        """The share of R's strength at the step to come: in place, without a host read."""
        if reach is not None:
            self.share.copy_(reach.share(self.steps + 1))

    def begin(self, sigma: float, groups: Sequence[dict[str, Any]]) -> None:
        """sigma_0, once it is estimated."""
        self.sigma.fill_(sigma)
        self.sigma_known = True
        self.show(groups)

    def record(self, outcome: Outcome) -> None:
        """Write what became of a step: sigma, counters, memories, figures. In place, without a host read."""
        evidence = outcome.evidence
        if evidence is None:
            return
        accepted, null, sound, tested = outcome.accepted, outcome.null, outcome.sound, outcome.tested
        passed = sound & (accepted | null)
        if tested:
            fates = (accepted, sound ^ passed, null, (sound | null) ^ True, False)  # as in `Counts`
        else:  # what fails is put back, as where a test rejects it
            fates = (False, sound ^ True, null, False, accepted)
        self.fates += vector(fates, torch.int64)
        self.sigma.fill_(outcome.sigma)
        for name, value in outcome.memory.items():
            self.memory[name].fill_(value)
        if tested:
            self.sums.copy_(sums_after(self.sums, evidence.ss, passed))
        if tested and (largest := self.memory.get(LARGEST)) is not None:
            size = abs(evidence.loss)
            larger = torch.where(size > largest, size, largest)
            largest.copy_(torch.where(passed | (sound & (largest == 0)), larger, largest))
        norm, judged = by_torch(torch.sqrt, evidence.ss), (evidence.predicted, evidence.actual)
        numbers = (evidence.loss, evidence.f_trial, outcome.rho, outcome.sigma, *judged, norm, accepted, null)
        self.seen.copy_(vector(numbers))

    def follow(self, schedule: Schedule | None, outcome: Outcome, groups: Sequence[dict[str, Any]]) -> None:
        """sigma of the next step by the schedule; not before it is known, as after a first batch that was broken."""
        if schedule is not None and self.sigma_known:
            t, plain = outcome.steps, schedule.plain and not isinstance(outcome.steps, Tensor)
            now = self.read() if plain else self
            sigma, memory = schedule.apply(now.sigma, t if plain else as_tensor(t), now.memory)
            for number in (self.sigma, self.figures.sigma):
                number.fill_(sigma)
            for name, value in memory.items():
                self.memory[name].fill_(value)
            if self.end is not None and self.lr is None and int(t) > 1.1 * self.end:
                say_past(self.end, int(t))
                self.end = None
        self.show(groups)

    def show(self, groups: Sequence[dict[str, Any]]) -> None:
        """1 / sigma as the `lr` of every group, for what reads one; no host read where it is a tensor, shared by all.

        A scheduler may write there too: nothing reads it, which is told once.
        """
        if not self.told and self.shown is not None and any(_written(g.get("lr"), self.shown) for g in groups):
            self.told = True
            tell(
                "a scheduler has written 'lr', and SR2 does not read it: lr is 1 / sigma, which SR2 chooses itself at "
                "every step; leave the scheduler out: with SR2(..., steps=n) the last of n steps become short"
            )
        if self.lr is None:
            self.shown = 1.0 / float(self.sigma)
        else:
            self.shown = torch.reciprocal(self.sigma, out=self.lr)._version
        for group in groups:
            group["lr"] = self.shown if self.lr is None else self.lr

    def last_step(self) -> StepInfo | None:
        """The figures as numbers, None before the first step; waits for the device."""
        *numbers, accepted, null = self.seen.tolist()
        if math.isnan(null):
            return None
        loss, trial_loss, rho, sigma, predicted, actual, norm = numbers
        return StepInfo(loss, trial_loss, rho, sigma, None if null else bool(accepted), predicted, actual, norm)

    # ---- between steps

    def place(self, groups: Sequence[dict[str, Any]], capturable: bool) -> None:
        """With `capturable`, every number that a step changes lives beside the parameters; else on the host."""
        beside = (p.device for group in groups for p in group["params"])  # a group may be empty
        self.to(next(beside, "cpu") if capturable else "cpu")
        self.lr, self.shown = torch.empty_like(self.sigma) if capturable else None, None
        self.show(groups)

    def __getstate__(self) -> dict[str, Any]:
        own = {name: value for name, value in self.__dict__.items() if name != "figures"}  # views of `seen`
        return {**own, "shown": None}  # a copied tensor counts its versions anew

    def to(self, device: torch.device | str) -> None:
        """Every number a step changes goes to this device."""
        self.sigma = self.sigma.to(device)
        self.fates, self.sums, self.seen = self.fates.to(device), self.sums.to(device), self.seen.to(device)
        self.__dict__.pop("figures", None)  # its views
        self.memory = {name: n.to(device) for name, n in self.memory.items()}
        self.share = self.share.to(device)

    def state_dict(self) -> dict[str, Any]:
        """Plain data, for a checkpoint."""
        return saved_search(self)

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Go on from a saved state; what it lacks stays."""
        self.sigma.fill_(float(saved.get("sigma", self.sigma)))
        self.sigma_known = bool(saved.get("sigma_known", self.sigma_known))
        self.entered = bool(saved.get("entered", self.entered))
        self.chosen = dict(saved.get("chosen", self.chosen))
        self.batch = self.batch and int(saved.get("batch") or self.batch)
        self.heart = self.fresh and replace(self.fresh).gone_on(saved.get("heart"))
        asked = saved.get("agreement") if self.lr is None else None
        self.agreement = None if asked is None else Agreement(**asked)
        self.pace = Pace(**saved.get("pace", {})) if LARGEST in self.memory else Pace()  # of a run that trusted
        for name, count in self.counts._asdict().items():
            count.fill_(int(saved.get(name, 0)))
        for name, number in self.moments._asdict().items():
            number.fill_(saved.get("moments", {}).get(name, 0.0))
        memory, mine = saved.get("memory", {}), saved.get("schedule") == self.schedule
        for name, number in self.memory.items():
            if name in memory and (mine or name != "sigma_first"):  # that of another schedule is not this one's
                number.fill_(float(memory[name]))


def _written(lr: float | Tensor | None, shown: float) -> bool:
    """Whether somebody has written it since, without looking at a device. A NaN, which stands there before the first
    step, is a scheduler's too once a number was shown: its factor times NaN."""
    if isinstance(lr, Tensor):
        return lr._version != shown
    return lr is not None and lr != shown and not (math.isnan(lr) and math.isnan(shown))


def _float(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64, device="cpu")
