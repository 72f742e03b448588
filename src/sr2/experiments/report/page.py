"""The report of runs: one self-contained HTML page, with the tables and figures as files beside it."""

from __future__ import annotations

import dataclasses
import html
import json
import math
import shlex
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..run.config import RunConfig
from ..run.export import figure_cells
from ..run.files import named_errors, write_file
from ..run.registry import printed
from ..run.store import RunRecord
from . import formats, tables
from .charts import charts
from .figures import draw, encode
from .groups import BASELINES_FIRST, Group, group, penalty, short
from .plates import Chart
from .reference import NOTHING, Reference


def write_report(
    records: Sequence[RunRecord],
    out: Path,
    title: str = "sr2 report",
    *,
    reference: Reference = NOTHING,
    whole: bool = False,
    drawn: Sequence[RunRecord] | None = None,
    found: str = "",
) -> Path:
    """Write `out/index.html`, the tables and `out/figures`; return the page's path.

    Args:
        records: the runs.
        out: the folder of the report.
        title: of the page.
        reference: published numbers to stand beside ours.
        whole: the tables have all rows of the reference, and no run beside them.
        drawn: the runs in the figures, if not all.
        found: what else the first line says.
    """
    if not records and not whole:
        raise UserError("there is no run to report on: `sr2 train` or `sr2 compare` makes some")
    shown, figures = tables.build(records, reference, whole=whole), charts(records if drawn is None else drawn)
    with named_errors(out):
        out.joinpath("figures").mkdir(parents=True, exist_ok=True)
    write_file(out / "tables.md", formats.markdown(shown).encode())
    write_file(out / "tables.tex", formats.latex(shown).encode())
    write_file(out / "tables.csv", formats.comma_separated(shown).encode())
    for chart in figures:
        for plate in chart.plates:
            for kind, content in encode(draw(chart, plate)).items():
                write_file(out / "figures" / f"{plate.name}.{kind}", content)
    page = out / "index.html"
    write_file(page, render(records, shown, figures, title, found).encode())
    return page


def render(
    records: Sequence[RunRecord],
    shown: Sequence[tables.Table],
    drawn: Sequence[Chart],
    title: str,
    found: str = "",
) -> str:
    """The page as text. Whatever comes from a run is escaped."""
    certificates = _certificates(records)
    sections = {"Results": _results(shown), "Figures": _figures(drawn), "Runs": _runs(records)}
    sections |= {"Exports": _exports(records)}
    sections |= {"Certificates": certificates} if certificates else {}
    sections = {name: text for name, text in sections.items() if text}
    parts = {
        "title": _text(title),
        "summary": _summary(records, found),
        "links": "".join(f'<a href="#{name.lower()}">{name}</a>' for name in sections),
        "body": "".join(f'<h2 id="{name.lower()}">{name}</h2>{text}' for name, text in sections.items()),
        "footer": "Made by <code>sr2 report</code>. Time is training time, evaluation excluded.",
        "data": _embedded([plate for chart in drawn for plate in chart.plates]),
    }
    page = files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    before, *pieces = page.split("{{")
    return before + "".join(parts[name] + rest for name, rest in (piece.split("}}", 1) for piece in pieces))


# ---- the sections


def _summary(records: Sequence[RunRecord], found: str) -> str:
    done = sum(record.result is not None for record in records)
    first = f"{len(records)} runs" + (f", {len(records) - done} of them unfinished" if done < len(records) else "")
    lines = [f"{first}; {_text(found)}" if found else first, *_highlights(group(records))]
    return "".join(f"<p>{line}.</p>" for line in lines)


def _highlights(groups: Sequence[Group]) -> list[str]:
    """Per data set and network: the runs with the best score, and the sparsest that are near them."""
    lines = []
    for place in dict.fromkeys((g.config.data, g.config.model) for g in groups):
        here = [g for g in groups if (g.config.data, g.config.model) == place and g.finished]
        if len(here) < 2:
            continue
        score = here[0].score
        percent = score.unit == "%"
        best_words, near_words = ("most accurate", "one point") if percent else (f"best {score.name}", "0.01")
        found = [(_mean(g, score.name), _mean(g, "zero_pct"), g.label) for g in here]
        best = max(found)
        close = [one for one in found if one[0] >= best[0] - (1 if percent else 0.01)]
        near = max(close, key=lambda one: (round(one[1], 2), one[0]))  # of equal budgets the better one
        words = [
            f"{_text(label).replace('-', '‑')}, {score.text(value)} with {zeros:.2f} % zeros"
            for value, zeros, label in (best, near)
        ]
        also = f"; sparsest within {near_words} of it {words[1]}" if near is not best else ""
        lines.append(f"<b>{_text(' · '.join(place))}</b>: {_text(best_words)} {words[0]}{also}")
    return lines


def _mean(group: Group, key: str) -> float:
    values = [record.result[key] for record in group.finished if record.result]
    return float(sum(values) / len(values))


def _results(shown: Sequence[tables.Table]) -> str:
    out = [
        '<p class="caption">Score on the test and shares of all parameters after training, mean ± deviation over '
        "seeds; bold is the best of its penalty. Files: "
        + ", ".join(f'<a href="tables.{kind}">{name}</a>' for kind, name in _TABLE_FILES.items())
        + ".</p>"
    ]
    for table in shown:
        names = formats.headings(table)
        classes = ["paper number" if n == table.reference else "number" if n in table.measures else "" for n in names]
        classes = ["note" if name == "note" else cls for name, cls in zip(names, classes, strict=True)]
        heads = "".join(f'<th class="{cls}">{_text(n)}</th>' for n, cls in zip(names, classes, strict=True))
        body = "".join(_block(table, name, rows, classes) for name, rows in table.blocks)
        out.append(
            f"{_BOX}<table><caption>{_text(table.title)}</caption><thead><tr>{heads}</tr></thead>{body}</table>{_END}"
        )
    return "".join(out)


def _block(table: tables.Table, name: str, rows: Sequence[tables.Row], classes: Sequence[str]) -> str:
    lines = []
    for index, row in enumerate(rows):
        _, (optimizer, _), *rest = formats.row_cells(table, row)
        line = f'<th scope="rowgroup" rowspan="{len(rows)}">{_text(name)}</th>' if index == 0 else ""
        line += f"<td>{_chip(row.config.optimizer)}{_text(optimizer)}</td>"
        for (text, best), cls in zip(rest, classes[2:], strict=True):
            line += f'<td class="{cls}{" best" if best else ""}">{_text(text)}</td>'
        lines.append(f"<tr{_MISSING if row.status == 'not run' else ''}>{line}</tr>")
    return f"<tbody>{''.join(lines)}</tbody>"


def _figures(drawn: Sequence[Chart]) -> str:
    out = [
        "<noscript><p>The figures here need JavaScript; the folder <code>figures</code> has them too.</p></noscript>"
    ]
    for chart in drawn:
        out.append(f'<h3 id="{chart.name}">{_text(chart.title)}</h3><p class="caption">{_text(chart.caption)}</p>')
        for plate in chart.plates:
            links = " ".join(f'<a href="figures/{plate.name}.{kind}">{kind.upper()}</a>' for kind in ("svg", "png"))
            head = f"<header>{_text(plate.title)} <span>{links}</span></header>"
            out.append(f'<div class="card plate">{head}<div class="legend"></div><div class="panels"></div></div>')
    return "".join(out) if drawn else ""


def _runs(records: Sequence[RunRecord]) -> str:
    scores = list(dict.fromkeys(record.score.heading for record in records))
    score = scores[0] if len(scores) == 1 else "score"
    averages = any(f"average_{record.score.name}" in (record.result or {}) for record in records)
    heads = [f"{score}, last iterate", *([f"{score}, average"] if averages else [])]
    heads = ["run", *heads, "w = 0 %", "lr", "epochs", "seconds", "seed", "device"]
    ordered = [record for g in group(records) for record in g.records]
    rows, details = [], []
    for index, record in enumerate(ordered):
        config, last = record.config, record.metrics[-1] if record.metrics else {}
        done: dict[str, Any] = record.result or {record.score.name: last.get(record.test_score), **last}
        flag = (
            ""
            if record.result
            else f' <span class="flag">unfinished: epoch {len(record.metrics)} of {config.epochs}</span>'
        )
        name = f"{printed(config.optimizer)} {penalty(config)} · {config.data} · {config.model} · seed {config.seed}"
        average = done.get(f"average_{record.score.name}")
        rows.append(
            f'<tr><td>{_chip(config.optimizer)}<a href="#run-{index}">{_text(name)}</a>{flag}</td>'
            + _number(done.get(record.score.name), record.score.digits)
            + (_number(average, record.score.digits) if averages else "")
            + _number(done.get("zero_pct"), 2)
            + _lr(config)
            + _number(len(record.metrics), 0)
            + _number(done.get("seconds"), 1)
            + _number(config.seed, 0)
            + f"<td>{_text(record.env.get('device', config.device))}</td></tr>"
        )
        facts = {
            **record.env,
            "stopped by": done.get("stopped"),
            "parameters": done.get("parameters"),
            "folder": record.path,
        }
        details.append(
            f'<details id="run-{index}"><summary>{_text(name)}{flag}</summary>'
            f"<pre>{_text(command(config))}</pre>{_facts(facts)}</details>"
        )
    head = "".join(
        f"<th{_NUMBER if 0 < i < len(heads) - 1 else ''}><button>{_text(h)}</button></th>" for i, h in enumerate(heads)
    )
    table = f'<table class="sortable"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
    provenance = f'<h3>Provenance</h3><div class="card">{"".join(details)}</div>'
    return f'<p class="caption">{_text(_RUNS)}</p>{_BOX}{table}{_END}{provenance}' if records else ""


def command(config: RunConfig) -> str:
    """The command that makes this run again."""
    words = ["sr2", "train"]
    for field in dataclasses.fields(config):
        value, flag = getattr(config, field.name), "--" + field.name.replace("_", "-")
        if field.name == "options":
            pairs = [f"{name}={str(v).lower() if isinstance(v, bool) else v}" for name, v in value.items()]
            words += ["--opt", *pairs] if pairs else []
        elif value == field.default:
            continue
        elif isinstance(value, bool):
            words.append(flag if value else flag.replace("--", "--no-", 1))
        else:
            words += [flag, *(map(str, value) if isinstance(value, tuple) else [str(value)])]
    return shlex.join(words)


def _exports(records: Sequence[RunRecord]) -> str:
    """What `sr2 shrink` and `sr2 export` have measured."""
    out = []
    for record in records:
        for row in (record.export or {"rows": []})["rows"]:
            name = f"{printed(record.config.optimizer)} {penalty(record.config)} seed {record.config.seed}"
            title = f"{name}: {row['format']}, batch {row['batch']}, {row['device']}, {row['file']}"
            heads = "".join(f"<th{_NUMBER if head else ''}>{head}</th>" for head in ("", "before", "after", "ratio"))
            lines = "".join(
                f"<tr><td>{_text(first)}</td>{''.join(f'<td{_NUMBER}>{_text(cell)}</td>' for cell in rest)}</tr>"
                for first, *rest in figure_cells(row, record)
            )
            table = f"<caption>{_text(title)}</caption><thead><tr>{heads}</tr></thead><tbody>{lines}</tbody>"
            out.append(f"{_BOX}<table>{table}</table>{_END}")
    return "".join(out)


def _certificates(records: Sequence[RunRecord]) -> str:
    """What `certificate.json` of a run says, where there is one."""
    out = []
    for record in records:
        path = record.path / "certificate.json"
        if not path.is_file():
            continue
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            found = None
        if not isinstance(found, dict):
            found = {"error": f"{path} is damaged"}
        name = f"{printed(record.config.optimizer)} {penalty(record.config)} seed {record.config.seed}"
        out.append(f'<div class="card"><b>{_text(name)}</b>{_facts(found)}</div>')
    return "".join(out)


# ---- small pieces of HTML

_TABLE_FILES = {"md": "Markdown", "tex": "LaTeX", "csv": "CSV"}
_RUNS = (
    "Scores on the test. “Last iterate”: the weights after the last step, as are the zeros. “Average”: the average of "
    "the iterates, where a run keeps one. lr is the learning rate; SR2 has none, “default” is the optimizer's own."
)
_BOX, _END = '<div class="card"><div class="scroll">', "</div></div>"
_MISSING, _NUMBER = ' class="missing"', ' class="number"'


def _text(value: object) -> str:
    return html.escape(str(value))


def _chip(optimizer: str) -> str:
    name = optimizer if optimizer in BASELINES_FIRST else "other"
    return f'<span class="chip" style="background: var(--{name})"></span>'


def _number(value: float | None, digits: int) -> str:
    if value is None:
        return '<td class="number" data-value="-1">–</td>'
    return f'<td class="number" data-value="{value}">{value:.{digits}f}</td>'


def _lr(config: RunConfig) -> str:
    lr = config.option("lr")
    if isinstance(lr, int | float):
        return f'<td class="number" data-value="{lr}">{short(lr)}</td>'
    return f'<td class="number" data-value="-1">{"–" if config.optimizer == "sr2" else "default"}</td>'


def _facts(facts: dict[str, Any]) -> str:
    def show(value: object) -> str:
        if isinstance(value, dict) and {"mean", "half_width"} <= set(value):
            return f"{show(value['mean'])} ± {show(value['half_width'])}"
        if isinstance(value, dict | list):
            return json.dumps(value)
        if value is None:  # how JSON says inf and nan
            return "unknown"
        return f"{value:.4g}" if isinstance(value, float) else str(value)

    rows = (f"<dt>{_text(name)}</dt><dd>{_text(show(v))}</dd>" for name, v in facts.items() if v is not None)
    return f"<dl>{''.join(rows)}</dl>"


def _embedded(plates: Sequence[Any]) -> str:
    """Figures as JSON that may stand in a script element: five digits, no NaN, no "<"."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [plain(item) for item in value]
        if isinstance(value, float):
            return float(f"{value:.5g}") if math.isfinite(value) else None
        return value

    data = [plain(dataclasses.asdict(plate)) for plate in plates]
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
