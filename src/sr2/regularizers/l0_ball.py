"""l0 ball: at most k nonzeros, or k nonzero groups, over all tensors of the parameter group together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from math import ceil, inf
from typing import Any

import torch
from torch import Tensor

from ..checks import check_integer, check_number, is_real, shown
from ..numerics import like, wide
from .base import Step
from .budget import Budget
from .channels import Channels
from .grouping import Grouping, Groups, check_groups, grouping, groups_in_words
from .selection import largest_with_floors, scaled


@dataclass(frozen=True, repr=False)
class L0Ball(Budget):
    """R(x) = 0 where at most k entries (or groups) of all tensors together are nonzero, else +inf.

    prox: the k entries with the largest x^2 / step are kept and the others are 0; with one step for all, the k largest
    in |x|. Of equal ones the first are kept, in the order of the tensors and of their indices, so that exactly k are.
    k may exceed the number n of entries: every point is then inside. With groups: those with the largest
    sum x^2 / step are kept.

    No tensor loses everything by accident: tensor j with n_j of the n entries has f_j = ceil(floor k n_j / n) of the k
    for itself, used or not, so that R(x) = 0 where sum_j max(nonzeros_j, f_j) <= k. Its prox keeps the f_j largest of
    every tensor and then the largest of all others, k in all: any other choice can exchange one entry for a larger one.
    Where these floors would take more than half of k, as of a budget of a few entries, they are rounded down instead,
    often to 0. floor=0 is the plain budget, and floor=1 gives all tensors the same density.

    Args:
        k: how many may be nonzero.
        density: their share instead, k = round(density * n), to the even number on a half. Give one of the two.
        groups: None, single entries; or as in `GroupL2`, and n counts groups; or `Channels`, which reach over several
            tensors: the floor is then one per layer.
        floor: the least density of a tensor, as a share of that of all together; None is 0.1 with a density, and 0 with
            a k, which is taken at its word. Of what a callable groups there is no floor: the number of its groups is
            known to the device alone.

    >>> L0Ball(k=2).prox([torch.tensor([1.0, -3.0]), torch.tensor([[-1.0]])], 1.0)
    [tensor([ 1., -3.]), tensor([[0.]])]
    >>> L0Ball(density=0.5, groups="rows").prox(torch.tensor([[3.0, 0.0], [2.0, 2.5]]), 1.0)
    tensor([[0.0000, 0.0000],
            [2.0000, 2.5000]])
    """

    k: int | None = None
    density: float | None = None
    groups: Groups | Channels | None = None
    floor: float | None = None
    diagonal = True

    def __post_init__(self) -> None:
        if (self.k is None) == (self.density is None):
            raise ValueError(f"L0Ball: give exactly one of k and density, not {self.k!r} and {self.density!r}")
        if self.k is not None and is_real(self.k) and 0 < self.k < 1:
            raise ValueError(f"L0Ball: k is a number of nonzeros, and is {self.k!r}: a share is density={self.k!r}")
        if self.k is not None:
            check_integer(self, "k", self.k, 0)
        elif not is_real(self.density) or not 0 < self.density <= 1:  # type: ignore[operator]
            raise ValueError(
                "L0Ball: density must be the share that stays, above 0 and at most 1, "
                f"and is {shown(self.density)}: density=0.05 keeps 5 % and makes 95 % zero"
            )
        if self.groups is not None and not isinstance(self.groups, Channels):
            check_groups(self, self.groups)
        if self.floor not in (None, 1):
            check_number(self, "floor", self.floor, 0, 1)

    def __repr__(self) -> str:
        given = ((f.name, getattr(self, f.name)) for f in fields(self) if getattr(self, f.name) != f.default)
        words = (f"{name}={groups_in_words(value) if name == 'groups' else repr(value)}" for name, value in given)
        return f"L0Ball({', '.join(words)})"

    def budget(self, n: int | Tensor) -> Any:
        """How many of n may be nonzero: a number, or a tensor where n is one or a strength was set."""
        if self.density is None:
            own: Any = int(self.k)  # type: ignore[arg-type]
        else:
            own = (self.density * n).round().long() if isinstance(n, Tensor) else round(self.density * n)
        return self._now(own, n)

    def floors(self, counts: Sequence[int | Tensor]) -> list[int]:
        """How much of the budget each tensor has for itself, of so many entries or groups each."""
        sizes = [n for n in counts if isinstance(n, int)]
        n, floor = sum(sizes), self.floor
        if floor is None:
            floor = 0.1 if self.k is None else 0.0
        k = int(self.k) if self.density is None else round(self.density * n)  # type: ignore[arg-type]
        if len(sizes) < len(counts) or len(counts) < 2 or not floor or not 0 < k < n:
            return [0] * len(counts)
        shares = [round(floor * k * size / n, 9) for size in sizes]  # 0.1 is a little more than a tenth
        up = [ceil(share) for share in shares]
        return up if 2 * sum(up) <= k else [int(share) for share in shares]

    def terms_of(self, xs: Sequence[Tensor]) -> list[Tensor]:
        if not xs:
            return []
        outside = self.exceeded(xs)
        return [torch.zeros_like(outside, dtype=torch.float64).masked_fill(outside, inf)]

    def exceeded(self, xs: Sequence[Tensor]) -> Tensor:
        """Whether these tensors have more than the budget, as a 0-dim tensor."""
        parts = self._parts(xs)
        counts = parts.counts
        nonzeros = [torch.count_nonzero(part).to(xs[0].device) for part in parts.nonzero(xs)]
        used = [count.clamp_min(least) for count, least in zip(nonzeros, self.floors(counts), strict=True)]
        found: Tensor = torch.stack(used).sum() > self.budget(_sum(counts, xs[0].device))
        return found

    @property
    def chooses(self) -> tuple[L0Ball, float] | None:
        return (self, 0.0) if self.groups is None and type(self) is L0Ball else None

    def prox_of(self, xs: Sequence[Tensor], steps: Sequence[Step]) -> list[Tensor]:
        if not xs:
            return []
        parts = self._parts(xs)
        counts = parts.counts
        n = _sum(counts, xs[0].device)
        k = self.budget(n)
        if isinstance(k, int) and isinstance(n, int) and k >= n:
            return [x.clone() for x in xs]
        scores = parts.scores(xs, [None] * len(xs) if _one_for_all(steps) else steps)
        keep = torch.split(largest_with_floors(scores, self.floors(counts), k), [len(s) for s in scores])
        return [like(torch.where(kept, x, 0.0), x) for kept, x in zip(parts.spread(keep, xs), xs, strict=True)]

    def _parts(self, xs: Sequence[Tensor]) -> Channels | _Apart:
        if isinstance(self.groups, Channels):
            return self.groups
        return _Apart([None if self.groups is None else grouping(self, self.groups, x) for x in xs], xs)


class _Apart:
    """Entries or groups of each tensor for itself."""

    def __init__(self, groupings: Sequence[Grouping | None], xs: Sequence[Tensor]) -> None:
        self._groupings = groupings
        self.counts = [x.numel() if of_x is None else of_x.count for x, of_x in zip(xs, groupings, strict=True)]

    def scores(self, xs: Sequence[Tensor], steps: Sequence[Step | None]) -> list[Tensor]:
        """|x| / sqrt(step) of every entry or group, tensor by tensor."""
        given = zip(xs, steps, self._groupings, strict=True)
        return [_scores(wide(x), step, of_x).to(xs[0].device) for x, step, of_x in given]

    def nonzero(self, xs: Sequence[Tensor]) -> list[Tensor]:
        """What is not zero, tensor by tensor: entries, or which groups."""
        return [x if of_x is None else of_x.nonzero(x) for x, of_x in zip(xs, self._groupings, strict=True)]

    def spread(self, keep: Sequence[Tensor], xs: Sequence[Tensor]) -> list[Tensor]:
        """What is kept, entry by entry, of what is kept of the scores."""
        kept = [part.to(x.device) for part, x in zip(keep, xs, strict=True)]
        given = zip(kept, xs, self._groupings, strict=True)
        return [part.view(x.shape) if of_x is None else of_x.spread(part) for part, x, of_x in given]


def _sum(counts: Sequence[int | Tensor], device: torch.device) -> int | Tensor:
    return sum(c.to(device) if isinstance(c, Tensor) else c for c in counts)


def _one_for_all(steps: Sequence[Step]) -> bool:
    """Whether all entries have one step, as far as can be told without looking."""
    first = steps[0]
    if isinstance(first, Tensor):
        return first.dim() == 0 and all(step is first for step in steps)
    return all(isinstance(step, float) and step == first for step in steps)


def _scores(x: Tensor, step: Step | None, groups: Grouping | None) -> Tensor:
    """|x| / sqrt(step) of every entry or group as a vector; without a step, |x|."""
    if step is not None:
        x = scaled(x, step)
    if groups is None:
        return (x.abs() if step is None else x.abs_()).flatten()
    norms = groups.norm(x).flatten().abs()  # of a NaN too, whose sign the root may have set
    if isinstance(groups.count, int):
        return norms
    return torch.where(torch.arange(len(norms), device=x.device) < groups.count, norms, -1.0)  # not in use
