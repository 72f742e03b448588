"""The one step that all three methods share: (x, v, D) -> the trial point x + s and the parts of the model.

    s = argmin_s  v's + s'Ds / 2 + R(x + s),        x + s = prox_{R/D}(x - v / D)

`steps` holds 1/D: one number for all entries, or one tensor of steps a tensor where R is separable.

Two paths compute the same thing. The loop goes tensor by tensor and is the one to read. The flat path lays a separable
group end to end, since such an R cannot tell tensors apart: a handful of launches, whatever the number of tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..regularizers.base import Regularizer, Step


class Zero(Regularizer):
    """R = 0: what a group without a regularizer has."""

    separable = True
    convex = True
    coefficients = (0.0, 0.0, 0.0)

    def prox_of(self, xs: Sequence[Tensor], steps: Sequence[Step]) -> list[Tensor]:
        return list(xs)

    def terms_of(self, xs: Sequence[Tensor]) -> list[Tensor]:
        return [torch.zeros((), dtype=torch.float64, device=x.device) for x in xs[:1]]


class Parts(NamedTuple):
    """The scalars of the model, float64, on the device."""

    vs: Tensor  # v's
    dR: Tensor  # R(x) - R(x + s)
    ss: Tensor  # |s|^2


class Laid(NamedTuple):
    """A group as the step works on it: its tensors, or one tensor that holds them end to end."""

    xs: Sequence[Tensor]
    vs: Sequence[Tensor]
    steps: Sequence[Step]


def proximal_point(
    xs: Sequence[Tensor], vs: Sequence[Tensor], steps: Sequence[Step], regularizer: Regularizer, *, flat: bool
) -> list[Tensor]:
    """prox_{step R}(x - step v), as new tensors in the dtype of x."""
    laid = _lay(xs, vs, steps, regularizer, flat)
    return _shaped(_point(laid, regularizer), xs)


def move_to_trial(
    xs: Sequence[Tensor], vs: Sequence[Tensor], steps: Sequence[Step], regularizer: Regularizer, *, flat: bool
) -> tuple[list[Tensor], Parts]:
    """x <- x + s in place; returns a copy of the old x, and the parts of the model."""
    laid = _lay(xs, vs, steps, regularizer, flat)
    zs = _point(laid, regularizer)
    parts = _parts(laid, zs, regularizer)
    kept = _shaped(laid.xs, xs) if laid.xs is not xs else [x.clone() for x in xs]
    torch._foreach_copy_(list(xs), _shaped(zs, xs))
    return kept, parts


def _lay(
    xs: Sequence[Tensor], vs: Sequence[Tensor], steps: Sequence[Step], regularizer: Regularizer, flat: bool
) -> Laid:
    alike = len({(x.dtype, x.device) for x in xs}) == 1
    if not (flat and regularizer.separable and alike):
        return Laid(xs, vs, steps)
    step = steps[0]
    if isinstance(step, Tensor) and step.dim() > 0:
        step = _end_to_end([s for s in steps if isinstance(s, Tensor)])
    return Laid([_end_to_end(xs)], [_end_to_end(vs)], [step])


def _point(laid: Laid, regularizer: Regularizer) -> list[Tensor]:
    us = [_wide(x) - step * _wide(v) for x, v, step in zip(*laid, strict=True)]
    zs = regularizer.prox_of(us, laid.steps)
    return [z.to(x.dtype) for z, x in zip(zs, laid.xs, strict=True)]


def _parts(laid: Laid, zs: Sequence[Tensor], regularizer: Regularizer) -> Parts:
    steps = [z.double() - x.double() for x, z in zip(laid.xs, zs, strict=True)]
    return Parts(
        vs=_sum([(v.double() * s).sum() for v, s in zip(laid.vs, steps, strict=True)]),
        dR=regularizer.decrease(laid.xs, zs).to(steps[0].device),
        ss=_sum([s.square().sum() for s in steps]),
    )


def _sum(scalars: Sequence[Tensor]) -> Tensor:
    return torch.stack([s.to(scalars[0].device) for s in scalars]).sum()


def _end_to_end(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([t.reshape(-1) for t in tensors])


def _shaped(laid: Sequence[Tensor], like: Sequence[Tensor]) -> list[Tensor]:
    """The tensors of a group, cut out of the one that holds them end to end."""
    if len(laid) == len(like) and all(a.shape == b.shape for a, b in zip(laid, like, strict=True)):
        return list(laid)
    pieces = torch.split(laid[0], [t.numel() for t in like])
    return [piece.view(t.shape) for piece, t in zip(pieces, like, strict=True)]


def _wide(x: Tensor) -> Tensor:
    """bfloat16 holds 8 bits: the step is computed in float32 and rounded once."""
    return x.float() if x.dtype == torch.bfloat16 else x
