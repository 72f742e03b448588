"""The regularizers and optimizers by the names that users type. They are found in the library and in `baselines`.

An optimizer or regularizer of one's own is `module:callable`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from ... import optim, regularizers
from ...optim import ProximalOptimizer
from ...regularizers import Regularizer
from ..baselines import GMP, SGD, AdamW, Baseline
from ..names import check_known, import_callable
from .options import parameters

Constructor = Callable[..., Any]


def _snake(name: str) -> str:
    """L0Ball -> l0_ball, GroupL2 -> group_l2, NM -> nm, MCP -> mcp."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z][a-z0-9])", "_", name).lower()


def _classes(module: Any, base: type, name: Callable[[str], str]) -> dict[str, Constructor]:
    exported = {n: getattr(module, n) for n in module.__all__}
    return {name(n): c for n, c in exported.items() if isinstance(c, type) and issubclass(c, base) and c is not base}


REGULARIZERS = _classes(regularizers, Regularizer, _snake)
"""The built-in regularizers by the names that users type."""
OPTIMIZERS = _classes(optim, ProximalOptimizer, str.lower) | {c.__name__.lower(): c for c in (AdamW, SGD, GMP)}
"""The built-in optimizers by the names that users type."""

GIVEN = frozenset(("params", "regularizer", "penalize", "capturable", "autocast", "reach", "steps"))
"""Arguments of an optimizer that follow from the run's settings: they are no options."""


def find(kind: str, name: str, known: Mapping[str, Constructor]) -> Constructor:
    """The constructor of that name; `module:callable` is imported."""
    if ":" in name:
        return import_callable(kind, name)
    check_known(kind, name, known)
    return known[name]


def find_optimizer(name: str) -> Constructor:
    """The constructor of an optimizer."""
    return find("optimizer", name, OPTIMIZERS)


def find_regularizer(name: str) -> Constructor:
    """The constructor of a regularizer; `none` is none of them."""
    return find("regularizer", name, REGULARIZERS)


def printed(optimizer: str) -> str:
    """The optimizer as tables print it: SR2 for sr2."""
    return OPTIMIZERS[optimizer].__name__ if optimizer in OPTIMIZERS else optimizer


def takes_regularizer(optimizer: str) -> bool:
    """Whether the optimizer of that name minimizes f + R; the baselines minimize f.

    >>> takes_regularizer("sr2"), takes_regularizer("gmp")
    (True, False)
    """
    constructor = find_optimizer(optimizer)
    return not (isinstance(constructor, type) and issubclass(constructor, Baseline))


def constants(regularizer: str) -> dict[str, Any]:
    """The constants of a regularizer and their defaults."""
    if regularizer == "none":
        return {}
    if ":" not in regularizer:
        check_known("regularizer", regularizer, [*REGULARIZERS, "none"])
    takes = parameters(find_regularizer(regularizer)).items()
    return {n: p.default for n, p in takes if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}


def takes_any(regularizer: str) -> bool:
    """Whether the regularizer of that name, one's own, takes constants of any name."""
    found = {} if regularizer == "none" else parameters(find_regularizer(regularizer))
    return any(p.kind is p.VAR_KEYWORD for p in found.values())


def has_lambda(regularizer: str) -> bool:
    """Whether lambda is a constant of the regularizer of that name."""
    return "lam" in constants(regularizer)


def option_names(optimizer: str) -> list[str]:
    """What the optimizer of that name can be told; one with a learning rate can be cooled by the run.

    >>> option_names("proxgen")
    ['lr', 'momentum', 'metric', 'weight_decay', 'foreach', 'cooldown']
    """
    takes = parameters(find_optimizer(optimizer))
    named = [n for n, p in list(takes.items())[2:] if n not in GIVEN and p.kind is not p.VAR_KEYWORD]
    schedules_itself = "cooldown" in takes or "steps" in takes
    return named + (["cooldown"] if "lr" in named and not schedules_itself else [])


def has_option(optimizer: str, option: str) -> bool:
    """Whether the optimizer of that name can be told `option`."""
    takes = parameters(find_optimizer(optimizer)).values()
    anything = any(p.kind is p.VAR_KEYWORD for p in takes)
    return option in option_names(optimizer) or (anything and option not in GIVEN)
