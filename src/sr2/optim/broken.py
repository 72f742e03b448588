"""Where something is not finite: at the trial point it is a rejection, at x_t an error, or x has left R's domain."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from torch import Tensor

from .moves.base import Move, gradients_are_finite, starts_outside
from .parts.rules import Evidence


class LeftDomainError(Exception):
    """x is no longer where R is finite: the user, or another R, has moved it."""


def again_where_x_left(step: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`step`, begun anew from the domain of R if x turns out to have left it since the last step."""

    @wraps(step)
    def begun_anew(self: Any, *arguments: Any, **options: Any) -> Tensor:
        try:
            return step(self, *arguments, **options)
        except LeftDomainError:
            self._search.entered = False
            return step(self, *arguments, **options)

    return begun_anew


def sound_at_x(evidence: Evidence, move: Move, *, capturable: bool) -> Tensor:
    """Whether f and its gradient are finite at x_t, as a 0-dim tensor; on the host it is an error if they are not.

    v's is not finite where g is not, or where only the prox is not: the latter is a rejection.
    """
    loss, f, vs = evidence.loss, evidence.f, evidence.vs
    if capturable:
        finite = gradients_are_finite(move.proposals).to(vs.device)
        return loss.isfinite() & f.isfinite() & (vs.isfinite() | finite)
    broken = None
    if not loss.isfinite():
        broken = f"the loss at x_t is {float(loss)}"
    elif not f.isfinite():
        broken = f"the objective at x_t is {float(f)}"
    elif not vs.isfinite() and not gradients_are_finite(move.proposals):
        broken = f"the loss at x_t is finite ({float(loss):g}) and its gradient is not"
    elif not evidence.dR.isfinite() and starts_outside(move):
        raise LeftDomainError
    if broken:
        raise FloatingPointError(
            f"{broken}; x, sigma and all state are as before the step: skip this batch, or look for what is not "
            "finite in the data or the model"
        )
    return loss.isfinite()
