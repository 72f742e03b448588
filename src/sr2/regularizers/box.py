"""Box: every entry between two bounds."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor

from ..checks import is_real
from .base import Regularizer, Step


@dataclass(frozen=True)
class Box(Regularizer):
    """R(x) = 0 where lo <= x_i <= hi for every i, else +inf. Either bound may be infinite.

    prox: the projection, z = min(max(x, lo), hi), whatever the step. On a bound exactly, z = x. The bounds
    are those rounded to the tensor's dtype, so that a projected tensor is always inside.

    >>> Box(-1.0, 0.5).prox(torch.tensor([-2.0, 0.25, 1.0]), 1.0)
    tensor([-1.0000,  0.2500,  0.5000])
    """

    lo: float
    hi: float
    separable = True
    convex = True
    penalizes = False

    def __post_init__(self) -> None:
        bounds: tuple[object, object] = (self.lo, self.hi)
        numbers = all(map(is_real, bounds))
        if not numbers or not self.lo <= self.hi or self.lo == inf or self.hi == -inf:
            raise ValueError(
                f"Box: lo and hi must be numbers with lo <= hi and a finite number between, and are "
                f"{self.lo!r} and {self.hi!r}"
            )

    def at_strength(self, share: Tensor) -> Box:
        """The box itself: a share of 0 or infinity is the same."""
        return self

    def terms(self, x: Tensor) -> Tensor:
        # By way of the precision in which the prox works, so that both round the bounds alike.
        working = torch.promote_types(x.dtype, torch.float32)
        lo, hi = (
            torch.full((), _within(b, working), dtype=working, device=x.device).to(x.dtype) for b in (self.lo, self.hi)
        )
        return torch.zeros_like(x, dtype=torch.float64).masked_fill((x < lo) | (x > hi), inf)

    def prox_tensor(self, x: Tensor, step: Step) -> Tensor:
        return x.clamp(_within(self.lo, x.dtype), _within(self.hi, x.dtype))


def _within(bound: float, dtype: torch.dtype) -> float:
    """A finite bound beyond the dtype's range is the dtype's largest number: torch would reject it."""
    largest = torch.finfo(dtype).max
    return bound if abs(bound) == inf else min(max(bound, -largest), largest)
