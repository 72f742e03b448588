"""Which places of the original tensors a shrunk network holds, as text in a file's metadata."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class IndexMap:
    """The attribute `index_map` of a shrunk module: how to find its entries in the original one.

    `kept["conv1.weight"][0]` are bools as long as axis 0 of the original `conv1.weight`: True for what is still there.
    `sizes` are integer attributes that changed (the number of heads), `biases` the biases that the original lacks.
    """

    kept: dict[str, dict[int, Tensor]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    biases: tuple[str, ...] = ()

    def then(self, later: IndexMap) -> IndexMap:
        """Both cuts as one: `later` speaks of what this one has left."""
        kept = {name: dict(axes) for name, axes in self.kept.items()}
        for name, axes in later.kept.items():
            for axis, at in axes.items():
                before = kept.setdefault(name, {}).get(axis)
                if before is None:
                    kept[name][axis] = at
                else:
                    kept[name][axis] = before.clone().masked_scatter_(before, at)
        return IndexMap(kept, {**self.sizes, **later.sizes}, (*self.biases, *later.biases))

    def to_text(self) -> str:
        """JSON; equal masks are written once, packed as bits."""
        masks: dict[str, int] = {}

        def number(kept: Tensor) -> int:
            bits = np.packbits(kept.numpy(), bitorder="little").tobytes()
            return masks.setdefault(f"{len(kept)}:{base64.b64encode(bits).decode()}", len(masks))

        kept = {name: {str(axis): number(at) for axis, at in axes.items()} for name, axes in self.kept.items()}
        return json.dumps({"kept": kept, "masks": list(masks), "sizes": self.sizes, "biases": list(self.biases)})

    @classmethod
    def from_text(cls, text: str) -> IndexMap:
        """What `to_text` wrote; anything else is a ValueError, a TypeError, a LookupError or an AttributeError."""
        found = json.loads(text)
        masks = [_mask(item) for item in found["masks"]]
        kept = {
            str(name): {int(axis): masks[number] for axis, number in axes.items()}
            for name, axes in found["kept"].items()
        }
        sizes = {str(name): int(size) for name, size in found["sizes"].items()}
        return cls(kept, sizes, tuple(str(name) for name in found["biases"]))

    def shape(self, name: str, shape: torch.Size) -> torch.Size:
        """What a tensor of the original shape becomes; a ValueError if it is not of that shape."""
        made = list(shape)
        for axis, kept in self.kept.get(name, {}).items():
            if not 0 <= axis < len(made) or made[axis] != len(kept):
                raise ValueError(f"{name} of the model has shape {tuple(shape)}, not the one that was shrunk")
            made[axis] = int(kept.sum())
        return torch.Size(made)

    def check_sizes(self, model: nn.Module) -> None:
        """Only numbers that the model has may change, and only become smaller."""
        for name, size in self.sizes.items():
            owner, _, key = name.rpartition(".")
            try:
                before = vars(model.get_submodule(owner)).get(key)
            except AttributeError:
                before = None
            if type(before) is not int or not 0 < size <= before:
                raise ValueError(f"the model has no integer {name} of at least {size}")


def _mask(text: str) -> Tensor:
    length, _, bits = text.partition(":")
    packed = np.frombuffer(base64.b64decode(bits, validate=True), np.uint8)
    count = int(length)
    if count < 0 or len(packed) != (count + 7) // 8:
        raise ValueError("a mask of the index map has another length than it says")
    return torch.from_numpy(np.unpackbits(packed, count=count, bitorder="little").astype(bool))
