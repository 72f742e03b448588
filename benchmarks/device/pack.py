"""Runs in a few small files, to bring them home from a machine that will be gone, and back.

    python benchmarks/device/pack.py pack runs OUT       # runs.tar.gz, and checkpoints in pieces as far as they fit
    python benchmarks/device/pack.py unpack OUT runs     # elsewhere: what a queue needs to go on
    python benchmarks/device/pack.py unpack OUT results --finished    # what is committed: no weights, no checkpoints

runs.tar.gz has what a run says in text. A checkpoint travels only whole: those of unfinished runs are taken, the
furthest first, while they fit (ResNet-34's, 85 MB and more, does not: let its runs end before the machine does).
"""

from __future__ import annotations

import argparse
import io
import tarfile
from pathlib import Path

TEXTS = ("config.json", "env.json", "metrics.jsonl", "prune.json", "result.json", "diverged.txt", "certificate.json")
ENDS = ("result.json", "diverged.txt")
CHECKPOINT = "checkpoint.pt"
PIECE, PIECES = 15 * 2**20, 4
"""Bytes of a piece, and how many may travel: 64 MiB in 8 files of at most 16 MiB are what a machine gives back."""


def pack(runs: Path, out: Path, room: int = PIECE * PIECES) -> list[Path]:
    """Write the files, checkpoints within so many bytes; returns them."""
    out.mkdir(parents=True, exist_ok=True)
    folders = sorted(path.parent for path in runs.rglob("config.json"))
    texts = out / "runs.tar.gz"
    with tarfile.open(texts, "w:gz") as tar:
        for path in (folder / name for folder in folders for name in TEXTS):
            if path.exists():
                tar.add(path, f"{path.parent.name}/{path.name}")
    chosen: list[Path] = []
    unfinished = [f for f in folders if (f / CHECKPOINT).exists() and not any((f / end).exists() for end in ENDS)]
    for folder in sorted(unfinished, key=_epochs, reverse=True):
        if sum(_size(path) for path in (*chosen, folder / CHECKPOINT)) <= room - 2**20:
            chosen.append(folder / CHECKPOINT)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for path in chosen:
            tar.add(path, f"{path.parent.name}/{path.name}")
    data = buffer.getvalue() if chosen else b""
    pieces = [out / f"checkpoints.{i // PIECE:02d}" for i in range(0, len(data), PIECE)]
    for i, piece in enumerate(pieces):
        piece.write_bytes(data[i * PIECE : (i + 1) * PIECE])
    return [texts, *pieces]


def unpack(packed: Path, runs: Path, finished: bool = False) -> list[str]:
    """Read the files into a folder of runs; returns the names of those that have ended or can go on.

    A run whose checkpoint had no room is left out: it begins anew, and rows without a checkpoint would forbid that.

    finished: only those that have ended, and nothing that is not text.
    """
    runs.mkdir(parents=True, exist_ok=True)
    data = b"".join(path.read_bytes() for path in sorted(packed.glob("checkpoints.*")))
    if data and not finished:
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            tar.extractall(runs, filter="data")
    with tarfile.open(packed / "runs.tar.gz") as tar:
        taken = {name.partition("/")[0] for name in tar.getnames() if name.partition("/")[2] in ENDS}
        taken |= set() if finished else {path.parent.name for path in runs.glob(f"*/{CHECKPOINT}")}
        members = [m for m in tar.getmembers() if m.name.partition("/")[0] in taken]
        tar.extractall(runs, members, filter="data")
    return sorted({m.name.partition("/")[0] for m in members})


def _epochs(folder: Path) -> int:
    rows = folder / "metrics.jsonl"
    return rows.read_bytes().count(b"\n") if rows.exists() else 0


def _size(path: Path) -> int:
    return path.stat().st_size + 2048  # its header and the padding behind it


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["pack", "unpack"])
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--finished", action="store_true", help="unpack: only runs that have ended, and only text")
    options = parser.parse_args()
    if options.what == "pack":
        for path in pack(options.source, options.target):
            print(f"{path}  {path.stat().st_size / 2**20:.2f} MiB")
    else:
        names = unpack(options.source, options.target, options.finished)
        print("\n".join([*names, f"{len(names)} runs are in {options.target}"]))


if __name__ == "__main__":
    main()
