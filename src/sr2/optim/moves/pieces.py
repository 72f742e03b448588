"""What a way of moving is given, and what it returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor

from ...regularizers.base import Regularizer, Step


class Model(NamedTuple):
    """The scalars of the model of one step: 0-dim, float64, on the device."""

    vs: Tensor
    """v's"""
    dR: Tensor
    """R(x) - R(x + s)"""
    ss: Tensor
    """|s|^2"""
    sBs: Tensor
    """s'Bs = sum(s^2 / step), twice the model's quadratic term: B is sigma, or sigma times the metric"""
    noise: Tensor | None = None
    """(g - v)'s, what the direction takes out of this batch, with a decay x'Cx / 2 less s'Cs / 2; None where v = g, or
    nobody asks; it belongs to f, and is the last for that"""


class Piece(NamedTuple):
    """What is worked on at a time: all tensors of a group, or some of them, or a part of one."""

    xs: Sequence[Tensor]
    olds: Sequence[Tensor]
    """where x is kept"""
    vs: Sequence[Tensor]
    steps: Sequence[Step]
    gs: Sequence[Tensor] = ()
    """what v is compared with, where the noise is asked for: the batch's gradient, or v before the decay"""
    decays: Sequence[Step] = ()
    """C of the decay, where there is one"""


Keep = Callable[[Piece], None]
"""Copies x of a piece to where it is kept, and notes so; to be called before the piece is moved."""
Way = Callable[[Piece, Regularizer, Keep], Model | None]
"""x <- x + s for the tensors of one group, in place; returns the scalars of the model. None where it is not done yet,
since it needs the other tensors: they are gone through again."""
Ways = Sequence[tuple[Way, Sequence[int]]]
"""Of a group, with the numbers of the tensors that go each of them."""
