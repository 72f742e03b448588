"""SR2: stochastic adaptive quadratic regularization with exact proximal steps (Lakhmiri, Orban and Lodi, Algorithm 1).

Departures from the paper's text: rho uses the sampled objective F(., xi_t), as the paper's experiments do (pass
`objective` for the full one); gamma1 <= gamma2 is enforced, which the paper's own table breaks; rho carries a rounding
slack, without which sigma runs away at convergence. The defaults are not the paper's: see `SR2.paper_defaults`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial, wraps
from typing import Any

import torch
from torch import Tensor

from ..numerics import Rounding
from ..regularizers.base import Regularizer
from . import start
from .arguments import NO_CLOSURE, bearable, check_options, check_sigma, names_the_way, part, said, unsaid
from .base import Params, ProximalOptimizer, Remembered
from .broken import LeftDomainError, sound_at_x
from .closure.losses import Closure
from .closure.twice import TwoEvaluations
from .closure.watch import ClosureWatch
from .estimate import Estimating
from .moves.base import RETURNS, Move, Proposal
from .moves.fused import FusedMove
from .moves.pieces import Model
from .parts.agreement import BATCHES, Agreement
from .parts.averaging import Averaging, Reminder, as_averaging
from .parts.decay import AUTO, Decay
from .parts.directions import Direction, as_direction
from .parts.heart import ByHeart
from .parts.metrics import Metric
from .parts.rules import Evidence, Rule
from .parts.schedules import Schedule, planned_cooldown, planned_reach
from .parts.testing import LATEST, as_testing
from .pause import GRADIENTS, forget, watched
from .reading import Reading
from .state import Outcome, SearchState
from .theory.batch_growth import BatchGrowth, GradientNoise
from .trust import hold, is_tested, on_trust


def again_where_x_left(step: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`step`, begun anew from the domain of R if x turns out to have left it since the last step."""

    @wraps(step)
    def begun_anew(self: SR2, *arguments: Any, **options: Any) -> Tensor:
        with suppress(LeftDomainError):
            return step(self, *arguments, **options)
        self._search.entered = False
        return step(self, *arguments, **options)

    return begun_anew


class SR2(Estimating, Reading, ProximalOptimizer):
    """SR2 on  min_x f(x) + R(x):  no learning rate, steps that can be rejected, exact zeros.

    Each step draws what the closure evaluates, f(., xi_t), and

        s   = argmin_s  v's + sigma/2 s'Ds + R(x + s)
        rho = (f(x) + R(x) - f(x + s) - R(x + s)) / (R(x) - R(x + s) - v's)

    By default v is an average of gradients, D is Adam's metric, and the rule is `rules.Tolerant`. Algorithm 1 itself,
    v = g and D = I with `rules.Ratio`, is `SR2(model, R, **SR2.paper_defaults())`. s = 0 is a null step, and sigma
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
        sigma: sigma_0 >= sigma_min, the first inverse step size; "auto" takes it from the first batch: the curvature
            along the first step, at least the rule's usual one, under budgets half of it; or without a metric the
            largest curvature. It is raised until the prox leaves half of the weights. Under penalties x stays for
            three steps, while batches are asked how far they agree: sigma_0 may be a fourth of the usual one.
        rule: what accepts a step and chooses the next sigma, an object of `sr2.rules`. eta1 to gamma3 stand for
            Algorithm 1's `Ratio`. They bring its `paper_defaults`, as do `Ratio` itself, `epsilon` and `batch_growth`.
        sigma_min: the least sigma.
        momentum, direction: v from g, `momentum=beta` or an object of `sr2.directions`; 0.9. With momentum rho leaves
            out (g - v)'s, the batch's noise (not where `objective` is given).
        metric: D_t, by name or as an object of `sr2.metrics`, "adam"; 1 / sigma is what a learning rate is to AdamW.
            Nuclear and Rank have one number per tensor, its root mean square; under a budget it is 4 D where x is zero.
        weight_decay: w of w x'Dx / 2 beside f, as in AdamW: matrices lose w / sigma of themselves per step, without R
            at most w / usual; also "5e-4/step". "auto" is 0.0036 / size of x_0, and 0 under a penalty (docs/steps.md).
        steps_per_epoch: len(loader); without R an "auto" decay follows it. Short epochs are found without it.
        schedule: what depends on the number of steps, of `sr2.schedules`; `cooldown=(first, last)` is one.
        steps: n, how many there will be. The last half is a cooldown, under R the last three tenths; a budget shrinks
            from step 0.1 n to 0.7 n. `cooldown` (or `schedule`) and `reach` have the last word.
        reach: (first, last), the steps between which a budget shrinks or a lambda grows (see `sr2.schedules.Reach`).
            Without `steps` it is (100, 200) for a budget; None is at once, as Algorithm 1 begins.
        average: keep an average of the iterates too, True or an object of `sr2.averaging`, True; see `averaged`.
        test_every: k evaluates x + s at every k-th step only, and keeps it on trust in between; where a test fails, x
            goes back to the last point that passed. "auto" lets k grow to 32. With k > 1 no theorem is claimed.
        penalize: with a module, "weights" (no biases, no norms) or "all" (every parameter, the paper's formula).
        foreach: True works through a separable group in few passes or launches; False tensor by tensor, the way to
            read; None takes a fused kernel on CUDA where there is one for R and direction, else True.
        capturable: keep every decision on the device, without a host read: a legal body of a CUDA graph (see
            `sr2.optim.CapturedStep`). A loss that is not finite at x_t is then rejected and counted, not raised.
        compile: have torch.compile make the optimizer's own work one pass where it is not one kernel already.
        autocast: the dtype of the closure's `torch.autocast`, for rho's slack; left out, it is seen at the first step.
        epsilon: the tolerance behind `converged`: E[|s|^2] <= epsilon^2, the paper's measure of stationarity.
        batch_growth: test assumption 3 at every step and ask for larger batches where it fails (see `BatchGrowth`).
    """

    @names_the_way
    def __init__(
        self,
        params: Params,
        regularizer: Regularizer | None = None,
        *,
        sigma: float | str = "auto",
        eta1: float | None = None,
        eta2: float | None = None,
        gamma1: float | None = None,
        gamma2: float | None = None,
        gamma3: float | str | None = None,
        rule: Rule | None = None,
        sigma_min: float = 1e-6,
        momentum: float | str = "auto",
        direction: Direction | None = None,
        metric: Metric | str | None = "auto",
        weight_decay: float | str = "auto",
        cooldown: tuple[int, int] | None = None,
        schedule: Schedule | None = None,
        reach: tuple[int, int] | str | None = "auto",
        steps: int | None = None,
        steps_per_epoch: int | None = None,
        average: bool | str | Averaging = "auto",
        test_every: int | str = 1,
        penalize: str = "weights",
        foreach: bool | None = None,
        capturable: bool = False,
        compile: bool = False,  # noqa: A002 - torch's own word
        autocast: torch.dtype | None = None,
        epsilon: float | None = None,
        batch_growth: BatchGrowth | None = None,
    ) -> None:
        constants = {"eta1": eta1, "eta2": eta2, "gamma1": gamma1, "gamma2": gamma2, "gamma3": gamma3}
        default = unsaid(constants, rule, epsilon, batch_growth)
        smoothed = as_direction("SR2", said(momentum, 0.0 if direction is not None else default.momentum))
        self.direction = part(Direction, direction, smoothed, "momentum", used=smoothed is not None)
        self.rule = self._given = bearable(default.rule, self.direction)
        check_sigma(sigma, sigma_min)
        self.sigma_min, self.autocast, self.epsilon, self.batch_growth = sigma_min, autocast, epsilon, batch_growth
        self.averaging, self.testing = as_averaging(said(average, default.average)), as_testing(test_every)
        shared: dict[str, Any] = {"metric": said(metric, default.metric), "penalize": penalize, "foreach": foreach}
        self._decay = Decay.of(weight_decay, default.weight_decay, steps_per_epoch)
        super().__init__(params, regularizer, {"weight_decay": 0.0}, capturable=capturable, compile=compile, **shared)
        regularizers = [group["regularizer"] for group in self.param_groups]
        cooling = planned_cooldown(cooldown, steps, regularizers)
        self.reach = planned_reach(reach, steps, default.reach, regularizers)
        self.schedule = part(Schedule, schedule, cooling, "cooldown", used=cooldown is not None)
        check_options(self, capturable)
        heart = ByHeart.of(self._decay, capturable, looks=self._module is not None and not any(regularizers))
        memory = {k: v for p in (self.rule, self.schedule, self.testing) if p for k, v in p.memory().items()}
        self._search = SearchState.start(sigma, memory, self.schedule, heart)
        few = steps is not None and steps < 10 * BATCHES
        self._search.agreement = Agreement() if sigma == AUTO and self._asks and not (few or capturable) else None
        self._search.batch = None if batch_growth is None else batch_growth.batch
        self._search.end = steps if self.schedule is cooling and cooldown is None else None
        self._reminder = Reminder.of(self, self._module)
        self._place()

    # ---- one step

    @again_where_x_left
    @torch.no_grad()
    def step(self, closure: Closure | None = None, objective: Closure | None = None) -> Tensor:  # type: ignore[override]
        """One iteration of Algorithm 1; returns the loss at the starting point.

        Args:
            closure: returns the loss of the batch; called twice, and once more at first rejections: draw the batch
                outside it. One that fills the gradients itself, as torch's LBFGS wants it, pays a second backward.
            objective: returns f of the full problem, to test the step on it and not on the batch, as Algorithm 1 says.
        """
        state = self._search
        tested = self.testing is None or is_tested(self.testing, state)
        with self._begun(closure), self._twice(closure, objective, tested) as f:
            loss = f.at_x()  #                                    1  f(x), g
            if (state.heart or state.agreement) and self._stays(f):
                return loss
            move = f.move = self._moves(self._proposals())  #     2  v and D of every group
            model = move.to_trial(tested=tested, of_batch=objective is None)  # x <- x + s;  v's, R's change, |s|^2
            f.at_trial()  #                                       3  f(x + s), unless x + s is kept on trust
            outcome = self._judge(f, model, move)  #              4  rho: keep? next sigma?
            f.settle(outcome)  #                                  5  keep x + s, or put x back
            state.record(outcome)
        if self.testing is not None:
            hold(move, outcome, self._parameters(), self.state, state.pace, capturable=self.capturable)
        state.follow(self.schedule, outcome, self.param_groups)
        if self.averaging is not None and tested:  # what is kept on trust counts where it has passed a test
            self.averaging.update(self._parameters(), self.state, outcome.steps, move.toward, state.memory.get(LATEST))
        f.look(outcome, self.rule, asks=self.testing is None)
        return loss

    def _proposals(self, sigma: float | Tensor | None = None) -> list[Proposal]:
        """Of every group x, g and what makes v and D; with a sigma of its own, to ask f's curvature, no decay."""
        w_of = partial(self._search.decay_of, usual=self.rule.usual_sigma) if sigma is None else lambda _: 0.0
        sigma = sigma if sigma is not None else self._search.sigma if self.capturable else float(self._search.sigma)
        step = sigma.reciprocal() if isinstance(sigma, Tensor) else 1.0 / sigma  # `/` has two launches
        parts = (step, self.metric, self.direction, self._processes)
        if self._bound is None:
            self._bind()
        made = [
            Proposal.of({**group, "regularizer": R}, self.state, *parts, w_of(group), 2, RETURNS)
            for group, R in zip(self.param_groups, self._in_force, strict=True)
        ]
        proposals = [p for p in made if p is not None]
        if not proposals:
            raise ValueError("the loss depends on no trained parameter: give SR2 the module that the closure calls")
        return proposals

    def _judge(self, f: TwoEvaluations, model: Model, move: Move) -> Outcome:
        """The rule's verdict on this step; in one kernel where the rule declares its constants."""
        state, losses, rounding = self._search, f.losses(model.noise), self._rounding(f.loss)
        if isinstance(move, FusedMove) and self.capturable and not self._processes.several and self.rule.constants:
            return move.judge(losses, self.rule, self.sigma_min, rounding, state, tested=f.tested, of_batch=f.of_batch)
        together, plain = self._processes, self.rule.plain and not self.capturable
        how = {"reaching": self._reaching, "of_batch": f.of_batch, "plain": plain}
        evidence = Evidence.gather(losses, model[:4], rounding, together, state.sigma.device, **how)
        searched = state.read() if plain else state
        if not f.tested:
            given = (searched, self.sigma_min, together, self.capturable)
            return on_trust(evidence, move, self.rule, *given, away=state.pace.away)
        if self.batch_growth is not None and state.batch is not None:
            noise = self._noise.estimate(self._processes) if f.of_batch and self._noise else 0.0
            larger = self.batch_growth.larger(evidence, state.batch, noise)
            if larger is not None:  # assumption 3 fails: s = 0 as in Algorithm 1, and the next batch is larger
                state.batch = larger
                return Outcome.called_off(evidence, searched)
        sound = evidence.all_finite
        if self.capturable or not sound:
            sound = sound_at_x(evidence, move, together, capturable=self.capturable or state.pace.away)
        verdict = self.rule.judge(evidence, searched)
        return Outcome.of(verdict, evidence, sound, searched, self.sigma_min, self.rule.forgets)

    def _rounding(self, loss: Tensor) -> Rounding:
        return Rounding.of(loss.dtype, self._dtypes, self.autocast or self._watch.autocast)

    def _twice(self, closure: Closure | None, objective: Closure | None, tested: bool = True) -> TwoEvaluations:
        """The two evaluations of a step; an interrupt leaves x, buffers and generators as before it."""
        if not callable(closure):
            raise TypeError(NO_CLOSURE)
        params, watch = self._parameters(), self._watch
        self._noise = GradientNoise(params) if self.batch_growth else None
        around = self._noise or (self._search.heart and watched(self._search, self._module, watch))
        how: dict[str, Any] = {"objective": objective, "around": around, "watch": watch, "together": self._processes}
        return TwoEvaluations(closure, self._module, params, tested, capturable=self.capturable, twin=self._twin, **how)

    # ---- before the first step

    @contextmanager
    def _begun(self, closure: Closure | None) -> Iterator[None]:
        """A step from where R is finite, with a sigma; what a first step chose is forgotten if it fails."""
        state = self._search
        if self._bound != self._trained():
            self._bind()
        state.strengthen(self.reach)
        if not callable(closure) or (state.entered and state.sigma_known and not self._waits):
            yield
            return
        with self._from_the_domain():
            if not state.sigma_known:
                self._estimate(closure)
            yield

    @contextmanager
    def _from_the_domain(self) -> Iterator[None]:
        """x_0 where R is finite, and what "auto" is there; both as before if what follows fails."""
        try:
            with start.or_nothing(state := self._search, self.param_groups) as left:
                start.enter_domain(self._penalized(in_force=True), state, left, self._processes)
                if self._waits:
                    seen = start.seen_at_x0(self.param_groups, self._penalized(), self.metric, self._processes)
                    state.chosen |= seen.choose(self.rule, self._decay, self.param_groups, state.heart)
                    self._take_constants()
                yield
        finally:
            self._take_constants()

    @property
    def _asks(self) -> bool:
        """Whether a step goes along the signs of a gradient, and the rule asks how far batches agree in it."""
        return self._given.asks and self.metric is not None and self.metric.normalizes

    @property
    def _waits(self) -> bool:
        return self.rule.undecided or any(group["weight_decay"] == AUTO for group in self.param_groups)

    def _take_constants(self) -> None:
        """The rule with the constants that it took from x_0; those of another rule, in a loaded state, are not its."""
        chosen = start.wanted(self._given, self._search.chosen)
        self._search.chosen, self.rule = chosen, replace(self._given, **chosen) if chosen else self._given

    # ---- state

    @property
    def _reaching(self) -> bool:
        """Whether some R is on its way; none before the first step."""
        return any(mine is not g["regularizer"] for mine, g in zip(self._in_force, self.param_groups, strict=False))

    def _strengthened(self, regularizer: Regularizer | None, params: Sequence[Tensor]) -> Regularizer | None:
        own = regularizer is None or self.reach is None or start.is_kept(regularizer, params, self._processes)
        return regularizer if own else regularizer.at_strength(self._search.share)  # type: ignore[union-attr]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, which may name its own `regularizer` and `weight_decay`."""
        super().add_param_group(self._decay.given_to(param_group, self.defaults["regularizer"]))
        if hasattr(self, "_search"):
            self._search.entered = False  # the new tensors may start where their R is infinite
            self._search.show(self.param_groups)

    def _remembered(self) -> dict[str, Remembered]:
        return {"search": self._search}

    def _forget(self) -> None:
        super()._forget()
        self._watch = ClosureWatch(lambda f: self._rounding(f).slack(f, f), self._all_parameters(), self._module)

    def _place(self) -> None:
        super()._place()
        self._search.place(self.param_groups, self.capturable)
        asking = self._search.agreement
        if asking is not None and not self._asks:
            self._search.agreement = None
        elif asking is not None and not any(GRADIENTS in entry for entry in self.state.values()):
            self._search.agreement = Agreement()  # torch.distributed.checkpoint has not kept the gradients: ask anew
        forget(self._search, self.state)
        self._take_constants()
