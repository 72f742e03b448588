"""The buffers of a module as they were: batch norm's statistics move once per step, and not for a broken batch."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...numerics import cut, end_to_end, local


class Buffers:
    """A copy of every buffer of a module, to be put back: contents, and identity where a forward rebinds a buffer."""

    @torch.no_grad()
    def __init__(self, module: nn.Module | None) -> None:
        owners = [] if module is None else [m._buffers for m in module.modules() if m._buffers]
        self._slots = [(owner, name, b) for owner in owners for name, b in owner.items()]
        kinds: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
        for b in (local(b) for _, _, b in self._slots if b is not None):
            if not _expanded(b):  # what is expanded nobody can write in place
                kinds.setdefault((_as_bytes(b).dtype, b.device), []).append(b)
        # Laid end to end: a few launches instead of one for each of a network's hundreds of small buffers.
        self._kinds = [(tensors, end_to_end([_as_bytes(b) for b in tensors])) for tensors in kinds.values()]
        self._forms = [[(b.shape, b.dtype) for b in tensors] for tensors in kinds.values()]

    def restore(self) -> None:
        for owner, name, tensor in self._slots:
            owner[name] = tensor
        for (tensors, copy), forms in zip(self._kinds, self._forms, strict=True):
            for b, (shape, _) in zip(tensors, forms, strict=True):
                if b.shape != shape:  # observers of quantization resize theirs
                    b.resize_(shape)
            _cut_into(copy, tensors)

    def restore_either(self, mine: Tensor, other: Buffers) -> None:
        """`restore` this copy where the 0-dim tensor `mine` is true, else `other`, without looking at it."""
        if self._forms != other._forms:
            self.restore()  # the forward has made a buffer, or another one, and there is nothing to choose from
            return
        for owner, name, tensor in self._slots:
            owner[name] = tensor
        for (tensors, copy), (_, others) in zip(self._kinds, other._kinds, strict=True):
            _cut_into(torch.where(mine, copy, others), tensors)


def _as_bytes(b: Tensor) -> Tensor:
    """Its memory, so that buffers of several dtypes share their launches; itself where that is not in one piece."""
    plain = b.is_contiguous() and not b.is_complex() and not b.is_quantized
    return b.detach().view(-1).view(torch.uint8) if plain else b


def _expanded(tensor: Tensor) -> bool:
    strides = tensor.stride()
    return 0 in strides and any(stride == 0 and size > 1 for stride, size in zip(strides, tensor.shape, strict=True))


@torch.no_grad()
def _cut_into(flat: Tensor, tensors: list[Tensor]) -> None:
    memory = [_as_bytes(b) for b in tensors]
    torch._foreach_copy_(memory, cut(flat, memory))
