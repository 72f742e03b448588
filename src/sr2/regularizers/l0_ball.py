"""l0 ball: at most k nonzeros, over all tensors of the group together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor

from ..numerics import like
from .base import Regularizer, Step, check_integer, check_number


@dataclass(frozen=True)
class L0Ball(Regularizer):
    """R(x) = 0 where at most k entries of the whole group are nonzero, else +inf.

    prox: the k entries largest in |x| are kept and the others are 0, whatever the step. Of equal entries the
    first are kept, in the order of the tensors and of their indices, so that exactly k are. k may exceed the
    number n of entries: every point is then inside.

    Args:
        k: how many entries may be nonzero.
        density: their share instead, k = round(density * n), to the even number on a half. Give one of the two.

    >>> L0Ball(k=2).prox([torch.tensor([1.0, -3.0]), torch.tensor([[-1.0]])], 1.0)
    [tensor([ 1., -3.]), tensor([[0.]])]
    """

    k: int | None = None
    density: float | None = None

    def __post_init__(self) -> None:
        if (self.k is None) == (self.density is None):
            raise ValueError(f"L0Ball: give exactly one of k and density, not {self.k!r} and {self.density!r}")
        if self.k is not None:
            check_integer(self, "k", self.k, 0)
        elif self.density != 1:
            check_number(self, "density", self.density, 0, 1)  # or 1 itself, the whole group

    def budget(self, n: int) -> int:
        """How many of n entries may be nonzero."""
        return round(self.density * n) if self.k is None else int(self.k)  # type: ignore[operator]

    def terms_of(self, xs: Sequence[Tensor]) -> list[Tensor]:
        if not xs:
            return []
        count = torch.stack([torch.count_nonzero(x).to(xs[0].device) for x in xs]).sum()
        outside = count > self.budget(sum(x.numel() for x in xs))
        return [torch.zeros_like(outside, dtype=torch.float64).masked_fill(outside, inf)]

    def prox_of(self, xs: Sequence[Tensor], steps: Sequence[Step]) -> list[Tensor]:
        n = sum(x.numel() for x in xs)
        k = self.budget(n)
        if k >= n:
            return [x.clone() for x in xs]
        if k == 0:
            return [torch.zeros_like(x) for x in xs]
        sizes = torch.cat([x.abs().flatten().to(xs[0].device) for x in xs])
        least = torch.topk(sizes, k, sorted=False).values.min()
        above, ties = sizes > least, sizes == least
        # topk breaks ties as it likes: keep what is above the k-th size, and the first of its equals.
        drop = (sizes < least) | (ties & (ties.cumsum(0) > k - above.sum()))
        parts = torch.split_with_sizes(drop, [x.numel() for x in xs])
        return [like(x.masked_fill(part.view(x.shape).to(x.device), 0.0), x) for part, x in zip(parts, xs, strict=True)]
