"""Digits, Fashion-MNIST, a user's own data, names, and the cache."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from sr2.experiments.data import Dataset, base, cache, check, default_root, fashion_mnist, listed, load
from sr2.experiments.data.base import channel_statistics
from sr2.experiments.errors import UserError
from sr2.experiments.tasks import Images
from tests.experiments.tools.official import small_cifar10, small_fashion, write_cifar10_binary


def test_digits_are_scikit_learns() -> None:
    data = load("digits")
    assert data.in_shape == (1, 8, 8)
    assert (len(data.train_inputs), len(data.test_inputs)) == (1437, 360)
    ours = torch.cat([data.train_inputs, data.test_inputs]).flatten(1).numpy()
    theirs = load_digits().data * 15
    assert sorted(map(bytes, ours)) == sorted(map(bytes, theirs.astype(np.uint8)))
    assert (theirs == theirs.astype(np.uint8)).all()  # nothing was rounded
    assert data.test_targets.bincount().tolist() == [36, 36, 36, 36, 37, 36, 36, 36, 35, 36]
    assert torch.equal(load("digits").train_inputs, data.train_inputs)
    mean, std = channel_statistics(data.train_inputs)
    assert isinstance(data.task, Images)
    assert data.task.mean == pytest.approx(mean, abs=1e-4)
    assert data.task.std == pytest.approx(std, abs=1e-4)
    assert "good" in check("digits")


@pytest.mark.parametrize("packed", [True, False])
def test_fashion_mnist(packed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = small_fashion(monkeypatch, tmp_path / "fashion_mnist", packed)
    for _ in range(2):
        data = load("fashion_mnist", tmp_path)
        assert (data.train_inputs[:, 0].numpy() == arrays[0]).all()
        assert (data.test_targets.numpy() == arrays[3]).all()
    assert "good" in check("fashion_mnist", tmp_path)


def test_fashion_mnist_of_the_system_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_fashion(monkeypatch, tmp_path / "system")
    with pytest.raises(UserError, match="dataset-fashion-mnist"):
        load("fashion_mnist", tmp_path)
    object.__setattr__(fashion_mnist.SPEC, "system_folder", tmp_path / "system")
    assert len(load("fashion_mnist", tmp_path).train_inputs) == 30


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda f: (f / "train-images-idx3-ubyte.gz").write_bytes(b"no"), "train-images.*truncated or damaged"),
        (lambda f: _cut(f / "train-images-idx3-ubyte.gz"), "train-images.*truncated or damaged"),
        (lambda f: _edit(f / "train-labels-idx1-ubyte.gz", lambda b: b[:-1]), "train-labels.*truncated"),
        (lambda f: _edit(f / "t10k-labels-idx1-ubyte.gz", lambda b: b"\1" + b[1:]), "t10k-labels.*not an IDX"),
        (
            lambda f: _edit(f / "t10k-labels-idx1-ubyte.gz", lambda b: b[:-1] + bytes([b[-1] ^ 1])),
            "t10k-labels.*a label differs",
        ),
        (lambda f: _swap(f / "train-labels-idx1-ubyte.gz", f / "t10k-labels-idx1-ubyte.gz"), "train-labels.*t10k-lab"),
        (lambda f: (f / "t10k-images-idx3-ubyte.gz").unlink(), "t10k-images-idx3-ubyte is missing"),
    ],
)
def test_wrong_fashion_files_are_named(
    spoil: object, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_fashion(monkeypatch, tmp_path / "fashion_mnist")
    load("fashion_mnist", tmp_path)
    spoil(tmp_path / "fashion_mnist")  # type: ignore[operator]
    for use in (load, check):  # the cache does not hide that the files have changed
        with pytest.raises(UserError, match=words):
            use("fashion_mnist", tmp_path)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def _edit(path: Path, change: object) -> None:
    path.write_bytes(gzip.compress(change(gzip.decompress(path.read_bytes()))))  # type: ignore[operator]


def _swap(one: Path, two: Path) -> None:
    a, b = one.read_bytes(), two.read_bytes()
    one.write_bytes(b)
    two.write_bytes(a)


def test_unknown_names_list_the_known_and_the_closest() -> None:
    with pytest.raises(UserError, match=r"'fashionmnist'.*did you mean fashion_mnist\?.*digits, fashion_mnist, cifar"):
        load("fashionmnist")


def test_a_missing_data_set_says_what_to_put_where(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cifar100 is not in .*sr2 data fetch cifar100.*cifar-100-python\.tar\.gz"):
        load("cifar100", tmp_path)


def test_the_root_is_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SR2_DATA", str(tmp_path))
    assert default_root() == tmp_path
    monkeypatch.delenv("SR2_DATA")
    assert default_root().parts[-3:] == (".cache", "sr2", "data")


def test_rows_say_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_cifar10_binary(tmp_path / "cifar10", small_cifar10(monkeypatch))
    found = {row.name: row for row in listed(tmp_path)}
    assert list(found) == base.known()
    assert found["digits"].present
    assert found["cifar10"].present
    assert not found["cifar100"].present
    assert found["cifar100"].outputs == 100


# ---- a user's own


MODULE = """
import numpy as np
from sr2.experiments.data import Dataset, load
def arrays():
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (9, 5, 5), np.uint8), np.arange(9) % 3, np.zeros((3, 5, 5), np.uint8), [0, 1, 2]
def dataset():
    return load("digits")
def floats():
    return np.zeros((9, 5, 5)), np.arange(9), np.zeros((9, 5, 5)), np.arange(9)
def three():
    return arrays()[:3]
def short():
    x, y, *rest = arrays()
    return x, y[:-1], *rest
def nothing():
    return None
def words():
    x, y, *rest = arrays()
    return x, ["a"] * 9, *rest
def broken():
    return 1 / 0
number = 3
"""


@pytest.fixture
def my_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"mine_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    return name


def test_own_arrays(my_module: str) -> None:
    data = load(f"{my_module}:arrays")
    assert data.in_shape == (1, 5, 5)
    assert isinstance(data.task, Images)
    assert (data.outputs, data.task.augment) == (3, "none")
    x = data.train_inputs.double() / 255
    assert data.task.mean == pytest.approx([x.mean().item()])
    assert data.task.std == pytest.approx([x.std(correction=0).item()])
    assert isinstance(load(f"{my_module}:dataset"), Dataset)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("floats", "train_inputs must be uint8.*: scale images to 0 … 255, or return"),
        ("three", "3 parts, and must have four"),
        ("short", "train_targets must be int64, one for each of the 9 images"),
        ("nothing", "returned a NoneType"),
        ("words", "arrays of numbers"),
        ("broken", "line 2[0-9]: ZeroDivisionError: division by zero"),
        ("number", "is a int, and must be something to call"),
        ("absent", "could not be imported"),
    ],
)
def test_own_data_that_is_wrong(name: str, words: str, my_module: str) -> None:
    with pytest.raises(UserError, match=words):
        load(f"{my_module}:{name}")


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_channels_last_are_named(channels: int) -> None:
    def made(*shape: int) -> Dataset:
        x, y = np.zeros(shape, np.uint8), np.zeros(shape[0], int)
        return Dataset.from_arrays("mine", (x, y, x, y))

    width = 28 if channels > 1 else 32  # a series of 32 times 28 numbers has that shape, too
    with pytest.raises(UserError, match=rf"\(2, 32, {width}, {channels}\) have their channels last.*np\.moveaxis"):
        made(2, 32, width, channels)
    assert made(2, channels, 32, 28).in_shape == (channels, 32, 28)
    assert made(2, channels, 4, 4).in_shape == (channels, 4, 4)
    assert made(2, 64, 1, 1).in_shape == (64, 1, 1)  # a table of numbers
    assert made(2, 9, 128, 1).in_shape == (9, 128, 1)  # nine series


def test_own_module_that_is_not_there() -> None:
    with pytest.raises(UserError, match="no_such_module"):
        load("no_such_module:data")


# ---- the cache


def test_a_damaged_cache_is_read_again_from_the_files_or_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cifar10"
    write_cifar10_binary(folder, small_cifar10(monkeypatch))
    before = load("cifar10", tmp_path)
    stored = folder / cache.FILE
    content = bytearray(stored.read_bytes())
    content[len(content) // 2] ^= 1
    stored.write_bytes(content)
    assert torch.equal(load("cifar10", tmp_path).train_inputs, before.train_inputs)  # and writes it anew
    assert cache.read(folder, "cifar10") is not None
    assert cache.read(folder, "cifar100") is None  # another data set's cache is none
    stored.write_bytes(content[:5000])
    for file in folder.glob("*.bin"):
        file.unlink()
    with pytest.raises(UserError, match=rf"{cache.FILE} is damaged"):
        load("cifar10", tmp_path)


def test_the_cache_stands_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cifar10"
    write_cifar10_binary(folder, small_cifar10(monkeypatch))
    before = load("cifar10", tmp_path)
    for file in folder.glob("*.bin"):
        file.unlink()
    assert torch.equal(load("cifar10", tmp_path).test_inputs, before.test_inputs)
    assert "good" in check("cifar10", tmp_path)


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    cache.write_atomically(path, lambda file: file.write(b"old"))

    def fail(file: object) -> None:
        file.write(b"ne")  # type: ignore[attr-defined]
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        cache.write_atomically(path, fail)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_cache_that_cannot_be_written_costs_only_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_cifar10_binary(tmp_path / "cifar10", small_cifar10(monkeypatch))

    def full(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(cache, "write_atomically", full)
    assert len(load("cifar10", tmp_path).train_inputs) == 100
