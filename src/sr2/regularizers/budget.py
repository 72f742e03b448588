"""What budgets share: how they shrink from everything to their own while R comes to its strength."""

from __future__ import annotations

import copy
from typing import Self

import torch
from torch import Tensor

from .base import Regularizer, check_share


class Budget(Regularizer):
    """R(x) = 0 within a budget of entries, groups or singular values, else +inf."""

    strict = True
    penalizes = False
    _share: Tensor | None = None

    def at_strength(self, share: Tensor) -> Self:
        """With own + (all - own) (1 - share)^3 for a budget: a cubic from everything to its own.

        >>> from sr2 import L0Ball
        >>> share, x = torch.tensor(0.0, dtype=torch.float64), torch.tensor([3.0, 1.0, 2.0, 4.0, 0.5, 0.1])
        >>> shrinking = L0Ball(k=1).at_strength(share)
        >>> shrinking.prox(x, 1.0)
        tensor([3.0000, 1.0000, 2.0000, 4.0000, 0.5000, 0.1000])
        >>> _ = share.fill_(0.25)
        >>> shrinking.prox(x, 1.0)
        tensor([3., 0., 2., 4., 0., 0.])
        >>> _ = share.fill_(1.0)
        >>> shrinking.prox(x, 1.0)
        tensor([0., 0., 0., 4., 0., 0.])
        """
        shrinking = copy.copy(self)
        object.__setattr__(shrinking, "_share", check_share(share))
        return shrinking

    @property
    def shrinks(self) -> bool:
        """Whether a strength was set: it is on its way to its own, or may be."""
        return self._share is not None

    def _now(self, own: int | Tensor, everything: int | Tensor) -> int | Tensor:
        """The budget at this share; a number of the device where the share is one, for nobody waits for that."""
        if self._share is None:
            return own
        if isinstance(own, int) and isinstance(everything, int) and here(self._share):
            left = 1 - float(self._share.numpy())
            return max(own, round(own + (everything - own) * (left * left * left)))
        missing = (1 - self._share.double()) ** 3
        return (own + (everything - own) * missing).clamp_min(own).round().long()


def here(number: Tensor) -> bool:
    """Whether a number is the host's own, who may look at it; not while torch.compile traces."""
    return number.is_cpu and type(number) is Tensor and not torch.compiler.is_compiling()


def below(position: int, budget: int | Tensor, device: torch.device) -> Tensor:
    """Which of the positions 0, 1, …, position - 1 are within the budget."""
    return torch.arange(position, device=device) < budget
