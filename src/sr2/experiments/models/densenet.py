"""densenet121, densenet201 (Huang et al., 2017) with the ImageNet stem: 7 x 7, stride 2, pooling.

Parameters and buffers have torchvision's names and shapes, so that weights interchange.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import BatchNorm, Shape, check_size

GROWTH = 32
BOTTLENECK = 4 * GROWTH
STEM = 64


class DenseLayer(nn.Module):
    """Norm, ReLU, 1 x 1 convolution, norm, ReLU, 3 x 3 convolution: 32 features beside those that came in."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.norm1 = BatchNorm(inputs)
        self.conv1 = nn.Conv2d(inputs, BOTTLENECK, 1, bias=False)
        self.norm2 = BatchNorm(BOTTLENECK)
        self.conv2 = nn.Conv2d(BOTTLENECK, GROWTH, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv1(F.relu(self.norm1(x), inplace=True))
        out = self.conv2(F.relu(self.norm2(out), inplace=True))
        return torch.cat([x, out], 1)


class DenseNet(nn.Module):
    """Dense blocks with a transition, which halves the features and the image, between each two.

    Args:
        depths: layers in each dense block.
        classes: how many outputs.
        channels: of an image.
    """

    def __init__(self, depths: Sequence[int], classes: int, channels: int = 3) -> None:
        super().__init__()
        self.features = nn.Sequential()
        self.features.add_module("conv0", nn.Conv2d(channels, STEM, 7, stride=2, padding=3, bias=False))
        self.features.add_module("norm0", BatchNorm(STEM))
        self.features.add_module("relu0", nn.ReLU(inplace=True))
        self.features.add_module("pool0", nn.MaxPool2d(3, stride=2, padding=1))
        width = STEM
        for i, depth in enumerate(depths, start=1):
            block = nn.Sequential()
            for j in range(1, depth + 1):
                block.add_module(f"denselayer{j}", DenseLayer(width))
                width += GROWTH
            self.features.add_module(f"denseblock{i}", block)
            if i < len(depths):
                self.features.add_module(f"transition{i}", _transition(width))
                width //= 2
        self.features.add_module("norm5", BatchNorm(width))
        self.classifier = nn.Linear(width, classes)
        for module in self.modules():  # as torchvision: norms (1, 0) and the linear weight keep torch's own start
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)
        nn.init.zeros_(self.classifier.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.features(x), inplace=True)
        out: Tensor = self.classifier(F.adaptive_avg_pool2d(x, 1).flatten(1))
        return out


def _transition(width: int) -> nn.Sequential:
    transition = nn.Sequential()
    transition.add_module("norm", BatchNorm(width))
    transition.add_module("relu", nn.ReLU(inplace=True))
    transition.add_module("conv", nn.Conv2d(width, width // 2, 1, bias=False))
    transition.add_module("pool", nn.AvgPool2d(2))
    return transition


LEAST_SIZE = 29
"""29 -> 15 -> 8 -> 4 -> 2 -> 1: the stem and three transitions leave nothing of smaller images."""


def densenet121(classes: int, in_shape: Shape) -> DenseNet:
    """6, 12, 24, 16 layers: 6,964,106 parameters with 10 classes and 3 channels."""
    check_size("densenet121", in_shape, LEAST_SIZE)
    return DenseNet((6, 12, 24, 16), classes, in_shape[0])


def densenet201(classes: int, in_shape: Shape) -> DenseNet:
    """6, 12, 48, 32 layers: 18,285,028 parameters with 100 classes and 3 channels."""
    check_size("densenet201", in_shape, LEAST_SIZE)
    return DenseNet((6, 12, 48, 32), classes, in_shape[0])
