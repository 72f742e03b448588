"""The report of runs, wherever they are."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from .errors import UserError
from .run.shared import Folder, join, read_here, written_here
from .run.store import RunRecord, find_runs


def show(records: list[RunRecord], out: Folder) -> None:
    """Print the tables of these runs, and write the report."""
    from .paper.summary import reference
    from .report.formats import print_tables
    from .report.page import write_report
    from .report.tables import build

    print_tables(build(records, reference()))
    with written_here(out) as folder:
        page = write_report(records, folder, reference=reference())
    print(f"the report is {join(out, page.name)}")


def report_grid(root: Folder, folders: Sequence[Folder]) -> None:
    """The report of these runs in `root`, written beside them."""
    with read_here(root) as here:
        records = find_runs([here / str(folder).rpartition("/")[2] for folder in folders])
        show(records, join(root, "report"))


def readable(folders: Sequence[Path], missing_ok: bool = False) -> list[RunRecord]:
    """The runs that can be read; those that cannot are named, and the others go on."""
    damaged: list[UserError] = []
    found = find_runs(folders, missing_ok, damaged)
    if damaged and not found:
        raise damaged[0]
    for error in damaged:
        print(f"skipped: {error}", file=sys.stderr)
    return found
