"""HOW to step: SR2, ProxGEN and ProxSGD, sharing one proximal step."""

from .base import ProximalOptimizer, StepInfo
from .batch_growth import BatchGrowth
from .capture import CapturedStep
from .certificate import Certificate, certificate
from .groups import param_groups
from .proxgen import ProxGEN
from .proxsgd import ProxSGD
from .sr2 import SR2

__all__ = [
    "SR2",
    "BatchGrowth",
    "CapturedStep",
    "Certificate",
    "ProxGEN",
    "ProxSGD",
    "ProximalOptimizer",
    "StepInfo",
    "certificate",
    "param_groups",
]
