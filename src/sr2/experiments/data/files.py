"""The files a data set is handed out as: finding them in folders and archives, reading, checking."""

from __future__ import annotations

import gzip
import hashlib
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from ..errors import UserError

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class File:
    """A file's bytes, and the name an error calls it by."""

    name: str
    content: bytes


@dataclass(frozen=True)
class Arrays:
    """A whole data set as arrays, those of files as uint8: of images (n, channels, height, width) and labels (n,)."""

    train_inputs: Array
    train_targets: Array
    test_inputs: Array
    test_targets: Array

    def __iter__(self) -> Iterator[Array]:
        return iter((self.train_inputs, self.train_targets, self.test_inputs, self.test_targets))


@dataclass(frozen=True)
class Layout:
    """One way in which the official files are handed out.

    Attributes:
        files: the names of the files, each also accepted with `.gz` behind it.
        folder: the folder that holds them when unpacked.
        archives: patterns of the archives that hold them.
        decode: from the files, in the order of `files`, to arrays.
    """

    files: tuple[str, ...]
    folder: str
    archives: tuple[str, ...]
    decode: Callable[[Sequence[File]], Arrays]


@dataclass(frozen=True)
class Source:
    """A layout that was found: in a folder or in an archive."""

    layout: Layout
    path: Path

    def paths(self) -> list[Path]:
        """The files on disk."""
        if self.path.is_file():
            return [self.path]
        return [p for name in self.layout.files if (p := _plain_or_gz(self.path, name)) is not None]

    def stamp(self) -> list[list[Any]]:
        """Name, size and time of change of each file: a cache made from others is out of date."""
        return [[str(p.resolve()), (s := p.stat()).st_size, s.st_mtime_ns] for p in self.paths()]

    def read(self) -> tuple[Arrays, list[str]]:
        """The arrays, and the names of the files they came from, in the layout's order."""
        read = _read_archive if self.path.is_file() else _read_folder
        try:
            found = read(self.path, self.layout.files)
        except OSError as error:
            raise UserError(f"{error.filename or self.path} cannot be read ({error.strerror or error})") from error
        return self.layout.decode(found), [file.name for file in found]


def find(layouts: Iterable[Layout], folder: Path) -> Source | None:
    """The first layout that lies, whole or in part, in a folder (a data set's own), or beside it.

    `folder` may hold the files, the folder they unpack to, or the archive; its parent the last two only, since
    bare names such as `train` may be anybody's there.
    """
    for layout in layouts:
        for place in (folder, folder / layout.folder, folder.parent / layout.folder):
            if any(_plain_or_gz(place, name) for name in layout.files):
                return Source(layout, place)
        for place in (folder, folder.parent):
            for pattern in layout.archives:
                for archive in sorted(place.glob(pattern)):
                    return Source(layout, archive)
    return None


def damaged(file: str, why: str) -> UserError:
    """The error for a file that is not what its name says."""
    return UserError(f"{file} {why}: delete it and fetch the official file again")


def check_md5(parts: Iterable[tuple[str, str, bytes]], official: Mapping[str, str], dataset: str) -> None:
    """Compare contents with the official sums.

    Args:
        parts: (what an error calls the file, which official part it must be, its content).
        official: MD5 sum of each official part.
        dataset: the data set's name for people.
    """
    for file, part, content in parts:
        found = hashlib.md5(content, usedforsecurity=False).hexdigest()
        if found == official[part]:
            continue
        other = [name for name, md5 in official.items() if md5 == found]
        if other:
            raise damaged(file, f"holds {dataset}'s {other[0]} in the place of {part}")
        raise damaged(file, f"is not {dataset}'s official {part} (an image or a label differs)")


def _plain_or_gz(place: Path, name: str) -> Path | None:
    for path in (place / name, place / (name + ".gz")):
        if path.is_file():
            return path
    return None


def _read_folder(place: Path, names: Sequence[str]) -> list[File]:
    files = []
    for name in names:
        path = _plain_or_gz(place, name)
        if path is None:
            raise UserError(f"{place / name} is missing beside the others: put it there, or fetch the data set again")
        content = path.read_bytes()
        if path.suffix == ".gz":
            try:
                content = gzip.decompress(content)
            except (OSError, EOFError, zlib.error) as error:
                raise damaged(str(path), f"is truncated or damaged ({error})") from error
        files.append(File(str(path), content))
    return files


def _read_archive(archive: Path, names: Sequence[str]) -> list[File]:
    """The members with these names, in whatever folder of the archive; nothing is unpacked to disk."""
    contents: dict[str, bytes] = {}
    try:
        with tarfile.open(archive, "r|*") as tar:  # a stream: gzip reads forwards only
            for member in tar:
                name = PurePosixPath(member.name).name
                if name in names and (stream := tar.extractfile(member)) is not None:
                    contents[name] = stream.read()
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise damaged(str(archive), f"is truncated or damaged ({error})") from error
    for name in names:
        if name not in contents:
            raise damaged(str(archive), f"does not hold {name}")
    return [File(f"{archive} ({name})", contents[name]) for name in names]
