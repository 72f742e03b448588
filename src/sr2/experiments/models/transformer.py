"""transformer: a small decoder for windows of tokens."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import UserError
from .base import Shape

WIDTH, HEADS, DEPTH = 64, 4, 2


class Block(nn.Module):
    """Attention over what came before, and two linear layers, each beside a shortcut.

    The softmax is written out: torch's fused attention cannot be differentiated twice, which sigma_0 needs.
    """

    def __init__(self) -> None:
        super().__init__()
        self.heads = HEADS  # of its own: `sr2 shrink` may leave fewer
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor, later: Tensor) -> Tensor:
        n, length, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(n, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        mixed = scores.masked_fill(later, -math.inf).softmax(-1) @ v
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        out: Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return out


class Transformer(nn.Module):
    """Tokens and their places, blocks, and an output for each token that may come next.

    Args:
        tokens: how many different ones there are.
        length: the longest window.
    """

    later: Tensor

    def __init__(self, tokens: int, length: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(tokens, WIDTH), nn.Embedding(length, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, tokens)
        self.register_buffer("later", torch.ones(length, length, dtype=torch.bool).triu(1), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        x = self.tokens(tokens) + self.places.weight[:length]
        for block in self.blocks:
            x = block(x, self.later[:length, :length])
        out: Tensor = self.head(self.norm(x))
        return out


def transformer(classes: int, in_shape: Shape) -> Transformer:
    """Two blocks of width 64 with four heads.

    >>> sum(p.numel() for p in transformer(256, (64,)).parameters())
    137216
    """
    if len(in_shape) != 1:
        raise UserError(
            f"transformer reads windows of tokens, and the inputs have the shape {in_shape}: use cnn or mlp"
        )
    return Transformer(classes, *in_shape)
