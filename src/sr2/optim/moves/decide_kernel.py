"""The Triton kernel that judges a step, with the others in `kernels.py`."""

# No `from __future__ import annotations`: Triton reads the annotations.
import triton
import triton.language as tl


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
    failed_out,
    steps_out,  # float64: how many steps were taken
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
    usual = tl.load(constants + 6)
    least = tl.load(constants + 7)
    shrinks = tl.load(constants + 11)
    far = tl.load(constants + 12)
    fast = tl.load(constants + 13)
    beyond = tl.load(constants + 16)
    sigma_min = tl.load(constants + 17)
    forget = tl.load(constants + 20)
    forgets = tl.load(constants + 21) != 0.0
    tested = TESTED != 0
    largest = tl.load(largest_pointer, mask=HOLDS != 0, other=0.0)

    # y - y is 0 if and only if y is finite
    sound = (loss - loss == 0.0) & (f - f == 0.0) & (tl.load(sums + 3) == 0.0)
    actual = f - f_trial + dR
    predicted = dR - vs
    finite = (actual - actual == 0.0) & (predicted - predicted == 0.0) & (ss - ss == 0.0)
    fine = tl.load(constants + 18) * tl.where(tl.abs(f) > 1.0, tl.abs(f), 1.0)  # `rounding`
    size = tl.abs(f_trial)
    margin = -tl.log(tl.where(size > 1e-300, size, 1e-300))
    coarse = tl.load(constants + 19) * size * tl.where(margin > 1.0, margin, 1.0)
    slack = tl.where(coarse > fine, coarse, fine)
    numerator = actual + slack
    denominator = predicted + slack
    near = (loss <= tl.load(constants + 22) * largest) | ((largest == 0.0) & (loss - loss == 0.0))
    trusted = near & (vs - vs == 0.0) & (ss - ss == 0.0)
    sound = sound & (tested | trusted)
    finite = finite & tested  # a failure on trust is to the rule a trial that is not finite
    null = (ss == 0.0) & sound
    usable = finite & (ss != 0.0) & (denominator > 0.0)
    noise = tl.abs(f - loss)
    q = sigma / tl.where(beyond > 0.0, beyond, 1.0)
    must_gain = eta2 - (eta2 - eta1) * (q * q)
    may_lose = eta1 * (sigma / tl.where(shrinks > 0.0, shrinks, 1.0))
    eta1 = tl.where(sigma < shrinks, tl.where(must_gain > may_lose, must_gain, may_lose), eta1)  # a long step
    eta1 = tl.where((noise > tl.load(constants + 10) * predicted) & (eta1 < -1.0), -1.0, eta1)  # the batch is alone
    enters = sound & tested & (dR == float("inf")) & (f_trial - f_trial == 0.0)  # x has left R's domain, x + s is in it
    accepted = enters | (sound & tl.where(tested, usable & (numerator >= eta1 * denominator), null == 0))
    gains = tl.where(known < 0.0, numerator >= eta2 * denominator, actual >= eta2 * predicted)  # `Ratio`, or `Tolerant`
    gains = gains & ((sigma > least) | (noise <= tl.load(constants + 8) * predicted))  # the batch agrees with v
    top = tl.where(least > 0.0, usual, 0.0)
    between = (sigma > least) & (sigma <= top)
    doubts = tl.where(
        sigma < least, noise > tl.load(constants + 9) * predicted, f - loss < -tl.load(constants + 15) * predicted
    )
    doubted = accepted & tested & (enters == 0) & (sigma < top) & doubts
    warming = sigma > usual
    falls = (between & (f - loss > -tl.load(constants + 14) * predicted)) | ((between == 0) & (gains | warming))
    very = accepted & tested & (enters == 0) & falls & (predicted > known * fine)
    very = very | (accepted & (tested == 0) & warming)  # `Rule.on_trust`
    rejected = sound & (accepted == 0) & (null == 0)
    lower = tl.where(tested & gains & (sigma > far * usual), fast, gamma3) * sigma
    lower = tl.where(lower > sigma_min, lower, sigma_min)
    higher = tl.where(finite, gamma1, gamma2) * sigma
    higher = tl.where((sigma < beyond) & (higher < least), least, higher)
    fails = rejected | ((sound == 0) & (tested == 0))
    raises = rejected | ((sound == 0) & (HOLDS != 0))  # x_t may have come there on trust
    back = tl.where(sigma > gamma3 * top, top, sigma / gamma3)
    back = tl.where(back > sigma_min, back, sigma_min)
    new = tl.where(very, lower, tl.where(raises, higher, tl.where(doubted, back, sigma)))
    tl.store(sigma_pointer, new)

    accepted_now = tl.load(accepted_count) + (accepted & tested).to(tl.int64)
    rejected_now = tl.load(rejected_count) + fails.to(tl.int64)
    null_now = tl.load(null_count) + null.to(tl.int64)
    broken_now = tl.load(broken_count) + ((sound == 0) & tested).to(tl.int64)
    untested_now = tl.load(untested_count) + (accepted & (tested == 0)).to(tl.int64)
    tl.store(accepted_count, accepted_now)
    tl.store(rejected_count, rejected_now)
    tl.store(null_count, null_now)
    tl.store(broken_count, broken_now)
    tl.store(untested_count, untested_now)
    tl.store(steps_out, (accepted_now + rejected_now + null_now + broken_now + untested_now).to(tl.float64))
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
    tl.store(failed_out, ((accepted | null) == 0).to(tl.int8))
