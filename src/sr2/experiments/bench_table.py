"""What `sr2 bench` prints."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from .bench import BenchConfig, run
from .listing import headed_table


def run_and_print(config: BenchConfig) -> None:
    """The figures as tables."""
    console = Console()
    with console.status("timing"):
        figures = run(config)
    network = f"{config.model}, batch {config.batch}, {config.precision}{', compiled' if config.compile else ''}"
    table = headed_table(f"a training step of {network} on {figures['device']}", *_HEADINGS)
    for row in figures["training"]:
        table.add_row(*_cells(row))
    console.print(table)
    for part in figures["own_work"]:
        copy = next(row["milliseconds"] for row in part["rows"] if row["name"] == "copy")
        table = headed_table(f"the optimizer's own work on {part['parameters']:,} parameters", *_HEADINGS, "of copy's")
        for row in part["rows"]:
            # SR2 must move 16 bytes per parameter (x and v read, x and the kept x written), a copy moves 8.
            share = f"{200 * copy / row['milliseconds']:.0f} %" if row["name"].startswith("sr2") else ""
            table.add_row(*_cells(row), share)
        console.print(table)
    if config.out is not None:
        print(f"the figures are in {config.out}")


_HEADINGS = ("name", "ms", "x SGD", "from", "to", "peak MB", "host reads")


def _cells(row: dict[str, Any]) -> list[str]:
    peak, reads = row["peak_bytes"], row["host_reads"]
    return [
        row["name"],
        f"{row['milliseconds']:.3f}",
        *(f"{row[name]:.2f}" for name in ("ratio", "ratio_low", "ratio_high")),
        "" if peak is None else f"{peak / 1e6:.1f}",
        "" if reads is None else str(reads),
    ]
