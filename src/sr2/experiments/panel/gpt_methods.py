"""The methods of the task `gpt`, their runs and their table."""

from __future__ import annotations

import fnmatch
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...optim import SR2
from ...optim.groups import param_groups
from ...regularizers import NM, L0Ball, Regularizer
from ..baselines import AdamW, Pruning
from ..errors import UserError
from . import text
from .gpt import GPT, Bench, Optimizer, Size, Texts
from .runner import Record, say, write

RATES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
DENSITY = 0.2
"""Of the budgets and of gradual pruning: 80 % zeros."""
NANO: dict[str, Any] = {"beta2": 0.95, "weight_decay": 0.1}
"""AdamW as nanoGPT has it."""


class PrunedAdamW(Pruning, AdamW):  # type: ignore[misc]  # a step without a closure is none here
    """AdamW with gradual magnitude pruning of the matrices of the blocks."""

    def __init__(self, model: GPT, *, density: float, steps: int, **options: Any) -> None:
        super().__init__(model, steps=steps, **options)
        self._chosen = {id(p) for p in model.matrices()}
        self._plan(density, steps)

    @property
    def _pruned(self) -> list[Tensor]:
        return [p for p in super()._pruned if id(p) in self._chosen]


def adamw(rate: float) -> Callable[[Bench], Optimizer]:
    """AdamW as nanoGPT has it, with a warm-up of 5 % and a cosine."""
    return lambda bench: AdamW(bench.model, lr=rate, **NANO, **bench.options)


def adamw_gmp(rate: float) -> Callable[[Bench], Optimizer]:
    """The same with gradual magnitude pruning."""
    return lambda bench: PrunedAdamW(bench.model, lr=rate, density=DENSITY, **NANO, **bench.options)


def sr2(regularizer: Regularizer | None = None, **options: Any) -> Callable[[Bench], Optimizer]:
    """SR2 as it comes, told the number of steps; R on the matrices of the blocks alone."""

    def make(bench: Bench) -> Optimizer:
        rules = [("embed.*", None), ("place", None), ("*.bias", None), ("*norm*", None), ("*", regularizer)]
        told = {"autocast": bench.autocast, "steps_per_epoch": bench.steps_per_epoch}
        given = {**told, **bench.options, **options}
        return SR2(param_groups(bench.model, rules), **given)

    return make


METHODS: dict[str, Callable[[Bench], Optimizer]] = {
    **{f"adamw_{rate:g}": adamw(rate) for rate in RATES},
    "sr2": sr2(),
    "sr2_every16": sr2(test_every=16),
    "sr2_nm": sr2(NM(2, 4)),
    "sr2_l0ball": sr2(L0Ball(density=DENSITY)),
    **{f"adamw_gmp_{rate:g}": adamw_gmp(rate) for rate in RATES[1:4]},
}
"""By name; `nm` is 2:4, `l0ball` and `gmp` leave 20 % of the matrices of the blocks."""


# ---- runs and their table


def run_all(
    folder: Path,
    patterns: Sequence[str],
    seeds: Sequence[int],
    steps: int,
    device: torch.device,
    size: Size = Size(),  # noqa: B008 - frozen
    say: Callable[[str], None] = say,
) -> None:
    """Every run that has no file yet: `folder`/gpt/METHOD_sSEED.json, written whole."""
    chosen = {name: make for name, make in METHODS.items() if any(fnmatch.fnmatch(name, p) for p in patterns)}
    texts: Texts | None = None
    for seed in seeds:
        bench: Bench | None = None
        for name, make in chosen.items():
            path = folder / "gpt" / f"{name}_s{seed}.json"
            if path.exists():
                _check_steps(path, steps)
                continue
            texts = texts or Texts.of(text.books(), device)
            bench = bench or Bench(texts, steps, size, seed)
            say(f"gpt  {name}, seed {seed}: {steps} steps")
            found = bench.train(make, lambda t, loss: say(f"  step {t}  loss {loss:.4f}"))
            write(path, {"task": "gpt", "method": name, "seed": seed, "device": _name(device), **found})
            say(f"  {_line(found)}")


def _check_steps(path: Path, steps: int) -> None:
    had = json.loads(path.read_text())["steps"]
    if had != steps:
        raise UserError(f"{path} is of {had} steps, and {steps} are asked for: take another folder, or delete it")


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def _line(record: Record) -> str:
    points = (f"{name} {record[name]['validation']:.4f}" for name in ("last", "average") if name in record)
    return f"{'  '.join(points)} bits on validation  {record['seconds']:.1f} s  {record['ms_per_step']:.2f} ms per step"


def table(records: Sequence[Record]) -> str:
    """Markdown: of each method the last iterate or the average, whichever validation prefers; the best one first."""
    rows = []
    for record in records:
        point = min(("last", "average"), key=lambda name: _bits(record.get(name)))
        found = record[point] if point in record else record["last"]
        cells = [f"{found[name]:.4f}" for name in ("validation", "test")] + [f"{100 * found['zeros']:.1f}"]
        cells += [f"{record['ms_per_step']:.2f}", f"{record['seconds']:.0f}"]
        rows.append((_bits(found), [f"{record['method']} s{record['seed']}, {point}", *cells]))
    heads = ["method", "validation bits", "test bits", "zeros %", "ms per step", "seconds"]
    lines = [heads, ["---"] * len(heads), *(cells for _, cells in sorted(rows, key=lambda row: row[0]))]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _bits(point: Record | None) -> float:
    return point["validation"] if point is not None and math.isfinite(point["validation"]) else math.inf
