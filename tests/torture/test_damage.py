"""Damaged files of a run: one sentence that names the file, or the very same content; never another number."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from sr2.cli import main
from sr2.experiments.errors import UserError
from sr2.experiments.run.store import CHECKPOINT, PREVIOUS, RunStore, read_run, read_weights
from sr2.export import load

pytestmark = pytest.mark.torture

PER_FILE = 120


def flipped(content: bytes, chance: random.Random) -> bytes:
    place = chance.randrange(len(content))
    return content[:place] + bytes([content[place] ^ 1 << chance.randrange(8)]) + content[place + 1 :]


def cut(content: bytes, chance: random.Random) -> bytes:
    return content[: chance.randrange(len(content))]


def blanked(content: bytes, chance: random.Random) -> bytes:
    start = chance.randrange(len(content))
    end = min(len(content), start + chance.choice([1, 16, 512, 4096]))
    return content[:start] + bytes(end - start) + content[end:]


def longer(content: bytes, chance: random.Random) -> bytes:
    return content + chance.randbytes(chance.choice([1, 7, 4096]))


def doubled(content: bytes, chance: random.Random) -> bytes:
    place = chance.randrange(len(content))
    return content[:place] + content[chance.randrange(len(content)) :]


def other(content: bytes, chance: random.Random) -> bytes:
    return chance.randbytes(chance.choice([0, 1, 100, len(content)]))


DAMAGES = (flipped, cut, blanked, longer, doubled, other)


def content_of(folder: Path) -> dict[str, Any]:
    """Everything that commands read of a run folder."""
    record = read_run(folder)
    small = {
        name: load(folder / name) for name in ("shrunk.safetensors", "export.safetensors") if (folder / name).exists()
    }
    state = RunStore(folder, record.config).load_checkpoint()
    return {
        **{name: getattr(record, name) for name in ("config", "env", "metrics", "result", "prune", "export")},
        "weights": read_weights(folder),
        "checkpoint": state,
        "small": small,
    }


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and all(key in b and same(a[key], b[key]) for key in a)  # more, nobody reads
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b) or (a != a and b != b)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--epochs", "2", "--batch", "400", "--model", "mlp", "--lam", "1e-2"]) == 0
    (folder,) = Path("runs").iterdir()
    assert main(["export", str(folder)]) == 0
    return folder


def test_damaged_files(run: Path, chance: random.Random, figure: Callable[[str], None]) -> None:
    whole = content_of(run)
    (run / PREVIOUS).unlink(missing_ok=True)  # read where the newer one is deleted
    found: Counter[str] = Counter()
    files = [path for path in sorted(run.iterdir()) if path.is_file() and path.name != ".lock"]
    assert {CHECKPOINT, "config.json", "env.json", "metrics.jsonl", "result.json", "prune.json", "export.json"} <= {
        path.name for path in files
    }
    for path in files:
        content = path.read_bytes()
        for case in range(PER_FILE):
            path.write_bytes(DAMAGES[case % len(DAMAGES)](content, chance))
            found["damaged"] += 1
            read: Any = None
            words = ""
            try:
                read = content_of(run)
            except (UserError, ValueError) as error:
                words = str(error)
            if words:
                assert str(path) in words
                assert "\n" not in words
            else:
                assert same(whole, read), path
            found["told" if words else "harmless"] += 1
        path.write_bytes(content)
    assert same(whole, content_of(run))
    figure(
        f"damage: {found['damaged']} damages of {len(files)} files of a finished run: {found['told']} told in a "
        f"sentence that names the file, {found['harmless']} without effect on what is read, 0 other numbers"
    )


def test_files_that_are_gone(run: Path, capsys: pytest.CaptureFixture[str], figure: Callable[[str], None]) -> None:
    """Each one in turn: the commands say what they miss, or do without."""
    commands = 0
    for path in [p for p in sorted(run.iterdir()) if p.is_file()]:
        shutil.copytree(run, "copy/run")
        Path("copy/run", path.name).unlink()
        for command in (["report", "copy", "--out", "report"], ["prune", "copy"], ["shrink", "copy"]):
            capsys.readouterr()
            code = main(command)
            said = capsys.readouterr().err
            assert code in (0, 2)
            assert code == 0 or said.count("\n") <= 2, said
            commands += 1
        shutil.rmtree("copy")
    figure(f"damage: {commands} commands on folders with one file gone: done, or a sentence")
