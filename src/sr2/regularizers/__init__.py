"""What is penalized: each regularizer R with its exact proximal operator. Imports torch only."""

from .base import Regularizer
from .box import Box
from .channels import Channels
from .elastic_net import ElasticNet
from .group import GroupL0, GroupL2
from .grouping import Heads
from .keep_zeros import KeepZeros
from .l0 import L0
from .l0_ball import L0Ball
from .l1 import L1
from .low_rank import Nuclear, Rank
from .lp import Lp
from .mcp import MCP
from .nm import NM
from .ridge import Ridge
from .scad import SCAD

__all__ = [
    "L0",
    "L1",
    "MCP",
    "NM",
    "SCAD",
    "Box",
    "Channels",
    "ElasticNet",
    "GroupL0",
    "GroupL2",
    "Heads",
    "KeepZeros",
    "L0Ball",
    "Lp",
    "Nuclear",
    "Rank",
    "Regularizer",
    "Ridge",
]
