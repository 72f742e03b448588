"""The arguments of SR2: parts and their shorthand, and what does not go together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from functools import wraps
from inspect import Parameter, signature
from numbers import Real
from typing import Any, NamedTuple, Protocol, TypeVar

import torch

from ..checks import check_number
from .parts.decay import AUTO
from .parts.directions import Direction
from .parts.rules import Ratio, Rule
from .parts.schedules import SOON, Schedule
from .parts.steering import RISE, Tolerant
from .parts.testing import Testing
from .theory.batch_growth import BatchGrowth

NO_CLOSURE = (
    "SR2.step needs a closure, since it evaluates the loss twice: optimizer.step(lambda: loss_fn(model(x), y)); "
    "torch's GradScaler cannot pass one, so use bfloat16 autocast, which needs no scaler"
)
ELSEWHERE = {
    "lr": "it finds its own steps; ProxGEN(model, R, lr=...) takes one",
    "betas": "give momentum=, and metric=sr2.metrics.Adam(beta=...)",
    "epochs": "give steps=epochs * len(loader)",
    **{
        name: f"it belongs to the rule: give rule=sr2.rules.Tolerant({name}=...)"
        for name in ("usual", "longest", "rise")
    },
    "warmup": "it has one that ends by itself; rule=sr2.rules.Tolerant(usual=...) says where",
}
"""What other optimizers are told, and the way to it in SR2."""
_TAKES: dict[str, Mapping[str, Parameter]] = {}
"""The arguments of each optimizer."""
Init = TypeVar("Init", bound=Callable[..., None])


def names_the_way(init: Init) -> Init:
    """The constructor, with a sentence for what it does not take: what that is called here, or who takes it."""
    owner = init.__qualname__.partition(".")[0]
    _TAKES[owner] = takes = {n: p for n, p in signature(init).parameters.items() if n != "self"}
    by_place = [n for n, p in takes.items() if p.kind is not p.KEYWORD_ONLY]

    @wraps(init)
    def checked(self: Any, *args: Any, **options: Any) -> None:
        if len(args) > len(by_place):
            first = repr(args[len(by_place)])
            raise TypeError(
                f"{owner} takes {', '.join(by_place)} by place, and {first} is one more: name it, as key=value"
            )
        for name, value in options.items():
            if name not in takes:
                raise TypeError(f"{owner} has no {name}={value!r}: {_way(owner, name)}")
        init(self, *args, **options)

    return checked  # type: ignore[return-value]


def _way(owner: str, name: str) -> str:
    """From an argument that this optimizer does not take."""
    if owner == "SR2" and name in ELSEWHERE:
        return ELSEWHERE[name]
    others = [other for other, takes in _TAKES.items() if name in takes]
    if others:
        return f"{' and '.join(others)} {'has' if len(others) == 1 else 'have'} it, and {owner} has {_names(owner)}"
    close = get_close_matches(name, _TAKES[owner], n=1)
    return f"did you mean {close[0]}=?" if close else f"it has {_names(owner)}"


def _names(owner: str) -> str:
    return ", ".join(list(_TAKES[owner])[1:])


class Unsaid(NamedTuple):
    """What stands for "auto" in the options of SR2 that belong together."""

    metric: Any
    momentum: Any
    average: Any
    rule: Any
    weight_decay: float | str
    reach: tuple[int, int] | None


TUNED = Unsaid(metric="adam", momentum=0.9, average=True, rule=Tolerant(), weight_decay=AUTO, reach=SOON)
"""The library's defaults: docs/defaults.md says why, and where they lose."""
ALGORITHM_1 = Unsaid(metric=None, momentum=0.0, average=False, rule=Ratio(), weight_decay=0.0, reach=None)
"""Those of whoever names a constant of Algorithm 1, its rule, or what only its theory can say."""


def unsaid(constants: Mapping[str, object], rule: Rule | None, *of_theory: object) -> Unsaid:
    """The defaults for these arguments.

    >>> unsaid({"eta2": None}, None).metric, unsaid({"eta2": 0.9}, None).metric
    ('adam', None)
    """
    named = {name: value for name, value in constants.items() if value is not None}
    if rule is not None:
        if named:
            raise ValueError(f"SR2: rule={rule!r} says it already: leave out {', '.join(named)}")
        if not isinstance(rule, Rule):
            raise TypeError(
                f"SR2: rule must be an object of sr2.rules, and is {rule!r}: give one, as sr2.rules.Tolerant()"
            )
    if named or isinstance(rule, Ratio) or any(option is not None for option in of_theory):
        return ALGORITHM_1._replace(rule=rule or Ratio(**named))  # type: ignore[arg-type]
    return TUNED._replace(rule=rule or TUNED.rule)


def bearable(rule: Any, direction: Direction | None) -> Any:
    """The default rule, with no more of a rise than steps along v make good: 2 beta / (1 - beta).

    Where f has the curvature c, x <- x - v / sigma, v an average with beta, is stable for c < 2 sigma (1 + beta) /
    (1 - beta), and rho >= -rise lets pass what has c <= 2 sigma (1 + rise). Without momentum x ran away so, with every
    step accepted.

    >>> from sr2.directions import Average
    >>> bearable(TUNED.rule, None).rise, bearable(TUNED.rule, Average(0.9)).rise
    (0.0, 3.0)
    """
    beta = 0.0 if direction is None else direction.beta
    if rule is not TUNED.rule or beta is None:  # which was said, or whose average is not known
        return rule
    most = 2 * beta / (1 - beta)
    return rule if most >= RISE else replace(rule, rise=min(1.0, most))


def said(value: Any, default: Any) -> Any:
    """What was given, or the default where that is "auto"."""
    return default if isinstance(value, str) and value == "auto" else value


class Options(Protocol):
    """The options that are checked against one another."""

    autocast: torch.dtype | None
    epsilon: float | None
    batch_growth: BatchGrowth | None
    schedule: Schedule | None
    direction: Direction | None
    testing: Testing | None


def part(kind: type, given: Any, default: Any, shorthand: str, *, used: bool) -> Any:
    """The part of this kind that was given, or the one that its shorthand stands for; not both."""
    name = kind.__name__.lower()
    if given is None:
        return default
    if not isinstance(given, kind):
        raise TypeError(f"SR2: {name} must be an object of sr2.{name}s, and is {given!r}")
    if used:
        raise ValueError(f"SR2: {name}={given!r} says it already: leave out {shorthand}")
    return given


def check_sigma(sigma: object, sigma_min: float) -> None:
    """A number of at least sigma_min > 0, or "auto"."""
    check_number("SR2", "sigma_min", sigma_min, 0, open_low=True)
    if isinstance(sigma, str) and sigma == "auto":
        return
    if isinstance(sigma, bool) or not isinstance(sigma, Real):
        raise ValueError(f"SR2: sigma must be a number or 'auto', and is {sigma!r}")
    check_number("SR2", "sigma", sigma, sigma_min)


def check_options(options: Options, capturable: bool) -> None:
    """What does not go together, in one sentence with the way out."""
    autocast, epsilon, growth = options.autocast, options.epsilon, options.batch_growth
    if autocast not in (None, torch.bfloat16, torch.float16):
        raise ValueError(f"SR2: autocast must be torch.bfloat16, torch.float16 or None, and is {autocast!r}")
    if epsilon is not None:
        check_number("SR2", "epsilon", epsilon, 0, open_low=True)
    if options.schedule is not None and epsilon is not None:
        raise ValueError(
            f"SR2: steps that a cooldown shortens say nothing of stationarity: leave out {options.schedule} or "
            f"epsilon={epsilon!r}"
        )
    if options.testing is not None and (epsilon is not None or growth is not None):
        raise ValueError(
            f"SR2: epsilon and batch_growth rest on theorems that need every step tested, and {options.testing!r} does "
            "not: leave out test_every, or them"
        )
    if growth is not None and not isinstance(growth, BatchGrowth):
        raise TypeError(f"SR2: batch_growth must be a BatchGrowth, as BatchGrowth(kappa=10.0), and is {growth!r}")
    if growth is not None and (capturable or options.direction is not None):
        raise ValueError("batch_growth changes the batch and judges plain gradients: no capturable, no momentum")
