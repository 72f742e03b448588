"""sr2: train sparse PyTorch networks under nonsmooth regularizers, without a learning rate to tune."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import averaging, directions, metrics, rules, schedules
    from .optim import SR2, BatchGrowth, ProxGEN, ProxSGD, certificate, param_groups
    from .recalibrate import recalibrate_
    from .regularizers import (
        L0,
        L1,
        MCP,
        NM,
        SCAD,
        Box,
        ElasticNet,
        GroupL0,
        GroupL2,
        L0Ball,
        Lp,
        Nuclear,
        Rank,
        Regularizer,
    )
    from .zeros import prune_, sparsity

__version__ = "0.1.0"

__all__ = [
    "L0",
    "L1",
    "MCP",
    "NM",
    "SCAD",
    "SR2",
    "BatchGrowth",
    "Box",
    "ElasticNet",
    "GroupL0",
    "GroupL2",
    "L0Ball",
    "Lp",
    "Nuclear",
    "ProxGEN",
    "ProxSGD",
    "Rank",
    "Regularizer",
    "averaging",
    "certificate",
    "directions",
    "metrics",
    "param_groups",
    "prune_",
    "recalibrate_",
    "rules",
    "schedules",
    "sparsity",
]

_PARTS = ("averaging", "directions", "metrics", "rules", "schedules")
_HOMES = ("optim", "regularizers", "zeros", "recalibrate")


def __getattr__(name: str) -> Any:
    """A public name, imported where it is asked for first.

    `import sr2` alone does not import torch: the command line begins with it, and can then answer an interrupt.
    """
    if name in (*_PARTS, *_HOMES):
        return import_module(f"{__name__}.{name}")
    if name in __all__:
        homes = (import_module(f"{__name__}.{home}") for home in _HOMES)
        globals()[name] = found = next(getattr(home, name) for home in homes if hasattr(home, name))
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
