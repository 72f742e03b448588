"""Tiny data sets in the layouts of the official files, made by the tests; the tables of sums are made to fit."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import pickle
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sr2.experiments.data import cifar10, cifar100, fashion_mnist

N = 20
"""Images a batch of the tiny CIFAR-10."""


def md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def small_cifar10(monkeypatch: pytest.MonkeyPatch) -> list[tuple[np.ndarray, np.ndarray]]:
    """Six batches of N images; the module believes that they are CIFAR-10."""
    rng = np.random.default_rng(0)
    batches = [
        (rng.integers(0, 256, (N, 3, 32, 32), np.uint8), rng.integers(0, 10, N).astype(np.uint8)) for _ in range(6)
    ]
    sums = [md5(b"".join(bytes([y]) + x.tobytes() for x, y in zip(*batch, strict=True))) for batch in batches]
    monkeypatch.setattr(cifar10, "SIZE", N)
    monkeypatch.setattr(cifar10, "MD5", dict(zip(cifar10.BATCHES, sums, strict=True)))
    monkeypatch.setattr(cifar10, "SPEC", replace(cifar10.SPEC, train=5 * N, test=N))
    return batches


def write_cifar10_python(folder: Path, batches: list[tuple[np.ndarray, np.ndarray]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, (x, y) in zip(cifar10.BATCHES, batches, strict=True):
        (folder / name).write_bytes(pickle.dumps({"data": x.reshape(N, -1), "labels": y.tolist()}, protocol=2))


def write_cifar10_binary(folder: Path, batches: list[tuple[np.ndarray, np.ndarray]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, (x, y) in zip(cifar10.BATCHES, batches, strict=True):
        (folder / f"{name}.bin").write_bytes(b"".join(bytes([b]) + a.tobytes() for a, b in zip(x, y, strict=True)))


def write_cifar10_sheets(folder: Path, batches: list[tuple[np.ndarray, np.ndarray]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, (x, _) in zip(cifar10.BATCHES, batches, strict=True):
        Image.fromarray(x.transpose(0, 2, 3, 1).reshape(N, 1024, 3)).save(folder / f"{name}.png")
    labels = [y.tolist() for _, y in batches]
    (folder / "train_lables.json").write_text(json.dumps([label for part in labels[:5] for label in part]))
    (folder / "test_lables.json").write_text(json.dumps(labels[5]))


def archive_of(folder: Path, inside: str) -> bytes:
    """The .tar.gz of a folder's files, under the folder name `inside`."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for path in sorted(folder.iterdir()):
            tar.add(path, f"{inside}/{path.name}")
    return stream.getvalue()


CIFAR10_WRITERS: dict[str, Callable[[Path, list[tuple[np.ndarray, np.ndarray]]], None]] = {
    "python": write_cifar10_python,
    "binary": write_cifar10_binary,
    "sheets": write_cifar10_sheets,
}


def small_cifar100(monkeypatch: pytest.MonkeyPatch) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """(images, coarse labels, fine labels) with 2 training images and 1 test image a class."""
    rng = np.random.default_rng(1)
    parts = []
    for n in (2, 1):
        fine = rng.permutation(np.repeat(np.arange(100), n)).astype(np.uint8)
        parts.append((rng.integers(0, 256, (100 * n, 3, 32, 32), np.uint8), fine // 5, fine))
    monkeypatch.setattr(cifar100, "PER_CLASS", (2, 1))
    monkeypatch.setattr(cifar100, "SPEC", replace(cifar100.SPEC, train=200, test=100))
    return parts


def small_fashion(monkeypatch: pytest.MonkeyPatch, folder: Path, packed: bool = True) -> list[np.ndarray]:
    """Four IDX files of 30 and 10 images in the folder; the module believes that they are Fashion-MNIST."""
    rng = np.random.default_rng(2)
    arrays = [
        rng.integers(0, 256 if len(shape) == 3 else 10, shape, np.uint8)
        for shape in ((30, 28, 28), (30,), (10, 28, 28), (10,))
    ]
    folder.mkdir(parents=True, exist_ok=True)
    sums = {}
    for name, array in zip(fashion_mnist.FILES, arrays, strict=True):
        header = b"".join(n.to_bytes(4, "big") for n in (0x800 + array.ndim, *array.shape))
        content = header + array.tobytes()
        sums[name] = md5(content)
        (folder / (name + ".gz" * packed)).write_bytes(gzip.compress(content) if packed else content)
    monkeypatch.setattr(fashion_mnist, "MD5", sums)
    monkeypatch.setattr(fashion_mnist, "SPEC", replace(fashion_mnist.SPEC, train=30, test=10, system_folder=None))
    return arrays
