"""The way to read: a group's tensors as they are, one operation after the other. It serves every R."""

from __future__ import annotations

from ...regularizers.base import Regularizer
from .base import Keep, Model, Piece, model_of, proximal_point


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
