"""The k largest of many numbers: exactly k, ties by order, and without a host read also where k lives on the device."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

RUN = 4096
"""How many entries a program of the kernel takes."""
_BITS = {torch.float32: torch.int32, torch.float64: torch.int64}


def largest(scores: Tensor, k: int | Tensor) -> Tensor:
    """Where the k largest of a vector are, as booleans. Of equal scores the first are taken.

    Args:
        scores: float32 or float64, not negative; what is negative is never taken. NaN counts as the largest.
        k: how many; a 0-dim integer tensor on the device of the scores is not looked at.

    >>> largest(torch.tensor([2.0, 3.0, 2.0, 1.0]), 2)
    tensor([ True,  True, False, False])
    >>> largest(torch.tensor([2.0, 3.0, 2.0, 1.0]), torch.tensor(3))
    tensor([ True,  True,  True, False])
    """
    if isinstance(k, int) and not 0 < k < scores.numel():
        return scores >= 0 if k > 0 else torch.zeros_like(scores, dtype=torch.bool)
    bits = scores.view(_BITS[scores.dtype])  # the order of floats that are not negative is that of their bits
    if in_kernel([scores]):
        flat, owner = _in_runs([bits])
        wanted = _on_device((k,), bits.device) if isinstance(k, int) else k.to(bits.device).int().view(1)
        least = _by_digits(flat, owner, wanted)[0]
    elif isinstance(k, int):
        least = torch.topk(bits, k, sorted=False).values.min()
    else:
        least = _by_bits(bits, k)
    above, ties = bits > least, bits == least
    return above | (ties & (ties.cumsum(0, dtype=torch.int32) <= k - _count(above)))


def largest_of_each(scores: Sequence[Tensor], ks: Sequence[int]) -> Tensor:
    """`largest` of several vectors, k of each, laid end to end; in a few launches where there is a kernel.

    >>> largest_of_each([torch.tensor([2.0, 3.0]), torch.tensor([1.0, 1.0, 0.0])], [1, 1])
    tensor([False,  True,  True, False, False])
    """
    if not in_kernel(scores):
        return torch.cat([largest(s, k) for s, k in zip(scores, ks, strict=True)])
    flat, owner = _in_runs([s.view(torch.int32) for s in scores])
    wanted = _on_device(tuple(ks), flat.device)
    least = _by_digits(flat, owner, wanted)[owner][:, None]
    rows = flat.view(-1, RUN)
    above, ties = rows > least, rows == least
    # The rank of a tie within its vector: that among all, less the ties before the vector's first run.
    room = wanted - torch.zeros_like(wanted).index_add_(0, owner, above.sum(1, dtype=torch.int32))
    of_row = ties.sum(1, dtype=torch.int32)
    before_row = of_row.cumsum(0, dtype=torch.int32) - of_row
    first = torch.full_like(wanted, flat.numel()).scatter_reduce_(0, owner.long(), before_row, "amin")
    rank = ties.cumsum(1, dtype=torch.int32) + (before_row - first[owner])[:, None]
    keep = (above | (ties & (rank <= room[owner][:, None]))).view(-1)
    return torch.cat([keep[i : i + len(s)] for i, s in zip(_starts(scores), scores, strict=True)])


# ---- the k-th largest


def _by_bits(bits: Tensor, k: Tensor) -> Tensor:
    """The largest T >= 0 with at least k entries >= T, bit by bit from the top: 31 or 63 counts. 0 if there is none."""
    least = torch.zeros((), dtype=bits.dtype, device=bits.device)
    for bit in range(torch.iinfo(bits.dtype).bits - 2, -1, -1):
        higher = least | (1 << bit)
        least = torch.where(_count(bits >= higher) >= k, higher, least)
    return least


def _by_digits(flat: Tensor, owner: Tensor, ks: Tensor) -> Tensor:
    """The same for every vector of `_in_runs`, in four passes of eight bits each."""
    least, left = torch.zeros_like(ks), ks.clamp_min(1)  # where k = 0, `largest` takes none of the largest
    for shift in (24, 16, 8, 0):
        counts = torch.zeros(len(ks), 512, dtype=torch.int32, device=flat.device)
        kernels().count_digits[(len(owner),)](flat, owner, least, counts, SHIFT=shift, RUN=RUN)
        counts = counts[:, :256]
        reached = counts.flip(1).cumsum(1, dtype=torch.int32).flip(1)  # how many have this digit or a higher one
        digit = ((reached >= left[:, None]).sum(1, keepdim=True) - 1).clamp_min(0)
        left = left - (reached - counts).gather(1, digit)[:, 0]
        least = least | (digit[:, 0].int() << shift)
    return least


@functools.cache
def kernels() -> Any:
    """The Triton kernel, compiled when first used; None where there is no Triton."""
    try:
        from . import selection_kernels
    except ImportError:
        return None
    return selection_kernels


def in_kernel(scores: Sequence[Tensor]) -> bool:
    """Whether the kernel serves: float32 on CUDA, and not while torch.compile traces."""
    known = all(s.is_cuda and s.dtype == torch.float32 for s in scores) and not torch.compiler.is_compiling()
    return known and type(scores[0]) is Tensor and kernels() is not None


# ---- several vectors in runs


def _in_runs(vectors: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """All end to end, each filled up to whole runs with -1, and whose run each is."""
    filler = vectors[0].new_full((RUN,), -1)
    flat = torch.cat([part for v in vectors for part in (v, filler[: -len(v) % RUN])])
    owner = tuple(j for j, v in enumerate(vectors) for _ in range(-(-len(v) // RUN)))
    return flat, _on_device(owner, flat.device)


def _starts(vectors: Sequence[Tensor]) -> list[int]:
    """Where each vector starts among `_in_runs`."""
    starts = [0]
    for v in vectors:
        starts.append(starts[-1] + -(-len(v) // RUN) * RUN)
    return starts[:-1]


@functools.cache
def _on_device(numbers: tuple[int, ...], device: torch.device) -> Tensor:
    """Copied once and kept for good, since a CUDA graph may read it: a step comes before one is captured."""
    return torch.tensor(numbers, dtype=torch.int32, device="cpu").to(device)


def _count(flags: Tensor) -> Tensor:
    """How many are true; each device has its faster way (on the CPU by a factor of seven)."""
    return torch.count_nonzero(flags) if flags.is_cpu else flags.sum()
