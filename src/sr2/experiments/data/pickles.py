"""Reading the official pickles without executing what is in them."""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np

from ..errors import UserError


def _empty_array(*_: object) -> np.ndarray[Any, Any]:
    """numpy's `_reconstruct`, less the right to choose a type and to ask for memory; the state fills it."""
    return np.empty(0, np.uint8)


def _encode_latin1(text: str, encoding: str) -> bytes:
    """`_codecs.encode` as protocol 2 uses it for bytes, less the right to choose a codec."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"the codec {encoding!r} is not allowed")
    return text.encode("latin1")


# All that a dictionary of arrays and lists needs, under the old and the new name of numpy's core.
_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _empty_array,
    ("numpy._core.multiarray", "_reconstruct"): _empty_array,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _encode_latin1,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks to run {module}.{name}") from None


def read_pickle(content: bytes, file: str) -> dict[str, Any]:
    """The dictionary in a pickle of arrays, lists, numbers and strings; all else is refused before it runs.

    Args:
        content: the bytes of the pickle, of Python 2 or 3.
        file: what an error calls it.
    """
    try:
        value = _Unpickler(io.BytesIO(content), encoding="latin1").load()
    except Exception as error:  # a damaged pickle fails in any way it likes
        raise UserError(
            f"{file} is damaged or not an official file, and was not run ({error}): delete it and fetch it again"
        ) from error
    if not isinstance(value, dict):
        raise UserError(f"{file} holds a {type(value).__name__} and not a batch of images: fetch it again")
    return {k.decode("latin1") if isinstance(k, bytes) else str(k): v for k, v in value.items()}
