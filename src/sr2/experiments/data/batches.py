"""Batches on the training device: the stored examples live there, and a task makes batches of them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ..errors import UserError
from ..plans import PADDING, Plan, epoch_plan
from ..tasks import Task
from .base import Dataset


class Batches:
    """The training batches of a data set.

    >>> from sr2.experiments.data import load
    >>> batches = Batches(load("digits"), batch_size=128, device="cpu", seed=0)
    >>> x, y = next(batches.epoch(0))
    >>> x.shape, y.shape, len(batches)
    (torch.Size([128, 1, 8, 8]), torch.Size([128]), 11)

    Args:
        dataset: with its examples and its task.
        batch_size: examples per batch.
        device: where examples live and batches are made.
        dtype: of inputs that are floating-point numbers.
        seed: of the order and of the augmentation.
        drop_last: whether the examples that do not fill a last batch sit the epoch out.
        augment: false leaves out the augmentation whatever the task says.
        channels_last: memory format of batches of images.
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
        n = len(dataset.train_inputs)
        if not 1 <= batch_size <= n:
            what = f"the {n} {dataset.task.examples} of {dataset.name}"
            raise UserError(f"the batch size must be from 1 to {what}, and is {batch_size}")
        self.batch_size, self.seed, self.dtype = batch_size, seed, dtype
        self.task = dataset.task.on(device)
        self.augment = augment and self.task.augments
        self.inputs, self.targets = dataset.train_inputs.to(device), dataset.train_targets.to(device)
        self.channels_last = channels_last
        self.seen = n - n % batch_size if drop_last else n
        """Examples per epoch."""

    def __len__(self) -> int:
        return -(-self.seen // self.batch_size)

    def plan(self, epoch: int) -> Plan:
        """The choices of an epoch, on the device; `plan[a:b]` are those of a batch."""
        pad = PADDING if self.augment else 0
        return epoch_plan(len(self.inputs), self.seed, epoch, pad, self.augment).to(self.inputs.device)

    def make(self, part: Plan) -> tuple[Tensor, Tensor]:
        """The batch of a part of a plan. Tensor operations only: it may be captured in a CUDA graph."""
        x, y = self.task.batch(self.inputs, self.targets, part, self.augment)
        return _arranged(x, self.dtype, self.channels_last), y

    def epoch(self, epoch: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of an epoch, from batch `start` on: the same ones as without the start."""
        plan = self.plan(epoch)
        for first in range(start * self.batch_size, self.seen, self.batch_size):
            yield self.make(plan[first : min(first + self.batch_size, self.seen)])


class EvalBatches:
    """All test examples, in order, not augmented; may be walked through repeatedly."""

    def __init__(
        self,
        inputs: Tensor,
        targets: Tensor,
        task: Task,
        batch_size: int,
        dtype: torch.dtype = torch.float32,
        channels_last: bool = False,
    ) -> None:
        self.inputs, self.targets, self.task, self.batch_size = inputs, targets, task, batch_size
        self.dtype, self.channels_last = dtype, channels_last

    def __len__(self) -> int:
        return -(-len(self.inputs) // self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for first in range(0, len(self.inputs), self.batch_size):
            part = slice(first, first + self.batch_size)
            x, y = self.task.test_batch(self.inputs[part], self.targets[part])
            yield _arranged(x, self.dtype, self.channels_last), y


def eval_batches(
    dataset: Dataset,
    batch_size: int,
    device: torch.device | str,
    dtype: torch.dtype = torch.float32,
    channels_last: bool = False,
) -> EvalBatches:
    """The batches of the test examples.

    >>> from sr2.experiments.data import load
    >>> sum(len(y) for x, y in eval_batches(load("digits"), 100, "cpu"))
    360
    """
    inputs, targets = dataset.test_inputs.to(device), dataset.test_targets.to(device)
    return EvalBatches(inputs, targets, dataset.task.on(device), batch_size, dtype, channels_last)


def _arranged(x: Tensor, dtype: torch.dtype, channels_last: bool) -> Tensor:
    if not x.is_floating_point():
        return x
    images = x.dim() == 4 and channels_last
    return x.to(dtype, memory_format=torch.channels_last if images else torch.contiguous_format)
