"""Networks with every kind of channel that `shrink` has to follow, and ways to let their filters die."""

import copy
import math

import torch
import torch.nn.functional as F
from torch import nn


def vgg():
    """Convolutions with biases, max pooling, flatten into a linear layer."""
    layers, inputs = [], 3
    for outputs in (8, 16, 16):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]
        inputs = outputs
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(16 * 4, 24), nn.ReLU(), nn.Dropout(), nn.Linear(24, 5))


def unpadded():
    """No padding: constants become biases."""
    return nn.Sequential(
        *(
            nn.Conv2d(3, 12, 3, bias=False),
            nn.BatchNorm2d(12),
            nn.Sigmoid(),
            nn.Conv2d(12, 10, 3, stride=2, bias=False),
        ),
        *(nn.BatchNorm2d(10), nn.GELU(), nn.Conv2d(10, 8, 1, bias=False), nn.AdaptiveAvgPool2d(1)),
        *(nn.Flatten(), nn.Linear(8, 4)),
    )


class Mobile(nn.Module):
    """Depthwise and grouped convolutions, squeeze and excitation, a concatenation, PReLU."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 12, 3, padding=1)
        self.depthwise = nn.Conv2d(12, 24, 3, padding=1, groups=12)
        self.norm = nn.BatchNorm2d(24)
        self.act = nn.PReLU(24)
        self.squeeze, self.excite = nn.Conv2d(24, 6, 1), nn.Conv2d(6, 24, 1)
        self.grouped = nn.Conv2d(24, 16, 3, padding=1, groups=4)
        self.side = nn.Conv2d(24, 8, 1)
        self.head = nn.Linear(24, 5)

    def forward(self, x):
        x = self.act(self.norm(self.depthwise(F.relu(self.stem(x)))))
        gate = torch.sigmoid(self.excite(F.silu(self.squeeze(x.mean((2, 3), keepdim=True)))))
        x = x * gate
        x = torch.cat([self.grouped(x), self.side(x)], dim=1)
        return self.head(F.adaptive_avg_pool2d(x, 1).view(x.size(0), -1))


class Attention(nn.Module):
    def __init__(self, width, heads, size, explicit=False):
        super().__init__()
        self.heads, self.size, self.explicit = heads, size, explicit
        self.qkv, self.out = nn.Linear(width, 3 * heads * size), nn.Linear(heads * size, width)

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, self.size).permute(2, 0, 3, 1, 4).unbind(0)
        if self.explicit:
            weights = q @ k.mT / math.sqrt(q.shape[-1])
            mask = torch.ones(4, 4, dtype=torch.bool).tril()
            y = weights.masked_fill(~mask, float("-inf")).softmax(-1) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """A transformer block: LayerNorm, attention whose heads may go, an MLP whose units may go, or a gated one."""

    def __init__(self, width=16, heads=4, gated=False, explicit=False):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, 4, explicit)
        self.gated = gated
        self.up, self.down = nn.Linear(width, 64), nn.Linear(32 if gated else 64, width)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        hidden = self.up(self.norm2(x))
        if self.gated:
            a, b = hidden.chunk(2, dim=-1)
            return x + self.down(a * F.silu(b))
        return x + self.down(F.gelu(hidden))


class Tokens(nn.Module):
    """Token and position embeddings, blocks, a tied head."""

    def __init__(self, width=16, vocabulary=11):
        super().__init__()
        self.token, self.position = nn.Embedding(vocabulary, width), nn.Embedding(4, width)
        self.blocks = nn.Sequential(Block(width), Block(width, gated=True))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.token.weight

    def forward(self, tokens):
        assert tokens.shape[1] <= 4, "too long"
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1]))
        return self.head(self.norm(self.blocks(x)))


def randomize(model, generator):
    """Statistics and scales of batch norm as after training, so that dead filters are constants other than zero."""
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
                for tensor in (module.running_mean, module.weight, module.bias):
                    tensor.normal_(generator=generator)
                module.running_var.uniform_(0.5, 2.0, generator=generator)
    return model.eval()


def kill(model, share, generator):
    """Zero filters, columns and scales at random, the last layer's filters excepted."""
    layers = [m for m in model.modules() if isinstance(m, (nn.Linear, nn.Conv2d, nn.BatchNorm2d))]
    with torch.no_grad():
        for layer in layers[:-1]:
            dead = torch.rand(len(layer.weight), generator=generator) < share
            layer.weight[dead] = 0
            if isinstance(layer, nn.BatchNorm2d):
                layer.bias[dead & (torch.rand(len(dead), generator=generator) < 0.7)] = 0
            else:
                columns = torch.rand(layer.weight.shape[1], generator=generator) < share / 2
                layer.weight[:, columns] = 0
    return model


def kill_heads(model, dead):
    """The output matrix of attention reads nothing of these heads."""
    for module in model.modules():
        if isinstance(module, Attention):
            with torch.no_grad():
                for head in dead:
                    module.out.weight[:, head * module.size : (head + 1) * module.size] = 0
    return model


class Cumulative(nn.Module):
    """An operation that shrink does not know."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 2)

    def forward(self, x):
        return self.b(self.a(x).cumsum(-1))


def assert_same(model, small, shape, seed=0, tolerance=1e-9):
    """Our own comparison, in float64 on inputs that shrink has not seen."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed + 99), dtype=torch.float64)
    with torch.no_grad():
        a, b = copy.deepcopy(model).eval().double()(x), copy.deepcopy(small).double()(x)
    # the shrunk one's new biases were rounded to the model's own precision
    assert (a - b).abs().max() <= tolerance * max(1.0, a.abs().max().item())
