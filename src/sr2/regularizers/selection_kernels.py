"""The Triton kernels of `selection.Search`. Imported only where there is Triton and a CUDA device.

Scores that are not negative are ordered as their bits are, as integers: "bits" are scores read so, and digits are a few
bits of them. Every vector has whole runs of RUN entries, filled up with negative ones.
"""

# No `from __future__ import annotations`: Triton reads the annotations.
import triton
import triton.language as tl


@triton.jit
def count_digits(
    bits,  # int32 (runs * RUN)
    owner,  # int32 (runs): whose run it is
    least,  # int32 (vectors): the digits found so far
    counts,  # int32 (vectors, 2^BITS): filled with zeros
    seen,  # int64 (runs): as bits, which digits a run had, where they have six bits
    FEW: tl.constexpr,  # whether to read only the runs that had the digit found last
    SHIFT: tl.constexpr,
    BITS: tl.constexpr,
    RUN: tl.constexpr,
):
    """counts[j, d] += #{i of vector j : the higher digits of entry i are those of least[j], and its next one is d}."""
    run = tl.program_id(0).to(tl.int64)
    j = tl.load(owner + run)
    higher = tl.load(least + j) >> (SHIFT + BITS)
    wanted = 1
    if FEW:
        wanted = (tl.load(seen + run) >> (higher & 63)) & 1
    if wanted == 1:
        entries = tl.load(bits + run * RUN + tl.arange(0, RUN))
        inside = (entries >> (SHIFT + BITS)) == higher  # never where negative
        digit = tl.arange(0, 1 << BITS)
        found = tl.histogram((entries >> SHIFT) & ((1 << BITS) - 1), 1 << BITS, mask=inside)
        tl.atomic_add(counts + (j << BITS) + digit, found, mask=found > 0)
        if BITS == 6:
            tl.store(seen + run, tl.sum((found > 0).to(tl.int64) << digit, axis=0))


@triton.jit
def _rows(counts, floors, least, above, j, last, BITS: tl.constexpr):
    """Of vectors j: the counts, how many entries have each digit or more, the floors, and the digits so far."""
    inside = j < last
    digit = tl.arange(0, 1 << BITS)
    found = tl.load(counts + (j << BITS)[:, None] + digit[None, :], mask=inside[:, None], other=0)
    before = tl.load(above + j, mask=inside, other=0)
    reached = before[:, None] + tl.cumsum(found, axis=1, reverse=True)
    floor = tl.load(floors + j, mask=inside, other=0)
    return found, reached, floor, tl.load(least + j, mask=inside, other=0)


@triton.jit
def next_digit(
    counts,  # int32 (vectors, 2^BITS): of `count_digits`
    firsts,  # int32 (groups + 1): the first vector of each group
    floors,  # int32 (vectors)
    ks,  # int64 (groups)
    least,  # int32 (2, vectors): the digits so far, and with this one
    above,  # int32 (2, vectors): how many entries are larger in these digits
    common,  # int32 (2, groups): the digits of the least score that a vector above its floor keeps
    ends,  # int32 (vectors): with the last digit, how many ties are taken: all, none, or -n of them
    nonzeros,  # int32 (vectors): how many there were before
    exceeded,  # bool (groups): with the last digit, whether sum_j max(f_j, nonzeros_j) > k
    vectors,
    groups,
    SHIFT: tl.constexpr,
    BITS: tl.constexpr,
    ROWS: tl.constexpr,
):
    """One digit more of T, the largest with sum_j max(f_j, #{i of j : score >= T}) >= k, and of each vector's least.

    A vector keeps what is >= T, or where that is less than its floor f_j, its f_j largest. So the least that it keeps
    is the smaller of T and its f_j-th largest; one that has come below T in a higher digit counts as f_j.
    """
    group = tl.program_id(0)
    first = tl.load(firsts + group)
    last = tl.load(firsts + group + 1)
    k = tl.minimum(tl.load(ks + group), 2147483647).to(tl.int32)
    shared = tl.load(common + group)
    digit = tl.arange(0, 1 << BITS)
    used = tl.zeros((1 << BITS,), dtype=tl.int32)  # of the budget, if T's digit were this one
    used_above = tl.zeros((1 << BITS,), dtype=tl.int32)  # by what is larger
    used_before = tl.zeros((ROWS,), dtype=tl.int32)  # by what there was
    for row in range(first, last, ROWS):
        j = row + tl.arange(0, ROWS)
        found, reached, floor, own = _rows(counts, floors, least, above, j, last, BITS)
        free = (own >= shared)[:, None]
        least_used = floor[:, None]
        used += tl.sum(tl.where(free, tl.maximum(reached, least_used), least_used), axis=0)
        used_above += tl.sum(tl.where(free, tl.maximum(reached - found, least_used), least_used), axis=0)
        used_before += tl.maximum(tl.load(nonzeros + j, mask=j < last, other=0), floor)
    chosen = tl.maximum(tl.sum((used >= k).to(tl.int32), axis=0) - 1, 0)
    room = k - tl.sum(tl.where(digit == chosen, used_above, 0), axis=0)  # for ties with T
    tl.store(common + groups + group, shared | (chosen << SHIFT))
    if SHIFT == 0:
        tl.store(exceeded + group, (tl.sum(used_before, axis=0) > k).to(tl.int8))
    ties_before = 0
    for row in range(first, last, ROWS):
        j = row + tl.arange(0, ROWS)
        found, reached, floor, own = _rows(counts, floors, least, above, j, last, BITS)
        free = own >= shared
        of_floor = tl.maximum(tl.sum((reached >= floor[:, None]).to(tl.int32), axis=1) - 1, 0)
        mine = tl.where(free, tl.minimum(of_floor, chosen), of_floor)
        free = free & (of_floor >= chosen)
        here = digit[None, :] == mine[:, None]
        larger = tl.sum(tl.where(here, reached - found, 0), axis=1)
        tl.store(least + vectors + j, own | (mine << SHIFT), mask=j < last)
        tl.store(above + vectors + j, larger, mask=j < last)
        if SHIFT == 0:
            ties = tl.sum(tl.where(here, found, 0), axis=1)
            by_floor = tl.minimum(tl.maximum(floor - larger, 0), ties)
            others = tl.where(free, ties - by_floor, 0)
            before = ties_before + tl.cumsum(others, axis=0) - others
            taken = by_floor + tl.minimum(tl.maximum(room - before, 0), others)
            ties_before += tl.sum(others, axis=0)
            tl.store(ends + j, tl.where(taken == ties, 2147483647, -taken), mask=j < last)


@triton.jit
def count_ties(
    bits,
    owner,
    least,  # int32 (vectors)
    ends,  # int32 (vectors): nothing is done unless negative
    ties,  # int32 (runs)
    RUN: tl.constexpr,
):
    """ties[r] = #{i of run r : it is the least that its vector keeps}."""
    run = tl.program_id(0).to(tl.int64)
    j = tl.load(owner + run)
    if tl.load(ends + j) < 0:
        entries = tl.load(bits + run * RUN + tl.arange(0, RUN))
        tl.store(ties + run, tl.sum((entries == tl.load(least + j)).to(tl.int32), axis=0))


@triton.jit
def find_ends(
    bits,
    first_runs,  # int32 (vectors + 1)
    least,
    ends,
    ties,
    RUN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Where ends[j] = -n: it becomes the place within the vector that follows its n-th tie."""
    j = tl.program_id(0)
    wanted = -tl.load(ends + j)
    if wanted > 0:
        first = tl.load(first_runs + j)
        last = tl.load(first_runs + j + 1)
        runs_before = 0
        ties_before = 0
        all_before = 0
        for start in range(first, last, BLOCK):
            run = start + tl.arange(0, BLOCK)
            found = tl.load(ties + run, mask=run < last, other=0)
            passed = (all_before + tl.cumsum(found, axis=0) < wanted) & (run < last)
            runs_before += tl.sum(passed.to(tl.int32), axis=0)
            ties_before += tl.sum(tl.where(passed, found, 0), axis=0)
            all_before += tl.sum(found, axis=0)
        place = tl.arange(0, RUN)
        entries = tl.load(bits + (first + runs_before).to(tl.int64) * RUN + place)
        tie = (entries == tl.load(least + j)).to(tl.int32)
        rank = ties_before + tl.cumsum(tie, axis=0)
        end = tl.sum(tl.where((tie > 0) & (rank == wanted), place + 1, 0), axis=0)
        tl.debug_barrier()  # every thread has read ends[j]
        tl.store(ends + j, runs_before * RUN + end)
