"""mlp: two hidden layers."""

from __future__ import annotations

from math import prod

from torch import nn

from .base import Shape


def mlp(classes: int, in_shape: Shape) -> nn.Module:
    """Linear layers of 128 and 64 with ReLU: no convolution, no batch-norm.

    >>> sum(p.numel() for p in mlp(10, (1, 8, 8)).parameters())
    17226
    """
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(prod(in_shape), 128),
        nn.ReLU(inplace=True),
        nn.Linear(128, 64),
        nn.ReLU(inplace=True),
        nn.Linear(64, classes),
    )
