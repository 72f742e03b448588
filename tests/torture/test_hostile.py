"""Files that somebody made to do harm: none is run, none ends the interpreter, each is one sentence."""

from __future__ import annotations

import json
import os
import pickle
import pickletools
import random
import resource
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save

from sr2.experiments.data.pickles import read_pickle
from sr2.experiments.errors import UserError
from sr2.experiments.run.config import RunConfig
from sr2.experiments.run.store import WEIGHTS, RunStore, read_weights
from sr2.export import load
from sr2.export import save as save_small

pytestmark = pytest.mark.torture

PICKLES, HEADERS, CHECKPOINTS = 20_000, 5_000, 300
MARK, MEMORY = "was-run", 16 * 2**30
OPCODES = [op.code.encode("latin1") for op in pickletools.opcodes]
GLOBALS = [
    b"cos\nsystem\n",
    b"cbuiltins\neval\n",
    b"cnumpy\ndtype\n",
    b"cnumpy\nndarray\n",
    b"cnumpy._core.multiarray\n_reconstruct\n",
    b"cnumpy._core.multiarray\nscalar\n",
    b"c_codecs\nencode\n",
    b"csubprocess\nrun\n",
]


def apart(work: Callable[[], None]) -> int:
    """The exit code of work in a process of its own: 0, or what a crash of the interpreter leaves."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))  # a file that asks for all of it is told, too
            work()
            code = 0
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


class Bomb:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (f"touch {MARK}",)


def one_sentence(read: Callable[[], Any]) -> bool:
    """Whether it was told; what it read without a word is somebody's own affair, as long as it is data."""
    words = ""
    try:
        read()
    except (UserError, ValueError) as error:
        words = str(error)
    assert "\n" not in words
    assert len(words) < 2000
    return bool(words)


def hostile_pickle(chance: random.Random, real: bytes) -> bytes:
    kind = chance.randrange(4)
    if kind == 0:  # an official file with a few bytes changed
        content = bytearray(real)
        for _ in range(chance.randrange(1, 8)):
            content[chance.randrange(len(content))] = chance.randrange(256)
        return bytes(content)
    if kind == 1:  # opcodes at random
        parts = [chance.choice([*OPCODES, *GLOBALS, chance.randbytes(chance.randrange(6))]) for _ in range(40)]
        return b"\x80\x02" + b"".join(parts) + b"."
    if kind == 2:  # numpy's own words about what is not plain bytes
        forged = np.array([chance.choice([1, "x", None, b"y"])] * 3, dtype=object)
        return pickle.dumps({"data": forged, "labels": [chance.random()]}, protocol=chance.choice([2, 4]))
    return pickle.dumps({"data": Bomb(), "labels": Bomb()}, protocol=chance.choice([0, 2, 5]))


def test_pickles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chance: random.Random, figure: Any) -> None:
    monkeypatch.chdir(tmp_path)
    images = np.arange(3072, dtype=np.uint8).reshape(1, 3072)
    real = pickle.dumps({"data": images, "labels": [3]}, protocol=2)
    assert np.array_equal(read_pickle(real, "real")["data"], images)

    def work() -> None:
        told = sum(one_sentence(lambda: read_pickle(hostile_pickle(chance, real), "batch")) for _ in range(PICKLES))
        Path("told").write_text(str(told))

    assert apart(work) == 0
    assert not Path(MARK).exists()
    told = int(Path("told").read_text())
    assert told > PICKLES / 2
    figure(f"hostile: {PICKLES} pickles, {told} told in a sentence, {PICKLES - told} read as plain data, none was run")


def test_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chance: random.Random, figure: Any) -> None:
    """With a right checksum."""
    monkeypatch.chdir(tmp_path)
    store = RunStore(Path("run"), RunConfig())
    Path("run").mkdir()

    def work() -> None:
        for _ in range(CHECKPOINTS):
            store.save_checkpoint({"bomb": Bomb(), "n": chance.random(), "t": torch.zeros(chance.randrange(9))})
            assert one_sentence(store.load_checkpoint)

    assert apart(work) == 0
    assert not Path(MARK).exists()
    figure(f"hostile: {CHECKPOINTS} checkpoints with code in them and a right checksum: each a sentence, none was run")


def hostile_safetensors(chance: random.Random, real: bytes) -> bytes:
    (length,) = struct.unpack("<Q", real[:8])
    header = json.loads(real[8 : 8 + length])
    names = [name for name in header if name != "__metadata__"]
    huge: list[Any] = [-1, 2**31, 2**63, 2**64, 10**30, 1.5, None, "x", []]
    for _ in range(chance.randrange(1, 4)):
        entry = header.get(chance.choice(names))
        kind = chance.randrange(6)
        if not isinstance(entry, dict) or kind == 0:
            header[chance.choice(names)] = chance.choice([*huge, {}])
        elif kind == 1:
            entry["shape"] = [chance.choice(huge) for _ in range(chance.randrange(4))]
        elif kind == 2:
            entry["data_offsets"] = [chance.choice([0, 8, *huge]), chance.choice([0, 8, *huge])]
        elif kind == 3:
            entry["dtype"] = chance.choice(["F64", "I8", "BOOL", "F8_E4M3", "OBJECT", 3, ""])
        elif kind == 4:
            header["__metadata__"] = chance.choice([{}, {"format": "sr2-bitmask"}, {"tied": "{"}, "x", 3, {"a": 1}])
        else:
            header["../../" + "x" * chance.choice([1, 10_000])] = entry
    text = json.dumps(header).encode()
    if chance.random() < 0.1:
        text = b"[" * 20_000 + text
    size = chance.choice([len(text)] * 8 + [0, 2**20, 2**63, 2**64 - 1])
    return struct.pack("<Q", size) + text + real[8 + length :]


def test_safetensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chance: random.Random, figure: Any) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run").mkdir()
    tensors = {"a": torch.randn(4, 5), "b": (torch.rand(50, 20) > 0.9).float(), "c": torch.arange(7)}
    plain = save(tensors, {"format": "pt"})
    save_small(tensors, "small.safetensors")
    small = Path("small.safetensors").read_bytes()

    def work() -> None:
        told = 0
        for case in range(HEADERS):
            path = Path("run", WEIGHTS) if case % 2 else Path("hostile.safetensors")
            path.write_bytes(hostile_safetensors(chance, plain if case % 2 else small))
            told += one_sentence(lambda case=case, path=path: read_weights(Path("run")) if case % 2 else load(path))  # type: ignore[misc]
        Path("told").write_text(str(told))

    assert apart(work) == 0
    told = int(Path("told").read_text())
    figure(
        f"hostile: {HEADERS} safetensors files with forged headers: {told} a sentence, {HEADERS - told} read as tensors"
    )
