"""The only disk access of a run: its folder, its checkpoints, what is read back.

`<runs>/<key>/` holds config.json, env.json, metrics.jsonl (a line per epoch), checkpoint.pt and checkpoint.previous.pt,
and, of a finished run, weights.safetensors, prune.json and result.json, and average.safetensors where its optimizer
keeps an average of the iterates; of an exported one, export.json. Every file is whole at any moment: it is written
beside its place and renamed. The checkpoint is the truth: metrics.jsonl is rewritten from it on resume.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from ...files import write_atomically
from ..errors import UserError, short
from ..models import fingerprint
from ..names import Which, check_known
from ..tasks import Score
from .config import RunConfig
from .environment import environment
from .files import (
    ENV,
    check_sum,
    export_kind,
    named_errors,
    read_json,
    read_lines,
    result_kind,
    row_kind,
    score_of,
    sweep_kind,
    way_out,
    write_file,
    write_json,
)
from .processes import ALONE, Processes
from .registry import REGULARIZERS
from .shared import Folder, Shared
from .view import modern

CHECKPOINT, PREVIOUS = "checkpoint.pt", "checkpoint.previous.pt"
METRICS = "metrics.jsonl"
WEIGHTS, AVERAGE = "weights.safetensors", "average.safetensors"
_MARK = b"\nsr2 sha256 "
_TAIL = len(_MARK) + 65  # the mark, 64 hexadecimal digits, the end of the line


@dataclass(frozen=True)
class RunRecord:
    """What a run folder says: read it, never train it."""

    path: Path
    config: RunConfig
    env: dict[str, Any]
    metrics: list[dict[str, Any]]
    result: dict[str, Any] | None
    prune: dict[str, Any] | None
    export: dict[str, Any] | None = None

    @property
    def score(self) -> Score:
        """What the run was judged by: `result` has it under its name, `metrics` under test_ and its name."""
        return score_of(self.env)

    @property
    def test_score(self) -> str:
        """The name of the score of the test in `metrics`."""
        return f"test_{self.score.name}"


def modern_row(row: Any) -> Any:
    """A line of metrics.jsonl, in the words of today."""
    return modern(row) if isinstance(row, dict) else row


def read_run(folder: Path) -> RunRecord:
    """A run, finished or not; a folder that is none is a UserError."""
    folder = Path(folder)
    if not (folder / "config.json").is_file():
        raise UserError(f"{folder} is not a run: it has no config.json; name a folder that `sr2 train` has made")
    config = read_json(folder / "config.json")
    try:
        made = RunConfig.from_dict(config)
        if ":" not in made.regularizer:
            check_known("regularizer", made.regularizer, [*REGULARIZERS, "none"])
    except (UserError, TypeError, AttributeError) as error:
        path = folder / "config.json"
        raise UserError(f"{path} is not the configuration of a run ({error}): {way_out(path)}") from error
    env = read_json(folder / "env.json", {}, ENV)
    score = score_of(env).name
    result = read_json(folder / "result.json", None, result_kind(score))
    rows = read_lines(folder / METRICS, row_kind(score), modern_row)
    for name in (METRICS, "config.json", "env.json"):
        check_sum(folder / name, result)
    return RunRecord(
        folder,
        made,
        env,
        rows,
        result,
        read_json(folder / "prune.json", None, sweep_kind(score)),
        read_json(folder / "export.json", None, export_kind(score)),
    )


def find_runs(
    paths: Iterable[Path], missing_ok: bool = False, damaged: list[UserError] | None = None
) -> list[RunRecord]:
    """The runs of each path: a run folder, or a folder of run folders at any depth, in the order of their names.

    A path without a run is a UserError, unless `missing_ok`; a report beside other paths is passed over. A run that
    cannot be read is one, too, unless there is a list to put what is `damaged` into.
    """
    found: dict[Path, RunRecord] = {}
    for path in (named := [Path(path) for path in paths]):
        folders = [path] if (path / "config.json").is_file() else sorted(p.parent for p in path.rglob("config.json"))
        report = len(named) > 1 and (path / "tables.csv").is_file()  # as the shell's runs/* names one beside the runs
        if not folders and not missing_ok and not report:
            if path.is_file():
                raise UserError(f"{path} is a file: name its folder, {path.parent}")
            what = "has no run in it" if path.is_dir() else "does not exist"
            raise UserError(f"{path} {what}: name a run folder (it has a config.json), or a folder of them")
        for folder in folders:
            try:
                found[folder.resolve()] = read_run(folder)
            except UserError as error:
                if damaged is None:
                    raise
                damaged.append(error)
    return list(found.values())


class BusyError(UserError):
    """Another process trains this run."""


class RunStore:
    """Where one run writes. `with store.locked():` keeps a second process out.

    Args:
        path: the run's folder.
        config: the run.
        together: the processes that train it, of which the first one reads and writes.
        shared: the folder behind an address that `path` is a copy of: what is written is sent there.
    """

    def __init__(
        self, path: Path, config: RunConfig, together: Processes = ALONE, shared: Shared | None = None
    ) -> None:
        self.path, self.config, self._together, self._shared = Path(path), config, together, shared

    @property
    def shown(self) -> Folder:
        """The folder, as the user knows it."""
        return self.path if self._shared is None else self._shared.name(self.path)

    # ---- one process at a time

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the run; make its folder, and sweep up what a killed process was writing."""
        import fcntl

        if not self._together.first:
            yield
            return
        self._check_own()
        with named_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            file = open(self.path / ".lock", "a")  # noqa: SIM115 - the lock lives as long as the file is open
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise BusyError(f"{self.path} is being trained by another process: wait for it, or end it") from error
            for left in self.path.glob(".*.*"):
                left.unlink(missing_ok=True)
            try:
                yield
            finally:
                if [file.name for file in self.path.iterdir()] == [".lock"]:  # it failed before it began
                    (self.path / ".lock").unlink()
                    self.path.rmdir()

    def _check_own(self) -> None:
        """Rows that were brought here without their checkpoint are not to be trained over."""
        rows = self.path / METRICS
        if any((self.path / name).exists() for name in (".lock", CHECKPOINT, PREVIOUS)) or not rows.exists():
            return
        with named_errors(rows, "read"):
            epochs = rows.read_bytes().count(b"\n")  # whatever they say: a resume writes them anew
        if epochs:
            raise UserError(
                f"{self.path} has {epochs} epochs of a run and no checkpoint to go on from: "
                "train into another folder (--runs), or remove it to start anew"
            )

    # ---- the course of a run

    @property
    def knows_network(self) -> bool:
        """Whether the run says which network it was begun with."""
        return "network" in read_json(self.path / "env.json", {}, ENV)

    def check_network(self, model: nn.Module) -> None:
        """The user's own network is known by its name, and may be another one than the run was begun with."""
        before = read_json(self.path / "env.json", {}, ENV).get("network") if self._together.first else None
        if before is not None and before != fingerprint(model):
            raise UserError(
                f"{self.path} was trained with another {self.config.model} than the code makes now: "
                "change the code back, train into another folder (--runs), or delete this one"
            )

    def start(self, model: nn.Module | None = None, score: Score | None = None) -> None:
        """Write the configuration and the environment; a run that is resumed keeps the time of its first start."""
        score = score or Score()
        env = {**environment(self.config), "score": {"name": score.name, "unit": score.unit}}
        if model is not None and ":" in self.config.model:
            env["network"] = fingerprint(model)
        before: dict[str, Any] = read_json(self.path / "env.json", {}, ENV)
        if before:
            env |= {"started": before.get("started", env["started"]), "resumed": before.get("resumed", 0) + 1}
        self._write_json("config.json", self.config.to_dict())
        self._write_json("env.json", env)

    def save_checkpoint(self, state: dict[str, Any]) -> None:
        """Write a checkpoint with its checksum; the one before is kept. `torch.load` reads it too."""
        if not self._together.first:
            return
        buffer = io.BytesIO()
        torch.save(state, buffer)
        data = buffer.getbuffer()
        checksum = hashlib.sha256(data).hexdigest().encode()
        path, fresh = self.path / CHECKPOINT, self.path / f".{CHECKPOINT}.new"
        with named_errors(path):
            write_atomically(fresh, lambda file: file.writelines((data, _MARK, checksum, b"\n")))
            if path.exists():  # killed between the two renames, the previous one is found
                os.replace(path, self.path / PREVIOUS)
            os.replace(fresh, path)
        self._send(path)

    def load_checkpoint(self) -> dict[str, Any] | None:
        """The newest checkpoint, None if there is none; a damaged one is a UserError. Nothing in it is executed."""
        path = next((p for p in (self.path / CHECKPOINT, self.path / PREVIOUS) if p.exists()), None)
        content = None
        if path is not None and self._together.first:
            with named_errors(path, "read"):
                content = path.read_bytes()
        content = self._together.from_first(content)
        return None if content is None else self._load(path or self.path / CHECKPOINT, content)

    def _load(self, path: Path, content: bytes) -> dict[str, Any]:
        data, tail = content[:-_TAIL], content[-_TAIL:]
        whole = tail == _MARK + hashlib.sha256(data).hexdigest().encode() + b"\n"
        try:
            if whole:
                state: dict[str, Any] = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
                return state
        except Exception:  # a right checksum over something else: whatever torch finds wrong, the file is
            pass
        other = self.path / PREVIOUS
        way = f"go on from {other}" if path != other and other.exists() else "start the run again"
        raise UserError(f"{path} is damaged: delete it to {way}")

    def write_metrics(self, rows: list[dict[str, Any]]) -> None:
        """All epochs so far."""
        self._write(METRICS, "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows).encode())

    def write_weights(self, state: dict[str, Tensor], file: str = WEIGHTS) -> None:
        """The network as safetensors; tied tensors are written under each of their names."""
        copies = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in state.items()}
        self._write(file, save(copies, {"format": "pt"}))

    def write_prune(self, sweep: dict[str, Any]) -> None:
        """The pruning sweep."""
        self._write_json("prune.json", sweep)

    def write_export(self, found: dict[str, Any]) -> None:
        """What the zeros bought, one row per format."""
        self._write_json("export.json", found)

    def write_certificate(self, found: dict[str, Any]) -> Path:
        """The certificate of stationarity; returns its file."""
        self._write_json("certificate.json", found)
        return self.path / "certificate.json"

    def finish(self, result: dict[str, Any]) -> None:
        """The last file of a run, with the sums of those that will not change: from here on it is finished."""
        files = [self.path / name for name in (WEIGHTS, AVERAGE, METRICS, "config.json", "env.json")]
        sums = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files if path.exists()}
        self._write_json("result.json", {**result, "files": sums})

    @property
    def result(self) -> dict[str, Any] | None:
        """`result.json` of a finished run, else None."""
        found: dict[str, Any] | None = read_json(self.path / "result.json", None, result_kind(self.score.name))
        return found

    @property
    def score(self) -> Score:
        """What the run is judged by."""
        return score_of(read_json(self.path / "env.json", {}, ENV))

    def _write_json(self, name: str, value: dict[str, Any]) -> None:
        if self._together.first:
            write_json(self.path / name, value)
            self._send(self.path / name)

    def _write(self, name: str, data: bytes) -> None:
        if self._together.first:
            write_file(self.path / name, data)
            self._send(self.path / name)

    def _send(self, path: Path) -> None:
        if self._shared is not None:
            self._shared.send(path)


def weights_file(folder: Path, which: Which | None = None) -> Path:
    """The file of a run's average, or of its last iterate; unless said, of the average where there is one."""
    last, average = Path(folder) / WEIGHTS, Path(folder) / AVERAGE
    if which == "average" and not average.exists():
        raise UserError(f"{average} is not there: the run kept no average, or did not finish; use --weights last")
    return last if which == "last" or not average.exists() else average


def read_weights(folder: Path, which: Which | None = None) -> dict[str, Tensor]:
    """The weights of a finished run, see `weights_file`."""
    path = weights_file(folder, which)
    if not path.exists():
        raise UserError(f"{path} is not there: the run did not finish, or its weights were deleted")
    check_sum(path, read_json(path.with_name("result.json"), {}))
    try:
        return load_file(path)
    except SafetensorError as error:
        raise UserError(f"{path} is damaged ({short(error)}): delete the folder and train the run again") from error
