"""The Triton kernel of `selection.py`. Imported only where there is Triton and a CUDA device."""

# No `from __future__ import annotations`: Triton reads the annotations.
import triton
import triton.language as tl


@triton.jit
def count_digits(
    bits,  # int32 (programs * RUN): the entries, negative ones not counted
    owner,  # int32 (programs): to which vector a run of entries belongs
    prefixes,  # int32 (vectors): the digits found so far
    counts,  # int32 (vectors, 512): filled with zeros; how often each digit comes next
    SHIFT: tl.constexpr,
    RUN: tl.constexpr,
):
    """counts[j, d] += #{i of vector j : the higher bits of entry i are the prefix's, and its next eight are d}."""
    program = tl.program_id(0).to(tl.int64)
    j = tl.load(owner + program)
    entries = tl.load(bits + program * RUN + tl.arange(0, RUN))
    inside = entries >= 0
    if SHIFT < 24:
        inside = inside & ((entries >> (SHIFT + 8)) == (tl.load(prefixes + j) >> (SHIFT + 8)))
    found = tl.histogram(tl.where(inside, (entries >> SHIFT) & 255, 256), 512)  # 256: not counted
    digit = tl.arange(0, 512)
    tl.atomic_add(counts + j * 512 + digit, found, mask=(found > 0) & (digit < 256))
