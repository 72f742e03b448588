"""What a network is asked: the loss it is trained on, the score it is judged by, and how a batch is made.

A task is a part: `Images`, `Tokens` and `Regression` are three of them, and a data set names the one that it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from .errors import UserError
from .plans import Plan, augment_batch, normalize, plain_batch

AUGMENTATIONS = ("none", "crop_flip")


@dataclass(frozen=True)
class Score:
    """What a network is judged by; larger is better.

    >>> Score("accuracy", "%").heading, Score("accuracy", "%").text(97.5), Score("r2", "").text(0.51234)
    ('accuracy %', '97.50 %', '0.5123')

    Attributes:
        name: its name in the files of a run, and in tables.
        unit: "%", or "" for a number without a unit.
    """

    name: str = "accuracy"
    unit: str = "%"

    @property
    def heading(self) -> str:
        """The heading of its column."""
        return f"{self.name} {self.unit}".strip()

    @property
    def digits(self) -> int:
        """How many digits behind the point are shown."""
        return 2 if self.unit == "%" else 4

    def text(self, value: float) -> str:
        """A value with its unit."""
        return f"{value:.{self.digits}f} {self.unit}".strip()


class Task:
    """The base of all tasks. A task of one's own overrides what differs; `Dataset(..., task=…)` takes it.

    Attributes:
        score: what `statistics` and `value` compute.
        examples: the noun for its examples, in sentences.
        augments: whether training batches differ from the stored examples.
    """

    score: ClassVar[Score] = Score()
    examples: ClassVar[str] = "examples"

    @property
    def augments(self) -> bool:
        return False

    def check(self, where: str, inputs: Tensor, targets: Tensor, outputs: int) -> None:
        """Raise a UserError if inputs and targets cannot be of this task; `where` is what an error calls them."""
        if len(inputs) == 0 or len(targets) != len(inputs):
            raise UserError(f"{where}_targets must be one for each of the {len(inputs)} {self.examples}, at least one")

    def on(self, device: torch.device | str) -> Task:
        """The same task with its constants on a device, where batches are made."""
        return self

    def batch(self, inputs: Tensor, targets: Tensor, part: Plan, augment: bool) -> tuple[Tensor, Tensor]:
        """The batch of a part of a plan. Tensor operations only: it may be captured in a CUDA graph."""
        return inputs[part.index], targets[part.index]

    def test_batch(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Stored examples as the network takes them, without augmentation."""
        return inputs, targets

    def output_shape(self, targets: Tensor, outputs: int) -> tuple[int, ...]:
        """The shape that the network's outputs must have for these targets."""
        return (*targets.shape, outputs)

    def loss(self, outputs: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
        """The mean, or the sum, of the losses."""
        raise NotImplementedError

    def statistics(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Numbers that add up over batches, as a 1-dim tensor: `value` makes the score of their sums."""
        raise NotImplementedError

    def value(self, sums: Sequence[float], count: int) -> float:
        """The score, from the sums of `statistics` over `count` targets."""
        raise NotImplementedError


class Classification(Task):
    """One class for each target: cross-entropy, and the share of targets whose largest output is the right one.

    >>> task, out = Classification(), torch.eye(3)
    >>> task.statistics(out, torch.tensor([0, 1, 1])).tolist(), task.value([2.0], 3)
    ([2], 66.66666666666667)
    """

    def check(self, where: str, inputs: Tensor, targets: Tensor, outputs: int) -> None:
        super().check(where, inputs, targets, outputs)
        low, high = int(targets.min()), int(targets.max())
        if low < 0 or high >= outputs:
            raise UserError(f"{where}_targets run from {low} to {high}, and {outputs} classes end at {outputs - 1}")

    def loss(self, outputs: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
        return F.cross_entropy(outputs.flatten(0, -2), targets.flatten(), reduction=reduction)

    def statistics(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs.detach().argmax(-1) == targets).sum().view(1)

    def value(self, sums: Sequence[float], count: int) -> float:
        return 100 * sums[0] / count


@dataclass(frozen=True, eq=False)
class Images(Classification):
    """Images with labels.

    Inputs are uint8, (n, channels, height, width), and live on the training device as such; crop, flip and
    normalization happen there. Targets are int64, (n,).

    Attributes:
        mean, std: of each channel of the training images scaled to [0, 1].
        augment: "none", or "crop_flip": a window cut out of the image padded by 4 zeros, mirrored half of the time.
    """

    examples = "images"

    mean: tuple[float, ...]
    std: tuple[float, ...]
    augment: str = "none"
    placed: tuple[Tensor, Tensor] | None = None
    """Mean and std on the device of the batches, which `on` makes: not while a graph is captured."""

    @property
    def augments(self) -> bool:
        return self.augment == "crop_flip"

    def check(self, where: str, inputs: Tensor, targets: Tensor, outputs: int) -> None:
        if inputs.dtype != torch.uint8 or inputs.dim() != 4 or len(inputs) == 0:
            raise UserError(
                f"{where}_inputs must be uint8 of shape (n, channels, height, width), and are "
                f"{inputs.dtype} of shape {tuple(inputs.shape)}: scale images to 0 … 255, or return a "
                "sr2.experiments.data.Dataset with a task of its own"
            )
        if targets.dtype != torch.int64 or targets.shape != (len(inputs),):
            raise UserError(
                f"{where}_targets must be int64, one for each of the {len(inputs)} images, and are "
                f"{targets.dtype} of shape {tuple(targets.shape)}"
            )
        super().check(where, inputs, targets, outputs)
        if not len(self.mean) == len(self.std) == inputs.shape[1] or min(self.std) <= 0:
            raise UserError(f"{where}: mean and std must hold one number per channel, std a positive one")
        if self.augment not in AUGMENTATIONS:
            raise UserError(f"{where}: augment must be one of {AUGMENTATIONS}, not {self.augment!r}")

    def on(self, device: torch.device | str) -> Images:
        mean, std = (torch.tensor(v, dtype=torch.float32, device=device) for v in (self.mean, self.std))
        return replace(self, placed=(mean, std))

    def batch(self, inputs: Tensor, targets: Tensor, part: Plan, augment: bool) -> tuple[Tensor, Tensor]:
        mean, std = self.placed or self.on(inputs.device).placed  # type: ignore[misc]
        made = (
            augment_batch(inputs, *part.tensors, mean, std) if augment else plain_batch(inputs, part.index, mean, std)
        )
        return made, targets[part.index]

    def test_batch(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        mean, std = self.placed or self.on(inputs.device).placed  # type: ignore[misc]
        return normalize(inputs, mean, std), targets


class Tokens(Classification):
    """The next token at every place of a window: inputs and targets are whole numbers of shape (n, length).

    They may be stored as uint8, and become int64 in a batch. The score counts tokens, not windows.
    """

    examples = "windows"

    def check(self, where: str, inputs: Tensor, targets: Tensor, outputs: int) -> None:
        if inputs.is_floating_point() or inputs.dim() != 2 or targets.shape != inputs.shape:
            raise UserError(
                f"{where}_inputs and {where}_targets must be whole numbers of one shape (n, length), and are "
                f"{inputs.dtype} of shape {tuple(inputs.shape)} and {targets.dtype} of shape {tuple(targets.shape)}"
            )
        super().check(where, inputs, targets, outputs)
        super().check(where, targets, inputs, outputs)

    def batch(self, inputs: Tensor, targets: Tensor, part: Plan, augment: bool) -> tuple[Tensor, Tensor]:
        return inputs[part.index].long(), targets[part.index].long()

    def test_batch(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return inputs.long(), targets.long()


class Regression(Task):
    """Numbers from numbers: the mean squared error, and R^2 = 1 - sum (y - out)^2 / sum (y - mean y)^2.

    Inputs are float32 of any shape (n, …), targets float32 of shape (n,) or (n, outputs).

    >>> y = torch.tensor([1.0, 2.0, 3.0])
    >>> sums = Regression().statistics(torch.tensor([[1.0], [2.0], [2.0]]), y).tolist()
    >>> Regression().value(sums, 3)
    0.5
    """

    score = Score("r2", "")
    examples = "rows"

    def check(self, where: str, inputs: Tensor, targets: Tensor, outputs: int) -> None:
        super().check(where, inputs, targets, outputs)
        if not (inputs.is_floating_point() and targets.is_floating_point()):
            raise UserError(f"{where}_inputs and {where}_targets must be floating-point numbers, as float32")
        if not (inputs.isfinite().all() and targets.isfinite().all()):
            raise UserError(f"{where}_inputs and {where}_targets must be finite, and some are not")

    def output_shape(self, targets: Tensor, outputs: int) -> tuple[int, ...]:
        return (len(targets), outputs)

    def loss(self, outputs: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
        return F.mse_loss(outputs.view_as(targets), targets, reduction=reduction)

    def statistics(self, outputs: Tensor, targets: Tensor) -> Tensor:
        y = targets.double()
        return torch.stack([(outputs.detach().view_as(targets) - y).square().sum(), y.sum(), y.square().sum()])

    def value(self, sums: Sequence[float], count: int) -> float:
        squared_error, total, squares = sums
        spread = squares - total**2 / count
        return 1 - squared_error / spread if spread > 0 else 0.0
