"""HOW to step: SR2, ProxGEN and ProxSGD, sharing one proximal step."""

from .base import ProximalOptimizer
from .capture import CapturedStep
from .groups import param_groups
from .proxgen import ProxGEN
from .proxsgd import ProxSGD
from .records import Figures, StepInfo
from .sr2 import SR2
from .theory.batch_growth import BatchGrowth
from .theory.certificate import Certificate, certificate

__all__ = [
    "SR2",
    "BatchGrowth",
    "CapturedStep",
    "Certificate",
    "Figures",
    "ProxGEN",
    "ProxSGD",
    "ProximalOptimizer",
    "StepInfo",
    "certificate",
    "param_groups",
]
