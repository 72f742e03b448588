"""SR2: stochastic adaptive quadratic regularization with exact proximal steps (Lakhmiri, Orban and Lodi, Algorithm 1).

Departures from the paper's text: rho uses the sampled objective F(., xi_t), as the paper's experiments do (pass
`objective` for the full one); gamma1 <= gamma2 is enforced, which the paper's own table breaks; numerator and
denominator of rho carry a rounding slack, without which sigma runs away at convergence.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from ..regularizers.base import Regularizer, check_number
from .base import Params, Proposal, ProximalOptimizer, StepInfo
from .evaluation import Closure, TwoEvaluations
from .metrics import Metric
from .momentum import forget
from .proximal_step import Parts, move_to_trial


class Decision(NamedTuple):
    """The fate of a step, as 0-dim tensors."""

    accepted: Tensor
    null: Tensor
    rho: Tensor
    sigma: Tensor


@dataclass(frozen=True)
class Search:
    """Accept? Next sigma? The part of Algorithm 1 that knows nothing of how s was found."""

    eta1: float
    eta2: float
    gamma1: float
    gamma2: float
    gamma3: float
    sigma_min: float

    def __post_init__(self) -> None:
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

    def decide(
        self, sigma: Tensor, actual: Tensor, predicted: Tensor, slack: Tensor, ss: Tensor, plain: bool
    ) -> Decision:
        """rho = actual / predicted against eta1 and eta2, without dividing; all tensors float64 and 0-dim.

        plain: the direction is the gradient. Where it is not (momentum), a refusal speaks against the direction and
        sigma stays: the next step takes the plain gradient.
        """
        null = ss == 0
        finite = actual.isfinite() & predicted.isfinite() & ss.isfinite()
        actual, predicted = actual + slack, predicted + slack
        usable = finite & ~null & (predicted > 0)
        accepted = usable & (actual >= self.eta1 * predicted)
        very = accepted & (actual >= self.eta2 * predicted)
        lower = (self.gamma3 * sigma).clamp_min(self.sigma_min)
        higher = self.gamma1 * sigma if plain else sigma
        sigma = torch.where(
            null | (accepted & ~very),
            sigma,
            torch.where(very, lower, torch.where(finite, higher, self.gamma2 * sigma)),
        )
        return Decision(accepted, null, torch.where(usable, actual / predicted, math.nan), sigma)


class SR2(ProximalOptimizer):
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
        sigma: sigma_0 >= sigma_min, the first inverse step size.
        eta1, eta2: 0 < eta1 <= eta2 < 1, the ratios that accept a step and that lower sigma.
        gamma1, gamma2: 1 < gamma1 <= gamma2, the factors that raise sigma; gamma2=None means gamma1.
        gamma3: 0 < gamma3 <= 1, the factor that lowers sigma.
        sigma_min: the least sigma.
        momentum: beta of v_t, a bias-corrected average of gradients; a refused step starts it again at v = g.
        metric: a diagonal metric D_t, by name or as an object; the step then minimizes with sigma + D_t.
        penalize: with a module, "weights" (no biases, no norms) or "all" (every parameter, as the paper does).
        foreach: lay a group's tensors end to end, for fewer launches; None chooses it on accelerators.
    """

    def __init__(
        self,
        params: Params,
        regularizer: Regularizer | None = None,
        *,
        sigma: float = 1.0,
        eta1: float = 7.5e-4,
        eta2: float = 0.99,
        gamma1: float = 5.56,
        gamma2: float | None = None,
        gamma3: float = 0.8,
        sigma_min: float = 1e-6,
        momentum: float = 0.0,
        metric: Metric | str | None = None,
        penalize: str = "weights",
        foreach: bool | None = None,
    ) -> None:
        self.search = Search(eta1, eta2, gamma1, gamma1 if gamma2 is None else gamma2, gamma3, sigma_min)
        check_number("SR2", "sigma", sigma, sigma_min)
        check_number("SR2", "momentum", momentum, 0, 1)
        self.momentum = momentum
        super().__init__(params, regularizer, {}, metric=metric, penalize=penalize, foreach=foreach)
        self._own["search"] = {"sigma": float(sigma), "accepted": 0, "refused": 0, "null": 0, "entered": False}
        self._last: StepInfo | None = None

    _carried = ProximalOptimizer._carried | {"search", "momentum", "_last"}

    # ---- what a user reads

    @property
    def sigma(self) -> float:
        """sigma_t, as the next step will use it."""
        return float(self._own["search"]["sigma"])

    @property
    def last_step(self) -> StepInfo | None:
        """What the last step saw and did; None before the first."""
        return self._last

    @property
    def counts(self) -> dict[str, int]:
        """How many steps were accepted, refused and null."""
        search = self._own["search"]
        return {name: search[name] for name in ("accepted", "refused", "null")}

    def _options(self) -> str:
        s = self.search
        words = f"sigma={self.sigma:g}, eta1={s.eta1:g}, eta2={s.eta2:g}, gamma1={s.gamma1:g}, gamma2={s.gamma2:g}, "
        words += f"gamma3={s.gamma3:g}, sigma_min={s.sigma_min:g}"
        words += f", momentum={self.momentum:g}" if self.momentum else ""
        return words + (f", metric={self.metric!r}" if self.metric else "")

    # ---- one step

    @torch.no_grad()
    def step(self, closure: Closure | None = None, objective: Closure | None = None) -> Tensor:  # type: ignore[override]
        """One iteration of Algorithm 1; returns the loss at the starting point.

        Args:
            closure: returns the loss of the current batch; called twice, so it must be a function of the parameters
                alone: draw the batch outside it. Forward-only is best; one that zeroes and fills the gradients itself,
                as for torch's LBFGS, works too and pays a second backward.
            objective: returns f of the full problem, to test the step on it instead of on the batch (Algorithm 1 as
                written).
        """
        if closure is None:
            raise TypeError(
                "SR2.step needs a closure, since it evaluates the loss twice: optimizer.step(lambda: loss_fn(model(x), "
                "y)); torch's GradScaler cannot pass one, so use bfloat16 autocast, which needs no scaler"
            )
        if not self._own["search"]["entered"]:
            self._enter_domain()
        evaluations = TwoEvaluations(self._module, self._parameters())
        loss = evaluations.first(closure)
        f = loss if objective is None else evaluations.again(objective)

        proposals = [p for group in self.param_groups if (p := self._propose(group, self.momentum)) is not None]
        moved: list[tuple[Proposal, list[Tensor]]] = []
        try:
            parts = []
            for proposal in proposals:
                steps = self._steps(proposal)
                kept, part = move_to_trial(
                    proposal.xs, proposal.vs, steps, proposal.regularizer, flat=self._flat(proposal.xs)
                )
                moved.append((proposal, kept))
                parts.append(part)
            trial = evaluations.again(objective or closure)
            scalars = self._scalars(loss, f, trial, parts).cpu()  # the one host read of a step
        except BaseException:  # an interrupt in the trial must not leave x halfway
            _put_back(moved)
            evaluations.undo()
            raise
        if not self._settle(scalars, _resolution(loss, proposals), moved, evaluations):
            return self.step(closure, objective)
        return loss

    def _steps(self, proposal: Proposal) -> list[Any]:
        """1 / D with D = sigma + metric."""
        sigma = self.sigma
        if proposal.diagonal is None:
            return [1.0 / sigma] * len(proposal.xs)
        return [(d + sigma).reciprocal_() for d in proposal.diagonal]

    def _scalars(self, loss: Tensor, f: Tensor, trial: Tensor, parts: Sequence[Parts]) -> Tensor:
        """loss, f, f', v's, R(x) - R(x+s), |s|^2: one reduction point, so that several processes agree."""
        device = parts[0].vs.device if parts else loss.device
        values = torch.stack([t.to(device, torch.float64) for t in (loss, f, trial)])
        group = self._process_group()
        if group is not None:  # every process has its own batch, and all must decide alike
            dist.all_reduce(values, group=group)
            values /= dist.get_world_size(group)
        if not parts:
            return torch.cat([values, values.new_zeros(3)])
        sums = [torch.stack([t.to(device) for t in column]).sum() for column in zip(*parts, strict=True)]
        return torch.cat([values, torch.stack(sums)])

    def _settle(
        self,
        scalars: Tensor,
        eps: float,
        moved: Sequence[tuple[Proposal, list[Tensor]]],
        evaluations: TwoEvaluations,
    ) -> bool:
        """Keep the trial point or put x back; the next sigma; the counters. False if the step must be taken anew."""
        loss, f, trial, vs, dR, ss = scalars
        if not bool(scalars.isfinite().all()) and not self._can_refuse(scalars, moved, evaluations):
            return False
        search = self._own["search"]
        proposals = [proposal for proposal, _ in moved]
        plain = not any("momentum" in state for p in proposals for state in p.states)
        sigma = torch.tensor(search["sigma"], dtype=torch.float64)
        actual, predicted = f - trial + dR, dR - vs
        slack = 10 * eps * f.abs().clamp_min(1.0)
        decision = self.search.decide(sigma, actual, predicted, slack, ss, plain)
        accepted, null = bool(decision.accepted), bool(decision.null)

        for proposal in proposals:
            proposal.commit()
        if not accepted:
            _put_back(moved)
        if not accepted and not null:
            for proposal in proposals:
                forget(proposal.states)
        search["accepted" if accepted else "null" if null else "refused"] += 1
        search["sigma"] = float(decision.sigma)
        self._last = StepInfo(
            loss=float(loss),
            trial_loss=float(trial),
            rho=float(decision.rho),
            sigma=search["sigma"],
            accepted=None if null else accepted,
            predicted=float(predicted),
            actual=float(actual),
            step_norm=math.sqrt(float(ss)),
        )
        return True

    # ---- when something is not finite

    def _enter_domain(self) -> None:
        """Algorithm 1 starts where R is finite: a group that does not is moved to its prox, once."""
        for number, group in enumerate(self.param_groups):
            regularizer, xs = group["regularizer"], [p for p in group["params"] if p.requires_grad]
            if regularizer is None or not xs or not bool(regularizer.value(xs).isposinf()):
                continue
            for x, z in zip(xs, regularizer.prox(xs, 1.0 / self.sigma), strict=True):
                x.copy_(z)
            if not bool(regularizer.value(xs).isfinite()):
                raise ValueError(f"{regularizer!r} is not finite at its own prox (group {number}): correct its prox")
            warnings.warn(
                f"R(x_0) is infinite under {regularizer!r} (group {number}): x_0 was moved to its prox",
                stacklevel=4,
            )
        self._own["search"]["entered"] = True

    def _can_refuse(
        self,
        scalars: Tensor,
        moved: Sequence[tuple[Proposal, list[Tensor]]],
        evaluations: TwoEvaluations,
    ) -> bool:
        """Something is not finite. At the trial point: True, to be refused. At x_t: all is put back, and it is an
        error, unless x_t has left the domain of R since the last step: False, to enter it again."""
        loss, f, _, vs, dR, _ = scalars.tolist()
        broken = outside = None
        if not math.isfinite(loss):
            broken = f"the loss at x_t is {loss}"
        elif not math.isfinite(f):
            broken = f"the objective at x_t is {f}"
        elif not math.isfinite(vs) and not all(bool(g.isfinite().all()) for p, _ in moved for g in p.gs):
            broken = f"the loss at x_t is finite ({loss:g}) and its gradient is not"
        elif not math.isfinite(dR):
            outside = any(bool(p.regularizer.value(kept).isposinf()) for p, kept in moved)
        if not broken and not outside:
            return True
        _put_back(moved)
        evaluations.undo()
        if outside:
            self._own["search"]["entered"] = False
            return False
        raise FloatingPointError(
            f"{broken}; x, sigma and all state are as before the step: skip this batch, or look for what is not finite "
            "in the data or the model"
        )


def _put_back(moved: Sequence[tuple[Proposal, list[Tensor]]]) -> None:
    for proposal, kept in moved:
        torch._foreach_copy_(proposal.xs, kept)


def _resolution(loss: Tensor, proposals: Sequence[Proposal]) -> float:
    """The relative precision in which f is known: the loss's, or float32's where a parameter is below float64."""
    exact = all(x.dtype == torch.float64 for p in proposals for x in p.xs)
    return max(torch.finfo(loss.dtype).eps, torch.finfo(torch.float64 if exact else torch.float32).eps)
