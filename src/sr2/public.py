"""The public names of sr2."""

from . import averaging, directions, metrics, regularizers, rules, schedules
from .channels import channel_groups
from .optim import SR2, BatchGrowth, ProxGEN, ProxSGD, certificate, param_groups
from .recalibrate import recalibrate_
from .regularizers import *  # noqa: F403 - every regularizer is public
from .zeros import keep_zeros, prune_, sparsity

__all__ = [
    "SR2",
    "BatchGrowth",
    "ProxGEN",
    "ProxSGD",
    "averaging",
    "certificate",
    "channel_groups",
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
__all__ += regularizers.__all__
