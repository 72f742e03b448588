"""Networks, one family per file; `known()` names them all.

>>> from sr2.experiments.models import build
>>> sum(p.numel() for p in build("resnet34", classes=10, in_shape=(3, 32, 32)).parameters())
21282122
"""

from .base import Shape, build, fingerprint, known

__all__ = ["Shape", "build", "fingerprint", "known"]
