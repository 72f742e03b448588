"""Networks, one family a file: `cnn`, `mlp`, `resnet18`, `resnet34`, `densenet121`, `densenet201`; or yours.

>>> from sr2.experiments.models import build
>>> sum(p.numel() for p in build("resnet34", classes=10, in_shape=(3, 32, 32)).parameters())
21282122
"""

from .base import Shape, build, fingerprint, known

__all__ = ["Shape", "build", "fingerprint", "known"]
