"""The paper's numbers as a reference of reports, the report of its cells, and the summary of those that were run."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from ..report.formats import line, print_tables
from ..report.groups import group, settings_text, short
from ..report.page import write_report
from ..report.reference import Published, Reference
from ..report.tables import SHARES, Row, build, row_of
from ..run.config import RunConfig
from ..run.files import write_file
from ..run.registry import printed
from ..run.store import RunRecord
from ..tasks import Score
from .cells import Cell, cells, longest, match
from .comparison import comparison, pruning_figures
from .recipes import departures, recipe


def reference() -> Reference:
    """The paper's numbers, to stand beside those of runs.

    >>> len(reference().published)
    45
    """
    published = {cell: _published(cell) for cell in cells().values()}

    def find(config: RunConfig) -> Published | None:
        cell = match(config)
        return None if cell is None else published[cell]

    return Reference("paper", tuple(published.values()), find, departures)


def _published(cell: Cell) -> Published:
    return Published(recipe(cell.name), (cell.accuracy, cell.zero_pct, cell.small_pct))


def write_paper_report(records: Iterable[RunRecord], out: Path) -> Path:
    """The report of the paper's cells: all of them, those that were not run marked so, and no other run.

    Figures have the longest runs of each cell; `summary.md` has the cells that were run, `cells.md` all of them and
    the order of the optimizers, whose pruning has a figure for each problem.
    """
    runs = [record for record in records if match(record.config)]
    hit = {match(record.config) for record in runs}
    page = write_report(
        runs,
        out,
        "SR2: the paper's cells, run again",
        reference=reference(),
        whole=True,
        drawn=longest(runs),
        found=f"{len(hit)} of the paper's {len(cells())} cells run",
    )
    write_file(out / "summary.md", summary(runs).encode())
    write_file(out / "cells.md", comparison(runs).encode())
    for name, data in pruning_figures(runs).items():
        write_file(out / "figures" / name, data)
    return page


def print_and_write(records: Sequence[RunRecord], runs: Path, out: Path) -> None:
    """What `sr2 paper report` does with the runs of a folder."""
    if not records:
        print(f"{runs} has no run in it, so every cell is missing: name the folder with --runs", file=sys.stderr)
    print_tables(build(records, reference(), whole=True))
    print(f"the report is {write_paper_report(records, out)}")


def summary(records: Iterable[RunRecord]) -> str:
    """The paper's cells that were run, beside our longest runs of each, one row for all seeds: Markdown."""
    pairs = [f"{heading}, paper / ours" for heading in (Score().heading, *SHARES.values())]
    names = ["network", "R", "λ", "optimizer", "epochs", *pairs, "seconds", "departs from the paper by"]
    out = [line(names), line(["--:" if name in (*pairs, "seconds") else ":--" for name in names], str)]
    runs: dict[Cell, list[Row]] = {}
    for found in group(longest(records)):
        cell = match(found.config)
        assert cell is not None
        runs.setdefault(cell, []).append(row_of(found))
    for cell, row in [(c, row) for c in cells().values() for row in _nearest_first(runs.get(c, []))]:
        epochs = f"{row.epochs}" + (f" of {row.config.epochs}" if row.status == "unfinished" else "")
        epochs += f", {row.seeds} seeds" if row.seeds > 1 else ""
        words = [cell.model, cell.regularizer, short(cell.lam), printed(cell.optimizer), epochs]
        theirs = _published(cell).values
        words += [f"{number:.2f} / {ours or '–'}" for number, ours in zip(theirs, row.values, strict=True)]
        departs = settings_text(departures(row.config) or {}) or "–"
        out.append(line([*words, "–" if row.seconds is None else f"{row.seconds:.0f}", departs]))
    return "\n".join(out) + "\n"


def _nearest_first(rows: list[Row]) -> list[Row]:
    """By how many settings depart from the paper's."""
    return sorted(rows, key=lambda row: (len(departures(row.config) or {}), row.config.key))
