"""The two Triton kernels of `fused.py`. Imported only where there is Triton and a CUDA device."""

# No `from __future__ import annotations`: Triton reads the annotations.
import triton
import triton.language as tl


@triton.jit
def move(
    pointers,  # int64 (3, T): addresses of x, v and the kept x
    weights,  # float64 (T, 3): a, b, c of R = a |x|_1 + b |x|_0 + c |x|^2 / 2
    sizes,  # int64 (T)
    chunk_tensor,  # int32: whose chunk a program takes
    chunk_start,  # int64: where it starts
    step_pointer,  # float64: 1 / sigma
    partial,  # float64 (3, chunks): v's, R(x) - R(x + s), |s|^2
    tensors,
    chunks,
    CHUNK: tl.constexpr,
):
    """kept <- x,  x <- prox_{step R}(x - step v)."""
    program = tl.program_id(0)
    i = tl.load(chunk_tensor + program)
    x_pointer = tl.load(pointers + i).to(tl.pointer_type(tl.float32))
    v_pointer = tl.load(pointers + tensors + i).to(tl.pointer_type(tl.float32))
    kept_pointer = tl.load(pointers + 2 * tensors + i).to(tl.pointer_type(tl.float32))
    x_pointer = tl.multiple_of(x_pointer, 16)
    v_pointer = tl.multiple_of(v_pointer, 16)
    kept_pointer = tl.multiple_of(kept_pointer, 16)
    a = tl.load(weights + 3 * i)
    b = tl.load(weights + 3 * i + 1)
    c = tl.load(weights + 3 * i + 2)
    step = tl.load(step_pointer)
    start = tl.multiple_of(tl.load(chunk_start + program), CHUNK)
    left = tl.load(sizes + i) - start
    entry = tl.arange(0, CHUNK)
    inside = entry < left
    x = tl.load(x_pointer + start + entry, mask=inside, other=0.0)
    v = tl.load(v_pointer + start + entry, mask=inside, other=0.0)
    tl.store(kept_pointer + start + entry, x, mask=inside)

    # z = argmin a|z| + b [z != 0] + c z^2 / 2 + (z - u)^2 / (2 step): shrink, then keep or drop.
    shrink = (a * step).to(tl.float32)
    scale = (1.0 + c * step).to(tl.float32)
    drop = tl.sqrt(2.0 * b * step / (1.0 + c * step)).to(tl.float32)
    u = x - step.to(tl.float32) * v
    w = (tl.abs(u) - shrink) / scale
    w = tl.where(w > drop, w, 0.0)
    z = tl.where(u < 0.0, -w, w)
    tl.store(x_pointer + start + entry, z, mask=inside)

    s = (z - x).to(tl.float64)
    before = a * tl.abs(x).to(tl.float64) + tl.where(x != 0.0, b, 0.0) + 0.5 * c * x.to(tl.float64) * x.to(tl.float64)
    after = a * tl.abs(z).to(tl.float64) + tl.where(z != 0.0, b, 0.0) + 0.5 * c * z.to(tl.float64) * z.to(tl.float64)
    tl.store(partial + program, tl.sum(v.to(tl.float64) * s, axis=0))
    tl.store(partial + chunks + program, tl.sum(before - after, axis=0))
    tl.store(partial + 2 * chunks + program, tl.sum(s * s, axis=0))


@triton.jit
def put_back_unless(pointers, sizes, chunk_tensor, chunk_start, accepted, tensors, CHUNK: tl.constexpr):
    """x <- kept where the step is refused; an accepted step touches no memory."""
    if tl.load(accepted) == 0:
        program = tl.program_id(0)
        i = tl.load(chunk_tensor + program)
        x_pointer = tl.multiple_of(tl.load(pointers + i).to(tl.pointer_type(tl.float32)), 16)
        kept_pointer = tl.multiple_of(tl.load(pointers + 2 * tensors + i).to(tl.pointer_type(tl.float32)), 16)
        start = tl.multiple_of(tl.load(chunk_start + program), CHUNK)
        entry = tl.arange(0, CHUNK)
        inside = entry < tl.load(sizes + i) - start
        kept = tl.load(kept_pointer + start + entry, mask=inside, other=0.0)
        tl.store(x_pointer + start + entry, kept, mask=inside)
