"""Groups: whole filters, rows or columns that are zero together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .base import Regularizer, Step, check_number

_NAMES = ("filters", "rows", "columns")
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)

Groups = str | Callable[[Tensor], Tensor]


@dataclass(frozen=True, repr=False)
class _Grouped(Regularizer):
    lam: float
    groups: Groups = "filters"

    def __repr__(self) -> str:
        # A function by its name: its address would differ in every process, and checkpoints hold the repr.
        groups = getattr(self.groups, "__qualname__", repr(self.groups)) if callable(self.groups) else repr(self.groups)
        return f"{type(self).__name__}(lam={self.lam!r}, groups={groups})"

    def __post_init__(self) -> None:
        check_number(self, "lam", self.lam, 0)
        if not callable(self.groups) and self.groups not in _NAMES:
            known = ", ".join(map(repr, _NAMES))
            raise ValueError(
                f"{type(self).__name__}: groups must be one of {known} or a callable, and is {self.groups!r}"
            )

    def _norms(self, x: Tensor, order: int = 2) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """The norm of every group, and the map that gives every entry the number of its group.

        In float64: the square of a float32 entry of 1e25 or 1e-30 leaves the range of float32.
        """
        if callable(self.groups):
            number = self._numbers(x)
            powers = x.flatten().double() ** 2 if order == 2 else (x.flatten() != 0).double()
            sums = powers.new_zeros(x.numel()).index_add(0, number, powers)
            return (sums.sqrt() if order == 2 else sums), lambda norms: norms[number].view(x.shape)
        matrix = x if x.dim() >= 2 else x.reshape(-1, 1)
        dims = [0] if self.groups == "columns" else list(range(1, matrix.dim()))
        norms = torch.linalg.vector_norm(matrix, order, dims, keepdim=True, dtype=torch.float64)
        return norms, lambda norms: norms.expand_as(matrix).reshape(x.shape)

    def _numbers(self, x: Tensor) -> Tensor:
        """The callable's group numbers, renumbered from 0 on.

        How many groups there are would be a host read; how many changes precede an entry in sorted order is not.
        """
        assert callable(self.groups)
        given: object = self.groups(x)
        if not isinstance(given, Tensor) or given.shape != x.shape or given.dtype not in _INTEGERS:
            gave = f"{given.dtype} of shape {tuple(given.shape)}" if isinstance(given, Tensor) else repr(given)
            raise ValueError(
                f"{type(self).__name__}: groups(x) must give an integer tensor of x's shape {tuple(x.shape)}, "
                f"and gave {gave}"
            )
        ordered, order = given.to(x.device).flatten().sort()
        changes = torch.zeros_like(order)
        changes[1:] = ordered[1:] != ordered[:-1]
        return torch.empty_like(order).scatter_(0, order, changes.cumsum(0))


@dataclass(frozen=True, repr=False)
class GroupL2(_Grouped):
    """R(x) = lam * sum over groups g of |x_g|_2. Groups of one make it l1; no weight for a group's size.

    prox, with t = lam * step: z_g = x_g max(1 - t / |x_g|, 0). At |x_g| = t exactly, z_g = 0.

    Args:
        lam: the weight.
        groups: "filters" or "rows" (slices of dimension 0), "columns" (of the matrix (shape[0], -1)), or a
            callable that gives each entry of a tensor its group's number, an integer tensor of the tensor's
            shape. A vector is a matrix of one column.

    >>> GroupL2(1.0, "rows").prox(torch.tensor([[3.0, 4.0], [0.3, 0.4]]), 1.0)
    tensor([[2.4000, 3.2000],
            [0.0000, 0.0000]])
    """

    convex = True

    def terms(self, x: Tensor) -> Tensor:
        return self.lam * self._norms(x)[0]

    def prox_tensor(self, x: Tensor, step: Step) -> Tensor:
        t = self.lam * step
        norms, spread = self._norms(x)
        norms = norms.clamp_max(torch.finfo(norms.dtype).max)  # an overflow must not become inf / inf
        return x * spread(torch.where(norms <= t, 0.0, (norms - t) / norms).to(x.dtype))


@dataclass(frozen=True, repr=False)
class GroupL0(_Grouped):
    """R(x) = lam * #{groups g : x_g != 0}. Groups of one make it l0.

    prox: z_g = x_g where |x_g| > sqrt(2 lam step), else 0. At |x_g| = sqrt(2 lam step) exactly, z_g = 0.

    Args:
        lam: the weight.
        groups: as in `GroupL2`.

    >>> GroupL0(0.5, "columns").prox(torch.tensor([[3.0, 0.3], [4.0, 0.4]]), 1.0)
    tensor([[3., 0.],
            [4., 0.]])
    """

    def terms(self, x: Tensor) -> Tensor:
        return self.lam * (self._norms(x, order=0)[0] > 0).double()

    def prox_tensor(self, x: Tensor, step: Step) -> Tensor:
        norms, spread = self._norms(x)
        return torch.where(spread(norms <= (2 * self.lam * step) ** 0.5), 0.0, x)
