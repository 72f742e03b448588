"""Batch norm estimated anew, for weights that it did not see: an average of the iterates, or a pruned network."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


@torch.no_grad()
def recalibrate_(model: nn.Module, batches: Iterable[Any]) -> nn.Module:
    """Estimate the running statistics of every batch norm as the plain mean over these batches, in place.

    Each batch is an input of the model, or a tuple or list whose first entry is one. The modes of all modules are as
    before; a model without batch norm is left alone, and so are the statistics where a batch fails.

    >>> model = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1))
    >>> _ = recalibrate_(model, [torch.full((4, 2), 3.0), torch.full((4, 2), 5.0)])
    >>> model[0].running_mean
    tensor([4., 4.])
    """
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    if not norms:
        return model
    modes = [(m, m.training) for m in model.modules()]
    momenta = [m.momentum for m in norms]
    before = [{name: b.clone() for name, b in m.named_buffers(recurse=False)} for m in norms]
    model.eval()
    for norm in norms:
        norm.reset_running_stats()
        norm.train()
    try:
        count = 0
        for batch in batches:
            count += 1
            for norm in norms:
                norm.momentum = 1 / count  # the plain mean, each batch the same weight
            model(batch[0] if isinstance(batch, (tuple, list)) else batch)
        if count == 0:
            raise ValueError("recalibrate_ needs at least one batch, and got none: batch norm is as it was")
    except BaseException:
        for norm, buffers in zip(norms, before, strict=True):
            for name, b in buffers.items():
                getattr(norm, name).copy_(b)
        raise
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        for module, training in modes:
            module.training = training
    return model
