"""What zeros buy: smaller files, fewer channels, faster inference.

>>> from sr2.export import shrink, save, load, sparse_layers, semi_structured, to_onnx
"""

from .container import load, save
from .csr import sparse_layers
from .onnx import to_onnx
from .semi_structured import semi_structured
from .shrink import shrink

__all__ = ["load", "save", "semi_structured", "shrink", "sparse_layers", "to_onnx"]
