"""Which parameter gets which regularizer: `param_groups`, and the groups of a whole module."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import _WeightNorm
from torch.nn.utils.parametrize import ParametrizationList
from torch.nn.utils.weight_norm import WeightNorm

from ..regularizers.base import Regularizer, check_regularizer

Trained = list[tuple[int, list[tuple[bool, torch.dtype]]]]
"""Of each group its regularizer, and which of its tensors are trained, of which dtype."""
_NORMS = (
    nn.modules.batchnorm._NormBase,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.LocalResponseNorm,
    nn.RMSNorm,
)


class ParamGroups(list[dict[str, Any]]):
    """Group dicts that remember their module, so that an optimizer can protect its buffers."""

    def __init__(self, groups: Sequence[dict[str, Any]], module: nn.Module) -> None:
        super().__init__(groups)
        self.module = module


def param_groups(model: nn.Module, rules: Sequence[tuple[str | re.Pattern[str], Regularizer | None]]) -> ParamGroups:
    """Groups by parameter name: ordered rules (pattern, regularizer or None), the first match wins.

    A pattern is a shell pattern over the whole name ("*.bias", "layer1.*") or a compiled regular expression, which is
    searched for. A pattern that matches no name and a parameter that no rule claims are errors.

    >>> from sr2 import L0, L1
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> groups = param_groups(model, [("*.bias", None), ("0.*", L1(1e-4)), ("*", L0(1e-3))])
    >>> [(len(g["params"]), g["regularizer"]) for g in groups]
    [(2, None), (1, L1(lam=0.0001)), (1, L0(lam=0.001))]
    """
    named = list(model.named_parameters())
    groups: list[dict[str, Any]] = []
    claimed: set[str] = set()
    for rule in rules:
        if not isinstance(rule, tuple | list) or len(rule) != 2:
            raise TypeError(
                f"a rule is a pair (pattern, regularizer or None), and one is {rule!r}: give a list of pairs"
            )
        pattern, regularizer = rule
        check_regularizer(regularizer)
        matching = [name for name, _ in named if _matches(pattern, name)]
        if not matching:
            raise ValueError(
                f"the pattern {_text(pattern)!r} matches no parameter: the names are {some([n for n, _ in named])}"
            )
        params = [(name, p) for name, p in named if name in matching and name not in claimed]
        claimed.update(matching)
        if params:
            groups.append({"params": params, "regularizer": regularizer})
    left = [name for name, _ in named if name not in claimed]
    if left:
        raise ValueError(f"no rule claims {some(left)}: end the rules with ('*', None) to leave the rest alone")
    return ParamGroups(groups, model)


def module_groups(module: nn.Module, regularizer: Regularizer | None, penalize: str) -> ParamGroups:
    """The groups of `SR2(module, R)`: every parameter ("all"), or weights only ("weights": no bias, no norm)."""
    if penalize not in ("weights", "all"):
        raise ValueError(f"penalize must be 'weights' or 'all', and is {penalize!r}")
    if not any(True for _ in module.parameters()):
        raise ValueError(f"{type(module).__name__} has no parameters: give a module that has some")
    norms = {id(p) for m in module.modules() for p in _of_norms(m)}
    chosen: list[tuple[str, nn.Parameter]] = []
    rest: list[tuple[str, nn.Parameter]] = []
    for name, p in module.named_parameters():
        is_weight = p.dim() > 1 and id(p) not in norms and "bias" not in name.rpartition(".")[2]
        (chosen if penalize == "all" or is_weight else rest).append((name, p))
    groups: list[dict[str, Any]] = [
        {"params": chosen, "regularizer": regularizer},
        {"params": rest, "regularizer": None},
    ]
    return ParamGroups([g for g in groups if g["params"]], module)


def _of_norms(module: nn.Module) -> list[nn.Parameter]:
    """What is a norm's own in this module: that of a norm layer, and the lengths of weight_norm, old or new."""
    if isinstance(module, _NORMS):
        return list(module.parameters(recurse=False))
    if isinstance(module, ParametrizationList):
        own = dict(module.named_parameters(recurse=False))
        return [own["original0"]] if isinstance(module[0], _WeightNorm) else []
    hooks = [hook for hook in module._forward_pre_hooks.values() if isinstance(hook, WeightNorm)]
    return [getattr(module, f"{hook.name}_g") for hook in hooks]


def _matches(pattern: str | re.Pattern[str], name: str) -> bool:
    return fnmatchcase(name, pattern) if isinstance(pattern, str) else pattern.search(name) is not None


def _text(pattern: str | re.Pattern[str]) -> str:
    return pattern if isinstance(pattern, str) else pattern.pattern


def some(names: Sequence[str], most: int = 6) -> str:
    """The first of these names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def check_dtypes(params: Iterable[Tensor]) -> None:
    """What is frozen may be anything, as the half or quantized base of an adapter."""
    for p in params:
        if p.requires_grad and p.dtype not in (torch.float32, torch.float64, torch.bfloat16):
            raise ValueError(
                f"parameters must be float32, float64 or bfloat16, and one is {p.dtype}: "
                "keep float32 parameters and compute in lower precision with torch.autocast, "
                "or view a complex one as real (torch.view_as_real)"
            )


def named_as_others(
    param_group: dict[str, Any], others: Sequence[Mapping[str, Any]], module: nn.Module | None
) -> dict[str, Any]:
    """The group with names, where the others have some: torch wants all or none, and a module's have."""
    params = param_group["params"]
    if isinstance(params, set) or "param_names" in param_group:  # the former is torch's to reject
        return param_group
    params = [params] if isinstance(params, Tensor) else list(params)
    named = not params or isinstance(params[0], tuple)
    if named or not any("param_names" in group for group in others):
        return {**param_group, "params": params}
    known = {p: name for name, p in module.named_parameters()} if module is not None else {}
    prefix = f"group{len(others)}"
    return {**param_group, "params": [(known.get(p, f"{prefix}.{i}"), p) for i, p in enumerate(params)]}
