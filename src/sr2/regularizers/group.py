"""Groups: whole filters, rows or columns that are zero together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..checks import check_number
from ..numerics import total
from .base import Regularizer, Step, one_per_entry
from .grouping import Grouping, Groups, check_groups, grouping, groups_in_words

_BISECTIONS, _TANGENTS = 6, 5
"""Error of z below 1e-15 |x| for steps that differ by up to 1e12 within a group, measured; 5 and 4 have 1e-14."""


@dataclass(frozen=True, repr=False)
class _Grouped(Regularizer):
    lam: float
    groups: Groups = "filters"
    diagonal = True

    def __repr__(self) -> str:
        return f"{type(self).__name__}(lam={self.lam!r}, groups={groups_in_words(self.groups)})"

    def __post_init__(self) -> None:
        check_number(self, "lam", self.lam, 0)
        check_groups(self, self.groups)

    def _grouping(self, x: Tensor) -> Grouping:
        return grouping(self, self.groups, x)


def _are_rows(regularizer: _Grouped) -> bool:
    """Whether the groups are slices of dimension 0."""
    return regularizer.groups in ("filters", "rows")


@dataclass(frozen=True, repr=False)
class GroupL2(_Grouped):
    """R(x) = lam * sum over groups g of |x_g|_2. Groups of one make it l1; no weight for a group's size.

    prox, with t = lam * step: z_g = x_g max(1 - t / |x_g|, 0). At |x_g| = t exactly, z_g = 0.

    With one step per entry, z_i = x_i r / (r + t_i), where r = |z_g| is the one root of |x_g / (r + t_g)| = 1; z_g = 0
    where |x_g / t_g| <= 1. In float64, by bisection and tangents, the same number of passes always.

    Args:
        lam: the weight.
        groups: "filters" or "rows" (slices of dimension 0), "columns" (of the matrix (shape[0], -1)), `Heads(n)`, or a
            callable that gives each entry of a tensor its group's number, an integer tensor of the tensor's
            shape. A vector is a matrix of one column.

    >>> GroupL2(1.0, "rows").prox(torch.tensor([[3.0, 4.0], [0.3, 0.4]]), 1.0)
    tensor([[2.4000, 3.2000],
            [0.0000, 0.0000]])
    """

    convex = True
    rowwise = property(_are_rows)

    def terms(self, x: Tensor) -> Tensor:
        return self.lam * self._grouping(x).norm(x)

    def decrease_of(self, xs: Sequence[Tensor], zs: Sequence[Tensor]) -> Tensor:
        return self.lam * total([self._fall(x, z) for x, z in zip(xs, zs, strict=True)])

    def _fall(self, x: Tensor, z: Tensor) -> Tensor:
        """|x_g| - |z_g| of every group, as (x - z)'(x + z) / (|x| + |z|): the norms' difference has few digits."""
        groups, x, z = self._grouping(x), x.double(), z.double()
        norms = groups.spread(groups.norm(x) + groups.norm(z)).clamp_min(torch.finfo(torch.float64).tiny)
        return groups.sum((x - z) * ((x + z) / norms))

    def prox_tensor(self, x: Tensor, step: Step) -> Tensor:
        if one_per_entry(step):
            return self._prox_in_a_metric(x, step)
        groups, t = self._grouping(x), self.lam * step
        norms = groups.norm(x)
        # A factor near 1 would round the shift x t / |x| away, and move x by a unit of its last place in its stead.
        near = norms <= 2 * t
        factor = torch.where(near, torch.where(norms <= t, 0.0, (norms - t) / norms), 1.0)
        shift = torch.where(near, 0.0, t / norms)
        return x * groups.spread(factor.to(x.dtype)) - x * groups.spread(shift.to(x.dtype))

    def _prox_in_a_metric(self, x: Tensor, step: Tensor) -> Tensor:
        if self.lam == 0 or x.numel() == 0:
            return x.clone()
        groups, tiny = self._grouping(x), torch.finfo(torch.float64).tiny
        size, t = x.double().abs(), self.lam * step.double()
        unit = groups.spread(groups.largest(size)).clamp_min(tiny)  # |x_i| <= 1 from here on: no square overflows
        size, t = size / unit, t / unit

        def norm_and_tangent(r: Tensor) -> tuple[Tensor, Tensor]:
            """h = |x / (r + t)|, and where the tangent of 1 / h at r says that h is 1."""
            sums = (groups.spread(r) + t).clamp_min(tiny)
            squares = (size / sums).square()
            h2 = groups.sum(squares)
            h = h2.sqrt()
            return h, r + (h - 1) * h2 / groups.sum(squares / sums).clamp_min(tiny)

        # 1 / h is concave, so that a tangent's root is never beyond the root, wherever it touches. The tangents alone
        # would creep where a few entries have far smaller steps than the others: bisection finds the magnitude first.
        low = groups.largest(size - t).clamp_min(0.0)  # here one |x_i| / (r + t_i) is 1
        high = groups.largest(x.numel() ** 0.5 * size - t).clamp_min(tiny)  # and here all are at most n^(-1/2)
        h, tangent = norm_and_tangent(low)
        zero = (low == 0) & (h <= 1)
        low = torch.maximum(low, tangent)
        for _ in range(_BISECTIONS):
            middle = low.clamp_min(1e-40).sqrt() * high.sqrt()
            h, tangent = norm_and_tangent(middle)
            high = torch.where(h <= 1, torch.minimum(middle, high), high)
            low = torch.maximum(low, torch.maximum(tangent, torch.where(h >= 1, middle, low)))
        for _ in range(_TANGENTS):
            low = torch.maximum(low, norm_and_tangent(low)[1])
        r = groups.spread(torch.where(zero, 0.0, low))
        sums = (r + t).clamp_min(tiny)
        return torch.where(r > t, x - x * (t / sums), x * (r / sums)).to(x.dtype)  # as above: no factor near 1


@dataclass(frozen=True, repr=False)
class GroupL0(_Grouped):
    """R(x) = lam * #{groups g : x_g != 0}. Groups of one make it l0.

    prox: z_g = x_g where |x_g| > sqrt(2 lam step), else 0. At |x_g| = sqrt(2 lam step) exactly, z_g = 0.
    With one step per entry: z_g = x_g where sum x_i^2 / (2 step_i) > lam over the group, else 0.

    Args:
        lam: the weight.
        groups: as in `GroupL2`.

    >>> GroupL0(0.5, "columns").prox(torch.tensor([[3.0, 0.3], [4.0, 0.4]]), 1.0)
    tensor([[3., 0.],
            [4., 0.]])
    """

    rowwise = property(_are_rows)

    def terms(self, x: Tensor) -> Tensor:
        return self.lam * self._grouping(x).nonzero(x).double()

    def prox_tensor(self, x: Tensor, step: Step) -> Tensor:
        if self.lam == 0:
            return x.clone()
        groups = self._grouping(x)
        if one_per_entry(step):
            gains = groups.sum(x.double() * (x.double() / (2 * step.double())))
            return torch.where(groups.spread(gains <= self.lam), 0.0, x)
        return torch.where(groups.spread(groups.norm(x) <= (2 * self.lam * step) ** 0.5), 0.0, x)
