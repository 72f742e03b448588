"""Before the first step: x_0 to where R is finite, sigma_0 from the curvature there, constants from R(x_0)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..checks import is_real
from ..numerics import Rounding, capturing, exact_sum, gradient_of, local, wide
from ..regularizers.base import Regularizer, value_in_parts
from ..telling import tell
from .closure.losses import NO_SPARSE, Closure
from .closure.twice import TwoEvaluations
from .curvature import LARGEST, estimate_sigma0, leaves_half
from .moves.base import Move
from .parts.decay import Decay
from .parts.heart import ByHeart
from .parts.metrics import Metric
from .parts.rules import Evidence, Rule
from .processes import Processes, check_together, parallel
from .state import SearchState

FIRST = 100.0
"""The first sigma that is tried in a metric: steps of a hundredth of each entry's usual gradient over its size."""
TRIES = 24
ABSURD = 1e9
"""A sigma_0 of so much says something of the network's corners, and nothing of how far x should move."""
FIRST_STEP = {"no R": 1.0, "budgets": 2.0, "penalties": 3.0}
"""How many times a usual step the first one may be (docs/choices.md). Under penalties long steps make zeros; a batch
calls any step good that moves what it alone touches, so there is a bound. It is this one where batches are not asked
how far they agree (`parts/agreement.py`)."""
Penalized = Sequence[tuple[Regularizer | None, list[Tensor]]]
"""Each group's regularizer and the tensors that are trained."""
Left = list[tuple[Tensor, Tensor]]
"""What was moved into the domain of R, and where it was."""


@contextmanager
def or_nothing(state: SearchState, groups: Sequence[dict[str, Any]]) -> Iterator[Left]:
    """Where a first step fails, x_0 is not left at its prox, nor sigma_0 estimated nor "auto" decided on it.

    Gives the list for `enter_domain` to fill.
    """
    before = (state.entered, state.sigma_known, dict(state.chosen))
    decays = [group["weight_decay"] for group in groups]
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
            for group, decay in zip(groups, decays, strict=True):
                group["weight_decay"] = decay
            if not state.sigma_known:
                state.sigma.fill_(math.nan)


@torch.no_grad()
def enter_domain(penalized: Penalized, state: SearchState, left: Left, together: Processes) -> None:
    """Algorithm 1 starts where R is finite: a group that does not is moved to its prox, once."""
    if state.entered:
        return
    check_together(together)
    for number, (regularizer, params) in enumerate(penalized):
        if regularizer is None or not params or regularizer.coefficients is not None:
            continue  # finite everywhere
        if not bool(value_at(regularizer, params, together).isposinf()):
            continue
        xs = [local(p) for p in params]
        if _shrinks(regularizer) and together.total(float(any(not bool(x.all()) for x in xs))):
            continue  # it was on the path when a group came late: steps go on along it, and are judged
        left += [(x, x.clone()) for x in xs]
        step = 1.0 / float(state.sigma) if state.sigma_known else 1.0
        for x, z in zip(xs, regularizer.prox(xs, step), strict=True):
            x.copy_(z)
        if not bool(value_at(regularizer, params, together).isfinite()):
            raise ValueError(f"{regularizer!r} is not finite at its own prox (group {number}): correct its prox")
        gradually = "; SR2(..., steps=n) or reach=(first, last) would get there gradually, and lose less"
        hint = gradually if regularizer.strict and state.share == 1 else ""
        tell(f"R(x_0) is infinite under {regularizer!r} (group {number}): x_0 was moved to its prox{hint}")
        together.reshard()
    state.entered = True


def _shrinks(regularizer: Regularizer) -> bool:
    """Whether it is a budget on its way, or one beside a ridge or in parts."""
    inner = getattr(regularizer, "regularizer", None) or getattr(regularizer, "beside", None)
    return _shrinks(inner) if inner is not None else bool(getattr(regularizer, "shrinks", False))


def is_kept(regularizer: Regularizer, params: Sequence[Tensor], together: Processes) -> bool:
    """Whether x is within a budget, as of a network that is sparse already: there is no path to it then.

    Nothing but zeros, as of a layer that begins at 0, is a fresh layer and not a sparse one.
    """
    if not regularizer.strict or not params:
        return False
    begun = together.total(float(any(bool(local(p).any()) for p in params))) > 0
    return begun and bool(value_at(regularizer, params, together).isfinite())


def value_at(regularizer: Regularizer, params: Sequence[Tensor], together: Processes) -> Tensor:
    """R at these parameters, over all processes that have parts of them."""
    counted = [p for p in params if together.counts(p) or not regularizer.separable]
    return together.sum(value_in_parts(regularizer, [local(p) for p in counted]))


def sigma_0(
    closure: Closure,
    module: nn.Module | None,
    parameters: Sequence[Tensor],
    penalized: Penalized,
    sigma_min: float,
    together: Processes,
) -> float:
    """The curvature of the closure's loss at x, the same on all processes, and large enough for R."""
    apart = parallel(module)
    with apart.no_sync() if apart is not None else nullcontext():
        estimate = estimate_sigma0(closure, module, parameters, together)
    return leaves_half(penalized, max(sigma_min, estimate), together)


def check_finite(loss: Tensor, together: Processes, *, strict: bool) -> None:
    """A batch whose loss is not finite says nothing of sigma_0: an error on all processes alike, unless a step follows
    which will see it too."""
    if not strict:
        return
    shared = together.mean(loss.detach().double())
    if not shared.isfinite():
        raise FloatingPointError(
            f"the loss at x_0 is {float(shared)}, and sigma_0 cannot be found on this batch: skip it, or look for what "
            "is not finite in the data or the model"
        )


def half_left(penalized: Penalized, together: Processes) -> Callable[[], bool]:
    """Asks whether x, now, has half of the nonzeros that x_0 has where this batch has a gradient.

    A step that gains what it promises may gain it from R alone, and leave nothing to train. R that are not sums over
    entries, such as budgets, take what they take whatever sigma is, and are not asked.
    """
    asked = [p for r, params in penalized if r is not None and r.separable for p in params if together.counts(p)]
    gradients = [(local(p), g) for p in asked if (g := gradient_of(p)) is not None]
    if any(g.layout != torch.strided for _, g in gradients):
        raise ValueError(NO_SPARSE)
    counted = [(x, (x != 0) & (g != 0)) for x, g in gradients]
    for x, touched in counted:
        untouched = int((x != 0).sum()) - int(touched.sum())
        if 2 * untouched > x.numel() > 1:
            tell(
                f"{100 * untouched / x.numel():.0f} % of a penalized tensor of shape {tuple(x.shape)} had no gradient "
                "in the first batch, as of an embedding: in a metric that is made of gradients R sets such entries to "
                "zero at once; leave it out with param_groups, or use metric=None"
            )

    def left() -> float:
        return together.total(sum(int(((x != 0) & c).sum()) for x, c in counted))

    before = left()
    return lambda: 2 * left() >= before


def along_first_step(
    f: TwoEvaluations,
    move_with: Callable[[float], Move],
    rounding: Rounding,
    penalized: Penalized,
    metric: Metric | None,
    sigma_min: float,
    together: Processes,
) -> float:
    """sigma_0 by trying steps of the first batch, of which f is known at x; nothing stays moved.

    Args:
        f: evaluates the closure at the points that are tried.
        move_with: makes the step of a sigma.
        rounding: how well f is known.
        penalized: half of the weights that they penalize must be left.
        metric: in which the steps are made.
        sigma_min: the least sigma.
        together: the processes that decide.
    """
    half_is_left = half_left(penalized, together)

    def rho_of(sigma: float) -> float:
        """-inf where too little is left, inf where no more than rounding is promised."""
        f.move = move = move_with(sigma)
        model = move.to_trial()
        if not half_is_left():
            move.put_back()
            return -math.inf
        f.at_trial()
        move.put_back()
        evidence = Evidence.gather(
            f.losses(model.noise), model[:4], rounding, together, torch.device("cpu"), reaching=True
        )
        if evidence.predicted <= evidence.slack:
            return math.inf
        actual, predicted, *_ = evidence.compared  # not its rho: a trial that is infinite is -inf here
        return float(actual / predicted)

    return searched(rho_of, sigma_min) / falls_to(metric, penalized)


def searched(rho_of: Callable[[float], float], sigma_min: float) -> float:
    """The sigma at which the first batch's step is the best one along itself: rho = 1/2, to a tenth.

    Along a line where f is quadratic rho = 1 - c / (2 sigma), c the curvature: a try gives c, the next one is c itself.
    Forwards only, a few of them. In a metric that is made of gradients the largest curvature says little of the one
    along the step. A rho that says nothing (not finite, or rounding) moves sigma by a factor of at most 32. It is inf
    where the step promises no more than rounding; where no sigma says more, the first one stays.

    >>> searched(lambda sigma: 1 - 50.0 / (2 * sigma), 1e-6)  # the curvature is 50
    50.0
    """
    first = max(FIRST, sigma_min)
    sigma, low, high, promised = first, sigma_min, max(LARGEST, sigma_min), False
    for _ in range(TRIES):
        rho = rho_of(sigma)
        promised |= rho < math.inf  # not NaN either: on a broken batch no sigma has a rho
        if abs(rho - 0.5) <= 0.1:
            break
        if rho > 0.5:
            high = sigma
        else:  # NaN too
            low = sigma
        share = math.inf if math.isnan(rho) else 2 * (1 - rho)
        latest, sigma = sigma, sigma * min(max(share, 1 / 32), 32.0)
        if not low < sigma < high:
            sigma = math.sqrt(low * high)
        if abs(math.log(sigma / latest)) < 0.05:  # rho jumps there: no sigma has a half
            sigma = high if high < LARGEST else sigma
            break
    return sigma if promised else first


def falls_to(metric: Metric | None, penalized: Penalized) -> float:
    """`Metric.falls_to` where steps are one per entry; a mean over entries does not fall so."""
    if metric is None or any(r is not None and not r.diagonal for r, _ in penalized):
        return 1.0
    return metric.falls_to


def say_absurd(curvature: float, sigma: float) -> None:
    """Tell of a sigma_0 that would leave x where it is.

    Args:
        curvature: the largest at x_0, inf where it was not asked for.
        sigma: what was found by trying steps instead.
    """
    if ABSURD <= curvature < math.inf:
        tell(
            f"the curvature at x_0 is {curvature:.3g}, as of a norm of a constant: sigma_0 is {sigma:.3g} instead, the "
            "curvature along the first step"
        )
    if sigma >= ABSURD:
        tell(f"sigma_0 came out as {sigma:.3g}, with which x hardly moves: give sigma=, or look at the first batch")


class Seen(NamedTuple):
    """What "auto" follows from."""

    R: float
    """R(x_0)."""
    size: float
    """sqrt(pi/2) times the mean of |x| over the nonzeros of tensors of two dimensions or more: of normal weights it is
    their root mean square, and a few large ones do not decide it. It is 0, for nothing, where a step of 1 / sigma is
    not to be compared with it, in a metric that does not make steps of that size."""
    trained: bool
    """The network was trained before: what is learnt does not bear the steps of a fresh one."""

    def choose(
        self, rule: Rule, decay: Decay, groups: Iterable[dict[str, Any]], heart: ByHeart | None
    ) -> dict[str, Any]:
        """The rule's constants by name; and the groups get their weight decay, which `heart` is told."""
        autos = decay.decide(groups, self.size)
        if heart is not None:
            heart.autos += autos
        return rule.choose(self.R, 0.0 if self.trained else self.size)


def wanted(rule: Rule, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """What was chosen, but for what the rule has a number for: a state of before may say more than it asks for.

    >>> from sr2.rules import Tolerant
    >>> wanted(Tolerant(rise=1.0), {"usual": 10.0, "rise": 3.0, "beyond": 1.0})
    {'usual': 10.0}
    """
    return {name: value for name, value in chosen.items() if not is_real(getattr(rule, name, 0.0))}


def seen_at_x0(
    groups: Sequence[Mapping[str, Any]], penalized: Penalized, metric: Metric | None, together: Processes
) -> Seen:
    """What a rule and a weight decay may take their constants from."""
    if capturing():
        raise RuntimeError("what the rule takes from x_0 needs a step before a CUDA graph is captured")
    R: list[Any] = [value_at(r, params, together) for r, params in penalized if r is not None and params]
    trained = _was_trained(groups, together)
    if metric is None or not metric.normalizes:
        return Seen(float(sum(R)), 0.0, trained)
    weights = [local(p).detach() for _, params in penalized for p in params if p.dim() > 1 and together.counts(p)]
    sums = [torch.zeros(2, dtype=torch.float64, device="cpu")]
    sums += [torch.stack([exact_sum(wide(x).abs()).cpu(), (x != 0).sum().double().cpu()]) for x in weights]
    total, count = together.sum(torch.stack(sums).sum(0)).tolist()
    return Seen(float(sum(R)), math.sqrt(math.pi / 2) * total / count if count else 0.0, trained)


def kind_of(penalized: Penalized) -> str:
    """Of `FIRST_STEP`, under these regularizers."""
    given = [r for r, _ in penalized if r is not None]
    if not given:
        return "no R"
    return "penalties" if all(r.penalizes and not r.strict for r in given) else "budgets"


def least_sigma(rule: Rule, penalized: Penalized, *, asks: bool) -> float:
    """The least sigma_0, by `FIRST_STEP`. Where batches will be asked how far they agree it is that of batches that do
    so wholly."""
    if rule.usual_sigma == math.inf:
        return 0.0
    agreed = rule.agreed(1.0) if asks else {}
    if not isinstance(agreed, dict):
        raise TypeError(f"a rule's agreed must return its constants by name, or {{}} for none, and returned {agreed!r}")
    least = min(rule.least_sigma, rule.usual_sigma / FIRST_STEP[kind_of(penalized)])
    return replace(rule, **agreed).least_sigma if agreed else least  # type: ignore[type-var]


def _was_trained(groups: Sequence[Mapping[str, Any]], together: Processes) -> bool:
    """Whether the entries of some norm's scale differ: no network begins so.

    A scale is a parameter of one dimension that is called `weight`. Where parameters have no names, nobody knows.
    """
    named = (pair for group in groups for pair in zip(group.get("param_names", ()), group["params"], strict=False))
    scales = [local(p).detach() for name, p in named if p.dim() == 1 and name.rpartition(".")[2] == "weight"]
    differ = any(bool((x != x[0]).any()) for x in scales if x.numel() > 1)
    return together.total(float(differ)) > 0
