"""What the paper reports: the published numbers of its cells, and the runs that stand beside them."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.resources import files

from ..errors import UserError
from ..run.config import RunConfig
from ..run.store import RunRecord

EPOCHS = 300
"""How long the paper trains every cell."""


@dataclass(frozen=True)
class Cell:
    """One row of the paper's tables; accuracy and shares in percent, after 300 epochs.

    >>> cells()["cifar10-resnet34-sr2-l1-1e-4"].accuracy
    93.94
    """

    data: str
    model: str
    optimizer: str
    regularizer: str
    lam: float
    accuracy: float
    zero_pct: float
    small_pct: float

    @property
    def name(self) -> str:
        """What `sr2 paper run` calls it."""
        lam = f"1e{round(math.log10(self.lam))}"
        return f"{self.data}-{self.model}-{self.optimizer}-{self.regularizer}-{lam}"


@functools.cache
def cells() -> dict[str, Cell]:
    """All cells by name, in the paper's order."""
    text = files(__package__).joinpath("tables.json").read_text(encoding="utf-8")
    found = [
        Cell(
            data=row["dataset"],
            model=row["network"],
            optimizer=row["optimizer"],
            regularizer=row["regularizer"],
            lam=row["lam"],
            accuracy=row["accuracy"],
            zero_pct=row["zero_pct"],
            small_pct=row["small_pct"],
        )
        for row in json.loads(text)["cells"]
    ]
    return {cell.name: cell for cell in found}


def cell(name: str) -> Cell:
    """The cell of that name; a UserError that names the closest if there is none."""
    if name not in cells():
        close = get_close_matches(name.lower(), cells(), n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise UserError(f"the paper has no cell {name!r}: {hint}`sr2 paper list` names all {len(cells())}")
    return cells()[name]


def match(config: RunConfig) -> Cell | None:
    """The cell that a run belongs to, by data, network, optimizer, regularizer and lambda; else None."""
    for cell in cells().values():
        names = (cell.data, cell.model, cell.optimizer, cell.regularizer, (), 0.0)
        ours = (config.data, config.model, config.optimizer, config.regularizer, tuple(config.reg), config.ridge)
        if names == ours and math.isclose(config.lam, cell.lam, rel_tol=1e-6):
            return cell
    return None


def longest(records: Iterable[RunRecord]) -> list[RunRecord]:
    """Of each cell's runs those that got as far as any; shorter tries are left out."""
    runs = [(record, match(record.config)) for record in records]
    far: dict[Cell | None, int] = {}
    for record, cell in runs:
        far[cell] = max(far.get(cell, 0), len(record.metrics))
    return [record for record, cell in runs if cell is not None and len(record.metrics) == far[cell]]


def list_text(records: Iterable[RunRecord] = ()) -> str:
    """The text of `sr2 paper list`: every cell, its published numbers, and what was run of it."""
    found: dict[Cell, list[RunRecord]] = {}
    for record in records:
        if (hit := match(record.config)) is not None:
            found.setdefault(hit, []).append(record)
    width = max(map(len, cells()))
    lines = [f"{'cell':<{width}}  accuracy   w = 0  |w| <= 1e-3  runs"]
    for name, cell in cells().items():
        numbers = f"{cell.accuracy:8.2f}  {cell.zero_pct:6.2f}  {cell.small_pct:11.2f}"
        lines.append(f"{name:<{width}}  {numbers}  {_state(found.get(cell, []))}")
    lines.append(f"{len(cells())} cells, {len(found)} run, {len(cells()) - len(found)} missing")
    return "\n".join(lines)


def _state(records: list[RunRecord]) -> str:
    words = []
    for record in records:
        if record.result is None:
            words.append(f"unfinished, epoch {len(record.metrics)} of {record.config.epochs}")
        else:
            words.append(f"{record.result['accuracy']:.2f} % after {record.result['epochs']} epochs")
    return "; ".join(words) or "missing"
