"""cnn: three convolutions with batch-norm, small enough for a demo on a CPU."""

from __future__ import annotations

from torch import nn

from .base import BatchNorm, Shape


def _block(inputs: int, outputs: int, stride: int) -> list[nn.Module]:
    return [
        nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False),
        BatchNorm(outputs),
        nn.ReLU(inplace=True),
    ]


def cnn(classes: int, in_shape: Shape) -> nn.Module:
    """16, 32 and 64 filters of 3 x 3, the last two with stride 2, mean over the image, a linear layer.

    About 24,000 parameters whatever the size of the images.

    >>> sum(p.numel() for p in cnn(10, (1, 8, 8)).parameters())
    24058
    """
    return nn.Sequential(
        *_block(in_shape[0], 16, 1),
        *_block(16, 32, 2),
        *_block(32, 64, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, classes),
    )
