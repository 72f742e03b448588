"""What zeros buy: smaller files, fewer channels, faster inference.

>>> from sr2.export import channel_groups, shrink, save, load, sparse_layers, semi_structured, to_onnx
"""

from .channel_groups import channel_groups
from .container import load, save
from .csr import sparse_layers
from .onnx import to_onnx
from .semi_structured import semi_structured
from .shrink import shrink

__all__ = ["channel_groups", "load", "save", "semi_structured", "shrink", "sparse_layers", "to_onnx"]
