"""The way to read: a group's tensors as they are, one operation after the other. It serves every R."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from ...regularizers.base import ZERO, Regularizer
from .base import model_of, proximal_point
from .pieces import Keep, Model, Piece, Way


def loop(group: Piece, regularizer: Regularizer, keep: Keep) -> Model:
    """x <- prox_{step R}(x - step v), and the scalars of the model."""
    keep(group)
    return move(group, regularizer)


def move(piece: Piece, regularizer: Regularizer) -> Model:
    """The same, for a piece that is kept already."""
    xs, olds, vs, steps = piece
    zs = proximal_point(olds, vs, steps, regularizer)
    for x, z in zip(xs, zs, strict=True):
        x.copy_(z)
    return model_of(olds, vs, zs, steps, regularizer)


def counting(counted: Sequence[bool]) -> Way:
    """`loop` where another process counts the sums over some of the tensors, which it has too; R knows which itself."""
    return partial(_counting, counted=counted)


def _counting(group: Piece, regularizer: Regularizer, keep: Keep, *, counted: Sequence[bool]) -> Model:
    keep(group)
    xs, olds, vs, steps = group
    zs = proximal_point(olds, vs, steps, regularizer)
    for x, z in zip(xs, zs, strict=True):
        x.copy_(z)
    dR = regularizer.decrease_of(olds, zs)
    mine = [i for i, counts in enumerate(counted) if counts]
    if not mine:
        return _nothing(xs)._replace(dR=dR)
    before, slope, after = ([row[i] for i in mine] for row in (olds, vs, zs))
    return model_of(before, slope, after, [steps[i] for i in mine], ZERO)._replace(dR=dR)


def uncounted(way: Way) -> Way:
    """A way whose sums another process counts, all of them."""
    return partial(_uncounted, way=way)


def _uncounted(group: Piece, regularizer: Regularizer, keep: Keep, *, way: Way) -> Model:
    way(group, regularizer, keep)
    return _nothing(group.xs)


def _nothing(xs: Sequence[torch.Tensor]) -> Model:
    return Model(*torch.zeros(4, dtype=torch.float64, device=xs[0].device))
