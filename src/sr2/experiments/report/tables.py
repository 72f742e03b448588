"""The paper's tables from runs: one model of rows, four ways to print it."""

from __future__ import annotations

import csv
import dataclasses
import io
import itertools
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .groups import Group, group, optimizer_name, order, penalty, settings_text, short
from ..paper.cells import Cell, cells, longest
from ..paper.recipes import papers_settings, recipe

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as RichTable

    from ..run.config import RunConfig
    from ..run.store import RunRecord

MEASURES = {"accuracy": "accuracy %", "zero_pct": "w = 0 %", "small_pct": "|w| ≤ 1e-3 %"}
"""What a table reports: the keys of `result.json` and of a cell, with their headings."""

_LAST = {"accuracy": "test_accuracy", "zero_pct": "zero_pct", "small_pct": "small_pct"}
_NO_DEPARTURE = {"device", "compile", "seed"}  # they change no mathematics, and the paper names no seed


@dataclass(frozen=True)
class Value:
    """A number, its deviation over seeds where there are several, and whether it is the best of its block.

    >>> str(Value(93.941, 0.12))
    '93.94 ± 0.12'
    """

    mean: float
    deviation: float | None = None
    best: bool = False

    def __str__(self) -> str:
        return f"{self.mean:.2f}" + ("" if self.deviation is None else f" ± {self.deviation:.2f}")


@dataclass(frozen=True)
class Row:
    """One optimizer under one penalty.

    Attributes:
        config: that of the runs, or the recipe's where there are none.
        status: "run", "unfinished" (values of the last epoch) or "not run".
        values, published: one per measure, ours and the paper's.
        seeds: how many runs the values come from.
        epochs: how long they are; 0 where there are none.
        seconds: mean training time.
        note: what else to know: other settings than the paper's, unfinished runs.
    """

    config: RunConfig
    status: str
    values: tuple[Value | None, ...] = (None, None, None)
    published: tuple[Value | None, ...] = (None, None, None)
    seeds: int = 0
    epochs: int = 0
    seconds: float | None = None
    note: str = ""

    @property
    def penalty(self) -> str:
        """The block of the table that the row is in."""
        return penalty(self.config)

    @property
    def runs(self) -> str:
        """How many and how many epochs, such as "3 × 60/300"."""
        if self.status == "not run":
            return self.status
        length = f"{self.epochs}/{self.config.epochs}" if self.status == "unfinished" else f"{self.epochs}"
        return f"{self.seeds} × {length}"


@dataclass(frozen=True)
class Table:
    """The rows of one network on one data set."""

    data: str
    model: str
    rows: tuple[Row, ...]

    @property
    def title(self) -> str:
        """Data and network."""
        return f"{self.data} · {self.model}"

    @property
    def has_published(self) -> bool:
        """Whether the paper has a cell among the rows."""
        return any(row.published[0] is not None for row in self.rows)

    @property
    def blocks(self) -> list[tuple[str, list[Row]]]:
        """Rows by penalty: those to compare with each other."""
        return [(name, list(rows)) for name, rows in itertools.groupby(self.rows, key=lambda row: row.penalty)]


def build(records: Iterable[RunRecord], *, paper: bool = False) -> list[Table]:
    """Tables of runs: per data set and network, the optimizers under each penalty.

    A combination that others of its table suggest, or that the paper has, and that nobody ran is there as "not run".
    With `paper`, the runs of the paper's cells and all of its cells, and nothing else.
    """
    groups = [found for found in group(records) if not paper or found.cell]
    rows = [_row(found) for found in groups]
    rows += _not_run([found.config for found in groups], paper)
    rows.sort(key=lambda row: order(row.config))  # stable: the variants of a cell stay in their order
    return [
        Table(data, model, tuple(_mark_best(list(same))))
        for (data, model), same in itertools.groupby(rows, key=lambda row: (row.config.data, row.config.model))
    ]


def _row(group: Group) -> Row:
    cell, config, done = group.cell, group.config, group.finished
    unfinished = len(group.records) - len(done)
    notes = [settings_text({name: getattr(config, name) for name in _telling(group)})]
    if done and unfinished:
        notes.append(f"{unfinished} more unfinished")
    if not done:
        notes.append("unfinished: values of the last epoch")
    measured = [found for record in done or group.records if (found := _measured(record))]
    return Row(
        config=config,
        status="run" if done else "unfinished",
        values=tuple(_value([m.get(key) for m in measured]) for key in MEASURES),
        published=_published(cell),
        seeds=len(measured) or len(group.records),
        epochs=min((m["epochs"] for m in measured), default=0),
        seconds=statistics.fmean(m["seconds"] for m in measured) if measured else None,
        note="; ".join(note for note in notes if note),
    )


def _measured(record: RunRecord) -> dict[str, Any]:
    """The result of a run, or the same of its last epoch so far; empty before the first."""
    if record.result is not None or not record.metrics:
        return record.result or {}
    last = record.metrics[-1]
    return {"epochs": last["epoch"], "seconds": last["seconds"], **{key: last[_LAST[key]] for key in MEASURES}}


def _value(numbers: Sequence[float | None]) -> Value | None:
    known = [number for number in numbers if number is not None]
    if not known:
        return None
    return Value(statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else None)


def _published(cell: Cell | None) -> tuple[Value | None, ...]:
    return tuple(Value(getattr(cell, key)) if cell else None for key in MEASURES)


def _telling(group: Group) -> list[str]:
    """The settings that a note names: those that tell groups apart, and those that are not the paper's."""
    named = {*group.differs, *(_departures(group.config, group.cell) if group.cell else ())}
    return [name for name in vars(group.config) if name in named]


def _departures(config: RunConfig, cell: Cell) -> dict[str, Any]:
    """The settings of a run that are not those that the paper names for its cell."""
    theirs = vars(papers_settings(cell.name))
    return {name: v for name, v in vars(config).items() if name not in _NO_DEPARTURE and v != theirs[name]}


def _not_run(configs: list[RunConfig], paper: bool) -> list[Row]:
    """Rows for what the tables lack: the paper's cells, and gaps in the grid penalty x optimizer."""

    def family(config: RunConfig) -> tuple[str, ...]:
        return config.data, config.model, config.regularizer

    there = {order(config) for config in configs}
    families = {family(config) for config in configs}
    wanted = {order(theirs): (theirs, cell) for cell in cells().values() for theirs in [recipe(cell.name)]}
    missing = [
        Row(theirs, "not run", published=_published(cell))
        for place, (theirs, cell) in wanted.items()
        if place not in there and (paper or family(theirs) in families)
    ]
    grid = {
        order(hole): hole
        for a, b in itertools.product(configs, configs)
        if family(a) == family(b)
        for hole in [dataclasses.replace(a, optimizer=b.optimizer)]
    }
    return missing + [
        Row(hole, "not run") for place, hole in grid.items() if place not in there and place not in wanted
    ]


def _mark_best(rows: list[Row]) -> Iterator[Row]:
    """Mark the largest of each column within each penalty, ours and the paper's apart, where there is a choice."""
    for _, same in itertools.groupby(rows, key=lambda row: row.penalty):
        block = list(same)
        ours = [row.values if row.status == "run" else (None,) * len(MEASURES) for row in block]
        best, published = _maxima(ours), _maxima([row.published for row in block])
        for row in block:
            values = row.values if row.status != "run" else _marked(row.values, best)
            yield dataclasses.replace(row, values=values, published=_marked(row.published, published))


def _maxima(rows: Sequence[tuple[Value | None, ...]]) -> list[float | None]:
    columns = [[round(value.mean, 2) for value in column if value] for column in zip(*rows, strict=True)]
    return [max(column) if len(set(column)) > 1 else None for column in columns]


def _marked(values: tuple[Value | None, ...], best: list[float | None]) -> tuple[Value | None, ...]:
    return tuple(
        dataclasses.replace(value, best=round(value.mean, 2) == top) if value else None
        for value, top in zip(values, best, strict=True)
    )


# ---- the four renderers, over the same cells: (text, bold)


def headings(table: Table) -> list[str]:
    """The headings of a table's columns."""
    measures = itertools.chain.from_iterable(
        (heading, "paper") if table.has_published else (heading,) for heading in MEASURES.values()
    )
    return [
        "penalty",
        "optimizer",
        *measures,
        "runs × epochs",
        *(["note"] if any(row.note for row in table.rows) else []),
    ]


def row_cells(table: Table, row: Row) -> list[tuple[str, bool]]:
    """The cells of a row, as text and whether it is the best of its block."""
    cells = [(row.penalty, False), (optimizer_name(row.config.optimizer), False)]
    for ours, theirs in zip(row.values, row.published, strict=True):
        cells.append((str(ours), ours.best) if ours else ("–", False))
        if table.has_published:
            cells.append((str(theirs), theirs.best) if theirs else ("–", False))
    cells.append((row.runs, False))
    return cells + ([(row.note, False)] if any(other.note for other in table.rows) else [])


def terminal(table: Table) -> RichTable:
    """A table for `rich` to print; narrow, so the paper's numbers stand in parentheses, and notes below."""
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    view = RichTable(
        title=table.title,
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    for heading in ("penalty", "optimizer", *MEASURES.values(), "runs × epochs"):
        view.add_column(heading, justify="right" if heading in MEASURES.values() else "left")
    notes: dict[str, str] = {}
    for name, block in table.blocks:
        for first, row in zip(itertools.chain([name], itertools.repeat("")), block, strict=False):
            cells = [Text(first), Text(optimizer_name(row.config.optimizer))]
            for ours, theirs in zip(row.values, row.published, strict=True):
                text = Text(str(ours).replace(" ", "") if ours else "–", "bold" if ours and ours.best else "")
                cells.append(text.append(f" ({theirs})", "not bold dim") if theirs else text)
            mark = f" {notes.setdefault(row.note, _mark(len(notes)))}" if row.note else ""
            view.add_row(*cells, Text(row.runs + mark), style="dim" if row.status == "not run" else None)
        view.add_section()
    lines = [f"{mark} {note}" for note, mark in notes.items()]
    view.caption = Text("\n".join([*(["in parentheses: the paper"] if table.has_published else []), *lines])) or None
    return view


def markdown(tables: Iterable[Table]) -> str:
    """Tables as Markdown."""
    out = []
    for table in tables:
        names = headings(table)
        numbers = [name in MEASURES.values() or name == "paper" for name in names]
        out += [f"### {table.title}", ""]
        out += [_line(names), _line(["--:" if number else ":--" for number in numbers], str)]
        for row in table.rows:
            out.append(_line([f"**{text}**" if bold else _md(text) for text, bold in row_cells(table, row)], str))
        out.append("")
    return "\n".join(out)


def summary(records: Iterable[RunRecord]) -> str:
    """The paper's cells that were run, beside our longest runs of each, a row for all seeds: Markdown for a README."""
    pairs = [f"{heading}, paper / ours" for heading in MEASURES.values()]
    names = ["network", "R", "λ", "optimizer", "epochs", *pairs, "seconds", "departs from the paper by"]
    out = [_line(names), _line(["--:" if name in (*pairs, "seconds") else ":--" for name in names], str)]
    runs: dict[Cell, list[Row]] = {}
    for found in group(longest(records)):
        assert found.cell is not None
        runs.setdefault(found.cell, []).append(_row(found))
    for cell, row in [(c, row) for c in cells().values() for row in _nearest_first(runs.get(c, []), c)]:
        epochs = f"{row.epochs}" + (f" of {row.config.epochs}" if row.status == "unfinished" else "")
        epochs += f", {row.seeds} seeds" if row.seeds > 1 else ""
        line = [cell.model, cell.regularizer, short(cell.lam), optimizer_name(cell.optimizer), epochs]
        line += [f"{getattr(cell, key):.2f} / {ours or '–'}" for key, ours in zip(MEASURES, row.values, strict=True)]
        departs = settings_text(_departures(row.config, cell)) or "–"
        out.append(_line([*line, "–" if row.seconds is None else f"{row.seconds:.0f}", departs]))
    return "\n".join(out) + "\n"


def _nearest_first(rows: list[Row], cell: Cell) -> list[Row]:
    """By how many settings depart from the paper's."""
    return sorted(rows, key=lambda row: (len(_departures(row.config, cell)), row.config.key))


def latex(tables: Iterable[Table]) -> str:
    r"""Tables as LaTeX, for a document that loads booktabs."""
    out = ["% \\usepackage{booktabs}"]
    for table in tables:
        names = headings(table)
        layout = "".join("r" if name in MEASURES.values() or name == "paper" else "l" for name in names)
        out += [r"\begin{table}", r"\centering", rf"\caption{{{_tex(table.title)}}}"]
        out += [rf"\begin{{tabular}}{{{layout}}}", r"\toprule", " & ".join(map(_tex, names)) + r" \\"]
        for _, block in table.blocks:
            out.append(r"\midrule")
            for row in block:
                cells = [(_tex(text), bold) for text, bold in row_cells(table, row)]
                out.append(" & ".join(rf"\textbf{{{t}}}" if bold else t for t, bold in cells) + r" \\")
        out += [r"\bottomrule", r"\end{tabular}", r"\end{table}", ""]
    return "\n".join(out)


def comma_separated(tables: Iterable[Table]) -> str:
    """Tables as CSV: one line a row, numbers unrounded, an empty field where there is none."""
    names = ["data", "model", "regularizer", "lam", "penalty", "optimizer", "status", "seeds", "epochs", "seconds"]
    names += [f"{key}{part}" for key in MEASURES for part in ("", "_deviation", "_paper")] + ["note"]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(names)
    for row in itertools.chain.from_iterable(table.rows for table in tables):
        c = row.config
        line: list[object] = [c.data, c.model, c.regularizer, c.lam, row.penalty, c.optimizer, row.status, row.seeds]
        line += [row.epochs or None, row.seconds]
        for ours, theirs in zip(row.values, row.published, strict=True):
            line += [ours and ours.mean, ours and ours.deviation, theirs and theirs.mean]
        writer.writerow([*line, row.note])
    return out.getvalue()


def print_table(records: Iterable[RunRecord], console: Console | None = None, *, paper: bool = False) -> None:
    """Print the tables of runs to the terminal."""
    from rich.console import Console

    console = console or Console()
    for table in build(records, paper=paper):
        console.print(terminal(table))


def _mark(index: int) -> str:
    return "*†‡§"[index] if index < 4 else f"({index})"


def _md(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


def _line(cells: Iterable[str], escape: Callable[[str], str] = _md) -> str:
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
