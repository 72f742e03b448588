"""A network whose batch is cut over several processes: gradients are means, batch norms see the whole batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode


class Together(DistributedDataParallel):
    """DistributedDataParallel, with every batch norm over the parts of all processes while it trains."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.broadcast_buffers = False  # the statistics are equal already

    def forward(self, *inputs: Any, **named: Any) -> Any:
        with _WholeBatchNorms():
            return super().forward(*inputs, **named)  # type: ignore[no-untyped-call]


class _WholeBatchNorms(TorchFunctionMode):
    """Whatever calls `F.batch_norm`, a module of torch's or of one's own, gets the norm over the whole batch."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return (batch_norm if function is F.batch_norm else function)(*args, **(kwargs or {}))


class _Sum(torch.autograd.Function):
    """The sum over the processes, whose gradient is the sum of theirs: it may be differentiated again."""

    @staticmethod
    def forward(ctx: Any, own: Tensor) -> Tensor:
        total = own.contiguous().clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return _Sum.apply(gradient)  # type: ignore[no-untyped-call, no-any-return]


def batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """`F.batch_norm` of the equal parts of all processes: (x - mean) / sqrt(var + eps) weight + bias.

    torch's SyncBatchNorm does so on CUDA alone, and cannot be differentiated twice, as sigma_0 wants it.
    """
    if not training:
        return F.batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)
    whole = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
    over = [d for d in range(x.dim()) if d != 1]
    shape = [-1 if d == 1 else 1 for d in range(x.dim())]
    processes = dist.get_world_size()
    mean = _Sum.apply(whole.mean(over)) / processes  # type: ignore[no-untyped-call]
    centered = whole - mean.view(shape)
    var = _Sum.apply(centered.square().mean(over)) / processes  # type: ignore[no-untyped-call]
    count = processes * x.numel() // x.shape[1]
    with torch.no_grad():
        if running_mean is not None:
            running_mean.lerp_(mean.to(running_mean.dtype), momentum)
        if running_var is not None:
            running_var.lerp_((var * (count / max(count - 1, 1))).to(running_var.dtype), momentum)
    scale = (var + eps).rsqrt() if weight is None else (var + eps).rsqrt() * weight
    out = centered * scale.view(shape)
    return (out if bias is None else out + bias.view(shape)).to(x.dtype)  # type: ignore[no-any-return]
