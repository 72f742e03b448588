"""The k largest of many numbers: exactly k, ties by order, and without a host read also where k lives on the device."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from ..numerics import wide

RUN = 4096
"""How many entries a program of the kernels takes."""
DIGITS = ((24, 7), (18, 6), (12, 6), (6, 6), (0, 6))
"""The digits of 31 bits, from the top: (shift, bits). With more bits each there are fewer passes over the scores, but
before 3.7 Triton takes a time for a histogram that grows with its bins."""
FULL = 3
"""So many passes read all scores. Later ones read the runs that have the digits found so far, which are few: the last
of these digits must have six bits."""
TABLE = 4096
"""How many counts the kernel of a digit takes at once."""
BLOCK = 1024
"""How many runs."""
BITS = {torch.float32: torch.int32, torch.float64: torch.int64}


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
    bits = scores.view(BITS[scores.dtype])  # the order of floats that are not negative is that of their bits
    if may_look(scores, k):
        return torch.from_numpy(chosen_here(bits.numpy(), [slice(None)], [0], _here(k)))
    if isinstance(k, int) and not 0 < k < scores.numel():
        return bits >= 0 if k > 0 else torch.zeros_like(scores, dtype=torch.bool)
    if in_kernel([scores]):
        return _in_kernel([scores], [0], k)
    least = torch.topk(bits, k, sorted=False).values.min() if isinstance(k, int) else _by_bits(bits, k)
    above, ties = bits > least, bits == least
    return above | (ties & (ties.cumsum(0, dtype=torch.int32) <= k - _count(above)))


def largest_of_each(scores: Sequence[Tensor], ks: Sequence[int]) -> Tensor:
    """`largest` of several vectors, k of each, laid end to end; in a few launches where there is a kernel.

    >>> largest_of_each([torch.tensor([2.0, 3.0]), torch.tensor([1.0, 1.0, 0.0])], [1, 1])
    tensor([False,  True,  True, False, False])
    """
    if in_kernel(scores):
        return _in_kernel(scores, ks, sum(ks))
    return torch.cat([largest(s, k) for s, k in zip(scores, ks, strict=True)])


def largest_with_floors(scores: Sequence[Tensor], floors: Sequence[int], k: int | Tensor) -> Tensor:
    """The largest `floors` of each vector, and the largest of all others, k in all; laid end to end.

    Args:
        scores: as in `largest`.
        floors: how many of each vector are taken in any case, k at most together.
        k: as in `largest`.

    >>> largest_with_floors([torch.tensor([2.0, 3.0]), torch.tensor([1.0, 1.0, 0.0])], [0, 1], 2)
    tensor([False,  True,  True, False, False])
    """
    if in_kernel(scores):
        return _in_kernel(scores, floors, k)
    together = torch.cat(list(scores)) if len(scores) > 1 else scores[0]
    if not any(floors):
        return largest(together, k)
    if may_look(together, k):
        ends = [*accumulate(map(len, scores), initial=0)]
        places = [slice(*ends[j : j + 2]) for j in range(len(scores))]
        return torch.from_numpy(chosen_here(together.view(BITS[together.dtype]).numpy(), places, floors, _here(k)))
    own = largest_of_each(scores, floors)
    return own | largest(together.masked_fill(own, -1.0), k - sum(floors))


def scaled(x: Tensor, step: float | Tensor, out: Tensor | None = None) -> Tensor:
    """x / sqrt(step), whose size is an entry's score: never a square of x alone.

    out: where it is written, as large as x and of its dtype; without one it is new.
    """
    root = torch.pow(wide(step), 0.5, out=out) if isinstance(step, Tensor) else step**0.5
    # Written over the root where it is as large: fresh memory costs more than the division.
    own = isinstance(root, Tensor) and (root.shape, root.dtype, root.device) == (x.shape, x.dtype, x.device)
    return torch.div(x, root, out=root) if own else x / root


def may_look(scores: Tensor, k: int | Tensor) -> bool:
    """Whether all numbers are the host's own, and not while torch.compile traces."""
    here = scores.is_cpu and (isinstance(k, int) or k.is_cpu) and not in_kernel([scores])
    return here and type(scores) is Tensor and not torch.compiler.is_compiling()


def _here(k: int | Tensor) -> int:
    return int(k.numpy()) if isinstance(k, Tensor) else k


def chosen_here(
    bits: Any,
    places: Sequence[slice],
    floors: Sequence[int],
    k: int,
    taken: Any = None,
    ranks: Sequence[Callable[[Any], Any] | None] = (),
) -> Any:
    """`largest_with_floors` on the host, as booleans beside the bits. numpy partitions in vectors, in a tenth of the
    time of torch.topk.

    The floors are looked at last. A vector that has less than its floor of the k largest of all gets its floor and no
    more: where less is left for the others, their least is larger. So it is set aside, and the others share the rest.

    Args:
        bits: of the scores, a numpy vector of integers.
        places: where each vector lies in it, in the order of ties.
        floors, k: as there.
        taken: booleans to be written to.
        ranks: of each vector the order of ties, where it is not that of memory: a function of places in the vector.
    """
    taken = bits >= 0 if taken is None else taken
    others = list(range(len(places)))
    while others:
        counts = _take(bits, places, ranks, others, k, taken)
        short = [j for j, count in zip(others, counts, strict=True) if count < floors[j]]
        if not short:
            break
        for j in short:
            _take(bits, places, ranks, [j], floors[j], taken)
            k -= floors[j]
        others = [j for j in others if j not in short]
    return taken


def _take(
    bits: Any, places: Sequence[slice], ranks: Sequence[Any], which: Sequence[int], k: int, taken: Any
) -> list[int]:
    """The k largest of these vectors together; returns how many of each. What is taken of others stays."""
    if k <= 0:
        for j in which:
            taken[places[j]] = False
        return [0] * len(which)
    everything = len(which) == len(places)
    of_these = [slice(None)] if everything else [places[j] for j in which]
    least = max(_kth(bits, of_these, k), 0)
    for place in of_these:
        taken[place] = bits[place] >= least
    counts = [int(taken[places[j]].sum()) for j in which]
    more = sum(counts) - k
    for i, j in reversed([*enumerate(which)]):  # of equal ones the last are left out
        if more <= 0:
            break
        ties = (bits[places[j]] == least).nonzero()[0]
        if ranks and (rank := ranks[j]) is not None:
            ties = ties[rank(ties).argsort()]
        taken[places[j]][ties[-more:]] = False
        counts[i] -= min(more, len(ties))
        more -= len(ties)
    return counts


def _kth(bits: Any, places: Sequence[slice], k: int) -> int:
    """The k-th largest of what lies there; 0 where there are not so many."""
    parted = bits.copy()  # in numpy's memory, whose pages are larger than torch's
    if places != [slice(None)]:
        n = 0
        for place in places:
            n, start = n + len(bits[place]), n
            parted[start:n] = bits[place]
        parted = parted[:n]
    if k >= len(parted):
        return 0
    parted.partition(len(parted) - k)
    return int(parted[len(parted) - k])


def _by_bits(bits: Tensor, k: Tensor) -> Tensor:
    """The largest T >= 0 with at least k entries >= T, bit by bit from the top: 31 or 63 counts. 0 if there is none."""
    least = torch.zeros((), dtype=bits.dtype, device=bits.device)
    for bit in range(torch.iinfo(bits.dtype).bits - 2, -1, -1):
        higher = least | (1 << bit)
        least = torch.where(_count(bits >= higher) >= k, higher, least)
    return least


def _count(flags: Tensor) -> Tensor:
    """How many are true; each device has its faster way (on the CPU by a factor of seven)."""
    return torch.count_nonzero(flags) if flags.is_cpu else flags.sum()


# ---- in kernels


class Search:
    """`largest_with_floors` of one or several groups of vectors, in a few launches and without a host read.

    Entry i of vector j is taken where its score is more than the vector's least, or is the least and i < its end:
    `least`, int32 and the bits of a score, and `ends` are what `find` finds. All digits of the common threshold and of
    those of the floors are found together, in one pass over the scores for each digit.

    Who counts what the vectors have now in `nonzeros` is told in `exceeded`, group by group, whether that is more than
    k, where a vector with less than its floor counts as that.

    Args:
        sizes: of the vectors, group by group.
        floors: how many of each are taken in any case.
        device: where.
    """

    def __init__(self, sizes: Sequence[Sequence[int]], floors: Sequence[Sequence[int]], device: torch.device) -> None:
        runs = [-(-n // RUN) for of_group in sizes for n in of_group]
        first_runs = tuple(accumulate(runs, initial=0))
        self._groups, self._vectors, self._runs = len(sizes), len(runs), first_runs[-1]
        self.starts = tuple(RUN * first for first in first_runs[:-1])
        self.length = RUN * self._runs
        self._owner = on_device(tuple(j for j, count in enumerate(runs) for _ in range(count)), device)
        self._floors = on_device(tuple(f for of_group in floors for f in of_group), device)
        self._first_runs = on_device(first_runs, device)
        self._firsts = on_device(tuple(accumulate(map(len, sizes), initial=0)), device)
        made = functools.partial(torch.zeros, dtype=torch.int32, device=device)
        # Digit by digit one row more: what has no digits yet is 0, and stays so.
        self._least, self._above = made(len(DIGITS) + 1, self._vectors), made(len(DIGITS) + 1, self._vectors)
        self._common = made(len(DIGITS) + 1, self._groups)
        self._counts = made(sum(self._vectors << bits for _, bits in DIGITS))
        self._ties, self.ends, self.nonzeros = made(self._runs), made(self._vectors), made(self._vectors)
        self.exceeded = torch.zeros(self._groups, dtype=torch.bool, device=device)
        self._seen = torch.zeros(self._runs, dtype=torch.int64, device=device)
        self.least = self._least[-1]

    def find(self, scores: Tensor, ks: Tensor) -> None:
        """The least and the end of every vector.

        Args:
            scores: float32, from `starts` on those of each vector, and -1 up to the next.
            ks: int64, how many of each group.
        """
        bits = scores.view(torch.int32)
        self._counts.zero_()
        each = torch.split(self._counts, [self._vectors << width for _, width in DIGITS])
        for row, ((shift, width), counts) in enumerate(zip(DIGITS, each, strict=True)):
            self.count(bits, row, counts)
            kernels().next_digit[(self._groups,)](
                counts,
                self._firsts,
                self._floors,
                ks,
                self._least[row:],
                self._above[row:],
                self._common[row:],
                self.ends,
                self.nonzeros,
                self.exceeded,
                self._vectors,
                self._groups,
                SHIFT=shift,
                BITS=width,
                ROWS=max(TABLE >> width, 1),
                num_warps=8,
                enable_fp_fusion=False,
            )
        tied = (self.least, self.ends, self._ties)
        kernels().count_ties[(self._runs,)](bits, self._owner, *tied, RUN=RUN, enable_fp_fusion=False)
        sizes = {"RUN": RUN, "BLOCK": BLOCK, "num_warps": 8}
        kernels().find_ends[(self._vectors,)](bits, self._first_runs, *tied, **sizes, enable_fp_fusion=False)

    def count(self, bits: Tensor, row: int, counts: Tensor) -> None:
        """The launch that reads the scores, for one digit."""
        shift, width = DIGITS[row]
        work = (bits, self._owner, self._least[row], counts, self._seen)
        digit = {"FEW": row >= FULL, "SHIFT": shift, "BITS": width, "RUN": RUN}
        kernels().count_digits[(self._runs,)](*work, **digit, enable_fp_fusion=False)

    def taken(self, scores: Tensor) -> Tensor:
        """What `find` has found, as booleans as long as the scores."""
        bits = scores.view(torch.int32).view(-1, RUN)
        least, ends, first = (
            of_vector[self._owner][:, None] for of_vector in (self.least, self.ends, self._first_runs[:-1] * RUN)
        )
        place = torch.arange(self.length, dtype=torch.int32, device=scores.device).view(-1, RUN) - first
        return ((bits > least) | ((bits == least) & (place < ends))).view(-1)


def _in_kernel(scores: Sequence[Tensor], floors: Sequence[int], k: int | Tensor) -> Tensor:
    """`largest_with_floors` by a search of its own."""
    sizes, device = [len(s) for s in scores], scores[0].device
    search = Search([sizes], [floors], device)
    filler = scores[0].new_full((RUN,), -1.0)
    padded = torch.cat([part for s in scores for part in (s, filler[: -len(s) % RUN])])
    ks = on_device((k,), device).long() if isinstance(k, int) else k.to(device).long().view(1)
    search.find(padded, ks)
    taken = search.taken(padded)
    return torch.cat([taken[a : a + n] for a, n in zip(search.starts, sizes, strict=True)])


@functools.cache
def kernels() -> Any:
    """The Triton kernels, compiled when first used; None where there is no Triton."""
    try:
        from . import selection_kernels
    except ImportError:
        return None
    return selection_kernels


def in_kernel(scores: Sequence[Tensor]) -> bool:
    """Whether the kernels serve: float32 on CUDA, and not while torch.compile traces."""
    known = all(s.is_cuda and s.dtype == torch.float32 for s in scores) and not torch.compiler.is_compiling()
    return known and type(scores[0]) is Tensor and kernels() is not None


@functools.cache
def on_device(numbers: tuple[int, ...], device: torch.device) -> Tensor:
    """Copied once and kept for good, since a CUDA graph may read it: a step comes before one is captured."""
    return torch.tensor(numbers, dtype=torch.int32, device="cpu").to(device)
