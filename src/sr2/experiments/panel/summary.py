"""The panel's table and figure, from the records in a folder.

A task's number is the error on what nobody trained or chose on (`test`); of a grid, the member with the smallest mean
`validation` error is taken. "One step away" is the better neighbour of AdamW's best rate, under the same schedule.
"""

from __future__ import annotations

import io
import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev

from ..run.files import write_file
from .methods import ADAMW_RATES, SGD_RATES, missing
from .runner import Record

OWN = ("sr2", "sr2_steps", "sr2_paper")
"""Methods that the first table begins with: everyone has the same number of gradients."""
IN_TIME = ("sr2_time", "sr2_steps_time", "sr2_auto_time")
"""Those of the second: SR2 has the time that AdamW needs for its steps, the baselines have their steps."""

FLOOR = 2e-3
"""Errors below this are equal: one wrong image of 500."""

MARKS = "xs^Dv"
"""Of the others in the figure."""

Cell = list[Record]


class Panel:
    """Records by task and method."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.cells: dict[tuple[str, str], Cell] = defaultdict(list)
        for record in records:
            self.cells[record["task"], record["method"]].append(record)
        self.tasks = list(dict.fromkeys(record["task"] for record in records))

    def numbers(self, task: str, method: str, key: str) -> list[float]:
        """One number per seed: of the average where a method has one, else of the last iterate."""
        found = []
        for record in self.cells.get((task, method), []):
            point = next((record[p] for p in ("average", "average8") if p in record), record["last"])
            value = point["train"] - record["optimum"] if not math.isnan(record["optimum"]) else point[key]
            found.append(value if math.isfinite(value) else 10.0)
        return found

    def error(self, task: str, method: str, key: str = "test") -> float:
        numbers = self.numbers(task, method, key)
        return mean(numbers) if numbers else math.nan

    def share(self, task: str, method: str) -> str:
        """Which share of the steps a method has taken, where it may take fewer."""
        shares = [r["taken"] / r["steps"] for r in self.cells.get((task, method), []) if "cost_tested" in r]
        return f" ({mean(shares):.2f} n)" if shares else ""

    def best(self, task: str, methods: Sequence[str]) -> str:
        """The member of a grid with the smallest validation error."""
        present = [m for m in methods if (task, m) in self.cells]
        return min(present, key=lambda m: self.error(task, m, "validation"), default="")

    def neighbour(self, task: str, best: str) -> str:
        """The better one of the two rates beside AdamW's best, under the same schedule."""
        _, rate, schedule = best.split("_")
        rates = [f"{r:g}" for r in ADAMW_RATES]
        i = rates.index(rate)
        return self.best(task, [f"adamw_{r}_{schedule}" for r in rates[max(0, i - 1) : i + 2] if r != rate])


def grid(name: str, rates: Sequence[float]) -> list[str]:
    return [f"{name}_{rate:g}_{schedule}" for schedule in ("constant", "cosine") for rate in rates]


def columns(panel: Panel, task: str, own: Sequence[str]) -> dict[str, str]:
    """What stands in the table for one task: a title and the method behind it."""
    adamw = panel.best(task, grid("adamw", ADAMW_RATES))
    found = {name: name for name in own}
    found |= {"AdamW 1e-3": "adamw_0.001_constant", "AdamW best of 10": adamw}
    if own != IN_TIME:
        found["AdamW one step away"] = panel.neighbour(task, adamw) if adamw else ""
    found["SGD best of 10"] = panel.best(task, grid("sgd", SGD_RATES))
    return found | {"Schedule-Free": "schedulefree", "Prodigy": "prodigy", "DoG": "dog"}


def table(panel: Panel, own: Sequence[str] = OWN) -> str:
    """Markdown: mean and spread per task, the chosen rates, and the geometric mean of the errors."""
    rows, logs = [], defaultdict(list)
    for task in panel.tasks:
        cells = []
        for title, method in columns(panel, task, own).items():
            numbers = panel.numbers(task, method, "test")
            if not numbers:
                cells.append(missing(method) or "not run")
                continue
            logs[title].append(math.log(max(FLOOR, mean(numbers))))
            spread = f" ± {stdev(numbers):.2g}" if len(numbers) > 1 else ""
            chosen = f" ({method.split('_', 1)[1].replace('_', ', ')})" if "best" in title or "away" in title else ""
            cells.append(f"{mean(numbers):.4f}{spread}{chosen}{panel.share(task, method)}")
        rows.append([task, *cells])
    titles = list(columns(panel, panel.tasks[0], own))
    whole = [f"**{math.exp(mean(logs[t])):.4f}**" if len(logs[t]) == len(panel.tasks) else "-" for t in titles]
    lines = [["task", *titles], ["---"] * (len(titles) + 1), *rows, ["geometric mean", *whole]]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def figure(panel: Panel, path: Path) -> None:
    """Each method's error over that of AdamW's best, per task: left of 1 is better. Bars are deviations over seeds."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 0.85 * len(panel.tasks) + 1.7))
    titles = [t for t in columns(panel, panel.tasks[0], OWN) if t not in ("AdamW best of 10", "AdamW one step away")]
    for k, title in enumerate(titles):
        xs, ys, bars = [], [], []
        for i, task in enumerate(panel.tasks):
            chosen = columns(panel, task, OWN)
            numbers, best = panel.numbers(task, chosen[title], "test"), panel.error(task, chosen["AdamW best of 10"])
            if numbers and math.isfinite(best):
                error, spread = mean(numbers), stdev(numbers) if len(numbers) > 1 else 0.0
                low, x, high = (max(FLOOR, e) / max(FLOOR, best) for e in (error - spread, error, error + spread))
                xs.append(x)
                ys.append(i + 0.8 * ((k + 0.5) / len(titles) - 0.5))  # every method has a height of its own
                bars.append((x - low, high - x))
        mark, size = ("o", 6) if title in OWN else (MARKS[k % len(MARKS)], 4)
        axes.errorbar(
            xs, ys, xerr=list(zip(*bars, strict=True)) or None, fmt=mark, ms=size, label=title, elinewidth=0.8
        )
    axes.axvline(1, color="0.7", lw=1, zorder=0)
    for i in range(1, len(panel.tasks)):
        axes.axhline(i - 0.5, color="0.9", lw=0.8, zorder=0)
    axes.set_xscale("log")
    for formatter in (axes.xaxis.set_major_formatter, axes.xaxis.set_minor_formatter):
        formatter("{x:g}")
    axes.set_yticks(range(len(panel.tasks)), panel.tasks)
    axes.set_ylim(len(panel.tasks) - 0.5, -0.5)
    axes.set_xlabel(
        "error on test data / that of the best of AdamW's grid: left of 1 is better\n"
        f"bars: ± one deviation over seeds; errors below {FLOOR:g} count as {FLOOR:g}",
        fontsize=9,
    )
    axes.legend(fontsize=7)
    figure.tight_layout()
    drawn = io.BytesIO()
    figure.savefig(drawn)
    plt.close(figure)
    write_file(path, drawn.getvalue())
