"""Which entries belong together: filters, rows, columns, heads, or what a callable says."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

NAMES = ("filters", "rows", "columns")
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)

Groups = str | Callable[[Tensor], Tensor]
"""A name, `Heads`, or a callable that gives each entry of a tensor its group's number."""


@dataclass(frozen=True)
class Heads:
    """The heads of an attention layer as groups: of `number` heads, head h has the rows h out / number and following.

    For the projections of queries, keys and values, (out, in). One that holds all three, as torch's `in_proj_weight`,
    has three times as many. In the projection back a head is a block of columns: a callable of your own groups those.

    >>> Heads(2)(torch.zeros(4, 3)).tolist()
    [[0, 0, 0], [0, 0, 0], [1, 1, 1], [1, 1, 1]]
    """

    number: int

    def __post_init__(self) -> None:
        if isinstance(self.number, bool) or not isinstance(self.number, int) or self.number < 1:
            raise ValueError(f"Heads: number must be an integer of at least 1, and is {self.number!r}")

    def __call__(self, x: Tensor) -> Tensor:
        self.check(x)
        heads = torch.arange(self.number, device=x.device).view(-1, 1)
        return heads.expand(self.number, x.numel() // self.number).reshape(x.shape)

    def check(self, x: Tensor) -> None:
        """Whether x has so many heads."""
        rows = x.shape[0] if x.dim() else 1
        if rows % self.number:
            raise ValueError(f"Heads: {rows} rows (of {tuple(x.shape)}) are not {self.number} heads of equal size")


def check_groups(owner: object, groups: object) -> None:
    """A known name or a callable."""
    if not callable(groups) and groups not in NAMES:
        known = ", ".join(map(repr, NAMES))
        raise ValueError(f"{type(owner).__name__}: groups must be one of {known} or a callable, and is {groups!r}")


def groups_in_words(groups: object) -> str:
    """A function by its name: its address would differ in every process, and checkpoints hold the repr."""
    return getattr(groups, "__qualname__", repr(groups)) if callable(groups) else repr(groups)


class Grouping(ABC):
    """The groups of one tensor x. What is per group has one entry for each, and is float64."""

    count: int | Tensor
    """How many groups; on the device where a callable made them."""

    @abstractmethod
    def sum(self, values: Tensor) -> Tensor:
        """The sum of values (one per entry of x) over each group."""

    @abstractmethod
    def largest(self, values: Tensor) -> Tensor:
        """The largest of the values of each group."""

    @abstractmethod
    def norm(self, x: Tensor) -> Tensor:
        """|x_g|_2. In float64: the square of a float32 entry of 1e25 or 1e-30 leaves the range of float32."""

    @abstractmethod
    def spread(self, of_groups: Tensor) -> Tensor:
        """Every entry of x gets the number of its group, from numbers per group in any shape."""

    def nonzero(self, x: Tensor) -> Tensor:
        """Whether x_g != 0."""
        return self.sum(x != 0) > 0


class _Slices(Grouping):
    """Groups that are slices of x in this shape: all entries that differ in these dimensions alone."""

    count: int

    def __init__(self, x: Tensor, shape: tuple[int, ...], dims: list[int]) -> None:
        self._shape, self._own, self._dims = shape, x.shape, dims
        self._of_groups = [1 if dim in dims else size for dim, size in enumerate(shape)]
        self.count = prod(self._of_groups)

    def sum(self, values: Tensor) -> Tensor:
        return values.reshape(self._shape).sum(self._dims, keepdim=True, dtype=torch.float64)

    def largest(self, values: Tensor) -> Tensor:
        return values.reshape(self._shape).amax(self._dims, keepdim=True)

    def norm(self, x: Tensor) -> Tensor:
        norms: Tensor = torch.linalg.vector_norm(
            x.reshape(self._shape), 2, self._dims, keepdim=True, dtype=torch.float64
        )
        return norms

    def spread(self, of_groups: Tensor) -> Tensor:
        return of_groups.view(self._of_groups).expand(self._shape).reshape(self._own)


class _Numbered(Grouping):
    """Groups by number, from 0 on. Per group there is one entry per entry of x, the first `count` of them in use."""

    count: Tensor

    def __init__(self, x: Tensor, given: Tensor) -> None:
        # How many groups there are would be a host read; how many changes precede an entry in sorted order is not.
        ordered, order = given.to(x.device).flatten().sort()
        changes = torch.zeros_like(order)
        changes[1:] = ordered[1:] != ordered[:-1]
        before = changes.cumsum(0)
        self._number, self._own = torch.empty_like(order).scatter_(0, order, before), x.shape
        self.count = changes.sum() + min(1, x.numel())

    def sum(self, values: Tensor) -> Tensor:
        values = values.flatten().double()
        return torch.zeros_like(values).index_add_(0, self._number, values)

    def largest(self, values: Tensor) -> Tensor:
        values = values.flatten()
        return torch.zeros_like(values).scatter_reduce_(0, self._number, values, "amax", include_self=False)

    def norm(self, x: Tensor) -> Tensor:
        return self.sum(x.double() ** 2).sqrt()

    def spread(self, of_groups: Tensor) -> Tensor:
        return of_groups.view(-1)[self._number].view(self._own)


def grouping(owner: object, groups: Groups, x: Tensor) -> Grouping:
    """The groups of x. A vector is a matrix of one column."""
    if isinstance(groups, Heads):
        groups.check(x)
        return _Slices(x, (groups.number, x.numel() // groups.number), [1])
    if callable(groups):
        given: object = groups(x)
        if not isinstance(given, Tensor) or given.shape != x.shape or given.dtype not in _INTEGERS:
            gave = f"{given.dtype} of shape {tuple(given.shape)}" if isinstance(given, Tensor) else repr(given)
            raise ValueError(
                f"{type(owner).__name__}: groups(x) must give an integer tensor of x's shape {tuple(x.shape)}, "
                f"and gave {gave}"
            )
        return _Numbered(x, given)
    shape = tuple(x.shape) if x.dim() >= 2 else (x.numel(), 1)
    return _Slices(x, shape, [0] if groups == "columns" else list(range(1, len(shape))))
