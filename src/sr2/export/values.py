"""What `shrink` knows of an activation: which entries are constants, and which channels stand or fall together.

Every entry has a *constant*, the number that it is for every input, or nan, and an *atom*, the number of the channel
that it belongs to. Operations that only move entries (view, cat, transpose) run on both tensors as they are; an
elementwise function runs on the constants, and nan stays nan. Two channels that can only be removed together (the two
sides of a residual sum) are united.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

FIXED = 0
"""The atom of everything that must stay: the input, the output, and what is united with them."""


@dataclass(frozen=True)
class Value:
    """One activation: for every entry its channel and its constant."""

    atoms: Tensor
    """int64: which channel."""
    constants: Tensor
    """float64: the number that it always is, or nan."""

    @property
    def shape(self) -> torch.Size:
        return self.atoms.shape


class Atoms:
    """Channels, numbered, and which of them must be removed together: a union-find.

    >>> atoms = Atoms()
    >>> a, b = atoms.fresh(3), atoms.fresh(3)
    >>> atoms.unite(a, b)
    >>> atoms.classes(torch.cat([a, b])).tolist()
    [1, 2, 3, 1, 2, 3]
    """

    def __init__(self) -> None:
        self.parent = [FIXED]
        self._table: Tensor | None = None

    def fresh(self, count: int) -> Tensor:
        first = len(self.parent)
        self.parent.extend(range(first, first + count))
        self._table = None
        return torch.arange(first, first + count)

    def unite(self, a: Tensor, b: Tensor) -> None:
        """Entry by entry; shapes that broadcast."""
        a, b = torch.broadcast_tensors(self.classes(a), self.classes(b))  # type: ignore[no-untyped-call]
        differ = a != b
        pairs = torch.stack([a[differ], b[differ]], 1).unique(dim=0)  # type: ignore[no-untyped-call]
        for left, right in pairs.tolist():
            low, high = sorted((self._root(left), self._root(right)))
            self.parent[high] = low
        if len(pairs):
            self._table = None

    def fix(self, atoms: Tensor) -> None:
        """These must stay."""
        self.unite(atoms, torch.tensor(FIXED))

    def classes(self, atoms: Tensor) -> Tensor:
        """For every atom the smallest one that it is united with."""
        if self._table is None:
            self._table = torch.tensor([self._root(atom) for atom in range(len(self.parent))])
        return self._table[atoms]

    def varying(self, atoms: Tensor) -> list[int]:
        """The axes along which the classes differ."""
        classes = self.classes(atoms)
        return [axis for axis in range(classes.ndim) if bool((classes != classes.narrow(axis, 0, 1)).any())]

    def unite_along(self, atoms: Tensor, axes: list[int]) -> None:
        """What differs only in its place on these axes stays or goes together."""
        for axis in axes:
            self.unite(atoms, atoms.narrow(axis, 0, 1))

    def _root(self, atom: int) -> int:
        while self.parent[atom] != atom:
            self.parent[atom] = self.parent[self.parent[atom]]
            atom = self.parent[atom]
        return atom
