"""Before the first step: x_0 to where R is finite, sigma_0 from the curvature there, constants from R(x_0)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..numerics import capturing
from ..regularizers.base import Regularizer, value_in_parts
from ..telling import tell
from .closure.losses import Closure
from .curvature import LARGEST, estimate_sigma0, leaves_half
from .processes import check_together, mean_over, parallel
from .state import SearchState

FIRST = 100.0
"""The first sigma that is tried in a metric: steps of a hundredth of each entry's usual gradient over its size."""
TRIES = 24
Penalized = Sequence[tuple[Regularizer | None, list[Tensor]]]
"""Each group's regularizer and the tensors that are trained."""
Left = list[tuple[Tensor, Tensor]]
"""What was moved into the domain of R, and where it was."""


@contextmanager
def or_nothing(state: SearchState) -> Iterator[Left]:
    """Where a first step fails, x_0 is not left at its prox, nor sigma_0 estimated on a broken batch.

    Gives the list for `enter_domain` to fill.
    """
    before = (state.entered, state.sigma_known, dict(state.chosen))
    left: Left = []
    estimates, sound = not state.sigma_known, False
    broken = None if state.entered and not estimates else state.counts.broken.clone()
    try:
        yield left
        # A capturable step counts what another one raises; the host waits for it only where something was moved.
        sound = broken is None or not (left or estimates) or bool(state.counts.broken == broken)
    finally:
        if not sound:
            with torch.no_grad():
                for x, old in left:
                    x.copy_(old)
            state.entered, state.sigma_known, state.chosen = before
            if not state.sigma_known:
                state.sigma.fill_(math.nan)


@torch.no_grad()
def enter_domain(penalized: Penalized, state: SearchState, left: Left, group: Any) -> None:
    """Algorithm 1 starts where R is finite: a group that does not is moved to its prox, once."""
    if state.entered:
        return
    for number, (regularizer, xs) in enumerate(penalized):
        if regularizer is None or not xs or regularizer.coefficients is not None:
            continue  # finite everywhere
        if not bool(regularizer.value(xs).isposinf()):
            continue
        left += [(x, x.clone()) for x in xs]
        step = 1.0 / float(state.sigma) if state.sigma_known else 1.0
        for x, z in zip(xs, regularizer.prox(xs, step), strict=True):
            x.copy_(z)
        if not bool(regularizer.value(xs).isfinite()):
            raise ValueError(f"{regularizer!r} is not finite at its own prox (group {number}): correct its prox")
        gradually = "; SR2(..., steps=n) or reach=(first, last) would get there gradually, and lose less"
        hint = gradually if regularizer.strict and state.share == 1 else ""
        tell(f"R(x_0) is infinite under {regularizer!r} (group {number}): x_0 was moved to its prox{hint}")
    check_together(group)
    state.entered = True


def sigma_0(
    closure: Closure, module: nn.Module | None, parameters: Sequence[Tensor], penalized: Penalized, sigma_min: float
) -> float:
    """The curvature of the closure's loss at x, the same on all processes, and large enough for R."""
    together = parallel(module)
    if together is None:
        estimate = estimate_sigma0(closure, module, parameters)
    else:  # of the mean of their losses: every product with the Hessian is a mean, and all take the same decisions
        mean = partial(mean_over, together.process_group)
        with together.no_sync():
            estimate = estimate_sigma0(closure, module, parameters, mean)
    return leaves_half(penalized, max(sigma_min, estimate))


def check_finite(loss: Tensor, group: Any, *, strict: bool) -> None:
    """A batch whose loss is not finite says nothing of sigma_0: an error on all processes alike, unless a step follows
    which will see it too."""
    if not strict:
        return
    shared = loss.detach().double().clone()
    if group is not None:
        mean_over(group, shared)
    if not shared.isfinite():
        raise FloatingPointError(
            f"the loss at x_0 is {float(shared)}, and sigma_0 cannot be found on this batch: skip it, or look for what "
            "is not finite in the data or the model"
        )


def half_left(penalized: Penalized) -> Callable[[], bool]:
    """Asks whether x, now, has half of the nonzeros that x_0 has where this batch has a gradient.

    A step that gains what it promises may gain it from R alone, and leave nothing to train. R that are not sums over
    entries, such as budgets, take what they take whatever sigma is, and are not asked.
    """
    xs = [x for r, xs in penalized if r is not None and r.separable for x in xs if x.grad is not None]
    counted = [(x != 0) & (x.grad != 0) for x in xs]
    before = sum(int(c.sum()) for c in counted)
    return lambda: 2 * sum(int(((x != 0) & c).sum()) for x, c in zip(xs, counted, strict=True)) >= before


def searched(rho_of: Callable[[float], float], sigma_min: float) -> float:
    """The sigma at which the first batch's step is the best one along itself: rho = 1/2, to a tenth.

    Along a line where f is quadratic rho = 1 - c / (2 sigma), c the curvature: a try gives c, the next one is c itself.
    Forwards only, a few of them. In a metric that is made of gradients the largest curvature says little of the one
    along the step. A rho that says nothing (not finite, or rounding) moves sigma by a factor of at most 32.

    >>> searched(lambda sigma: 1 - 3.0 / (2 * sigma), 1e-6)  # the curvature is 3
    3.0
    """
    sigma, low, high = FIRST, sigma_min, LARGEST
    for _ in range(TRIES):
        rho = rho_of(sigma)
        if abs(rho - 0.5) <= 0.1:
            break
        if rho > 0.5:
            high = sigma
        else:  # NaN too
            low = sigma
        share = 2 * (1 - rho) if math.isfinite(rho) else math.inf
        latest, sigma = sigma, sigma * min(max(share, 1 / 32), 32.0)
        if not low < sigma < high:
            sigma = math.sqrt(low * high)
        if abs(math.log(sigma / latest)) < 0.05:  # rho jumps there: no sigma has a half
            return high if high < LARGEST else sigma
    return sigma


def R_0(penalized: Penalized) -> float:  # noqa: N802 - the paper's notation
    """R(x_0), from which a rule may take its constants."""
    if capturing():
        raise RuntimeError("gamma3='auto' needs a step before a CUDA graph is captured, or give it a number")
    values: list[Any] = [value_in_parts(r, xs) for r, xs in penalized if r is not None and xs]
    return float(sum(values))
