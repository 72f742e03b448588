"""What the zeros of a finished run buy: smaller files, fewer channels, faster inference. Nothing here trains."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn

from ...export import load, save, semi_structured, shrink, sparse_layers, to_onnx
from ...export.measure import macs, milliseconds, parameters
from ..errors import UserError
from ..listing import headed_table
from ..names import Which
from .problem import Problem
from .store import RunRecord, RunStore, read_run, weights_file
from .trained import trained, with_weights

FIGURES = ("bytes", "parameters", "macs", "milliseconds")
"""Of every export, before and after; the score is beside them under its own name."""


@dataclass(frozen=True)
class Export:
    """A file that was written, and what runs from it."""

    file: Path
    outputs: Callable[[Tensor], Tensor]
    parameters: int
    macs: int
    same: bool = False
    """Whether it computes what the original does, operation by operation: then another time would be noise."""


def shrunk(problem: Problem, folder: Path, x: Tensor) -> Export:
    """shrunk.safetensors: without the channels that nothing depends on."""
    small: Any = shrink(problem.model, x, verbose=False)
    return _saved(small, folder / "shrunk.safetensors", x, same=not small.shrunk.cut)


def safetensors(problem: Problem, folder: Path, x: Tensor) -> Export:
    """export.safetensors: the network as it is, its zeros packed; the figures are of the network read back."""
    path = folder / "export.safetensors"
    save(problem.model, path)
    with torch.no_grad():
        for tensor in problem.model.parameters():
            tensor.zero_()  # what comes now comes from the file
    return _saved(load(path, problem.model), path, x, same=True)


def onnx(problem: Problem, folder: Path, x: Tensor) -> Export:
    """export.onnx: shrunk, batch norm folded, run by onnxruntime."""
    path = folder / "export.onnx"
    made = to_onnx(problem.model, x, path)
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return Export(path, lambda x: torch.from_numpy(session.run(None, {name: x.numpy()})[0]), made.parameters, made.macs)


def two_of_four(problem: Problem, folder: Path, x: Tensor) -> Export:
    """export-2-4.safetensors: in bfloat16, its 2:4 layers on the sparse tensor cores while it runs."""
    fast = semi_structured(problem.model, x, verbose=False)
    path = folder / "export-2-4.safetensors"
    save(problem.model, path)
    return Export(path, fast, parameters(problem.model), macs(problem.model, x))


FORMATS: dict[str, Callable[[Problem, Path, Tensor], Export]] = {
    "shrunk": shrunk,
    "safetensors": safetensors,
    "onnx": onnx,
    "2:4": two_of_four,
}


def export_run(folder: Path, kind: str, *, trust: bool = False, weights: Which | None = None) -> dict[str, Any]:
    """Write a run's network in a format, measure it against the original, and keep the figures in `export.json`.

    Args:
        folder: of a finished run.
        kind: one of `FORMATS`.
        trust, weights: see `trained`.
    """
    on_cuda = kind == "2:4"
    if on_cuda and not torch.cuda.is_available():
        raise UserError("2:4 needs an NVIDIA GPU, and torch sees none here: use --format safetensors or onnx")
    problem = trained(folder, "cuda" if on_cuda else "cpu", trust=trust, weights=weights)
    model = problem.model.bfloat16() if on_cuda else problem.model
    x = next(iter(problem.test))[0]
    x = (x if on_cuda else x[:1]).clone()  # a GPU is not for one example
    x = x.to(torch.bfloat16) if on_cuda and x.is_floating_point() else x
    score = problem.task.score.name
    dense = Export(weights_file(folder, weights), copy.deepcopy(model).eval(), parameters(model), macs(model, x))
    with _one_sentence(folder), torch.no_grad():
        made = FORMATS[kind](problem, folder, x)
        times = milliseconds(lambda: dense.outputs(x), lambda: made.outputs(x))
        times = [times[0]] * 2 if made.same else times
        pair = (dense, made)
        row: dict[str, Any] = {
            "format": kind,
            "file": made.file.name,
            "of": dense.file.name,
            "batch": len(x),
            "device": torch.cuda.get_device_name() if on_cuda else f"CPU, {torch.get_num_threads()} threads",
        }
        found: dict[str, list[Any]] = {
            "bytes": [one.file.stat().st_size for one in pair],
            "parameters": [one.parameters for one in pair],
            "macs": [one.macs for one in pair],
            "milliseconds": times,
            score: [_score(problem, one.outputs, x.dtype) for one in pair],
        }
        row |= {name: dict(zip(("before", "after"), both, strict=True)) for name, both in found.items()}
    record = read_run(folder)
    others = [old for old in (record.export or {"rows": []})["rows"] if old["format"] != kind]
    RunStore(folder, record.config).write_export({"rows": [*others, row]})
    return row


def export_runs(records: Iterable[RunRecord], kind: str, *, trust: bool = False, weights: Which | None = None) -> int:
    """Export the runs that have their weights, and print a table of each; the exit code."""
    console, done = Console(), 0
    for record in with_weights(records):
        with console.status(f"exporting {record.path}"):
            row = export_run(record.path, kind, trust=trust, weights=weights)
        title = f"{record.config.label} ({record.path.name}), batch {row['batch']}, {row['device']}"
        table = headed_table(title, "name", "before", "after", "ratio")
        for cells in figure_cells(row, record):
            table.add_row(*cells)
        console.print(table)
        print(f"written: {record.path / row['file']}, of {row['of']}")
        done += 1
    if not done:
        print("error: there is nothing to export: no run that was named has its weights", file=sys.stderr)
    return 0 if done else 2


def figure_cells(row: dict[str, Any], record: RunRecord) -> Iterator[tuple[str, str, str, str]]:
    """Name, before, after and ratio of each figure of an export, as text."""
    for name in FIGURES:
        before, after = row[name]["before"], row[name]["after"]
        form = "{:,.3f}" if name == "milliseconds" else "{:,}"
        yield name, form.format(before), form.format(after), f"{before / after:.2f}" if after else "–"
    before, after = (f"{row[record.score.name][when]:.{record.score.digits}f}" for when in ("before", "after"))
    yield record.score.heading, before, after, ""


def bench_sparse(folder: Path, *, trust: bool = False) -> None:
    """Every layer of a run's network, dense and as CSR, with the share of zeros from which CSR is faster."""
    problem = trained(folder, "cpu", trust=trust)
    x = next(iter(problem.test))[0][:1].clone()
    print(f"{folder}, batch 1, {torch.get_num_threads()} threads")
    sparse_layers(problem.model, x, break_even=True)


def _saved(model: nn.Module, path: Path, x: Tensor, *, same: bool) -> Export:
    save(model, path)
    return Export(path, model, parameters(model), macs(model, x), same)


@torch.no_grad()
def _score(problem: Problem, outputs: Callable[[Tensor], Tensor], kind: torch.dtype) -> float:
    """The score on the test examples, in float32 or, for 2:4, in its own arithmetic."""
    sums: Any = 0
    for x, y in problem.test:
        out = outputs(x.to(kind) if x.is_floating_point() else x).float()
        sums = sums + problem.task.statistics(out, y).double()
    return problem.task.value(sums.tolist(), problem.test.targets.numel())


@contextmanager
def _one_sentence(folder: Path) -> Iterator[None]:
    """What `sr2.export` finds wrong is a mistake of the user."""
    try:
        yield
    except (ValueError, ModuleNotFoundError) as error:
        raise UserError(f"{folder}: {error}") from error
