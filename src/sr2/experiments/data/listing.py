"""What `sr2 data` shows."""

from __future__ import annotations

from rich.console import Console

from ..listing import headed_table
from .base import default_root
from .fetch import fetch, listed


def print_list() -> None:
    """Every data set, and whether it is here."""
    where = f"data sets, in {default_root()} ($SR2_DATA)"
    table = headed_table(where, "name", "examples", "outputs", "size", "MB", "here")
    for row in listed():
        here = row.where or f"no: {row.way}"
        size = "x".join(map(str, row.shape))
        examples, megabytes = ("" if n is None else f"{n:,}" for n in (row.examples, row.megabytes))
        table.add_row(row.name, examples, str(row.outputs), size, megabytes, here)
    Console().print(table)


def fetch_and_show(name: str) -> str:
    """Bring a data set here, with a line that says how far it is; returns where it is, in a sentence."""
    with Console().status(f"fetching {name}") as status:

        def progress(what: str, done: int, total: int) -> None:
            size = f" {done / 1e6:.1f} MB" + (f" of {total / 1e6:.1f}" if total else "")
            status.update(what + size if done else what)

        return fetch(name, progress=progress)
