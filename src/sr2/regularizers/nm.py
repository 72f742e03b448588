"""n:m sparsity: at most n nonzeros among m neighbours, as sparse tensor cores want it."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import torch
import torch.nn.functional as F
from torch import Tensor

from ..checks import check_integer
from ..numerics import wide
from .base import Step, one_per_entry
from .budget import Budget, below


@dataclass(frozen=True)
class NM(Budget):
    """R(x) = 0 where every block of m consecutive entries has at most n nonzeros, else +inf.

    Blocks run along the input dimension, dimension 1: (out, in), or (out, in, kh, kw) at each position of the
    kernel. The last block is shorter where m does not divide `in`, and may hold n nonzeros too. A vector is a
    matrix of one column: its blocks have one entry, and nothing is asked of it.

    prox: the n entries of a block with the largest x^2 / step are kept and the others are 0; with one step for all, the
    n largest in |x|. Of equal entries the first are kept.

    >>> NM(2, 4).prox(torch.tensor([[1.0, -3.0, 2.0, 0.5, 1.0, 1.0, -1.0, 1.0]]), 1.0)
    tensor([[ 0., -3.,  2.,  0.,  1.,  1.,  0.,  0.]])
    """

    n: int = 2
    m: int = 4
    diagonal = True
    rowwise = True

    def __post_init__(self) -> None:
        check_integer(self, "n", self.n, 1)
        check_integer(self, "m", self.m, 1)
        if self.n > self.m:
            raise ValueError(f"NM: n must be at most m, and they are {self.n} and {self.m}")

    def terms(self, x: Tensor) -> Tensor:
        outside = (self._blocks((x != 0).double()) > 0).sum(-1) > self._now(self.n, self.m)
        return torch.zeros_like(outside, dtype=torch.float64).masked_fill(outside, inf)

    def prox_tensor(self, x: Tensor, step: Step) -> Tensor:
        if x.dim() < 2 or self.n == self.m:
            return x.clone()
        scores = self._blocks(x.abs() / wide(step).sqrt() if one_per_entry(step) else x.abs())
        order = scores.sort(dim=-1, descending=True, stable=True).indices
        first = below(self.m, self._now(self.n, self.m), x.device).expand_as(order)
        keep = torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, order, first)
        return torch.where(keep.flatten(-2)[..., : x.shape[1]].movedim(-1, 1), x, 0.0)

    def _blocks(self, x: Tensor) -> Tensor:
        """x >= 0 with the input dimension last, cut into (blocks, m); the last is filled with less than 0."""
        rows = x.movedim(1, -1) if x.dim() >= 2 else x.reshape(-1, 1)
        padding = -rows.shape[-1] % self.m
        padded = F.pad(rows, (0, padding), value=-1.0)
        return padded.view(*padded.shape[:-1], padded.shape[-1] // self.m, self.m)
