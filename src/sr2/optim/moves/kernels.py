"""The Triton kernels of `fused.py`. Imported only where there is Triton and a CUDA device."""

# No `from __future__ import annotations`: Triton reads the annotations.
import triton
import triton.language as tl

from .decide_kernel import decide as decide


@triton.jit
def _row(pointers, row, i, tensors, start):
    """Where a program's chunk starts in tensor i of this row: a multiple of 16 bytes, as every chunk."""
    address = tl.load(pointers + row * tensors + i).to(tl.pointer_type(tl.float32))
    return tl.multiple_of(address, 16) + start


@triton.jit
def _inside(entry, left, REST: tl.constexpr):
    """Which entries there are: of a whole block all, which the compiler sees, and takes 16 bytes at a time."""
    return entry < left if REST else tl.full(entry.shape, True, tl.int1)


@triton.jit
def _by_thread(values):
    """The sum over each four neighbours, which one thread has: a fourth of the registers, and of the work later."""
    return tl.sum(tl.reshape(values, (values.shape[0] // 4, 4)), axis=1)


@triton.jit
def move(
    pointers,  # int64 (3 to 7, T): addresses of x and kept x, with MOMENTUM of m and kept m, with METRIC of q's, of g
    weights,  # float64 (T, 3): a, b, c of R = a |x|_1 + b |x|_0 + c |x|^2 / 2
    sizes,  # int64 (T)
    chunk_tensor,  # int32: whose chunk a program takes
    chunk_start,  # int64: where it starts
    step_pointer,  # float64: 1 / sigma
    partial,  # float64 (6, chunks): v's, R(x) - R(x + s), |s|^2, how many v are not finite, (g - v)'s, s'Bs
    moment_weights,  # float64 (0 to 2, T): 1 - beta^t, by which m is too small, and q
    decays,  # float64 (T): w of a decay w x'Dx / 2
    m_newest,  # float32: 1 - beta
    q_newest,  # float32: 1 - beta of the metric
    eps,  # float32: of the metric
    slots,  # int32 (T): the number of a tensor among those under budgets, -1 for others
    starts,  # int64, by slot as the next: where its scores start
    nonzeros,  # int32, filled with zeros: how many there are in x
    least,  # int32: the least score that is chosen, as its bits,
    ends,  # int32: and only of entries before this one
    scores,  # float32: by which a budget chooses, and -1 between the tensors
    tensors,
    chunks,
    MOMENTUM: tl.constexpr,
    METRIC: tl.constexpr,
    DECAY: tl.constexpr,
    PASS: tl.constexpr,  # MOVE, or for budgets SCORE and then MOVE_CHOSEN
    KEEPS: tl.constexpr,  # whether x is kept
    RETURNS: tl.constexpr,  # by which D is larger under a budget where x is zero
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """kept <- x,  x <- prox_{step R}(x - step v),  v = g, or m / (1 - beta^t) with m <- m + (1 - beta) (g - m).

    With METRIC the step is step / D, D = sqrt(q / (1 - beta^t)) + eps as in Adam, q <- q + (1 - beta) (g^2 - q). What m
    and q were is kept too. With DECAY v has w D x more, and (g - v)'s less w s'Ds / 2 is what the batch's noise and the
    decay change of F.

    Under a budget z is 0 where it is not chosen: a first pass writes the scores |z| sqrt(D (1 + c step / D)) and counts
    x's nonzeros, and does nothing else.
    """
    program = tl.program_id(0)
    i = tl.load(chunk_tensor + program)
    start = tl.multiple_of(tl.load(chunk_start + program), CHUNK)
    Q: tl.constexpr = 4 if MOMENTUM else 2
    G: tl.constexpr = Q + 2 if METRIC else Q
    x_pointer = _row(pointers, 0, i, tensors, start)
    kept_pointer = _row(pointers, 1, i, tensors, start)
    g_pointer = _row(pointers, G, i, tensors, start)
    if MOMENTUM:
        m_pointer = _row(pointers, 2, i, tensors, start)
        kept_m_pointer = _row(pointers, 3, i, tensors, start)
        m_scale = (1.0 / tl.load(moment_weights + i)).to(tl.float32)
    if METRIC:
        q_pointer = _row(pointers, Q, i, tensors, start)
        kept_q_pointer = _row(pointers, Q + 1, i, tensors, start)
        q_scale = (1.0 / tl.load(moment_weights + (Q // 2 - 1) * tensors + i)).to(tl.float32)
    a = tl.load(weights + 3 * i)
    b = tl.load(weights + 3 * i + 1)
    c = tl.load(weights + 3 * i + 2)
    if DECAY:
        decay = tl.load(decays + i)
    step = tl.load(step_pointer)
    left = tl.minimum(tl.load(sizes + i) - start, CHUNK).to(tl.int32)
    if PASS != 0:
        slot = tl.load(slots + i)
        if PASS == 1:
            left = tl.where(slot >= 0, left, 0)
            score_pointer = scores + tl.multiple_of(tl.load(starts + slot, mask=slot >= 0, other=0), 16) + start
        else:
            least_bits = tl.load(least + slot, mask=slot >= 0, other=-2147483648)  # under no budget all are chosen
            end = tl.load(ends + slot, mask=slot >= 0, other=2147483647) - start

    # z = argmin a|z| + b [z != 0] + c z^2 / 2 + (z - u)^2 / (2 step): shrink, then keep or drop.
    all_shrink = (a * step).to(tl.float32)
    all_scale = (1.0 + c * step).to(tl.float32)
    all_drop = tl.sqrt(2.0 * b * step / (1.0 + c * step)).to(tl.float32)
    short = step.to(tl.float32)
    vs = tl.zeros((BLOCK // 4,), dtype=tl.float64)
    gs = tl.zeros((BLOCK // 4,), dtype=tl.float64)
    ss = tl.zeros((BLOCK // 4,), dtype=tl.float64)
    sDs = tl.zeros((BLOCK // 4,), dtype=tl.float64)
    size = tl.zeros((BLOCK // 4,), dtype=tl.float64)  # sum of |x| - |z|
    square = tl.zeros((BLOCK // 4,), dtype=tl.float64)  # sum of x^2 - z^2
    count = tl.zeros((BLOCK // 4,), dtype=tl.int32)  # of nonzeros in x, less those in z
    broken = tl.zeros((BLOCK // 4,), dtype=tl.int32)
    whole = left // BLOCK * BLOCK
    for REST in tl.static_range(2):  # the whole blocks, then what is left
        for first in range(whole if REST else 0, left if REST else whole, BLOCK):
            entry = first + tl.arange(0, BLOCK)
            inside = _inside(entry, left, REST)
            x = tl.load(x_pointer + entry, mask=inside, other=0.0)
            g = tl.load(g_pointer + entry, mask=inside, other=0.0)
            v = g
            length, shrink, scale, drop = short, all_shrink, all_scale, all_drop
            if MOMENTUM:
                m = tl.load(m_pointer + entry, mask=inside, other=0.0)
                if PASS != 1:
                    tl.store(kept_m_pointer + entry, m, mask=inside)
                m = tl.where(m_newest < 0.5, m + m_newest * (g - m), g - (g - m) * (1.0 - m_newest))  # as torch.lerp
                if PASS != 1:
                    tl.store(m_pointer + entry, m, mask=inside)
                v = m * m_scale
            if METRIC:
                q = tl.load(q_pointer + entry, mask=inside, other=0.0)
                if PASS != 1:
                    tl.store(kept_q_pointer + entry, q, mask=inside)
                q = tl.where(q_newest < 0.5, q + q_newest * (g * g - q), g * g - (g * g - q) * (1.0 - q_newest))
                if PASS != 1:
                    tl.store(q_pointer + entry, q, mask=inside)
                D = tl.sqrt_rn(q * q_scale) + eps
                if PASS != 0:
                    D = tl.where((x == 0.0) & (slot >= 0), RETURNS * D, D)
                length = tl.div_rn(short, tl.where(inside, D, 1.0))
                shrink = a.to(tl.float32) * length
                scale = 1.0 + c.to(tl.float32) * length
            if DECAY:
                v += (decay.to(tl.float32) * D if METRIC else decay.to(tl.float32)) * x
            u = x - length * v
            w = tl.abs(u) - shrink
            if c != 0.0:
                w = tl.div_rn(w, scale)  # `/` would round to the nearest but one
            if METRIC:
                drop = tl.zeros_like(w)
                if b != 0.0:
                    drop = tl.sqrt_rn(tl.div_rn(2.0 * b.to(tl.float32) * length, scale))
            w = tl.where(w > drop, w, 0.0)
            if PASS != 0:
                score = w
                if METRIC:
                    score = w * tl.sqrt_rn(tl.div_rn(scale, length))
            if PASS == 1:
                tl.store(score_pointer + entry, tl.where(inside, score, -1.0))  # there is room up to a whole run
                count += _by_thread((x != 0.0).to(tl.int32))
            else:
                if PASS == 2:  # to compute the score once more takes less time than to read it, and gives the same bits
                    bits = score.to(tl.int32, bitcast=True)
                    w = tl.where((bits > least_bits) | ((bits == least_bits) & (entry < end)), w, 0.0)
                z = tl.where(u < 0.0, -w, w)
                if KEEPS:
                    tl.store(kept_pointer + entry, x, mask=inside)
                tl.store(x_pointer + entry, z, mask=inside)
                old, new = x.to(tl.float64), z.to(tl.float64)
                s = new - old
                vs += _by_thread(v.to(tl.float64) * s)
                ss += _by_thread(s * s)
                if METRIC:
                    sDs += _by_thread(s * s * D.to(tl.float64))
                if MOMENTUM or DECAY:
                    gs += _by_thread(g.to(tl.float64) * s)
                size += _by_thread(tl.abs(old) - tl.abs(new))
                square -= _by_thread(s * (old + new))
                count += _by_thread((x != 0.0).to(tl.int32) - (z != 0.0).to(tl.int32))
                broken += _by_thread((v - v != 0.0).to(tl.int32))
    if PASS == 1:
        tl.atomic_add(nonzeros + slot, tl.sum(count, axis=0), mask=slot >= 0)
    else:
        promised = tl.sum(vs, axis=0)
        squared = tl.sum(ss, axis=0)
        scaled = tl.sum(sDs, axis=0) if METRIC else squared
        noise = tl.sum(gs, axis=0) - promised if MOMENTUM or DECAY else promised - promised
        if DECAY:
            noise -= 0.5 * decay * scaled
        change = a * tl.sum(size, axis=0) + b * tl.sum(count, axis=0).to(tl.float64) + 0.5 * c * tl.sum(square, axis=0)
        tl.store(partial + program, promised)
        tl.store(partial + chunks + program, change)
        tl.store(partial + 2 * chunks + program, squared)
        tl.store(partial + 3 * chunks + program, tl.sum(broken, axis=0).to(tl.float64))
        tl.store(partial + 4 * chunks + program, noise)
        tl.store(partial + 5 * chunks + program, scaled / step)


@triton.jit
def copy_if(
    pointers,  # int64: addresses of pairs of rows, target and source
    sizes,
    chunk_tensor,
    chunk_start,
    first_flag,  # of the first pair,
    other_flag,  # and of the others
    tensors,
    WANTED: tl.constexpr,  # 0 or 1
    FIRST: tl.constexpr,  # the numbers of the pairs
    END: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """target <- source where the flag is as wanted; else no memory is touched."""
    program = tl.program_id(0)
    for pair in tl.static_range(FIRST, END):
        if tl.load(other_flag if pair else first_flag).to(tl.int32) == WANTED:
            i = tl.load(chunk_tensor + program)
            start = tl.multiple_of(tl.load(chunk_start + program), CHUNK)
            target = _row(pointers, 2 * pair, i, tensors, start)
            source = _row(pointers, 2 * pair + 1, i, tensors, start)
            left = tl.minimum(tl.load(sizes + i) - start, CHUNK).to(tl.int32)
            whole = left // BLOCK * BLOCK
            for REST in tl.static_range(2):
                for first in range(whole if REST else 0, left if REST else whole, BLOCK):
                    entry = first + tl.arange(0, BLOCK)
                    inside = _inside(entry, left, REST)
                    tl.store(target + entry, tl.load(source + entry, mask=inside, other=0.0), mask=inside)


@triton.jit
def toward(
    pointers,  # int64 (2, T): addresses of x and of what goes towards it
    sizes,
    chunk_tensor,
    chunk_start,
    weight_pointer,  # float64
    tensors,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """y <- y + weight (x - y), as torch.lerp."""
    program = tl.program_id(0)
    i = tl.load(chunk_tensor + program)
    start = tl.multiple_of(tl.load(chunk_start + program), CHUNK)
    x_pointer = _row(pointers, 0, i, tensors, start)
    y_pointer = _row(pointers, 1, i, tensors, start)
    weight = tl.load(weight_pointer).to(tl.float32)
    left = tl.minimum(tl.load(sizes + i) - start, CHUNK).to(tl.int32)
    whole = left // BLOCK * BLOCK
    for REST in tl.static_range(2):
        for first in range(whole if REST else 0, left if REST else whole, BLOCK):
            entry = first + tl.arange(0, BLOCK)
            inside = _inside(entry, left, REST)
            x = tl.load(x_pointer + entry, mask=inside, other=0.0)
            y = tl.load(y_pointer + entry, mask=inside, other=0.0)
            y = tl.where(weight < 0.5, y + weight * (x - y), x - (x - y) * (1.0 - weight))
            tl.store(y_pointer + entry, y, mask=inside)
