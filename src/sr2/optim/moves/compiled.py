"""One pass over memory by torch.compile, for a separable R: for the CPU, where there is no kernel of our own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...regularizers.base import Regularizer
from .base import add_models, model_of, proximal_point
from .flat import pieces
from .loop import move
from .pieces import Keep, Model, Piece


def compiled(group: Piece, regularizer: Regularizer, keep: Keep) -> Model:
    """`loop`, each tensor in one compiled pass."""
    models = []
    for piece in pieces(group, None):
        keep(piece)
        models.append(_move(piece, regularizer))
    return add_models(models)


def _move(piece: Piece, regularizer: Regularizer) -> Model:
    (x,), (old,), (v,), (step,), gs, decays = piece
    if x.dim() < 2:  # what is left beside whole runs
        return move(piece, regularizer)
    # The step goes as a tensor: a number would be compiled in.
    step = step if isinstance(step, Tensor) else torch.tensor(step, dtype=torch.float64, device="cpu")
    return Model(*_compiler()(x, old, v, step, list(gs), list(decays), x.new_ones(x.shape[-1:]), regularizer))


@functools.cache
def _compiler() -> Callable[..., Any]:
    def one_pass(
        x: Tensor,
        old: Tensor,
        v: Tensor,
        step: Tensor,
        gs: list[Tensor],
        decays: list[Any],
        ones: Tensor,
        regularizer: Regularizer,
    ) -> Model:
        (z,) = proximal_point([old], [v], [step], regularizer)
        z = z * ones
        x.copy_(z)
        return model_of(Piece([x], [old], [v], [step], gs, decays), [z], regularizer)

    # For one loop over memory, two things: z, which reads more than two tensors, is stored before it is summed; and
    # its loop must stay a loop over rows, as the sums' are, which an operand of one row sees to.
    options: dict[str, Any] = {"realize_reads_threshold": 2, "emulate_precision_casts": True}
    return torch.compile(one_pass, dynamic=True, options=options)
