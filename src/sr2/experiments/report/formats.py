"""Tables as text: for the terminal, as Markdown, as LaTeX and as CSV, over the same cells: (text, bold)."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Callable, Iterable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from ..run.registry import printed
from .tables import SHARES, Row, Table


def headings(table: Table) -> list[str]:
    """The headings of a table's columns."""
    measures = itertools.chain.from_iterable(
        (heading, table.reference) if table.has_published else (heading,) for heading in table.measures
    )
    return [
        "penalty",
        "optimizer",
        *measures,
        "runs × epochs",
        *(["note"] if any(row.note for row in table.rows) else []),
    ]


def row_cells(table: Table, row: Row) -> list[tuple[str, bool]]:
    """The cells of a row, as text and whether it is the best of its penalty."""
    cells = [(row.penalty, False), (printed(row.config.optimizer), False)]
    for ours, theirs in zip(row.values, row.published, strict=True):
        cells.append((str(ours), ours.best) if ours else ("–", False))
        if table.has_published:
            cells.append((str(theirs), theirs.best) if theirs else ("–", False))
    cells.append((row.runs, False))
    return cells + ([(row.note, False)] if any(other.note for other in table.rows) else [])


def terminal(table: Table) -> RichTable:
    """A table for `rich` to print; narrow, so published numbers stand in parentheses, and notes below."""
    view = RichTable(
        title=table.title,
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    for heading in ("penalty", "optimizer", *table.measures, "runs × epochs"):
        view.add_column(heading, justify="right" if heading in table.measures else "left")
    notes: dict[str, str] = {}
    for name, block in table.blocks:
        for first, row in zip(itertools.chain([name], itertools.repeat("")), block, strict=False):
            cells = [Text(first), Text(printed(row.config.optimizer))]
            for ours, theirs in zip(row.values, row.published, strict=True):
                text = Text(str(ours).replace(" ", "") if ours else "–", "bold" if ours and ours.best else "")
                cells.append(text.append(f" ({theirs})", "not bold dim") if theirs else text)
            mark = f" {notes.setdefault(row.note, _mark(len(notes)))}" if row.note else ""
            view.add_row(*cells, Text(row.runs + mark), style="dim" if row.status == "not run" else None)
        view.add_section()
    lines = [f"{mark} {note}" for note, mark in notes.items()]
    view.caption = (
        Text("\n".join([*([f"in parentheses: the {table.reference}"] if table.has_published else []), *lines])) or None
    )
    return view


def markdown(tables: Iterable[Table]) -> str:
    """Tables as Markdown."""
    out = []
    for table in tables:
        names = headings(table)
        numbers = [name in (*table.measures, table.reference) for name in names]
        out += [f"### {table.title}", ""]
        out += [line(names), line(["--:" if number else ":--" for number in numbers], str)]
        for row in table.rows:
            out.append(line([f"**{text}**" if bold else _md(text) for text, bold in row_cells(table, row)], str))
        out.append("")
    return "\n".join(out)


def latex(tables: Iterable[Table]) -> str:
    r"""Tables as LaTeX, for a document that loads booktabs."""
    out = ["% \\usepackage{booktabs}"]
    for table in tables:
        names = headings(table)
        layout = "".join("r" if name in (*table.measures, table.reference) else "l" for name in names)
        out += [r"\begin{table}", r"\centering", rf"\caption{{{_tex(table.title)}}}"]
        out += [rf"\begin{{tabular}}{{{layout}}}", r"\toprule", " & ".join(map(_tex, names)) + r" \\"]
        for _, block in table.blocks:
            out.append(r"\midrule")
            for row in block:
                cells = [(_tex(text), bold) for text, bold in row_cells(table, row)]
                out.append(" & ".join(rf"\textbf{{{t}}}" if bold else t for t, bold in cells) + r" \\")
        out += [r"\bottomrule", r"\end{tabular}", r"\end{table}", ""]
    return "\n".join(out)


def comma_separated(tables: Sequence[Table]) -> str:
    """Tables as CSV: one line per row, numbers unrounded, an empty field where there is none.

    Tables that are judged by different scores have a column for each of them.
    """
    scores = list(dict.fromkeys(row.score.name for table in tables for row in table.rows))
    measures = [*scores, *SHARES]
    names = ["data", "model", "regularizer", "lam", "penalty", "optimizer", "status", "seeds", "epochs", "seconds"]
    behind = tables[0].reference if tables else "published"
    names += [f"{key}{part}" for key in measures for part in ("", "_deviation", f"_{behind}")] + ["note"]
    out = io.StringIO()
    writer = csv.DictWriter(out, names, restval="", lineterminator="\n")
    writer.writeheader()
    for row in itertools.chain.from_iterable(table.rows for table in tables):
        c = row.config
        line: dict[str, object] = {"data": c.data, "model": c.model, "regularizer": c.regularizer, "lam": c.lam}
        line |= {"penalty": row.penalty, "optimizer": c.optimizer, "status": row.status, "seeds": row.seeds}
        line |= {"epochs": row.epochs or None, "seconds": row.seconds, "note": row.note}
        for key, ours, theirs in zip((row.score.name, *SHARES), row.values, row.published, strict=True):
            line |= {key: ours and ours.mean, f"{key}_deviation": ours and ours.deviation}
            line |= {f"{key}_{behind}": theirs and theirs.mean}
        writer.writerow(line)
    return out.getvalue()


def print_tables(tables: Iterable[Table], console: Console | None = None) -> None:
    """Print tables to the terminal."""
    console = console or Console()
    for table in tables:
        console.print(terminal(table))


def _mark(index: int) -> str:
    return "*†‡§"[index] if index < 4 else f"({index})"


def _md(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


def line(cells: Iterable[str], escape: Callable[[str], str] = _md) -> str:
    """A line of a Markdown table."""
    return "| " + " | ".join(map(escape, cells)) + " |"


_TEX = {character: "\\" + character for character in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "≤": r"$\leq$",
    "×": r"$\times$",
    "·": r"$\cdot$",
    "–": "--",
    "|": r"$|$",
    "<": r"$<$",
    ">": r"$>$",
}


def _tex(text: str) -> str:
    return "".join(_TEX.get(character, character) for character in text)
