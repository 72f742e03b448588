"""Zeros that stay: the support of the first point, for fine-tuning and for healing after l1."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Self

import torch
from torch import Tensor

from ..numerics import like
from .base import Regularizer, Step


@dataclass(frozen=True)
class KeepZeros(Regularizer):
    """R(x) = 0 where x_i = 0 for every i that is zero at the first step, else +inf.

    prox: those entries are set to 0 and the others are left alone, whatever the step.

    The zeros are taken by `start`, which an optimizer calls before its first step; where a run is resumed they are
    taken again, from the point where it goes on. They are one byte per entry and no part of a state.

    >>> heal = KeepZeros().start([torch.tensor([0.0, 2.0, 0.0])])
    >>> heal.prox([torch.tensor([1.0, 3.0, 0.0])], 1.0)
    [tensor([0., 3., 0.])]
    """

    diagonal = True  # not separable: tensors that are cut or joined have other zeros
    convex = True
    penalizes = False
    rowwise = True
    _zeros = None

    @property
    def kept(self) -> int | None:
        """How many zeros stay, None before `start`; waits for the device."""
        zeros: list[Tensor] | None = self._zeros
        return None if zeros is None else sum(int(zero.sum()) for zero in zeros)

    def at_strength(self, share: Tensor) -> Self:
        """Itself: a share of 0 or infinity is the same."""
        return self

    def start(self, xs: Sequence[Tensor]) -> Self:
        """The same for these tensors: what is zero in them stays zero."""
        started = copy.copy(self)
        object.__setattr__(started, "_zeros", [x.detach() == 0 for x in xs])
        return started

    def terms_of(self, xs: Sequence[Tensor]) -> list[Tensor]:
        return [
            torch.where((zero & (x != 0)).any(), inf, torch.zeros((), dtype=torch.float64, device=x.device))
            for x, zero in self._with_zeros(xs)
        ]

    def prox_of(self, xs: Sequence[Tensor], steps: Sequence[Step]) -> list[Tensor]:
        return [like(x.masked_fill(zero, 0.0), x) for x, zero in self._with_zeros(xs)]

    def _with_zeros(self, xs: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
        zeros: list[Tensor] | None = self._zeros
        if zeros is None:
            raise RuntimeError(
                "KeepZeros has no zeros to keep yet: call start(xs), as optimizers do at their first step"
            )
        if [x.shape for x in xs] != [zero.shape for zero in zeros]:
            raise ValueError(
                f"KeepZeros was started on tensors of shapes {[tuple(z.shape) for z in zeros]} and is given "
                f"{[tuple(x.shape) for x in xs]}: call start(xs) again"
            )
        return [(x, zero.to(x.device)) for x, zero in zip(xs, zeros, strict=True)]
