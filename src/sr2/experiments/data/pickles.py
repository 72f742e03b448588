"""Reading the official pickles without executing what is in them.

A pickle names functions to call and states to set. None of numpy's is ever called: a forged state, such as an array of
objects, would crash the interpreter. What an array says of itself is kept, checked to be plain bytes, and only then
made an array.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
from typing import Any

import numpy as np

from ..errors import UserError, short


class _Told:
    """What stands in for a function or a type of numpy. Nothing can be set on it, unless a subclass lets it."""

    __slots__ = ()

    def __setstate__(self, state: object) -> None:
        raise pickle.UnpicklingError("it sets the state of what has none")


class _Bytes(_Told):
    """The type of bytes, numpy's uint8; no other one may be named."""

    def __setstate__(self, state: object) -> None:
        """A byte has no byte order and no fields: whatever is said of them is left alone."""


class _Array(_Told):
    """An array of bytes that is not one yet."""

    __slots__ = ("made",)

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, by_column, raw = state
        raw = raw.encode("latin1") if isinstance(raw, str) else raw  # as Python 2 wrote it
        plain = isinstance(kind, _Bytes) and isinstance(raw, bytes) and isinstance(shape, tuple)
        if not plain or not all(type(n) is int and n >= 0 for n in shape) or math.prod(shape) != len(raw):
            raise pickle.UnpicklingError("it holds an array that is not one of plain bytes")
        self.made = np.frombuffer(raw, np.uint8).reshape(shape, order="F" if by_column else "C")


class _Reconstruct(_Told):
    """numpy's `_reconstruct`, less the right to choose a type and to ask for memory; the state fills it."""

    def __call__(self, *_: object) -> _Array:
        return _Array()


class _Dtype(_Told):
    """numpy's `dtype`, of bytes."""

    def __call__(self, name: object, *_: object) -> _Bytes:
        if name not in ("u1", "|u1", b"u1", b"|u1"):
            raise pickle.UnpicklingError(f"it holds an array of {name!r}, and only bytes are allowed")
        return _Bytes()


class _Encode(_Told):
    """`_codecs.encode` as protocol 2 uses it for bytes, less the right to choose a codec."""

    def __call__(self, text: str, encoding: str) -> bytes:
        if encoding != "latin1":
            raise pickle.UnpicklingError(f"the codec {encoding!r} is not allowed")
        return text.encode("latin1")


# All that a dictionary of arrays and lists needs, under the old and the new name of numpy's core.
_ALLOWED: dict[tuple[str, str], _Told] = {
    ("numpy.core.multiarray", "_reconstruct"): _Reconstruct(),
    ("numpy._core.multiarray", "_reconstruct"): _Reconstruct(),
    ("numpy", "ndarray"): _Told(),
    ("numpy", "dtype"): _Dtype(),
    ("_codecs", "encode"): _Encode(),
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks to run {module}.{name}") from None


_BUFFERS = frozenset(("BYTEARRAY8", "NEXT_BUFFER", "READONLY_BUFFER"))
"""Opcodes of protocol 5, whose forged lengths leave CPython's own unpickler with a broken bytearray."""


_MEMO = frozenset(("PUT", "BINPUT", "LONG_BINPUT"))


def _check_opcodes(content: bytes) -> None:
    for opcode, argument, _ in pickletools.genops(content):
        if opcode.name in _BUFFERS:
            raise pickle.UnpicklingError(f"it asks for {opcode.name}, which no official file does")
        if opcode.name in _MEMO and int(argument or 0) > len(content):  # a table of that size would be made
            raise pickle.UnpicklingError(f"it asks for a table of {argument} entries")


def read_pickle(content: bytes, file: str) -> dict[str, Any]:
    """The dictionary in a pickle of arrays of bytes, lists, numbers and strings; all else is an error, and is not run.

    Args:
        content: the bytes of the pickle, of Python 2 or 3.
        file: what an error calls it.
    """
    try:
        _check_opcodes(content)
        value = _Unpickler(io.BytesIO(content), encoding="latin1").load()
    except Exception as error:  # a damaged pickle fails in any way it likes
        raise UserError(
            f"{file} is damaged or not an official file, and was not run ({short(error)}): delete it and fetch it again"
        ) from error
    if not isinstance(value, dict):
        raise UserError(f"{file} holds a {type(value).__name__} and not a batch of images: fetch it again")
    named = {k.decode("latin1") if isinstance(k, bytes) else str(k): v for k, v in value.items()}
    return {name: getattr(v, "made", None) if isinstance(v, _Told) else v for name, v in named.items()}
