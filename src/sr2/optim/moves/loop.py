"""The way to read: a group's tensors as they are, one operation after the other. It serves every R."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from ...regularizers.base import ZERO, Regularizer
from .base import model_of, proximal_point, some
from .pieces import Keep, Model, Piece, Way


def loop(group: Piece, regularizer: Regularizer, keep: Keep) -> Model:
    """x <- prox_{step R}(x - step v), and the scalars of the model."""
    keep(group)
    return move(group, regularizer)


def move(piece: Piece, regularizer: Regularizer) -> Model:
    """The same, for a piece that is kept already."""
    zs = proximal_point(piece.olds, piece.vs, piece.steps, regularizer)
    for x, z in zip(piece.xs, zs, strict=True):
        x.copy_(z)
    return model_of(piece, zs, regularizer)


def counting(counted: Sequence[bool]) -> Way:
    """`loop` where another process counts the sums over some of the tensors, which it has too; R knows which itself."""
    return partial(_counting, counted=counted)


def _counting(group: Piece, regularizer: Regularizer, keep: Keep, *, counted: Sequence[bool]) -> Model:
    keep(group)
    zs = proximal_point(group.olds, group.vs, group.steps, regularizer)
    for x, z in zip(group.xs, zs, strict=True):
        x.copy_(z)
    dR = regularizer.decrease_of(group.olds, zs)
    mine = [i for i, counts in enumerate(counted) if counts]
    if not mine:
        return _nothing(group)._replace(dR=dR)
    return model_of(some(mine, *group), [zs[i] for i in mine], ZERO)._replace(dR=dR)


def uncounted(way: Way) -> Way:
    """A way whose sums another process counts, all of them."""
    return partial(_uncounted, way=way)


def _uncounted(group: Piece, regularizer: Regularizer, keep: Keep, *, way: Way) -> Model:
    way(group, regularizer, keep)
    return _nothing(group)


def _nothing(group: Piece) -> Model:
    return Model(*torch.zeros(5 if group.gs else 4, dtype=torch.float64, device=group.xs[0].device))
