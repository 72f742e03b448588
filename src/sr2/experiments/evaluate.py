"""What a network is worth and where its zeros are. Nothing here trains."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..zeros import sparsity
from .problem import Problem

SMALL = 1e-3
"""The paper counts |w| <= 1e-3 beside w = 0."""


@torch.no_grad()
def accuracy(problem: Problem, batches: Iterable[tuple[Tensor, Tensor]] | None = None) -> tuple[float, float]:
    """Mean loss and accuracy in percent over the test images (or other batches), in evaluation mode."""
    problem.model.eval()
    sums = torch.zeros(3, dtype=torch.float64, device=problem.device)
    for x, y in problem.test if batches is None else batches:
        logits = problem.logits(x)
        loss = F.cross_entropy(logits, y, reduction="sum").double()
        right = (logits.argmax(1) == y).sum().double()
        sums += torch.stack([loss, right, torch.full_like(loss, len(y))])
    loss_sum, correct, images = sums.tolist()
    return loss_sum / images, 100 * correct / images


@torch.no_grad()
def recalibrate_(problem: Problem) -> bool:
    """Estimate every batch-norm's statistics anew, over the training images without augmentation.

    Returns:
        whether the network has any.
    """
    norms = [m for m in problem.model.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    if not norms:
        return False
    problem.model.eval()
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the plain mean over batches
        norm.train()
    try:
        for x, _ in problem.train:
            problem.logits(x)
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
            norm.eval()
    return True


def percent_zero(model: nn.Module, threshold: float = 0.0) -> float:
    """Percent of all parameters with |w| <= threshold."""
    return 100 * sparsity(model, threshold).fraction


def layers(model: nn.Module) -> list[dict[str, Any]]:
    """Zeros tensor by tensor, as `result.json` holds them."""
    pairs = zip(sparsity(model).tensors, sparsity(model, SMALL).tensors, strict=True)
    return [
        {"name": zero.name, "shape": list(zero.shape), "zeros": zero.zeros, "small": small.zeros, "total": zero.total}
        for zero, small in pairs
    ]


@torch.no_grad()
def histogram(model: nn.Module) -> dict[str, Any]:
    """How log10|w| is spread over the nonzero parameters; what lies beyond the edges is in the outer bins."""
    low, high, bins = -9.0, 1.0, 40
    sizes = torch.cat([p.detach().abs().flatten().double().cpu() for p in model.parameters()])
    logs = sizes[sizes != 0].log10().clamp(low, high)
    return {
        "log10_edges": [low + i * (high - low) / bins for i in range(bins + 1)],
        "counts": [int(count) for count in torch.histc(logs, bins, low, high)],
        "zeros": int((sizes == 0).sum()),
    }
