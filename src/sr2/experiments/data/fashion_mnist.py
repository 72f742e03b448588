"""fashion_mnist: 70,000 grey images of clothes, 28 x 28, in four IDX files (Zalando Research)."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..tasks import Images
from .base import Spec
from .files import Array, Arrays, File, Layout, check_md5, damaged

FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
MD5 = dict(  # of the unpacked files: gzip's header differs from one copy to another
    zip(
        FILES,
        (
            "f4a8712d7a061bf5bd6d2ca38dc4d50a",
            "9018921c3c673c538a1fc5bad174d6f9",
            "8181f5470baa50b63fa0f6fddb340f0a",
            "15d484375f8d13e6eb1aabb0c3f46965",
        ),
        strict=True,
    )
)


def read_idx(file: File, dims: int) -> Array:
    """An IDX file of uint8: two zeros, the type 8, the number of dimensions, the dimensions, the values."""
    header = 4 + 4 * dims
    if len(file.content) < header or file.content[:4] != bytes((0, 0, 8, dims)):
        raise damaged(file.name, f"is not an IDX file of bytes in {dims} dimensions")
    shape = struct.unpack(f">{dims}I", file.content[4:header])
    if len(file.content) - header != int(np.prod(shape, dtype=object)):
        raise damaged(file.name, f"is truncated: {shape} needs more or fewer bytes than {len(file.content) - header}")
    return np.frombuffer(file.content, np.uint8, offset=header).reshape(shape)


def write_idx(array: Array) -> bytes:
    """The IDX file of an array, as the official ones are written."""
    return bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def _decode(files: Sequence[File]) -> Arrays:
    x, y, x_test, y_test = (read_idx(file, dims) for file, dims in zip(files, (3, 1, 3, 1), strict=True))
    return Arrays(x[:, None], y, x_test[:, None], y_test)


def verify(arrays: Arrays, files: Sequence[str]) -> None:
    """Compare with the official files, byte for byte."""
    parts = (arrays.train_inputs[:, 0], arrays.train_targets, arrays.test_inputs[:, 0], arrays.test_targets)
    check_md5(zip(files, FILES, map(write_idx, parts), strict=True), MD5, "Fashion-MNIST")


SPEC = Spec(
    name="fashion_mnist",
    title="Fashion-MNIST",
    shape=(1, 28, 28),
    outputs=10,
    train=60000,
    test=10000,
    task=Images((0.2860,), (0.3530,)),
    layouts=(Layout(FILES, "FashionMNIST/raw", (), _decode),),
    verify=verify,
    urls=tuple(f"http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/{name}.gz" for name in FILES),
    system_folder=Path("/usr/share/datasets/fashion-mnist"),  # Debian's dataset-fashion-mnist
    hint="the four official IDX files (train-images-idx3-ubyte.gz, …; Debian's package dataset-fashion-mnist "
    "has them and is found where it installs them)",
)
