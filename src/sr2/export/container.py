"""`save` and `load`: a sparse network as one small safetensors file.

A tensor `w` with enough zeros is three tensors of the file: `w.compressed`, its nonzeros in row-major order;
`w.bitmask`, uint8, one bit per entry in the order of numpy's packbits (little), or `w.bitmask.deflate`, the same
through zlib where that is smaller; `w.shape`, int64. Everything else is dense. The metadata say format=sr2-bitmask,
version=1, and hold a sha256.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, overload

import numpy as np
import torch
from torch import Tensor, nn

from ..files import write_whole
from ..telling import put_to_use
from .index_map import IndexMap
from .rebuild import refresh, set_tensor

FORMAT, VERSION = "sr2-bitmask", "1"
COMPRESSED, BITMASK, DEFLATED, SHAPE = ".compressed", ".bitmask", ".bitmask.deflate", ".shape"
MAX_BYTES = 2**34
SIGNS_PAY = 4096
"""Bytes of a tensor that the signs of its zeros must cost before they are dropped."""

Model = TypeVar("Model", bound=nn.Module)
Tensors = dict[str, Tensor]

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_UNSUPPORTED = {  # safetensors does not give these back: they are written as bytes
    name: getattr(torch, name)
    for name in ("complex128", "complex32", "float8_e8m0fnu", "float4_e2m1fn_x2")
    if hasattr(torch, name)
}


def save(model: nn.Module | Mapping[str, Tensor], path: str | Path, *, dtype: torch.dtype | None = None) -> int:
    """Write a network, shrunk or not, or a state dict; returns the bytes of the file. Lossless, to the bit.

    With a share d of nonzeros, float32 and no structure, the file takes about 4 d + H(d) / 8 bytes per weight, where H
    is the entropy in bits: at 95 % zeros a sixteenth of 4, at 99 % a seventieth. -0.0 survives too, with one exception:
    the many that `w * mask` leaves behind become 0.0 where that saves more than 4 kB and half of the tensor. Tied
    tensors are written once. The file is written whole or not at all.

    >>> import tempfile
    >>> model = nn.Linear(1000, 100, bias=False)
    >>> _ = nn.init.sparse_(model.weight, 0.99)
    >>> path = tempfile.mkdtemp() + "/small.safetensors"
    >>> save(model, path) < 400_000 / 50
    True
    >>> torch.equal(load(path)["weight"], model.weight)
    True

    Args:
        model: a module (its `state_dict` is written) or tensors by name.
        path: of the file.
        dtype: what floating-point tensors are rounded to before, as torch.bfloat16; None leaves them.
    """
    if not isinstance(model, nn.Module | Mapping):
        raise TypeError(f"save writes a model or tensors by name, and got a {type(model).__name__}: save(model, path)")
    if isinstance(model, nn.Module):
        put_to_use(model)
    tensors, tied = _collect(model.state_dict() if isinstance(model, nn.Module) else model, dtype)
    stored: Tensors = {}
    metadata = {"format": FORMAT, "version": VERSION}
    raw: dict[str, Any] = {}
    for name, tensor in tensors.items():
        kind = str(tensor.dtype).removeprefix("torch.")
        if kind in _UNSUPPORTED:
            raw[name] = [kind, list(tensor.shape)]
            stored[name] = tensor.reshape(-1).view(torch.uint8)
        else:
            stored |= _packed(name, tensor, taken=tensors)
    if tied:
        metadata["tied"] = json.dumps(tied)
    if raw:
        metadata["bytes"] = json.dumps(raw)
    index = getattr(model, "index_map", None)
    if isinstance(index, IndexMap):
        metadata["index"] = index.to_text()
    metadata["sha256"] = _digest(stored, metadata)
    data = _safetensors().torch.save(stored, metadata)
    write_whole(path, data)
    return len(data)


@overload
def load(path: str | Path, model: None = None, *, max_bytes: int = MAX_BYTES) -> Tensors: ...
@overload
def load(path: str | Path, model: Model, *, max_bytes: int = MAX_BYTES) -> Model: ...
def load(path: str | Path, model: Any = None, *, max_bytes: int = MAX_BYTES) -> Any:
    """Read what `save` wrote: tensors by name, or, given a fresh model of the same class, that model, filled.

    A file of a shrunk network makes the model smaller first: nothing is unpickled and no code of the file is run. A
    file that is damaged, hostile or of another network is a ValueError of one sentence, and the model is unchanged.

    >>> import tempfile
    >>> from sr2.export import shrink
    >>> def make():
    ...     return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> model = make()
    >>> _ = nn.init.zeros_(model[0].weight[:5])
    >>> path = tempfile.mkdtemp() + "/shrunk.safetensors"
    >>> _ = save(shrink(model, torch.zeros(1, 4), verbose=False), path)
    >>> load(path, make())[0]
    Linear(in_features=4, out_features=3, bias=True)

    Args:
        path: of the file.
        model: of the class whose network was saved, of the size before shrinking.
        max_bytes: what all tensors together may take in memory: a small file can claim to hold a huge one.
    """
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"load reads a file, and got a {type(path).__name__}: load(path, model)")
    with _one_sentence(path):
        tensors, index = _read(Path(path), max_bytes)
    if model is None:
        return tensors
    with _one_sentence(path, "does not fit the model"):
        return _fill(model, tensors, index)


# ---- writing


def _collect(state: Mapping[str, Tensor], dtype: torch.dtype | None) -> tuple[Tensors, dict[str, str]]:
    """The tensors, dense, contiguous and on the CPU; and the names of those that are another one's."""
    tensors: Tensors = {}
    tied: dict[str, str] = {}
    seen: dict[Any, str] = {}
    for name, tensor in state.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} is a {type(tensor).__name__}, and save writes tensors only: leave it out")
        if name.endswith((COMPRESSED, BITMASK, DEFLATED)):
            raise ValueError(f"{name} ends as this file's own names do: rename the parameter")
        if tensor.is_quantized or tensor.device.type == "meta":
            raise ValueError(
                f"{name} is quantized or without data (meta), and save writes numbers: dequantize or load it"
            )
        tensor = tensor.detach()
        if tensor.layout != torch.strided:
            tensor = tensor.to_dense()
        key = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        if tensor.numel() and key in seen:
            tied[name] = seen[key]
            continue
        seen[key] = name
        if dtype is not None and tensor.is_floating_point():
            tensor = tensor.to(dtype)
        tensors[name] = tensor.cpu().resolve_conj().resolve_neg().contiguous()
    return tensors, tied


def _packed(name: str, tensor: Tensor, taken: Mapping[str, Tensor]) -> Tensors:
    """The three tensors of a sparse one, or the tensor itself where they are not smaller."""
    if name + SHAPE in taken:
        return {name: tensor}
    flat = tensor.reshape(-1)
    words = flat.view(_INTEGERS[tensor.element_size()])
    mask = words != 0
    best = min({name: tensor}, _three(name, tensor, mask), key=_size)
    if tensor.is_floating_point() and tensor.element_size() > 1 and not mask.equal(words << 1 != 0):
        unsigned = _three(name, tensor, words << 1 != 0)  # without the bit of the sign
        if _size(best) - _size(unsigned) > max(SIGNS_PAY, _size(best) // 2):
            return unsigned
    return best


def _three(name: str, tensor: Tensor, mask: Tensor) -> Tensors:
    bits = np.packbits(mask.numpy(), bitorder="little")
    deflated = np.frombuffer(zlib.compress(bits.tobytes(), 9 if len(bits) < 2**20 else 6), np.uint8)
    suffix, bits = (DEFLATED, deflated) if len(deflated) < len(bits) else (BITMASK, bits)
    return {
        name + COMPRESSED: tensor.reshape(-1)[mask],
        name + suffix: torch.from_numpy(bits.copy()),
        name + SHAPE: torch.tensor(tensor.shape, dtype=torch.int64, device="cpu"),
    }


def _size(tensors: Tensors) -> int:
    """Bytes in the file, with about a hundred for each entry of the header."""
    return sum(tensor.nbytes + 100 for tensor in tensors.values())


# ---- reading


def _read(path: Path, max_bytes: int) -> tuple[Tensors, IndexMap | None]:
    with _safetensors().safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
        if metadata.get("format") != FORMAT:
            raise ValueError(f"its format is {metadata.get('format')!r}, not {FORMAT}")
        if metadata.get("version") != VERSION:
            raise ValueError(f"its version is {metadata.get('version')!r}, and this sr2 reads {VERSION}")
        if unknown := set(metadata) - {"format", "version", "tied", "bytes", "index", "sha256"}:
            raise ValueError(f"it has metadata that version {VERSION} does not know: {min(unknown)!r}")
        stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    if "sha256" in metadata and metadata["sha256"] != _digest(stored, metadata):
        raise ValueError("its checksum is wrong")
    left = max_bytes
    tensors: Tensors = {}
    raw = json.loads(metadata.get("bytes", "{}"))
    if not set(raw) <= set(stored) or any(name.endswith((COMPRESSED, BITMASK, DEFLATED)) for name in raw):
        raise ValueError("its list of raw bytes names what is none")
    for name, tensor in stored.items():
        whole = name.removesuffix(COMPRESSED)
        if name.endswith(COMPRESSED):
            tensors[whole] = _unpacked(whole, stored, left)
        elif name in raw:
            tensors[name] = tensor.view(_UNSUPPORTED[raw[name][0]]).view([int(n) for n in raw[name][1]])
        elif not (name.endswith((BITMASK, DEFLATED)) or name.removesuffix(SHAPE) + COMPRESSED in stored):
            tensors[name] = tensor
        left -= tensors[whole].nbytes if whole in tensors else 0
    for name, other in json.loads(metadata.get("tied", "{}")).items():
        tensors[name] = tensors[other]
    return tensors, IndexMap.from_text(metadata["index"]) if "index" in metadata else None


def _unpacked(name: str, stored: Tensors, max_bytes: int) -> Tensor:
    values, shape = stored[name + COMPRESSED], stored[name + SHAPE]
    sizes = [int(n) for n in shape.tolist()]
    if shape.dtype != torch.int64 or shape.ndim != 1 or len(sizes) > 64 or min(sizes, default=0) < 0:
        raise ValueError(f"the shape of {name} is none")
    count = math.prod(sizes)
    if count * values.element_size() > max_bytes:
        raise ValueError(
            f"{name} is said to have {count:,} entries, more than max_bytes = {max_bytes:,} allow: "
            "raise it if you trust the file"
        )
    bits = _inflated(name, stored, (count + 7) // 8)
    flags = np.unpackbits(bits, bitorder="little").astype(bool)
    nonzeros = int(flags.sum())  # of the bits behind the last entry too, which must be 0
    flags = flags[:count]
    if values.ndim != 1 or nonzeros != len(values) or int(flags.sum()) != nonzeros:
        raise ValueError(f"{name} has {values.numel()} values for {nonzeros} bits")
    kind = _INTEGERS[values.element_size()]
    flat = torch.zeros(count, dtype=kind, device="cpu")
    flat[torch.from_numpy(flags)] = values.view(kind)
    return flat.view(values.dtype).view(sizes)


def _inflated(name: str, stored: Tensors, length: int) -> Any:
    """The mask of `length` bytes; not one more is unpacked."""
    bits = stored[name + DEFLATED] if name + DEFLATED in stored else stored[name + BITMASK]
    if bits.dtype != torch.uint8 or bits.ndim != 1:
        raise ValueError(f"the bitmask of {name} is not of bytes")
    made = bits.numpy()
    if name + DEFLATED in stored:
        inflater = zlib.decompressobj()
        made = np.frombuffer(inflater.decompress(made.tobytes(), length + 1), np.uint8)
    if len(made) != length:
        raise ValueError(f"the bitmask of {name} has another length than its shape says")
    return made


def _fill(model: Any, tensors: Tensors, index: IndexMap | None) -> Any:
    """Check everything, then change the model."""
    index = index or IndexMap()
    own = model.state_dict()
    fits = {name: index.shape(name, tensor.shape) for name, tensor in own.items() if name not in index.biases}
    for name in index.biases:
        owner = model.get_submodule(name.rpartition(".")[0])
        if not name.endswith(".bias") or getattr(owner, "bias", 0) is not None or name not in tensors:
            raise ValueError(f"{name} is no bias that a layer lacks")
        fits[name] = tensors[name.removesuffix("bias") + "weight"].shape[:1]
    for name in sorted({*fits, *tensors}):
        if name not in tensors or name not in fits:
            raise ValueError(f"{name} is in the {'model' if name in fits else 'file'} only")
        if tensors[name].shape != fits[name]:
            raise ValueError(f"{name} is {tuple(tensors[name].shape)} in the file and {tuple(fits[name])} in the model")
    index.check_sizes(model)
    with torch.no_grad():
        for name, tensor in tensors.items():
            if name in own and own[name].shape == tensor.shape:
                own[name].copy_(tensor)
            else:
                like = own.get(name, own.get(name.removesuffix("bias") + "weight"))
                set_tensor(model, name, tensor.to(like.device, like.dtype))
    refresh(model, index.sizes)
    if index.kept or index.sizes:
        model.index_map = index
    return model


def _digest(stored: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """sha256 of everything but itself."""
    found = hashlib.sha256(json.dumps({k: v for k, v in metadata.items() if k != "sha256"}, sort_keys=True).encode())
    for name in sorted(stored):
        tensor = stored[name]
        found.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        found.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


@contextlib.contextmanager
def _one_sentence(path: str | Path, what: str = "is damaged or was not written by sr2.export.save") -> Iterator[None]:
    """Whatever is wrong with a file is one ValueError; what the disk says stays as it is."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__  # a hostile file may choose its words
        raise ValueError(f"{path} {what}: {reason}") from error


def _safetensors() -> Any:
    try:
        import safetensors
        import safetensors.torch
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "save and load need safetensors: pip install 'sr2[export]'", name="safetensors"
        ) from error
    return safetensors
