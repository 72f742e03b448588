"""Plain tables for the terminal."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text


def headed_table(title: str, *headings: str) -> Table:
    """A table of numbers; names and places are on the left."""
    table = Table(title=Text(title, no_wrap=True, overflow="ignore"), title_justify="left")  # else as wide as the table
    for heading in headings:
        table.add_column(heading, justify="left" if heading in ("name", "here") else "right")
    return table
