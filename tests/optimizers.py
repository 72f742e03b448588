"""Every optimizer under test, each with its slow twin; wrong arguments as data. Generic tests run over this list.

A new optimizer is one `OptimizerCase` with its twin, and gets every generic test of tests/optim. A twin is NumPy in
float64 and imports nothing of sr2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, nan
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor, nn

from sr2 import MCP, SR2, ProxGEN, ProxSGD, Regularizer
from sr2.optim import ProximalOptimizer
from sr2.rules import Ratio

from .cases import Wrong
from .oracles import Array

Options = dict[str, Any]


@dataclass(frozen=True)
class Problem:
    """min f(x, batch) + R(x), as a twin sees it."""

    x: Array
    batches: Sequence[Any]
    f: Callable[[Array, Any], float]
    gradient: Callable[[Array, Any], Array]
    R: Callable[[Array], float]
    prox: Callable[[Array, Any], Array]  # the step is one number, or one per entry


class Point(NamedTuple):
    """Where a twin stands after one step; `accepted` is None for a null step."""

    x: Array
    sigma: float | None = None
    accepted: bool | None = None


Twin = Callable[..., Iterator[Point]]


@dataclass(frozen=True)
class OptimizerCase:
    """An optimizer and what is known of it.

    `options` are the sets of options worth testing; "plain" comes first and is v = g, D = 1. Every set is added to
    `start`, with which a step succeeds. Those of `lively` bring steps of every fate. The twin takes a `Problem` and one
    set of `constants`, which the constructor takes too.
    """

    kind: type[ProximalOptimizer]
    options: Mapping[str, Options]
    start: Options
    twin: Twin
    constants: Mapping[str, Options]
    wrong: Sequence[Wrong] = ()
    lively: Options = field(default_factory=dict)
    convex: bool = False  # takes a convex R only
    judges: bool = False  # evaluates the loss twice and may reject a step: needs a closure, has sigma and no lr
    on_host: Callable[[Any], list[Tensor]] = field(default=lambda optimizer: [])  # numbers that live on the host

    @property
    def name(self) -> str:
        return self.kind.__name__

    def make(self, params: Any, R: Regularizer | None = None, options: str = "plain", **more: Any) -> Any:
        return self.kind(params, R, **{**self.start, **self.options[options], **more})

    def takes(self, R: Regularizer | None) -> bool:
        return R is None or R.convex or not self.convex


# ---- SR2


def sr2_twin(problem, *, sigma, sigma_min, **constants):
    """Algorithm 1 where its constants are named, as the constructor has it, else the defaults."""
    twin = algorithm_1_twin if constants else defaults_twin
    return twin(problem, sigma=sigma, sigma_min=sigma_min, **constants)


def defaults_twin(problem, *, sigma, sigma_min):
    """Adam's averages, a rise of no more than three times what was promised, or than that where the batch is most of
    v, and no trace of a batch that was rejected. The usual sigma is not known, since x is no matrix."""
    x, f, R = problem.x, problem.f, problem.R
    m, r, t = 0.0, 0.0, 0
    for batch in problem.batches:
        loss, g = f(x, batch), problem.gradient(x, batch)
        learnt = (0.9 * m + 0.1 * g, 0.999 * r + 0.001 * g**2, t + 1)
        v = learnt[0] / (1 - 0.9 ** learnt[2])
        D = np.sqrt(learnt[1] / (1 - 0.999 ** learnt[2])) + 1e-8
        z = problem.prox(x - v / (sigma * D), 1 / (sigma * D))
        s = z - x
        if not s.any():
            m, r, t = learnt
            yield Point(x, sigma, None)
            continue
        here = loss + (g - v) @ s  # of f(., xi) + (v - g)'x, whose gradient is v
        slack = 10 * np.finfo(float).eps * max(1.0, abs(here))
        promised = R(x) - R(z) - v @ s
        rho = (here + R(x) - f(z, batch) - R(z) + slack) / (promised + slack)
        alone = abs((g - v) @ s) > 7 * promised
        accepted = bool(rho >= (-1 if alone else -3))
        if accepted:
            x, (m, r, t) = z, learnt
            sigma = max(sigma_min, 0.98 * sigma) if rho >= 0.9 and promised > 2 * slack else sigma
        else:
            sigma *= 1.5
        yield Point(x, sigma, accepted)


def algorithm_1_twin(problem, *, sigma, eta1, eta2, gamma1, gamma2, gamma3, sigma_min):
    """With the sampled objective."""
    x, f, R = problem.x, problem.f, problem.R
    for batch in problem.batches:
        loss, g = f(x, batch), problem.gradient(x, batch)
        z = problem.prox(x - g / sigma, 1 / sigma)
        s = z - x
        if not s.any():
            yield Point(x, sigma, None)
            continue
        slack = 10 * np.finfo(float).eps * max(1.0, abs(loss))
        actual = loss + R(x) - f(z, batch) - R(z) + slack
        predicted = R(x) - g @ s - R(z) + slack
        if not (np.isfinite(actual) and np.isfinite(predicted)):
            sigma *= gamma2
            yield Point(x, sigma, False)
            continue
        rho = actual / predicted
        if rho >= eta1:
            x = z
        if rho >= eta2:
            sigma = max(sigma_min, gamma3 * sigma)
        elif rho < eta1:
            sigma *= gamma1
        yield Point(x, sigma, bool(rho >= eta1))


LIVELY = {"sigma": 0.1, "eta1": 0.1, "eta2": 0.75, "gamma1": 2.0, "gamma2": 3.0, "gamma3": 0.7, "sigma_min": 0.1}
PAPER = {"sigma": 0.2, "eta1": 7.5e-4, "eta2": 0.99, "gamma1": 5.56, "gamma2": 5.56, "gamma3": 0.8, "sigma_min": 1e-6}
DEFAULTS = {"sigma": 0.15, "sigma_min": 1e-6}
OF_SR2 = [
    ({"sigma": 0.0}, "SR2: sigma must be a number at least 1e-06"),
    ({"sigma": 1e-9}, "sigma"),
    ({"sigma": nan}, "sigma"),
    ({"sigma": inf}, "finite"),
    ({"sigma_min": 2.0}, "SR2: sigma must be a number at least 2"),
    ({"sigma_min": 0.0}, "sigma_min must be a number above 0"),
    ({"eta1": 0.0}, "0 < eta1 <= eta2 < 1, and got eta1=0.0"),
    ({"eta1": 0.5, "eta2": 0.4}, "eta1=0.5, eta2=0.4"),
    ({"eta2": 1.0}, "eta2=1.0"),
    ({"eta1": nan}, "eta1=nan"),
    ({"gamma1": 1.0}, "gamma1=1.0"),
    ({"gamma2": 10**30}, "gamma2 must be a number, and is 1000"),
    ({"gamma1": 5.56, "gamma2": 2.95}, "gamma2=2.95: leave gamma2=None"),
    ({"gamma2": inf}, "gamma2=inf"),
    ({"gamma3": 0.0}, "gamma3=0.0"),
    ({"gamma3": 1.1}, "gamma3=1.1"),
    ({"momentum": 1.0}, "SR2: momentum must be a number at least 0 and below 1"),
    ({"momentum": -0.1}, "momentum"),
    ({"rule": Ratio(), "eta2": 0.5, "gamma1": 2.0}, "says it already: leave out eta2, gamma1"),
]
PARTS_OF_SR2 = [
    ({"rule": "ratio"}, "rule must be an object of sr2.rules, and is 'ratio': give one, as sr2.rules.Tolerant\\(\\)"),
    ({"direction": 0.9}, "direction must be an object of sr2.directions, and is 0.9"),
    ({"schedule": (1, 2)}, r"schedule must be an object of sr2.schedules, and is \(1, 2\)"),
]

# ---- ProxGEN


def proxgen_twin(problem, *, lr, momentum=0.0, metric=None, weight_decay=0.0):
    """AdamW's averages and bias corrections, with a prox at the end."""
    x, v, r = problem.x, 0.0, 0.0
    for t, batch in enumerate(problem.batches, start=1):
        g = problem.gradient(x, batch)
        v = momentum * v + (1 - momentum) * g
        r = 0.999 * r + 0.001 * g**2
        D = np.sqrt(r / (1 - 0.999**t)) + 1e-8 if metric == "adam" else np.ones_like(x)
        x = (1 - lr * weight_decay) * x
        x = problem.prox(x - lr / D * v / (1 - momentum**t), lr / D)
        yield Point(x)


OF_PROXGEN = [
    ({"lr": 0.0}, "ProxGEN: lr must be a number above 0"),
    ({"lr": -1.0}, "lr"),
    ({"momentum": 1.0}, "ProxGEN: momentum"),
    ({"weight_decay": -1.0}, "weight_decay"),
]

# ---- ProxSGD


def proxsgd_twin(problem, *, lr, lr_decay, rho, rho_decay, metric):
    """The convex combination of x and the proximal point. rho None: v = g. Metric None: tau = 1."""
    x = problem.x
    v, r = np.zeros_like(x), np.zeros_like(x)
    for t, batch in enumerate(problem.batches, start=1):
        g = problem.gradient(x, batch)
        if rho is None:
            v = g
        else:
            rho_t = rho / (t + 4) ** rho_decay
            v = (1 - rho_t) * v + rho_t * g
        r = 0.999 * r + 0.001 * g**2
        tau = np.sqrt(r / (1 - 0.999**t)) + 1e-8 if metric == "adam" else np.ones_like(x)
        x = x + lr / (t + 4) ** lr_decay * (problem.prox(x - v / tau, 1 / tau) - x)
        yield Point(x)


DECAYS = {"lr": 0.3, "lr_decay": 0.6, "rho_decay": 0.4}
OF_PROXSGD = [
    ({"lr": 0.0}, "ProxSGD: lr"),
    ({"lr_decay": -0.5}, "lr_decay"),
    ({"rho": 0.0}, "rho"),
    ({"rho_decay": -0.5}, "rho_decay"),
    ({"regularizer": MCP(0.1, 2.0)}, "use SR2 or ProxGEN"),
]

# ---- all of them

OF_ALL_TYPES = [
    ({"regularizer": MCP}, r"regularizer must be a Regularizer or None"),
    ({"regularizer": "l1"}, "'l1'"),
    ({"regularizer": 1e-3}, "0.001"),
]
OF_ALL_VALUES = [
    ({"metric": "adma"}, "did you mean 'adam'"),
    ({"metric": 3}, "one of adam, adagrad, rmsprop, andrei"),
    ({"penalize": "biases"}, "'weights' or 'all', and is 'biases'"),
]


def wrong(
    kind: type[ProximalOptimizer],
    values: Sequence[tuple[Options, str]],
    types: Sequence[tuple[Options, str]] = (),
    **start: Any,
) -> list[Wrong]:
    """The calls that must fail: with a ValueError, or with a TypeError; those of every optimizer come first."""

    def call(options: Options) -> Callable[[], object]:
        return lambda: kind(nn.Linear(4, 2), **{**start, **options})

    by_error = ((TypeError, [*OF_ALL_TYPES, *types]), (ValueError, [*OF_ALL_VALUES, *values]))
    return [Wrong(call(options), error, words) for error, found in by_error for options, words in found]


AVERAGES: dict[str, Options] = {
    "plain": {},
    "momentum": {"momentum": 0.9},
    "adam": {"metric": "adam"},
    "andrei": {"metric": "andrei"},
    **{f"momentum {m}": {"momentum": 0.9, "metric": m} for m in ("adam", "adagrad", "rmsprop", "andrei")},
}

OPTIMIZERS: list[OptimizerCase] = [
    OptimizerCase(
        SR2,
        options=AVERAGES,
        start={"sigma": 2.0, "eta1": 7.5e-4},  # Algorithm 1's constants bring v = g and D = 1
        lively={"sigma": 0.3, "eta2": 0.6},
        twin=sr2_twin,
        constants={"lively": LIVELY, "paper": PAPER, "defaults": DEFAULTS},
        wrong=wrong(SR2, OF_SR2, PARTS_OF_SR2, sigma=1.0),
        judges=True,
        on_host=lambda optimizer: [optimizer._search.sigma],
    ),
    OptimizerCase(
        ProxGEN,
        options=AVERAGES,
        start={"lr": 0.05},
        twin=proxgen_twin,
        constants={
            "plain": {"lr": 0.3},
            "momentum": {"lr": 0.3, "momentum": 0.9, "weight_decay": 0.01},
            "adam": {"lr": 0.03, "momentum": 0.9, "metric": "adam"},
        },
        wrong=wrong(ProxGEN, OF_PROXGEN),
    ),
    OptimizerCase(
        ProxSGD,
        options={
            "plain": {"rho": None, "metric": None},
            "momentum": {"metric": None},
            "adam": {"rho": None, "metric": "adam"},
            "andrei": {"rho": None, "metric": "andrei"},
            "momentum adam": {"metric": "adam"},
        },
        start={"lr": 0.3},
        twin=proxsgd_twin,
        constants={
            f"rho {rho}, metric {metric}": {**DECAYS, "rho": rho, "metric": metric}
            for rho in (None, 0.9)
            for metric in (None, "adam")
        },
        wrong=wrong(ProxSGD, OF_PROXSGD),
        convex=True,
        on_host=lambda optimizer: [optimizer._count.t],
    ),
]
BASELINES = [case for case in OPTIMIZERS if not case.judges]
SETS = [(case, options) for case in OPTIMIZERS for options in case.options]


def named(value: object) -> str:
    """The id of a test's argument."""
    return str(getattr(value, "name", getattr(value, "__name__", value)))
