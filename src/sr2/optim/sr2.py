"""SR2: stochastic adaptive quadratic regularization with exact proximal steps (Lakhmiri, Orban and Lodi, Algorithm 1).

Departures from the paper's text: rho uses the sampled objective F(., xi_t), as the paper's experiments do (pass
`objective` for the full one); gamma1 <= gamma2 is enforced, which the paper's own table breaks; numerator and
denominator of rho carry a rounding slack, without which sigma runs away at convergence. gamma3 has another default
(`SR2.paper_defaults`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from numbers import Real
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from ..regularizers.base import Regularizer, check_number
from . import stationarity
from .base import Params, ProximalOptimizer, StepInfo
from .batch_growth import BatchGrowth, GradientNoise
from .closure_watch import ClosureWatch
from .evaluation import Closure, TwoEvaluations
from .first_step import FirstStep
from .fused import FusedDecision, FusedTrial
from .metrics import Metric
from .proposal import Proposal
from .proximal_step import Parts
from .search import GAMMA3, Decision, Search, as_cooldown, cooled, rounding
from .trial import Trial

_COUNTS = ("accepted", "refused", "null", "broken")


class SR2(FirstStep):
    r"""SR2 on  min_x f(x) + R(x):  no learning rate, steps that can be refused, exact zeros.

    Each step draws what the closure evaluates, f(., xi_t), and

    .. math::
        s_t &\in \arg\min_s\; v_t^T s + \tfrac12 \sigma_t |s|^2 + R(x_t + s)\\
        \rho_t &= \frac{f(x_t) + R(x_t) - f(x_t + s_t) - R(x_t + s_t)}{R(x_t) - R(x_t + s_t) - v_t^T s_t}

    x moves if rho >= eta1. sigma becomes max(sigma_min, gamma3 sigma) if rho >= eta2, gamma1 sigma if rho < eta1, and
    stays in between. A trial point that is not finite is refused with gamma2 sigma; s = 0 is a null step, and sigma
    stays. One sigma and one decision for all groups.

    >>> from torch import nn
    >>> from sr2 import SR2, L1
    >>> _ = torch.manual_seed(0)
    >>> model, x, y = nn.Linear(20, 1), torch.randn(64, 20), torch.randn(64, 1)
    >>> optimizer = SR2(model, L1(0.1))
    >>> for _ in range(50):
    ...     loss = optimizer.step(lambda: nn.functional.mse_loss(model(x), y))
    >>> bool((model.weight == 0).any())
    True

    Args:
        params: a module, an iterable of (named) parameters, or group dicts that may each name their own `regularizer`.
        regularizer: R of the groups that name none.
        sigma: sigma_0 >= sigma_min, the first inverse step size; "auto" estimates the curvature at x_0 on the first
            batch, and doubles it until the prox leaves half of the weights.
        eta1, eta2: 0 < eta1 <= eta2 < 1, the ratios that accept a step and that lower sigma.
        gamma1, gamma2: 1 < gamma1 <= gamma2, the factors that raise sigma; gamma2=None means gamma1.
        gamma3: 0 < gamma3 <= 1, the factor that lowers sigma; "auto" takes it from R(x_0), the nearer to 1 the larger.
        sigma_min: the least sigma.
        cooldown: (first, last), the steps over which 1/sigma is brought down along a line to a fiftieth, as a learning
            rate is at the end of a run: the noise of the batches stays while x settles, and no rho asks for shorter
            steps. For a run of n steps, (round(0.8 n), n). From `first` on, sigma_t >= sigma_first / max(0.02,
            (last - t) / (last - first)).
        momentum: beta of v_t, a bias-corrected average of gradients; rho then leaves out (g - v)'s, the batch's noise
            (not where `objective` is given).
        metric: a diagonal metric D_t, by name or as an object; the step then minimizes with sigma + D_t.
        penalize: with a module, "weights" (no biases, no norms) or "all" (every parameter, the paper's formula).
        foreach: True works through a separable group in few passes or launches; False tensor by tensor, the path to
            read; None takes a fused kernel on CUDA where R has one, and else is True.
        capturable: keep sigma and every decision on the device, without a host read: a legal body of a CUDA graph
            (see `sr2.optim.CapturedStep`). A loss that is not finite at x_t is then refused and counted, not raised.
        compile: have torch.compile make the optimizer's own work one pass where it is not one kernel already, as on the
            CPU.
        autocast: the dtype of the closure's `torch.autocast`, torch.bfloat16 or torch.float16. Its rounding moves the
            loss by a share of f, and rho then carries a slack of 2 eps |f| max(1, -log |f|); left out, steps that gain
            less are refused by chance, and sigma runs away.
        epsilon: the tolerance behind `converged`: E[|s|^2] <= epsilon^2, the paper's measure of stationarity.
        batch_growth: test assumption 3 at every step and ask for larger batches where it fails (see `BatchGrowth`).
    """

    def __init__(
        self,
        params: Params,
        regularizer: Regularizer | None = None,
        *,
        sigma: float | str = "auto",
        eta1: float = 7.5e-4,
        eta2: float = 0.99,
        gamma1: float = 5.56,
        gamma2: float | None = None,
        gamma3: float | str = "auto",
        sigma_min: float = 1e-6,
        cooldown: tuple[int, int] | None = None,
        momentum: float = 0.0,
        metric: Metric | str | None = None,
        penalize: str = "weights",
        foreach: bool | None = None,
        capturable: bool = False,
        compile: bool = False,  # noqa: A002 - torch's own word
        autocast: torch.dtype | None = None,
        epsilon: float | None = None,
        batch_growth: BatchGrowth | None = None,
    ) -> None:
        given: dict[str, object] = {"sigma": sigma, "gamma3": gamma3}
        for name, value in given.items():
            if value != "auto" and (isinstance(value, bool) or not isinstance(value, Real)):
                raise ValueError(f"SR2: {name} must be a number or 'auto', and is {value!r}")
        falls = GAMMA3 if isinstance(gamma3, str) else gamma3  # "auto" chooses in the first step
        self.search = Search(eta1, eta2, gamma1, gamma1 if gamma2 is None else gamma2, falls, sigma_min)
        if not isinstance(sigma, str):
            check_number("SR2", "sigma", sigma, sigma_min)
        check_number("SR2", "momentum", momentum, 0, 1)
        if autocast not in (None, torch.bfloat16, torch.float16):
            raise ValueError(f"SR2: autocast must be torch.bfloat16, torch.float16 or None, and is {autocast!r}")
        if epsilon is not None:
            check_number("SR2", "epsilon", epsilon, 0, open_low=True)
        if cooldown is not None and epsilon is not None:
            raise ValueError(
                f"SR2: steps that a cooldown shortens say nothing of stationarity: leave out cooldown={cooldown!r} or "
                f"epsilon={epsilon!r}"
            )
        if batch_growth is not None and not isinstance(batch_growth, BatchGrowth):
            raise TypeError(
                f"SR2: batch_growth must be a BatchGrowth, as BatchGrowth(kappa=10.0), and is {batch_growth!r}"
            )
        if batch_growth is not None and (capturable or momentum):
            raise ValueError("batch_growth changes the batch and judges plain gradients: no capturable, no momentum")
        self.auto_gamma3 = isinstance(gamma3, str)
        self.cooldown = None if cooldown is None else as_cooldown(cooldown)
        self.momentum = momentum
        self.compile = compile
        self.autocast = autocast
        self.epsilon = epsilon
        self.batch_growth = batch_growth
        super().__init__(
            params, regularizer, {}, metric=metric, penalize=penalize, foreach=foreach, capturable=capturable
        )
        known = not isinstance(sigma, str)
        self._own["search"] = {
            "sigma": float(sigma) if known else math.nan,
            "sigma_known": known,
            "gamma3": None,  # what "auto" chose
            "cooldown": self.cooldown,
            "sigma_first": 0.0,  # of that cooldown, once it has begun
            "entered": False,
            "batch": None if batch_growth is None else batch_growth.batch,
            "steps_squared": stationarity.start(),
            **dict.fromkeys(_COUNTS, 0),
        }
        self._last: StepInfo | Tensor | None = None
        self._place()

    _fused_judge: FusedDecision | None
    _kept: dict[Tensor, Tensor]

    _carried = ProximalOptimizer._carried | {
        "search",
        "auto_gamma3",
        "cooldown",
        "momentum",
        "compile",
        "autocast",
        "epsilon",
        "batch_growth",
        "_last",
    }

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._forget()

    def _forget(self) -> None:
        """What is not state: what was seen of the closure, and memory that can be made anew."""
        self._watch, self._fused_judge, self._kept = ClosureWatch(), None, {}

    def _place(self) -> None:
        """sigma and the counters live where decisions are made: on the device if capturable, else as host numbers."""
        super()._place()
        self._forget()
        search, device = self._own["search"], self.param_groups[0]["params"][0].device
        if (search["batch"] is None) != (self.batch_growth is None):  # the loaded state's
            search["batch"] = None if self.batch_growth is None else self.batch_growth.batch
        if search["cooldown"] != self.cooldown:
            search |= {"cooldown": self.cooldown, "sigma_first": 0.0}
        numbers = [(name, float, torch.float64) for name in ("sigma", "sigma_first")]
        for name, kind, dtype in (*numbers, *((c, int, torch.int64) for c in _COUNTS)):
            value = kind(search.get(name, 0))
            search[name] = torch.tensor(value, dtype=dtype, device=device) if self.capturable else value
        search["steps_squared"] = search["steps_squared"].to(device if self.capturable else "cpu")
        if self.auto_gamma3 and search["gamma3"] is not None:
            self.search = replace(self.search, gamma3=search["gamma3"])
        if self.capturable:
            self._last = torch.full((9,), math.nan, dtype=torch.float64, device=device)

    # ---- what a user reads

    @staticmethod
    def paper_defaults() -> dict[str, float]:
        """The constants of the paper's experiments; this class has another gamma3 by default.

        >>> from torch import nn
        >>> from sr2 import L0
        >>> optimizer = SR2(nn.Linear(2, 1), L0(1e-3), **SR2.paper_defaults())
        >>> optimizer.search.eta2, optimizer.search.gamma3
        (0.99, 0.8)
        """
        return {"eta1": 7.5e-4, "eta2": 0.99, "gamma1": 5.56, "gamma3": GAMMA3}

    @property
    def sigma(self) -> float:
        """sigma_t, as the next step will use it; NaN before the first step where it is to be estimated."""
        return float(self._own["search"]["sigma"])

    @property
    def last_step(self) -> StepInfo | None:
        """What the last step saw and did; None before the first. With `capturable`, reading it waits for the device."""
        if not isinstance(self._last, Tensor):
            return self._last
        *numbers, accepted, null = self._last.tolist()
        return None if math.isnan(null) else StepInfo.of(numbers, accepted=bool(accepted), null=bool(null))

    @property
    def figures(self) -> Tensor | None:
        """The numbers behind `last_step`, without waiting for the device: loss, trial loss, rho, sigma, predicted,
        actual, |s|, accepted, null; None before the first step."""
        if isinstance(self._last, StepInfo):
            return self._last.as_tensor()
        return self._last

    @property
    def counts(self) -> dict[str, int]:
        """How many steps were accepted, refused, null, and (with `capturable`) broken: not finite at x_t."""
        return {name: int(self._own["search"][name]) for name in _COUNTS}

    @property
    def stationarity(self) -> stationarity.Stationarity:
        """The mean of |s|^2 over the last accepted steps, an estimate of the paper's measure, with its uncertainty."""
        return stationarity.read(self._own["search"]["steps_squared"])

    @property
    def converged(self) -> bool:
        """Whether that measure is below `epsilon` squared, its uncertainty included; False without an epsilon."""
        return self.epsilon is not None and self.stationarity.below(self.epsilon)

    @property
    def batch_size(self) -> int | None:
        """The size that `batch_growth` asks of the next batch; None without it."""
        size = self._own["search"]["batch"]
        return None if size is None else int(size)

    def _options(self) -> str:
        s = self.search
        sigma = f"{self.sigma:g}" if self._own["search"]["sigma_known"] else "auto"
        words = f"sigma={sigma}, eta1={s.eta1:g}, eta2={s.eta2:g}, gamma1={s.gamma1:g}, gamma2={s.gamma2:g}, "
        unknown = self.auto_gamma3 and self._own["search"]["gamma3"] is None
        words += f"gamma3={'auto' if unknown else f'{s.gamma3:g}'}, sigma_min={s.sigma_min:g}"
        words += f", cooldown={self.cooldown}" if self.cooldown else ""
        words += f", momentum={self.momentum:g}" if self.momentum else ""
        words += f", autocast={self.autocast}" if self.autocast else ""
        words += f", epsilon={self.epsilon:g}" if self.epsilon is not None else ""
        words += f", batch_growth={self.batch_growth!r}" if self.batch_growth else ""
        return (
            words
            + (f", metric={self.metric!r}" if self.metric else "")
            + (", capturable=True" if self.capturable else "")
        )

    # ---- one step

    @torch.no_grad()
    def step(self, closure: Closure | None = None, objective: Closure | None = None) -> Tensor:  # type: ignore[override]
        """One iteration of Algorithm 1; returns the loss at the starting point.

        Args:
            closure: returns the loss of the current batch; called twice, and once more at the first refusals, so it
                must be a function of the parameters alone: draw the batch outside it. Forward-only is best; one that
                zeroes and fills the gradients itself, as for torch's LBFGS, works too and pays a second backward.
            objective: returns f of the full problem, to test the step on it instead of on the batch (Algorithm 1 as
                written).
        """
        if not callable(closure):
            raise TypeError(
                "SR2.step needs a closure, since it evaluates the loss twice: optimizer.step(lambda: loss_fn(model(x), "
                "y)); torch's GradScaler cannot pass one, so use bfloat16 autocast, which needs no scaler"
            )
        while True:
            with self._first_step_or_nothing() as left:
                if not self._own["search"]["entered"]:
                    self._enter_domain(left)
                if self.auto_gamma3 and self._own["search"]["gamma3"] is None:
                    self._choose_gamma3()
                if not self._own["search"]["sigma_known"]:
                    self._estimate_sigma(closure)
                done = self._attempt(closure, objective)
            if done is not None:
                loss, evaluations = done
                self._cool()
                if isinstance(self._last, StepInfo) and self._last.accepted is False:
                    self._watch.refused(evaluations, closure, loss, self._slack(loss, loss, self._resolution(loss)))
                return loss

    def _attempt(self, closure: Closure, objective: Closure | None) -> tuple[Tensor, TwoEvaluations] | None:
        """One iteration from where R is finite; None, and nothing changed, if that turns out not to be so."""
        evaluations = TwoEvaluations(self._module, self._parameters(), self._twin)
        trial: Trial | FusedTrial | None = None
        try:
            with GradientNoise(self._parameters() if self.batch_growth else []) as noise:
                loss = evaluations.first(closure)
            self._watch.first(evaluations, self._twin)
            f = loss if objective is None else evaluations.again(objective)
            trial = self._trial(self._proposals())
            parts = trial.move(self._own["search"]["sigma"])
            if self.momentum and objective is None:
                f = f + self._noise(trial)
            f_trial = evaluations.again(objective or closure, settle_later=self.capturable)
            losses, eps = (loss, f, f_trial), self._resolution(loss)
            if self.capturable:
                self._settle_on_device(losses, parts, eps, trial, evaluations)
                return loss, evaluations
            scalars = self._scalars(losses, parts).cpu()  # the one host read of a step
            if not self._batch_passes(scalars, eps, None if objective else noise):
                trial.put_back()
            elif not self._settle(scalars, eps, trial, evaluations):
                return None
        except BaseException:  # an interrupt must not leave x halfway
            if trial is not None:
                trial.put_back()
            evaluations.undo()
            raise
        return loss, evaluations

    def _proposals(self) -> list[Proposal]:
        proposals = [p for group in self.param_groups if (p := self._propose(group, self.momentum)) is not None]
        if not proposals:
            raise ValueError("no parameter has a gradient: the closure's loss depends on none that is trained")
        return proposals

    def _trial(self, proposals: list[Proposal]) -> Trial | FusedTrial:
        if self.foreach is None and FusedTrial.fits(proposals):
            return self._fused.setdefault(0, FusedTrial()).use(proposals)
        return Trial(proposals, self._kept, flat=self._flat(proposals[0].xs), compiled=self.compile)

    def _noise(self, trial: Trial | FusedTrial) -> Tensor:
        """(g - v)'s, which momentum's v takes out of this batch: the step is judged on f(., xi) + (v - g)'x.

        That function has f's curvature, and v is its gradient: what theorem 1 says of sigma holds with momentum too.
        """
        noise = trial.noise()
        return torch.where(noise.isfinite(), noise, 0.0)  # where it is not, s is not, and refuses the step itself

    def _scalars(self, losses: Sequence[Tensor], parts: Parts) -> Tensor:
        """loss, f(x), f(x + s), v's, R(x) - R(x + s), |s|^2: one reduction point, so that processes agree."""
        values = torch.stack([t.to(parts.vs.device, torch.float64) for t in losses])
        group = self._process_group()
        if group is not None:  # every process has its own batch, and all must decide alike
            dist.all_reduce(values, group=group)
            values /= dist.get_world_size(group)
        return torch.cat([values, torch.stack(parts)])

    def _resolution(self, loss: Tensor) -> float:
        """The relative precision in which f is known: the loss's, or float32's where a parameter is below float64."""
        exact = all(x.dtype == torch.float64 for group in self.param_groups for x in group["params"])
        return max(torch.finfo(loss.dtype).eps, torch.finfo(torch.float64 if exact else torch.float32).eps)

    @property
    def _coarse(self) -> float:
        """What autocast's rounding may hide of f, in `rounding`: five deviations or more (benchmarks/rounding.py)."""
        return 0.0 if self.autocast is None else 2 * torch.finfo(self.autocast).eps

    def _slack(self, f: Tensor, f_trial: Tensor, eps: float) -> Tensor:
        return rounding(f, f_trial, eps, self._coarse)

    def _decide(self, scalars: Tensor, eps: float) -> tuple[Decision, Tensor]:
        """The decision, and the figures of `StepInfo` in its order."""
        loss, f, f_trial, vs, dR, ss = scalars.unbind()
        sigma = _number(self._own["search"]["sigma"])
        actual, predicted = f - f_trial + dR, dR - vs
        slack = self._slack(f, f_trial, eps)
        decision = self.search.decide(sigma, actual, predicted, slack, ss)
        figures = (loss, f_trial, decision.rho, decision.sigma, predicted, actual, ss.sqrt())
        return decision, torch.stack([*figures, decision.accepted.double(), decision.null.double()])

    def _settle(self, scalars: Tensor, eps: float, trial: Trial | FusedTrial, evaluations: TwoEvaluations) -> bool:
        """Keep the trial point or put x back; the next sigma; the counters. False if the step must be taken anew."""
        if not bool(scalars.isfinite().all()) and not self._can_refuse(scalars, trial, evaluations):
            return False
        search = self._own["search"]
        decision, figures = self._decide(scalars, eps)
        accepted, null = bool(decision.accepted), bool(decision.null)
        loss, _, f_trial, vs, _, _ = scalars.unbind()
        self._watch.tried(loss, f_trial, vs, lambda: self._slack(loss, loss, eps))
        trial.commit()
        if not accepted:
            trial.put_back()
        search["accepted" if accepted else "null" if null else "refused"] += 1
        search["sigma"] = float(decision.sigma)
        counts = decision.accepted | decision.null
        search["steps_squared"] = stationarity.update(search["steps_squared"], scalars[5], counts)
        self._last = StepInfo.of(figures.tolist()[:7], accepted=accepted, null=null)
        return True

    def _settle_on_device(
        self, losses: Sequence[Tensor], parts: Parts, eps: float, trial: Trial | FusedTrial, evaluations: TwoEvaluations
    ) -> None:
        """`_settle` without a host read: every choice is a `where`, every state is written in place."""
        if isinstance(trial, FusedTrial) and self._process_group() is None:
            accepted, sound = self._fused_decision(losses, trial.sums, eps)
        else:
            accepted, sound = self._decision_on_device(losses, parts, eps)
        trial.put_back_unless(accepted)
        evaluations.settle(sound)
        trial.commit_on_device(sound)

    def _decision_on_device(self, losses: Sequence[Tensor], parts: Parts, eps: float) -> tuple[Tensor, Tensor]:
        """accepted, sound; sigma, counters and figures are written."""
        search, scalars = self._own["search"], self._scalars(losses, parts)
        loss, f, _, vs, _, ss = scalars.unbind()
        # v's is not finite where g is not, or where only the prox is not: that is a refusal.
        gs = [p.grad for p in self._parameters() if p.grad is not None and p.grad.numel()]
        finite = torch.stack([n.isfinite().to(vs.device) for n in torch._foreach_norm(gs, math.inf)]).all()
        sound = loss.isfinite() & f.isfinite() & (vs.isfinite() | finite)
        decision, figures = self._decide(scalars, eps)
        # x has left the domain of R, F(x) is infinite, and x + s is back in it: any finite F is less.
        enters = scalars[4].isposinf() & scalars[2].isfinite() & sound
        accepted, null = (decision.accepted | enters) & sound, decision.null & sound
        refused = sound & ~accepted & ~null
        for name, flag in zip(_COUNTS, (accepted, refused, null, ~sound), strict=True):
            search[name] += flag
        figures[3] = torch.where(sound & ~enters, decision.sigma, search["sigma"])
        figures[7], figures[8] = accepted, null
        search["sigma"].copy_(figures[3])
        search["steps_squared"].copy_(stationarity.update(search["steps_squared"], ss, accepted | null))
        cast(Tensor, self._last).copy_(figures)
        return accepted, sound

    def _fused_decision(self, losses: Sequence[Tensor], sums: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        s = self.search
        slack = (10 * eps, self._coarse)
        constants = (s.eta1, s.eta2, s.gamma1, s.gamma2, s.gamma3, s.sigma_min, *slack, stationarity.FORGET)
        if self._fused_judge is None or self._fused_judge.key != constants:
            self._fused_judge = FusedDecision(constants, sums.device)
        return self._fused_judge(losses, sums, self._own["search"], cast(Tensor, self._last))

    def _cool(self) -> None:
        """sigma of the next step is at least the cooldown's; without a host read where it lives on the device."""
        search = self._own["search"]
        if self.cooldown is None or not search["sigma_known"]:  # it is not after a first batch that was broken
            return
        t = _number(sum(search[name] for name in _COUNTS))
        sigma, first = cooled(_number(search["sigma"]), _number(search["sigma_first"]), t, self.cooldown)
        if self.capturable:
            search["sigma"].copy_(sigma)
            search["sigma_first"].copy_(first)
            cast(Tensor, self._last)[3] = sigma
        else:
            search["sigma"], search["sigma_first"] = float(sigma), float(first)
            self._last = replace(cast(StepInfo, self._last), sigma=search["sigma"])

    def _batch_passes(self, scalars: Tensor, eps: float, noise: GradientNoise | None) -> bool:
        """Assumption 3 for this batch. Where it fails, s = 0 as in Algorithm 1, and the next batch is larger.

        noise: None where f is the full objective, whose error against g's has the noise in it already.
        """
        growth, search = self.batch_growth, self._own["search"]
        if growth is None or search["batch"] >= growth.largest or not bool(scalars.isfinite().all()):
            return True
        loss, f, f_trial, vs, dR, ss = scalars.tolist()
        spread = math.nan if noise is None else noise.estimate(self._process_group())
        slack = float(self._slack(scalars[1], scalars[2], eps))
        if growth.passes(abs(f_trial - f - vs), 0.0 if math.isnan(spread) else spread, ss, slack):
            return True
        search["batch"] = growth.next(search["batch"])
        search["null"] += 1
        numbers = (loss, f_trial, math.nan, search["sigma"], dR - vs, f - f_trial + dR, math.sqrt(ss))
        self._last = StepInfo.of(numbers, accepted=False, null=True)
        return False

    def _can_refuse(self, scalars: Tensor, trial: Trial | FusedTrial, evaluations: TwoEvaluations) -> bool:
        """Something is not finite. At the trial point: True, to be refused. At x_t: all is put back, and it is an
        error, unless x_t has left the domain of R since the last step: False, to enter it again."""
        loss, f, _, vs, dR, _ = scalars.tolist()
        broken, outside = None, False
        if not math.isfinite(loss):
            broken = f"the loss at x_t is {loss}"
        elif not math.isfinite(f):
            broken = f"the objective at x_t is {f}"
        elif not math.isfinite(vs) and not all(bool(g.isfinite().all()) for p in trial.proposals for g in p.gs):
            broken = f"the loss at x_t is finite ({loss:g}) and its gradient is not"
        elif not math.isfinite(dR):
            outside = trial.starts_outside()
        if not broken and not outside:
            return True
        trial.put_back()
        evaluations.undo()
        if outside:
            self._own["search"]["entered"] = False
            return False
        raise FloatingPointError(
            f"{broken}; x, sigma and all state are as before the step: skip this batch, or look for what is not finite "
            "in the data or the model"
        )


def _number(value: float | Tensor) -> Tensor:
    """A host's number as a 0-dim tensor of the host; where it lives on the device, as it is."""
    return value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64, device="cpu")
