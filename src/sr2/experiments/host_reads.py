"""What makes the host wait for the device, seen operation by operation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

READS = ("_local_scalar_dense", "item", "equal", "is_nonzero", "nonzero")
"""Operations whose result is a number of the host."""


class HostReads(TorchDispatchMode):
    """Notes every operation that hands a number of the device to the host.

    >>> with HostReads("cpu") as reads:
    ...     _ = float(torch.ones(3).sum())
    >>> reads.seen
    ['_local_scalar_dense']

    Args:
        device: "cuda", or "cpu" to take the CPU's tensors for the device's where there is no GPU.
        of_the_host: tensors that live on the host by design, whose numbers may be read.
    """

    def __init__(self, device: str = "cuda", of_the_host: Iterable[Tensor] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[str] = []
        self._device = device
        self._free = {t.data_ptr() for t in of_the_host}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        # The source may come second, as in host.copy_(x). States of generators are always the host's.
        asked = [a for a in args if isinstance(a, Tensor) and a.is_cuda == (self._device == "cuda")]
        moved = self._device == "cuda" and isinstance(out, Tensor) and out.device.type == "cpu"
        if asked and (moved or (name in READS and not self._may_be_read(name, asked[0]))):
            self.seen.append(name)
        return out

    def _may_be_read(self, name: str, tensor: Tensor) -> bool:
        return (name == "equal" and tensor.dtype == torch.uint8) or bool(self._free and tensor.data_ptr() in self._free)
