"""What is told once because it would otherwise go wrong in silence: R that does not reach what it seems to reach."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn
from torch.nn.utils.parametrizations import _SpectralNorm, _WeightNorm
from torch.nn.utils.parametrize import ParametrizationList

from ..numerics import is_part
from ..telling import tell
from .groups import Trained, some


def say_parametrized(module: nn.Module | None, groups: Sequence[Mapping[str, Any]]) -> None:
    """Tell where R is of a tensor that a weight is computed from: its zeros may be none of the weight.

    spectral_norm and weight_norm multiply, and keep them.
    """
    penalized = {id(p) for group in groups if group["regularizer"] is not None for p in group["params"]}
    found: dict[str, str] = {}
    for name, made in module.named_modules() if module is not None else ():
        if isinstance(made, ParametrizationList) and not all(
            isinstance(by, _SpectralNorm | _WeightNorm) for by in made
        ):
            own = [n for n, p in made.named_parameters(name, recurse=False) if id(p) in penalized and p.requires_grad]
            found |= dict.fromkeys(own, " and ".join(type(by).__name__.lstrip("_") for by in made))
    if found:
        tell(
            f"zeros of {some(list(found))} need not be zeros of the weight that {some(sorted(set(found.values())))} "
            "computes: leave it out, param_groups(model, [('*.parametrizations.*', None), ...]), or make it a plain "
            "weight first, torch.nn.utils.parametrize.remove_parametrizations(layer, 'weight')"
        )


def say_frozen(groups: Sequence[Mapping[str, Any]], before: Trained) -> None:
    """Tell where tensors were frozen before they were within their budget: it is of what is left to train."""
    for number, (group, (_, trained)) in enumerate(zip(groups, before, strict=False)):
        R, ps = group["regularizer"], [p for p, (was, _) in zip(group["params"], trained, strict=False) if was]
        frozen = [p for p in ps if not p.requires_grad]
        if not frozen or R is None or not R.strict or any(is_part(p) for p in ps):
            continue  # of parts no process knows alone whether they are within it
        if any(bool(term.isposinf().any()) for term in R.terms_of(frozen)):
            n, of = sum(p.numel() for p in frozen), sum(p.numel() for p in ps)
            tell(
                f"{n:,} of {of:,} weights under {R!r} (group {number}) were frozen with more nonzeros than it allows: "
                "they count no longer, and all together will not be within it; freeze them once it is reached"
            )


def say_past(end: int, t: int) -> None:
    """Tell that a run which is much longer than was said hardly moves any more."""
    tell(
        f"this is step {t} of SR2(..., steps={end}), and from step {end} on steps stay a fiftieth as long: "
        "steps counts the batches of all epochs, epochs * len(loader)"
    )
