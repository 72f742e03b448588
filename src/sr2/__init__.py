"""sr2: train sparse PyTorch networks under nonsmooth regularizers, without a learning rate to tune."""

from .optim import SR2, ProxGEN, ProxSGD, param_groups
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
    "param_groups",
    "prune_",
    "sparsity",
]
