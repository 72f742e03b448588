"""A network in a run's arithmetic: its outputs, and the loss of its task that training differentiates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ..tasks import Classification, Task

AUTOCAST = {"bf16": torch.bfloat16}
"""The dtype of autocast, in the precisions that have one."""


def set_float32_arithmetic(precision: str) -> None:
    """Whether CUDA multiplies float32 matrices in tf32: a switch of the whole process."""
    kind = "tf32" if precision == "tf32" else "ieee"
    torch.backends.cuda.matmul.fp32_precision = kind
    torch.backends.cudnn.conv.fp32_precision = kind  # type: ignore[attr-defined]


class Network:
    """A model computed in fp32, tf32 or bf16; its parameters stay float32.

    >>> model = nn.Linear(4, 3)
    >>> network = Network(model, "cpu", precision="bf16")
    >>> loss, right = network.loss(torch.ones(2, 4), torch.tensor([0, 2]))
    >>> loss.dtype, network.outputs(torch.ones(2, 4)).dtype
    (torch.float32, torch.float32)

    Args:
        model: on its device.
        device: of the model.
        precision: of its arithmetic.
        task: whose loss it is trained on; a classification unless given.
        compiled: have torch.compile make the kernels of `loss`.
    """

    def __init__(
        self,
        model: nn.Module,
        device: torch.device | str,
        precision: str = "fp32",
        task: Task | None = None,
        *,
        compiled: bool = False,
    ) -> None:
        self.model, self.task, self._device = model, task or Classification(), torch.device(device)
        self._dtype = AUTOCAST.get(precision)
        # Autocast casts these one by one, a launch each: here all of them in a few.
        weights = {id(m._parameters.get("weight")) for m in model.modules() if type(m) in _MULTIPLY}
        self._cast = {
            name: p
            for name, p in model.named_parameters()
            if self._dtype and id(p) in weights and p.dtype == torch.float32
        }
        self.compiled = compiled
        self._evaluate: Callable[..., tuple[Tensor, Tensor]] = self._loss_and_statistics
        if compiled:
            self._evaluate = torch.compile(self._loss_and_statistics)

    def arithmetic(self) -> torch.autocast:
        """The precision, as a context."""
        return torch.autocast(self._device.type, self._dtype, enabled=self._dtype is not None)

    def outputs(self, x: Tensor) -> Tensor:
        """The outputs in float32; never compiled, so that it may be differentiated twice."""
        with self.arithmetic():
            out: Tensor = self.model(x)
        return out.float()

    def loss(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The mean loss in float32, and the statistics of the score."""
        weights = _Cast.apply(*self._cast.values()) if self._cast else ()  # type: ignore[no-untyped-call]
        return self._evaluate(weights, x, y)

    def _loss_and_statistics(self, weights: Sequence[Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        with self.arithmetic():
            out = functional_call(self.model, dict(zip(self._cast, weights, strict=True)), (x,))
        out = out.float()
        return self.task.loss(out, y), self.task.statistics(out, y)


_MULTIPLY = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)
"""What autocast computes in bf16 with a weight."""


class _Cast(torch.autograd.Function):
    """float32 weights as bf16, and bf16 gradients as float32."""

    @staticmethod
    def forward(ctx: Any, *weights: Tensor) -> tuple[Tensor, ...]:
        return _copies(weights, torch.bfloat16)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        return _copies(gradients, torch.float32)


def _copies(tensors: Sequence[Tensor], dtype: torch.dtype) -> tuple[Tensor, ...]:
    copies = tuple(torch.empty_like(t, dtype=dtype) for t in tensors)
    torch._foreach_copy_(copies, tuple(tensors))
    return copies
