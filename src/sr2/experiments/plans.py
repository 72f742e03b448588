"""What is random in an epoch, and what it does to images.

A batch is a pure function of (seed, epoch): an epoch's random numbers are drawn at once, on the CPU, from a generator
that is seeded with a hash of the two, and sent to the device. So a run that is resumed sees the batches that it would
have seen, a CPU and a GPU see the same bits, and a step that takes its slice of a plan has static shapes and never
reads the host: a legal body of a CUDA graph.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor

PADDING = 4
"""Zeros around an image before `crop_flip` cuts a window of the image's own size."""


@dataclass(frozen=True)
class Plan:
    """The random choices of an epoch, in the order in which examples are seen.

    Attributes:
        index: int64, which example.
        dx, dy: int64, how far an image's window moves right and down, from -pad to pad.
        flip: bool, whether an image is mirrored, left and right, after it was cut.
    """

    index: Tensor
    dx: Tensor
    dy: Tensor
    flip: Tensor

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, part: slice) -> Plan:
        return Plan(*(t[part] for t in self.tensors))

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """All four, in order."""
        return self.index, self.dx, self.dy, self.flip

    def to(self, device: torch.device | str) -> Plan:
        """The same plan on a device."""
        return Plan(*(t.to(device) for t in self.tensors))

    def copy_(self, other: Plan) -> None:
        """Overwrite this plan, in place: a CUDA graph that reads it sees the new one."""
        for mine, theirs in zip(self.tensors, other.tensors, strict=True):
            mine.copy_(theirs)


def epoch_plan(n: int, seed: int, epoch: int, pad: int = PADDING, flip: bool = True) -> Plan:
    """The random choices for n examples: a pure function of its arguments, on the CPU.

    >>> torch.equal(epoch_plan(100, seed=1, epoch=7).index, epoch_plan(100, seed=1, epoch=7).index)
    True
    """
    # A hash, since seed + epoch would make epoch 1 of seed 0 the twin of epoch 0 of seed 1.
    digest = hashlib.blake2b(f"sr2 {seed} {epoch}".encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)
    index = torch.randperm(n, generator=generator)
    dx = torch.randint(-pad, pad + 1, (n,), generator=generator)
    dy = torch.randint(-pad, pad + 1, (n,), generator=generator)
    mirrored = torch.randint(2, (n,), generator=generator).bool() & flip
    return Plan(index, dx, dy, mirrored)


def augment_batch(
    images: Tensor, index: Tensor, dx: Tensor, dy: Tensor, flip: Tensor, mean: Tensor, std: Tensor
) -> Tensor:
    """Windows of images[index] moved by (dx, dy) over zeros, mirrored where `flip`, normalized: float32.

    One gather: no loop over images, no read of the host, static shapes. All tensors are on one device.

    Args:
        images: uint8 (n, c, h, w).
        index, dx, dy, flip: as in Plan, (batch,).
        mean, std: (c,), of images scaled to [0, 1].
    """
    _, c, h, w = images.shape
    device = images.device
    column = torch.arange(w, device=device)
    columns = torch.where(flip[:, None], w - 1 - column, column) + dx[:, None]  # (batch, w): where a pixel is from
    rows = torch.arange(h, device=device) + dy[:, None]  # (batch, h)
    inside = ((rows >= 0) & (rows < h))[:, None, :, None] & ((columns >= 0) & (columns < w))[:, None, None, :]
    pixels = images[
        index[:, None, None, None],
        torch.arange(c, device=device)[:, None, None],
        rows.clamp(0, h - 1)[:, None, :, None],
        columns.clamp(0, w - 1)[:, None, None, :],
    ]
    return normalize(pixels * inside, mean, std)


def plain_batch(images: Tensor, index: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """images[index], normalized: float32."""
    return normalize(images[index], mean, std)


def normalize(pixels: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """(pixels / 255 - mean) / std per channel, in two roundings that a CPU and a GPU do alike."""
    return (pixels.float() - (255 * mean)[:, None, None]) / (255 * std)[:, None, None]
