"""The Triton kernels of `fused.py`. Imported only where there is Triton and a CUDA device."""

# No `from __future__ import annotations`: Triton reads the annotations.
import triton
import triton.language as tl


@triton.jit
def move(
    pointers,  # int64 (3 to 7, T): addresses of x, g, the kept x, with MOMENTUM of m and the next m, with METRIC of q's
    weights,  # float64 (T, 3): a, b, c of R = a |x|_1 + b |x|_0 + c |x|^2 / 2
    sizes,  # int64 (T)
    chunk_tensor,  # int32: whose chunk a program takes
    chunk_start,  # int64: where it starts
    step_pointer,  # float64: 1 / sigma
    partial,  # float64 (6, chunks): v's, R(x) - R(x + s), |s|^2, how many v are not finite, (g - v)'s, s'Bs
    m_weights,  # float64 (T): 1 - beta^t, by which m is too small
    q_weights,  # float64 (T): the same of q
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
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """kept <- x,  x <- prox_{step R}(x - step v),  v = g, or m / (1 - beta^t) with next m = m + (1 - beta) (g - m).

    With METRIC the step is step / D, D = sqrt(q / (1 - beta^t)) + eps as in Adam, next q = q + (1 - beta) (g^2 - q).
    With DECAY v has w D x more, and (g - v)'s less w s'Ds / 2 is what the batch's noise and the decay change of F.

    Under a budget z is 0 where it is not chosen: a first pass writes the scores |z| sqrt(D (1 + c step / D)) and counts
    x's nonzeros, and does nothing else.
    """
    program = tl.program_id(0)
    i = tl.load(chunk_tensor + program)
    start = tl.multiple_of(tl.load(chunk_start + program), CHUNK)
    x_pointer = tl.multiple_of(tl.load(pointers + i).to(tl.pointer_type(tl.float32)), 16) + start
    g_pointer = tl.multiple_of(tl.load(pointers + tensors + i).to(tl.pointer_type(tl.float32)), 16) + start
    kept_pointer = tl.multiple_of(tl.load(pointers + 2 * tensors + i).to(tl.pointer_type(tl.float32)), 16) + start
    if MOMENTUM:
        m_pointer = tl.multiple_of(tl.load(pointers + 3 * tensors + i).to(tl.pointer_type(tl.float32)), 16) + start
        next_pointer = tl.multiple_of(tl.load(pointers + 4 * tensors + i).to(tl.pointer_type(tl.float32)), 16) + start
        m_weight = tl.load(m_weights + i).to(tl.float32)
    if METRIC:
        Q: tl.constexpr = 5 if MOMENTUM else 3
        q_pointer = tl.multiple_of(tl.load(pointers + Q * tensors + i).to(tl.pointer_type(tl.float32)), 16) + start
        next_q = tl.load(pointers + (Q + 1) * tensors + i).to(tl.pointer_type(tl.float32))
        next_q_pointer = tl.multiple_of(next_q, 16) + start
        q_weight = tl.load(q_weights + i).to(tl.float32)
    a = tl.load(weights + 3 * i)
    b = tl.load(weights + 3 * i + 1)
    c = tl.load(weights + 3 * i + 2)
    if DECAY:
        decay = tl.load(decays + i).to(tl.float32)
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
    vs = tl.zeros((BLOCK,), dtype=tl.float64)
    size = tl.zeros((BLOCK,), dtype=tl.float64)  # sum of |x| - |z|
    count = tl.zeros((BLOCK,), dtype=tl.int32)  # of nonzeros in x, less those in z
    square = tl.zeros((BLOCK,), dtype=tl.float64)  # sum of x^2 - z^2
    ss = tl.zeros((BLOCK,), dtype=tl.float64)
    broken = tl.zeros((BLOCK,), dtype=tl.int32)
    noise = tl.zeros((BLOCK,), dtype=tl.float64)
    sBs = tl.zeros((BLOCK,), dtype=tl.float64)
    for first in range(0, left, BLOCK):
        entry = first + tl.arange(0, BLOCK)
        inside = entry < left
        x = tl.load(x_pointer + entry, mask=inside, other=0.0)
        g = tl.load(g_pointer + entry, mask=inside, other=0.0)
        v = g
        length, shrink, scale, drop = short, all_shrink, all_scale, all_drop
        if MOMENTUM:
            m = tl.load(m_pointer + entry, mask=inside, other=0.0)
            m = tl.where(m_newest < 0.5, m + m_newest * (g - m), g - (g - m) * (1.0 - m_newest))  # as torch.lerp
            if PASS != 1:
                tl.store(next_pointer + entry, m, mask=inside)
            v = tl.div_rn(m, m_weight)
        if METRIC:
            q = tl.load(q_pointer + entry, mask=inside, other=0.0)
            q = tl.where(q_newest < 0.5, q + q_newest * (g * g - q), g * g - (g * g - q) * (1.0 - q_newest))
            if PASS != 1:
                tl.store(next_q_pointer + entry, q, mask=inside)
            D = tl.sqrt_rn(tl.div_rn(q, q_weight)) + eps
            length = tl.div_rn(short, tl.where(inside, D, 1.0))
            shrink = a.to(tl.float32) * length
            scale = 1.0 + c.to(tl.float32) * length
            drop = tl.sqrt_rn(tl.div_rn(2.0 * b.to(tl.float32) * length, scale))
        if DECAY:
            pull = decay * D if METRIC else decay + tl.zeros_like(x)
            v += pull * x
        u = x - length * v
        w = tl.div_rn(tl.abs(u) - shrink, scale)  # `/` would round to the nearest but one
        w = tl.where(w > drop, w, 0.0)
        if PASS != 0:
            score = w
            if METRIC:
                score = w * tl.sqrt_rn(tl.div_rn(scale, length))
        if PASS == 1:
            tl.store(score_pointer + entry, tl.where(inside, score, -1.0))  # there is room up to a whole run
            count += (x != 0.0).to(tl.int32)
        else:
            if PASS == 2:  # to compute the score once more takes less time than to read it, and gives the same bits
                bits = score.to(tl.int32, bitcast=True)
                w = tl.where((bits > least_bits) | ((bits == least_bits) & (entry < end)), w, 0.0)
            z = tl.where(u < 0.0, -w, w)
            tl.store(kept_pointer + entry, x, mask=inside)
            tl.store(x_pointer + entry, z, mask=inside)
            s = z.to(tl.float64) - x.to(tl.float64)
            vs += v.to(tl.float64) * s
            ss += s * s
            if METRIC:
                sBs += s * s / length.to(tl.float64)
            if DECAY:
                noise += (g.to(tl.float64) - v.to(tl.float64) - 0.5 * pull.to(tl.float64) * s) * s
            elif MOMENTUM:
                noise += (g.to(tl.float64) - v.to(tl.float64)) * s
            broken += (v - v != 0.0).to(tl.int32)
            size += tl.abs(x).to(tl.float64) - tl.abs(z).to(tl.float64)
            count += (x != 0.0).to(tl.int32) - (z != 0.0).to(tl.int32)
            square -= s * (x.to(tl.float64) + z.to(tl.float64))
    if PASS == 1:
        tl.atomic_add(nonzeros + slot, tl.sum(count, axis=0), mask=slot >= 0)
    else:
        tl.store(partial + program, tl.sum(vs, axis=0))
        change = a * tl.sum(size, axis=0) + b * tl.sum(count, axis=0).to(tl.float64) + 0.5 * c * tl.sum(square, axis=0)
        tl.store(partial + chunks + program, change)
        tl.store(partial + 2 * chunks + program, tl.sum(ss, axis=0))
        tl.store(partial + 3 * chunks + program, tl.sum(broken, axis=0).to(tl.float64))
        tl.store(partial + 4 * chunks + program, tl.sum(noise, axis=0))
        if METRIC:
            tl.store(partial + 5 * chunks + program, tl.sum(sBs, axis=0))
        else:
            tl.store(partial + 5 * chunks + program, tl.sum(ss, axis=0) / step)


@triton.jit
def copy_if(
    pointers,
    sizes,
    chunk_tensor,
    chunk_start,
    flag,
    tensors,
    WANTED: tl.constexpr,  # 0 or 1
    TARGET: tl.constexpr,  # rows of `pointers`
    SOURCE: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """target <- source where the flag is as wanted; else no memory is touched."""
    if tl.load(flag).to(tl.int32) == WANTED:
        program = tl.program_id(0)
        i = tl.load(chunk_tensor + program)
        start = tl.multiple_of(tl.load(chunk_start + program), CHUNK)
        target = tl.load(pointers + TARGET * tensors + i).to(tl.pointer_type(tl.float32))
        source = tl.load(pointers + SOURCE * tensors + i).to(tl.pointer_type(tl.float32))
        target = tl.multiple_of(target, 16) + start
        source = tl.multiple_of(source, 16) + start
        left = tl.minimum(tl.load(sizes + i) - start, CHUNK).to(tl.int32)
        for first in range(0, left, BLOCK):
            entry = first + tl.arange(0, BLOCK)
            inside = entry < left
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
    x_pointer = tl.multiple_of(tl.load(pointers + i).to(tl.pointer_type(tl.float32)), 16) + start
    y_pointer = tl.multiple_of(tl.load(pointers + tensors + i).to(tl.pointer_type(tl.float32)), 16) + start
    weight = tl.load(weight_pointer).to(tl.float32)
    left = tl.minimum(tl.load(sizes + i) - start, CHUNK).to(tl.int32)
    for first in range(0, left, BLOCK):
        entry = first + tl.arange(0, BLOCK)
        inside = entry < left
        x = tl.load(x_pointer + entry, mask=inside, other=0.0)
        y = tl.load(y_pointer + entry, mask=inside, other=0.0)
        y = tl.where(weight < 0.5, y + weight * (x - y), x - (x - y) * (1.0 - weight))
        tl.store(y_pointer + entry, y, mask=inside)


@triton.jit(do_not_specialize=["HOLDS", "TESTED"])  # one compiled kernel, for both graphs of a step
def decide(
    loss_pointer,
    f_pointer,
    trial_pointer,
    sums,  # float64: v's, R(x) - R(x + s), |s|^2, how many v are not finite
    constants,  # float64: `Constants`, sigma_min, 10 eps, coarse, the forgetting factor, whether the rule forgets
    sigma_pointer,
    accepted_count,  # `Counts`, int64
    rejected_count,
    null_count,
    broken_count,
    untested_count,
    weight_sum,  # `Moments`, float64
    weight_squared_sum,
    square_sum,
    fourth_sum,
    loss_figure,  # `Figures`, float64
    trial_loss_figure,
    rho_figure,
    sigma_figure,
    predicted_figure,
    actual_figure,
    step_norm_figure,
    accepted_figure,
    null_figure,
    accepted_out,  # of the `Outcome`
    null_out,
    sound_out,
    learns_out,
    largest_pointer,  # the largest loss at a point that passed
    HOLDS,  # int32: whether there is one
    TESTED,  # int32: whether f_trial is f(x + s); else x + s is kept on trust
):
    """A rule's `judge`, `Outcome.of` or `on_trust`, and `SearchState.record`: a hundred tiny launches in one."""
    loss = tl.load(loss_pointer).to(tl.float64)
    f = tl.load(f_pointer).to(tl.float64)
    f_trial = tl.load(trial_pointer).to(tl.float64)
    vs = tl.load(sums)
    dR = tl.load(sums + 1)
    ss = tl.load(sums + 2)
    sigma = tl.load(sigma_pointer)
    eta1 = tl.load(constants)
    eta2 = tl.load(constants + 1)
    gamma1 = tl.load(constants + 2)
    gamma2 = tl.load(constants + 3)
    gamma3 = tl.load(constants + 4)
    known = tl.load(constants + 5)
    sigma_min = tl.load(constants + 6)
    forget = tl.load(constants + 9)
    forgets = tl.load(constants + 10) != 0.0
    tested = TESTED != 0
    largest = tl.load(largest_pointer, mask=HOLDS != 0, other=0.0)

    # y - y is 0 if and only if y is finite
    sound = (loss - loss == 0.0) & (f - f == 0.0) & (tl.load(sums + 3) == 0.0)
    actual = f - f_trial + dR
    predicted = dR - vs
    finite = (actual - actual == 0.0) & (predicted - predicted == 0.0) & (ss - ss == 0.0)
    fine = tl.load(constants + 7) * tl.where(tl.abs(f) > 1.0, tl.abs(f), 1.0)  # `rounding`
    size = tl.abs(f_trial)
    margin = -tl.log(tl.where(size > 1e-300, size, 1e-300))
    coarse = tl.load(constants + 8) * size * tl.where(margin > 1.0, margin, 1.0)
    slack = tl.where(coarse > fine, coarse, fine)
    numerator = actual + slack
    denominator = predicted + slack
    trusted = (loss <= tl.load(constants + 11) * largest) & (vs - vs == 0.0) & (ss - ss == 0.0)
    sound = sound & (tested | trusted)
    finite = finite & tested  # a failure on trust is to the rule a trial that is not finite
    null = (ss == 0.0) & sound
    usable = finite & (ss != 0.0) & (denominator > 0.0)
    enters = sound & tested & (dR == float("inf")) & (f_trial - f_trial == 0.0)  # x has left R's domain, x + s is in it
    accepted = enters | (sound & tl.where(tested, usable & (numerator >= eta1 * denominator), null == 0))
    gains = tl.where(known < 0.0, numerator >= eta2 * denominator, actual >= eta2 * predicted)  # `Ratio`, or `Tolerant`
    very = accepted & tested & (enters == 0) & gains & (predicted > known * fine)
    rejected = sound & (accepted == 0) & (null == 0)
    lower = gamma3 * sigma
    lower = tl.where(lower > sigma_min, lower, sigma_min)
    higher = tl.where(finite, gamma1, gamma2) * sigma
    fails = rejected | ((sound == 0) & (tested == 0))
    raises = rejected | ((sound == 0) & (HOLDS != 0))  # x_t may have come there on trust
    new = tl.where(very, lower, tl.where(raises, higher, sigma))
    tl.store(sigma_pointer, new)

    tl.store(accepted_count, tl.load(accepted_count) + (accepted & tested).to(tl.int64))
    tl.store(untested_count, tl.load(untested_count) + (accepted & (tested == 0)).to(tl.int64))
    tl.store(rejected_count, tl.load(rejected_count) + fails.to(tl.int64))
    tl.store(null_count, tl.load(null_count) + null.to(tl.int64))
    tl.store(broken_count, tl.load(broken_count) + ((sound == 0) & tested).to(tl.int64))
    if (HOLDS != 0) & tested & (accepted | null | (sound & (largest == 0.0))):
        tl.store(largest_pointer, tl.where(tl.abs(loss) > largest, tl.abs(loss), largest))
    if tested & (accepted | null):
        tl.store(weight_sum, forget * tl.load(weight_sum) + 1.0)
        tl.store(weight_squared_sum, forget * forget * tl.load(weight_squared_sum) + 1.0)
        tl.store(square_sum, forget * tl.load(square_sum) + ss)
        tl.store(fourth_sum, forget * tl.load(fourth_sum) + ss * ss)

    tl.store(loss_figure, loss)
    unseen = tl.where(sound, float("nan"), float("inf"))  # as `on_trust` has it
    tl.store(trial_loss_figure, tl.where(tested, f_trial, unseen))
    tl.store(rho_figure, tl.where(usable, numerator / denominator, float("nan")))
    tl.store(sigma_figure, new)
    tl.store(predicted_figure, predicted)
    tl.store(actual_figure, tl.where(tested, actual, f - unseen + dR))
    tl.store(step_norm_figure, tl.sqrt(ss))
    tl.store(accepted_figure, accepted.to(tl.float64))
    tl.store(null_figure, null.to(tl.float64))
    tl.store(accepted_out, accepted.to(tl.int8))
    tl.store(null_out, null.to(tl.int8))
    tl.store(sound_out, sound.to(tl.int8))
    tl.store(learns_out, (sound & (accepted | null | (forgets == 0))).to(tl.int8))
