"""sr2: train sparse PyTorch networks under nonsmooth regularizers, without a learning rate to tune."""

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
    KeepZeros,
    L0Ball,
    Lp,
    Nuclear,
    Rank,
    Regularizer,
)
from .zeros import keep_zeros, prune_, sparsity

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
    "KeepZeros",
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
    "keep_zeros",
    "metrics",
    "param_groups",
    "prune_",
    "recalibrate_",
    "rules",
    "schedules",
    "sparsity",
]
