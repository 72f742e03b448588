"""The networks of `benchmarks/unseen_tasks.py`, with the first weights that torch or their kind is known for."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor, nn


def mlp(*widths: int, act: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(widths):
        layers += [nn.Linear(a, b), act()]
    return nn.Sequential(*layers[:-1])


class GRU(nn.Module):
    """Characters; torch's own first weights, with an embedding of deviation 1."""

    def __init__(self, size: int, width: int = 64) -> None:
        super().__init__()
        self.embed, self.gru = nn.Embedding(size, 32), nn.GRU(32, width, batch_first=True)
        self.head = nn.Linear(width, size)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.gru(self.embed(x))[0])
        return out


class ViT(nn.Module):
    """16 patches and a class token, two blocks of torch's encoder with the norm first."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, 7, 7)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.place = nn.Parameter(0.02 * torch.randn(1, 17, width))
        layers = [
            nn.TransformerEncoderLayer(width, 4, 96, 0.0, "gelu", batch_first=True, norm_first=True) for _ in "ab"
        ]
        self.blocks, self.norm, self.head = nn.Sequential(*layers), nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.place
        out: Tensor = self.head(self.norm(self.blocks(x)[:, 0]))
        return out


class Inverted(nn.Module):
    """EfficientNet's block: widen, convolve each channel, squeeze and excite, narrow; added where shapes agree."""

    def __init__(self, a: int, b: int, stride: int) -> None:
        super().__init__()
        wide = 3 * a
        self.widen = nn.Sequential(nn.Conv2d(a, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.SiLU())
        depthwise = nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False)
        self.depthwise = nn.Sequential(depthwise, nn.BatchNorm2d(wide), nn.SiLU())
        squeeze = [nn.AdaptiveAvgPool2d(1), nn.Conv2d(wide, 8, 1), nn.SiLU(), nn.Conv2d(8, wide, 1), nn.Sigmoid()]
        self.excite = nn.Sequential(*squeeze)
        self.narrow = nn.Sequential(nn.Conv2d(wide, b, 1, bias=False), nn.BatchNorm2d(b))
        self.added = a == b and stride == 1

    def forward(self, x: Tensor) -> Tensor:
        wide = self.depthwise(self.widen(x))
        out: Tensor = self.narrow(wide * self.excite(wide))
        return x + out if self.added else out


def efficient() -> nn.Module:
    stem = [nn.Conv2d(1, 12, 3, 2, 1, bias=False), nn.BatchNorm2d(12), nn.SiLU()]
    blocks = [Inverted(12, 12, 1), Inverted(12, 20, 2), Inverted(20, 20, 1), Inverted(20, 32, 2)]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))


class VAE(nn.Module):
    """14 x 14 pixels, 8 latent numbers; gives logits, means and log-variances side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = mlp(196, 128, 16), mlp(8, 128, 196)

    def forward(self, x: Tensor) -> Tensor:
        mean, log_variance = self.encode(x.flatten(1)).chunk(2, 1)
        z = mean + torch.randn_like(mean) * (0.5 * log_variance).exp() if self.training else mean
        return torch.cat([self.decode(z), mean, log_variance], 1)


class Sine(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(30 * x)


class Ratings(nn.Module):
    """A number per user and item: the product of two embeddings, and a bias each."""

    def __init__(self, users: int, items: int, rank: int = 16) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(users, rank), nn.Embedding(items, rank)])
        self.biases = nn.ModuleList([nn.Embedding(users, 1), nn.Embedding(items, 1)])
        for table in self.tables:
            nn.init.normal_(table.weight, std=0.1)
        for bias in self.biases:
            nn.init.zeros_(bias.weight)

    def forward(self, x: Tensor) -> Tensor:
        (a, b), (c, d) = ([t(i) for t, i in zip(ts, x.T, strict=True)] for ts in (self.tables, self.biases))
        return (a * b).sum(1, keepdim=True) + c + d


class DeepSets(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.each, self.whole = mlp(2, 64, 64), mlp(64, 64, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.whole(self.each(x).mean(1))
        return out


class ReZero(nn.Module):
    """Eight residual blocks, each times a number that begins at 0, and a head of zeros."""

    def __init__(self, inputs: int, outputs: int, width: int = 64) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(inputs, width), nn.Linear(width, outputs)
        self.blocks = nn.ModuleList(mlp(width, width, width) for _ in range(8))
        self.shares = nn.ParameterList(nn.Parameter(torch.zeros(())) for _ in range(8))
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x.flatten(1))
        for block, share in zip(self.blocks, self.shares, strict=True):
            x = x + share * block(x)
        out: Tensor = self.head(x)
        return out


class Poisson(nn.Module):
    """u on the square, 0 at its border. In training it gives -(u_xx + u_yy), otherwise u."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(2, 32, 32, 32, 1, act=nn.Tanh)

    def u(self, x: Tensor) -> Tensor:
        inside: Tensor = (1 - x[:, :1] ** 2) * (1 - x[:, 1:] ** 2)
        return inside * self.net(x)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return self.u(x)
        with torch.enable_grad():  # the trial point of SR2 is evaluated without gradients
            x = x.detach().requires_grad_()
            (first,) = torch.autograd.grad(self.u(x).sum(), x, create_graph=True)
            second = [torch.autograd.grad(first[:, k].sum(), x, create_graph=True)[0][:, k : k + 1] for k in (0, 1)]
        return -(second[0] + second[1])
