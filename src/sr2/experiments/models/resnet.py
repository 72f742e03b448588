"""resnet18, resnet34 (He et al., 2016) with the CIFAR stem: 3 x 3, stride 1, no pooling.

Parameters have torchvision's names; only the shape of `conv1.weight` differs. Their first values are those of
`torch.nn.Conv2d`, uniform in +-1/sqrt(fan_in), as in the `resnet.py` of the authors' code, and not torchvision's normal
ones, which are 2.4 times as large: what an l0 threshold sets to zero at once depends on it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from .base import BatchNorm, Shape


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions around a shortcut, which is a 1 x 1 convolution where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn1 = BatchNorm(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = BatchNorm(outputs)
        self.downsample = (
            nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), BatchNorm(outputs))
            if stride != 1 or inputs != outputs
            else None
        )

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        out = F.relu(self.bn1(self.conv1(x)), inplace=True)
        return F.relu(self.bn2(self.conv2(out)) + shortcut, inplace=True)


class ResNet(nn.Module):
    """Four stages of basic blocks with 64, 128, 256 and 512 filters; all but the first halve the image.

    Args:
        depths: blocks in each stage.
        classes: how many outputs.
        channels: of an image.
    """

    def __init__(self, depths: Sequence[int], classes: int, channels: int = 3) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 64, 3, padding=1, bias=False)
        self.bn1 = BatchNorm(64)
        self.layer1 = _stage(64, 64, depths[0], stride=1)
        self.layer2 = _stage(64, 128, depths[1], stride=2)
        self.layer3 = _stage(128, 256, depths[2], stride=2)
        self.layer4 = _stage(256, 512, depths[3], stride=2)
        self.fc = nn.Linear(512, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)), inplace=True)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        out: Tensor = self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))
        return out


def _stage(inputs: int, outputs: int, depth: int, stride: int) -> nn.Sequential:
    first = BasicBlock(inputs, outputs, stride)
    return nn.Sequential(first, *(BasicBlock(outputs, outputs, 1) for _ in range(depth - 1)))


def resnet18(classes: int, in_shape: Shape) -> ResNet:
    """2, 2, 2, 2 blocks: 11,173,962 parameters with 10 classes and 3 channels."""
    return ResNet((2, 2, 2, 2), classes, in_shape[0])


def resnet34(classes: int, in_shape: Shape) -> ResNet:
    """3, 4, 6, 3 blocks: 21,282,122 parameters with 10 classes and 3 channels."""
    return ResNet((3, 4, 6, 3), classes, in_shape[0])
