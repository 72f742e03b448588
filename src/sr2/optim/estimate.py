"""sigma_0: estimated at the first step, and bounded once the first batches have said how far they agree."""

from __future__ import annotations

import math
from typing import Any

import torch

from . import start
from .closure.losses import Closure
from .closure.twice import TwoEvaluations, untouched
from .pause import asks_more, forget, stays


class Estimating:
    """The part of `SR2` that asks the closure while x stays."""

    def estimate_sigma(self: Any, closure: Closure) -> None:
        """Set sigma_0 now, from this closure's loss at x, as the first step would: on a larger batch, or on the network
        before it is compiled, since a compiled one cannot be differentiated twice."""
        self._bind()
        self._search.strengthen(self.reach)
        with torch.no_grad(), self._from_the_domain():
            self._estimate(closure, strict=True)

    def _estimate(self: Any, closure: Closure, *, strict: bool = False) -> None:
        parameters, penalized, sigma = self._parameters(), self._penalized(in_force=True), math.inf
        together, sigma_min = self._processes, self.sigma_min
        if self.metric is None:
            sigma = start.sigma_0(closure, self._module, parameters, penalized, sigma_min, together)
        if (curvature := sigma) >= start.ABSURD:
            with untouched(self._module, parameters), self._twice(closure, None) as f:
                start.check_finite(f.at_x(), together, strict=strict)
                tries = (lambda sigma: self._moves(self._proposals(sigma)), self._rounding(f.loss), penalized)
                sigma = start.along_first_step(f, *tries, self.metric, sigma_min, together)
            start.say_absurd(curvature, sigma)
        least = start.least_sigma(self.rule, self._penalized(), asks=self._still_asks())
        self._search.begin(max(sigma, least), self.param_groups)

    def _still_asks(self: Any) -> bool:
        """How far batches agree: under penalties alone, where the rule knows what is usual; else it ends here."""
        if start.kind_of(self._penalized()) != "penalties" or self.rule.usual_sigma == math.inf:
            self._search.agreement = None
            forget(self._search, self.state)
        return self._search.agreement is not None

    def _stays(self: Any, f: TwoEvaluations) -> bool:
        """Whether x stays at this step, so that batches are asked for their gradients at one x."""
        state, given = self._search, (self.param_groups, self.state, self._processes)
        if state.agreement is None or not self._still_asks():
            return state.heart is not None and stays(f, state, self.schedule, *given)
        if asks_more(f, state, *given):
            return True
        if state.agreement.over:
            state.chosen |= self.rule.agreed(state.agreement.share)
            state.agreement = None
            self._take_constants()
            forget(state, self.state)
            state.begin(max(float(state.sigma), self.rule.least_sigma), self.param_groups)
        return False
