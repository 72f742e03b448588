"""Batches: images live on the training device as uint8; shuffle, crop, flip and normalization happen there.

All of it is a pure function of (seed, epoch): an epoch's random numbers are drawn at once, on the CPU, from a
generator that is seeded with a hash of the two, and sent to the device. So a run that is resumed sees the batches
it would have seen, a CPU and a GPU see the same bits, and a step that takes its slice of a plan has static shapes
and never reads the host: a legal body of a CUDA graph.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import UserError
from .base import PADDING, Dataset


@dataclass(frozen=True)
class Plan:
    """The random choices of an epoch, in the order in which images are seen.

    Attributes:
        index: int64, which image.
        dx, dy: int64, how far the window moves right and down, from -pad to pad.
        flip: bool, whether it is mirrored, left and right, after it was cut.
    """

    index: Tensor
    dx: Tensor
    dy: Tensor
    flip: Tensor

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, part: slice) -> Plan:
        return Plan(self.index[part], self.dx[part], self.dy[part], self.flip[part])

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
    """The random choices for n images: a pure function of its arguments, on the CPU.

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
    """(pixels / 255 - mean) / std a channel, in two roundings that a CPU and a GPU do alike."""
    return (pixels.float() - (255 * mean)[:, None, None]) / (255 * std)[:, None, None]


class Batches:
    """The training batches of a data set.

    >>> from sr2.experiments.data import load
    >>> batches = Batches(load("digits"), batch_size=128, device="cpu", seed=0)
    >>> x, y = next(batches.epoch(0))
    >>> x.shape, y.shape, len(batches)
    (torch.Size([128, 1, 8, 8]), torch.Size([128]), 11)

    Args:
        dataset: with its images and how to augment them.
        batch_size: images a batch.
        device: where images live and batches are made.
        dtype: of the batches.
        seed: of shuffle, crop and flip.
        drop_last: whether the images that do not fill a last batch sit the epoch out.
        augment: false leaves out crop and flip whatever the data set says.
        channels_last: memory format of the batches.
    """

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int,
        device: torch.device | str,
        dtype: torch.dtype = torch.float32,
        seed: int = 0,
        drop_last: bool = True,
        augment: bool = True,
        channels_last: bool = False,
    ) -> None:
        n = len(dataset.train_images)
        if not 1 <= batch_size <= n:
            raise UserError(f"the batch size must be from 1 to the {n} images of {dataset.name}, and is {batch_size}")
        self.batch_size, self.seed, self.dtype = batch_size, seed, dtype
        self.augment = augment and dataset.augment == "crop_flip"
        self.images, self.labels = dataset.train_images.to(device), dataset.train_labels.to(device)
        self.mean, self.std = _statistics(dataset, device)
        self.memory_format = _memory_format(channels_last)
        self.seen = n - n % batch_size if drop_last else n
        """Images an epoch."""

    def __len__(self) -> int:
        return -(-self.seen // self.batch_size)

    def plan(self, epoch: int) -> Plan:
        """The choices of an epoch, on the device; `plan[a:b]` are those of a batch."""
        pad = PADDING if self.augment else 0
        return epoch_plan(len(self.images), self.seed, epoch, pad, self.augment).to(self.images.device)

    def make(self, part: Plan) -> tuple[Tensor, Tensor]:
        """The batch of a part of a plan. Tensor operations only: it may be captured in a CUDA graph."""
        if self.augment:
            x = augment_batch(self.images, part.index, part.dx, part.dy, part.flip, self.mean, self.std)
        else:
            x = plain_batch(self.images, part.index, self.mean, self.std)
        return x.to(self.dtype, memory_format=self.memory_format), self.labels[part.index]

    def epoch(self, epoch: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of an epoch, from batch `start` on: the same ones as without the start."""
        plan = self.plan(epoch)
        for first in range(start * self.batch_size, self.seen, self.batch_size):
            yield self.make(plan[first : min(first + self.batch_size, self.seen)])


class EvalBatches:
    """All test images, in order, normalized and not augmented; may be walked through repeatedly."""

    def __init__(
        self,
        images: Tensor,
        labels: Tensor,
        batch_size: int,
        mean: Tensor,
        std: Tensor,
        dtype: torch.dtype,
        memory_format: torch.memory_format,
    ) -> None:
        self.images, self.labels, self.batch_size = images, labels, batch_size
        self.mean, self.std, self.dtype, self.memory_format = mean, std, dtype, memory_format

    def __len__(self) -> int:
        return -(-len(self.images) // self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for first in range(0, len(self.images), self.batch_size):
            part = slice(first, first + self.batch_size)
            x = normalize(self.images[part], self.mean, self.std)
            yield x.to(self.dtype, memory_format=self.memory_format), self.labels[part]


def eval_batches(
    dataset: Dataset,
    batch_size: int,
    device: torch.device | str,
    dtype: torch.dtype = torch.float32,
    channels_last: bool = False,
) -> EvalBatches:
    """The batches of the test images.

    >>> from sr2.experiments.data import load
    >>> sum(len(y) for x, y in eval_batches(load("digits"), 100, "cpu"))
    360
    """
    images, labels = dataset.test_images.to(device), dataset.test_labels.to(device)
    return EvalBatches(images, labels, batch_size, *_statistics(dataset, device), dtype, _memory_format(channels_last))


def _statistics(dataset: Dataset, device: torch.device | str) -> tuple[Tensor, Tensor]:
    def on_device(values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float32, device=device)

    return on_device(dataset.mean), on_device(dataset.std)


def _memory_format(channels_last: bool) -> torch.memory_format:
    return torch.channels_last if channels_last else torch.contiguous_format
