"""Channels: groups that reach over several tensors, as a filter with its batch norm's scale and shift."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from ..numerics import wide
from .base import Step, as_matrix


@dataclass(frozen=True)
class Channels:
    """Which slices of several tensors are zero together: those of one number. For `L0Ball(groups=)`.

    Batch norm undoes the size of a filter, so that a filter alone never becomes unimportant, and one that is zero
    leaves the constant of its batch norm behind. A channel is its filter, its scale and its shift: zero together, it
    is nothing to the layers that follow. `sr2.channel_groups` finds the channels of a network.

    Args:
        numbers: for each tensor the channel of each of its slices along dimension 0; -1 is none, and left alone.
        sizes: how many channels each layer has; they are numbered layer by layer. `L0Ball`'s floor is one per layer.

    >>> from sr2 import L0Ball
    >>> filters, scale = torch.tensor([[3.0, 4.0], [1.0, 1.0]]), torch.tensor([1.0, 9.0])
    >>> L0Ball(k=1, groups=Channels(((0, 1), (0, 1)), (2,))).prox([filters, scale], 1.0)
    [tensor([[0., 0.],
            [1., 1.]]), tensor([0., 9.])]
    """

    numbers: tuple[tuple[int, ...], ...]
    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        n = sum(self.sizes)
        wrong = sorted({i for slices in self.numbers for i in slices if not -1 <= i < n})
        if wrong:
            raise ValueError(f"Channels: numbers must be -1 to {n - 1}, one of {n} channels, and one is {wrong[0]}")

    def __repr__(self) -> str:
        return f"<{sum(self.sizes):,} channels of {len(self.sizes)} layers>"

    @property
    def counts(self) -> list[int]:
        """How many there are, layer by layer."""
        return list(self.sizes)

    def scores(self, xs: Sequence[Tensor], steps: Sequence[Step | None]) -> list[Tensor]:
        """sqrt(sum x^2 / step) of every channel, layer by layer; without steps, its norm."""
        roots = [1.0 if step is None else (wide(step) if isinstance(step, Tensor) else step) ** 0.5 for step in steps]
        squares = [as_matrix(wide(x) / root).double().square().sum(1) for x, root in zip(xs, roots, strict=True)]
        return list(torch.split(self._gathered(xs, squares).sqrt().abs(), self.counts))  # abs: a NaN's sign

    def nonzero(self, xs: Sequence[Tensor]) -> list[Tensor]:
        """Which channels have an entry that is not zero, layer by layer."""
        found = self._gathered(xs, [(as_matrix(x) != 0).sum(1).double() for x in xs]) > 0
        return list(torch.split(found, self.counts))

    def spread(self, keep: Sequence[Tensor], xs: Sequence[Tensor]) -> list[Tensor]:
        """What is kept, entry by entry, of what is kept layer by layer."""
        together = torch.cat([*keep, keep[0].new_ones(1)])  # the last is for slices of no channel
        kept = [together.to(x.device)[places] for x, places in zip(xs, self._places(xs), strict=True)]
        return [k.view(-1, *[1] * (x.dim() - 1)).expand_as(x) for k, x in zip(kept, xs, strict=True)]

    def _gathered(self, xs: Sequence[Tensor], of_slices: Sequence[Tensor]) -> Tensor:
        """The sum over the slices of each channel, on the first tensor's device."""
        sums = torch.zeros(sum(self.sizes) + 1, dtype=torch.float64, device=xs[0].device)
        for places, values in zip(self._places(xs), of_slices, strict=True):
            sums.index_add_(0, places.to(sums.device), values.to(sums.device))
        return sums[:-1]

    def _places(self, xs: Sequence[Tensor]) -> list[Tensor]:
        if [x.shape[:1] for x in xs] != [(len(slices),) for slices in self.numbers]:
            raise ValueError(
                f"{self!r} are of {len(self.numbers)} tensors of {[len(s) for s in self.numbers]} slices, and it is "
                f"given {len(xs)} of shapes {[tuple(x.shape) for x in xs]}: leave none out and none frozen, "
                "or find the channels anew"
            )
        return [_on_device(slices, sum(self.sizes), x.device) for slices, x in zip(self.numbers, xs, strict=True)]


@cache
def _on_device(slices: tuple[int, ...], none: int, device: torch.device) -> Tensor:
    """Copied once and kept for good, since a CUDA graph may read it."""
    return torch.tensor([none if i < 0 else i for i in slices], dtype=torch.int64, device="cpu").to(device)
