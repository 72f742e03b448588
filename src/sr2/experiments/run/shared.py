"""Folders behind an address, as s3://bucket/runs: whatever fsspec knows. A plain path never gets here.

While a command works, it has a copy of the folder on this machine, reads and writes that, and sends every file that it
has written, whole or not at all. Nothing keeps a second process out of a run behind an address: start each run once.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from ..errors import UserError, short

Folder = Path | str
"""A path, or an address with :// in it."""


def is_address(folder: Folder) -> bool:
    """Whether it is fsspec's.

    >>> is_address("memory://runs"), is_address("runs"), is_address(Path("runs"))
    (True, False, False)
    """
    return "://" in str(folder)


class Shared:
    """A folder behind an address, and its copy here.

    Args:
        address: of the folder, as memory://runs.
        here: an empty folder of this machine.
    """

    def __init__(self, address: str, here: Path) -> None:
        import fsspec

        self.address, self.here = _base(address), here
        with self._told("opened"):
            self._system, self._root = fsspec.url_to_fs(self.address)
            self._root = self._root.rstrip("/")

    def fetch(self, part: str = "", wanted: Callable[[str], bool] = lambda name: True) -> Path:
        """Copy a part of the folder here, of its files those whose name is wanted; returns the copy."""
        remote = f"{self._root}/{part}".rstrip("/")
        with self._told("read"):
            found = self._system.find(remote) if self._system.exists(remote) else []
            for path in found:
                name = path.removeprefix(self._root).lstrip("/")
                if wanted(Path(name).name):
                    target = self.here / name
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(self._system.cat_file(path))
        return self.here / part

    def send(self, path: Path) -> None:
        """Write a file of the copy, or all files of a folder of it, to the address: each as a whole or not at all."""
        for file in [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file()):
            remote = f"{self._root}/{file.relative_to(self.here).as_posix()}"
            with self._told("written"):
                self._system.makedirs(remote.rpartition("/")[0], exist_ok=True)
                with self._system.transaction, self._system.open(remote, "wb") as target:
                    target.write(file.read_bytes())

    def name(self, path: Path) -> str:
        """The address of a file of the copy."""
        return f"{self.address}/{path.relative_to(self.here).as_posix()}"

    @contextlib.contextmanager
    def _told(self, verb: str) -> Iterator[None]:
        """What a store says, whatever its classes of errors are, is a UserError that names the address."""
        try:
            yield
        except Exception as error:
            raise UserError(f"{self.address} cannot be {verb}: {short(error)}") from error


@contextlib.contextmanager
def opened(folder: Folder) -> Iterator[Shared | None]:
    """The shared folder behind an address; None for a path."""
    if not is_address(folder):
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="sr2-") as here:
        yield Shared(str(folder), Path(here).resolve())


@contextlib.contextmanager
def read_here(folder: Folder) -> Iterator[Path]:
    """A path as it is; of a folder behind an address a copy of what a report reads: no checkpoints, no weights."""
    with opened(folder) as shared:
        if shared is None:
            yield Path(folder)
        else:
            here = shared.fetch(wanted=lambda name: name.endswith((".json", ".jsonl")))
            if not any(here.rglob("config.json")):
                raise UserError(
                    f"{folder} has no run in it: name a run folder (it has a config.json), or a folder of them"
                )
            yield here


@contextlib.contextmanager
def written_here(folder: Folder) -> Iterator[Path]:
    """A path as it is; for an address an empty folder, which is sent there at the end."""
    with opened(folder) as shared:
        yield Path(folder) if shared is None else shared.here
        if shared is not None:
            shared.send(shared.here)


def join(folder: Folder, name: str) -> Folder:
    """A part of a folder.

    >>> join("s3://bucket/runs", "report"), join("runs", "report").as_posix()
    ('s3://bucket/runs/report', 'runs/report')
    """
    return f"{_base(str(folder))}/{name}" if is_address(folder) else Path(folder) / name


def _base(address: str) -> str:
    """Without a / at its end; one that ends with :// would be a path then."""
    base = address.rstrip("/")
    if not is_address(base):
        raise UserError(f"{address} names no folder: add one, as s3://bucket/runs")
    return base
