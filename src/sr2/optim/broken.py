"""Where something is not finite: at the trial point it is a rejection, at x_t an error, or x has left R's domain."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..numerics import Number, finite
from .moves.base import Move, Proposal
from .parts.rules import Evidence
from .processes import Processes


class LeftDomainError(Exception):
    """x is no longer where R is finite: the user, or another R, has moved it."""


def sound_at_x(evidence: Evidence, move: Move, together: Processes, *, capturable: bool) -> Number:
    """Whether f and its gradient are finite at x_t; on the host it is an error if they are not.

    v's is not finite where g is not, or where only the prox is not: the latter is a rejection.
    """
    loss, f, vs = evidence.loss, evidence.f, evidence.vs
    if capturable:
        of_g: Number = gradients_are_finite(move.proposals)
        of_g = of_g.to(vs.device) if isinstance(vs, Tensor) else bool(of_g)
        return finite(loss) & finite(f) & (finite(vs) | of_g)
    broken = None
    if not finite(loss):
        broken = f"the loss at x_t is {float(loss)}"
    elif not finite(f):
        broken = f"the objective at x_t is {float(f)}"
    elif not finite(vs) and not together.all(gradients_are_finite(move.proposals)):
        broken = f"the loss at x_t is finite ({float(loss):g}) and its gradient is not"
    elif not finite(evidence.dR) and starts_outside(move, together):
        raise LeftDomainError
    if broken:
        raise FloatingPointError(
            f"{broken}; x, sigma and all state are as before the step: skip this batch, or look for what is not "
            "finite in the data or the model"
        )
    return finite(loss)


def starts_outside(move: Move, together: Processes) -> bool:
    """Whether R(x) is infinite, x being the point that was left."""
    pairs = zip(move.proposals, move.kept, strict=True)
    values = [p.regularizer.value(kept) for p, kept in pairs if p.regularizer.coefficients is None]
    return bool(values) and not together.all(~torch.stack([v.isposinf().cpu() for v in values]).any())


def gradients_are_finite(proposals: Sequence[Proposal]) -> Tensor:
    """A 0-dim tensor, without a host read."""
    gs = [g for p in proposals for g in p.gs if g.numel()]
    if not gs:  # this process has a part of nothing
        return torch.ones((), dtype=torch.bool, device=proposals[0].xs[0].device)
    norms = torch._foreach_norm(gs, math.inf)
    return torch.stack([n.isfinite().to(norms[0].device) for n in norms]).all()
