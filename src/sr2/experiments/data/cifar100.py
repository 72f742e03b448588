"""cifar100: 60,000 colour images of 32 x 32 in 100 classes (University of Toronto).

The official python files are checked by their MD5 sums. The binary ones have no published sums: their sizes,
their 500 and 100 images per class, and that every class lies in one superclass are checked instead.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from ..tasks import Images
from .base import Spec
from .cifar10 import decode_images, decode_rows
from .files import Array, Arrays, File, Layout, damaged
from .pickles import read_pickle

MD5 = {"train": "16019d7e3df5f24257cddd939b257f8d", "test": "f0ef6b0ae62326f3e7ffdfab6717acfc"}
PER_CLASS = (500, 100)
"""Images per class, for training and for the test."""


def _from_pickles(files: Sequence[File]) -> Arrays:
    parts: list[Array] = []
    for file, (part, official) in zip(files, MD5.items(), strict=True):
        # The sum of the whole file comes first: what does not have it is not even looked into.
        if hashlib.md5(file.content, usedforsecurity=False).hexdigest() != official:
            raise damaged(file.name, f"is not CIFAR-100's official {part}")
        content = read_pickle(file.content, file.name)
        parts += decode_images(content.get("data"), content.get("fine_labels"), file.name)
    return Arrays(*parts)


def _from_binary(files: Sequence[File]) -> Arrays:
    parts: list[Array] = []
    for file in files:
        images, labels = decode_rows(file, 2)
        coarse, fine = labels.T
        if len(np.unique(labels, axis=0)) != len(np.unique(fine)) or coarse.max() >= 20:
            raise damaged(file.name, "holds wrong labels (a class lies in two superclasses)")
        parts += np.ascontiguousarray(images), np.ascontiguousarray(fine)
    return Arrays(*parts)


def verify(arrays: Arrays, files: Sequence[str]) -> None:
    """As many images of each class as there must be."""
    for file, labels, n in zip(files, (arrays.train_targets, arrays.test_targets), PER_CLASS, strict=True):
        if len(labels) != 100 * n:
            raise damaged(file, f"is truncated or another file: {len(labels)} images in place of {100 * n}")
        counts = np.bincount(labels, minlength=100)
        if len(counts) != 100 or (counts != n).any():
            worst = int(np.argmax(counts != n))
            raise damaged(file, f"holds wrong labels ({counts[worst]} images of class {worst} in place of {n})")


SPEC = Spec(
    name="cifar100",
    title="CIFAR-100",
    shape=(3, 32, 32),
    outputs=100,
    train=50000,
    test=10000,
    task=Images((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762), "crop_flip"),
    layouts=(
        Layout(tuple(MD5), "cifar-100-python", ("cifar-100-python.tar.gz",), _from_pickles),
        Layout(("train.bin", "test.bin"), "cifar-100-binary", ("cifar-100-binary.tar.gz",), _from_binary),
    ),
    verify=verify,
    urls=("https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",),
    hint="cifar-100-python.tar.gz from https://www.cs.toronto.edu/~kriz/cifar.html (or its unpacked or binary files)",
)
