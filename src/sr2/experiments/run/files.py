"""Files of a run: read and checked, written whole or not at all, and errors that name the file and the way out."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ...files import write_whole
from ..errors import UserError, short
from ..tasks import Score


def write_file(path: Path, data: bytes) -> None:
    """Write a file as a whole or not at all; what the disk says is a UserError that names the file."""
    with named_errors(path):
        write_whole(path, data)


@contextlib.contextmanager
def named_errors(path: Path, verb: str = "written") -> Iterator[None]:
    """What the disk says is a UserError that names the file."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{path} cannot be {verb}: {error.strerror or error}") from error


_REQUIRED: Any = object()


# What readers of a run count on: of an object its keys, of a list its entries, else the type.
Kind = dict[str, Any]
_NUMBER, _MAYBE = int | float, int | float | None
ENV: Kind = {}


def row_kind(score: str) -> Kind:
    """A line of metrics.jsonl."""
    maybe = dict.fromkeys(("objective", "sigma", "rho", "accepted", "rejected"), _MAYBE)
    return maybe | dict.fromkeys(("epoch", f"test_{score}", "zero_pct", "small_pct", "seconds"), _NUMBER)


def result_kind(score: str) -> Kind:
    """Of result.json."""
    return dict.fromkeys((score, "zero_pct", "small_pct", "epochs", "seconds", "parameters"), _NUMBER) | {
        "layers": [{"name": str, "shape": [int], "zeros": int, "total": int}],
        "histogram": {"log10_edges": [_NUMBER], "counts": [int], "zeros": int},
    }


def sweep_kind(score: str) -> Kind:
    """Of prune.json."""
    return {"rows": [dict.fromkeys(("alpha", "sparsity_pct", score, f"{score}_recalibrated"), _NUMBER)]}


def export_kind(score: str) -> Kind:
    """Of export.json."""
    pair = {"before": _NUMBER, "after": _NUMBER}
    pairs = dict.fromkeys(("bytes", "parameters", "macs", "milliseconds", score), pair)
    return {"rows": [{"format": str, "file": str, "device": str, "batch": int, **pairs}]}


def _check(path: Path, value: object, kind: Any) -> Any:
    """The value, if it is what a run writes there."""

    def fits(value: object, kind: Any) -> bool:
        if isinstance(kind, dict):
            return isinstance(value, dict) and all(fits(value.get(name, _REQUIRED), k) for name, k in kind.items())
        if isinstance(kind, list):
            return isinstance(value, list) and all(fits(item, kind[0]) for item in value)
        return isinstance(value, kind)

    if not fits(value, kind):
        raise UserError(f"{path} is not what a run writes: {way_out(path)}")
    return value


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write an object with the sum of its content, which `read_json` compares."""
    content = {**value, _SUM: _sum_of(value)}
    write_file(path, (json.dumps(content, indent=1, allow_nan=False) + "\n").encode())


def read_json(path: Path, missing: Any = _REQUIRED, kind: Any = object) -> Any:
    """The content of a JSON file, checked; `missing` where there is no file."""
    if missing is not _REQUIRED and not path.exists():
        return missing
    try:
        with named_errors(path, "read"):
            value = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(value, dict) and _SUM in value and value.pop(_SUM) != _sum_of(value):
            raise UserError(f"{path} was changed since it was written: {way_out(path)}")
        return _check(path, value, kind)
    except ValueError as error:
        raise UserError(f"{path} is damaged ({short(error)}): {way_out(path)}") from error


def read_lines(path: Path, kind: Kind, change: Callable[[Any], Any]) -> list[dict[str, Any]]:
    """The objects of a file that has one per line, each changed and then checked; none where there is no file."""
    if not path.exists():
        return []
    try:
        with named_errors(path, "read"):
            lines = path.read_text(encoding="utf-8").splitlines()
        return [_check(path, change(json.loads(line)), kind) for line in lines]
    except ValueError as error:
        raise UserError(f"{path} is damaged ({short(error)}): {way_out(path)}") from error


_SUM = "sha256"
"""The key of the sum of all others; files of the first version have none."""


def _sum_of(value: dict[str, Any]) -> str:
    """Of what is said, not of how it is written."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def check_sum(path: Path, result: Any) -> None:
    """Whether a file is the one that the run has ended with, where its result says which."""
    files = result.get("files") if isinstance(result, dict) else None
    said = files.get(path.name) if isinstance(files, dict) else None
    if said is None or not path.exists():
        return
    with named_errors(path, "read"):
        found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != said:
        raise UserError(f"{path} was changed since the run ended: {way_out(path)}")


def score_of(env: dict[str, Any]) -> Score:
    """Runs that say nothing are of images with labels, as the first version had them."""
    said = env.get("score")
    if isinstance(said, dict) and all(isinstance(said.get(name), str) for name in ("name", "unit")):
        return Score(said["name"], said["unit"])
    return Score()


def way_out(path: Path) -> str:
    """How a file of a run that cannot be read is written anew; a finished run would be skipped."""
    if path.name == "prune.json":
        return f"delete it, and run sr2 prune {path.parent}"
    if path.name == "export.json":
        return f"delete it, and run sr2 export {path.parent}"
    skipped = path.name != "result.json" and path.with_name("result.json").exists()
    return f"delete it{' and result.json beside it' if skipped else ''}, and run the same training again"
