"""The figures as SVG and PNG files, drawn by matplotlib from `charts.py`."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ..run.store import RunRecord
from .charts import charts
from .plates import Chart, Heat, Key, Panel, Plate, Series

# Okabe and Ito's palette, which colour-blind readers tell apart; the page's stylesheet has the same, and lighter ones.
COLORS = {"sr2": "#0072b2", "proxgen": "#d55e00", "proxsgd": "#009e73", "amber": "#e69f00", "": "#555555"}
COLORS |= {"gmp": "#8c510a", "adamw": "#b3a000", "sgd": "#222222"}  # brown, dark yellow, black: no second blue
OTHER = "#cc79a7"
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)), (0, (10, 2)), (0, (3, 1, 1, 1, 1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P")

LINE, LETTER = 0.6, 0.08
"""Inches of a legend's entry: its line with the space around, and a letter."""

STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "svg.hashsalt": "sr2",  # equal runs give equal files
    "svg.fonttype": "none",
}


def figures(records: Iterable[RunRecord]) -> dict[str, Figure]:
    """Every figure of these runs, by the name of its file."""
    return {plate.name: draw(chart, plate) for chart in charts(records) for plate in chart.plates}


def draw(chart: Chart, plate: Plate) -> Figure:
    """One plate as a matplotlib figure."""
    with matplotlib.rc_context(STYLE):
        wide = any(isinstance(panel, Heat) for panel in plate.panels) or len(plate.panels) == 1
        columns = 1 if wide or plate.stacked else 2 if len(plate.panels) in (2, 4) else 3
        rows = -(-len(plate.panels) // columns)
        width = 6.4 if columns == 1 else 3.2 * columns
        labels = [_lines(key.label, int((width - LINE) / LETTER)) for key in plate.legend]
        handles = [_handle(key, label) for key, label in zip(plate.legend, labels, strict=True)]
        abreast = _abreast([label.split("\n")[0] for label in labels], width)
        lines = -(-sum(label.count("\n") + 1 for label in labels) // abreast)
        figure = Figure(figsize=(width, _height(plate, wide) * rows + 0.5 + 0.2 * lines), layout="constrained")
        FigureCanvasAgg(figure)
        figure.suptitle(_short(f"{chart.title}: {plate.title}", 70), x=0.01, ha="left", fontsize=10, fontweight="bold")
        axes = figure.subplots(rows, columns, squeeze=False).flat
        for ax, panel in zip(axes, plate.panels, strict=False):
            if isinstance(panel, Heat):
                _heat(figure, ax, panel)
            else:
                _axes(ax, panel, width / columns)
                if plate.stacked and panel is not plate.panels[-1]:
                    ax.set_xlabel("")
                    ax.tick_params(labelbottom=False)
        for ax in list(figure.axes)[len(plate.panels) : rows * columns]:
            ax.set_axis_off()
        if handles:
            figure.legend(handles=handles, loc="outside lower center", ncols=abreast, columnspacing=1.4)
        return figure


def encode(figure: Figure) -> dict[str, bytes]:
    """A figure as the bytes of its `svg` and `png` files: the same for the same runs."""
    out = {}
    with matplotlib.rc_context(STYLE):
        for kind, metadata in (("svg", {"Date": None}), ("png", {"Software": None})):
            buffer = io.BytesIO()
            figure.savefig(buffer, format=kind, dpi=150, metadata=metadata)
            out[kind] = buffer.getvalue()
    return out


def _abreast(labels: Sequence[str], width: float) -> int:
    """In how many columns a legend fits into a width: as many as their longest entries allow.

    >>> _abreast(["l1", "l0", "front"], 6.4), _abreast(["l1 1e-4 gamma1=1.5 cooldown=0.2 precision=bf16"] * 3, 6.4)
    (3, 1)
    """

    def fits(columns: int) -> bool:
        rows = -(-len(labels) // columns)
        longest = [max(map(len, labels[i : i + rows])) for i in range(0, len(labels), rows)]
        return sum(LINE + LETTER * n for n in longest) <= width

    return max((n for n in range(1, len(labels) + 1) if fits(n)), default=1)


def _height(plate: Plate, wide: bool) -> float:
    heat = plate.panels[0]
    if isinstance(heat, Heat):
        return 0.5 + 0.22 * len(heat.rows) + (1.2 if len(heat.columns) <= 24 else 0.3)
    return 3.6 if wide else 1.4 if plate.stacked else 2.1


def _axes(ax: Axes, panel: Panel, width: float) -> None:
    ax.set_title(_lines(panel.title, int((width - LINE) / LETTER)))
    for axis, side in ((panel.x, "x"), (panel.y, "y")):
        if axis.log:
            getattr(ax, f"set_{side}scale")("log")
        getattr(ax, f"set_{side}lim")(*axis.ends)
        getattr(ax, f"set_{side}ticks")([tick for tick, _ in axis.ticks], [text for _, text in axis.ticks])
        getattr(ax, f"{side}axis").minorticks_off()
        getattr(ax, f"set_{side}label")(axis.label)
    for series in panel.series:
        _series(ax, series, panel.y.ends[0])


def _series(ax: Axes, series: Series, floor: float) -> None:
    color, dash = _color(series.color), DASHES[series.style % len(DASHES)]
    marker = MARKERS[series.style % len(MARKERS)]
    y = np.array([np.nan if value is None else value for value in series.y], dtype=float)
    if series.kind == "line":
        few = marker if len(y) <= 12 else None
        ax.plot(series.x, y, color=color, linestyle=dash, linewidth=1.3, marker=few, markersize=3)
    elif series.kind == "step":
        ax.stairs(np.maximum(y, floor), series.x, color=color, linewidth=1.2)
    elif series.kind == "bar":
        ax.bar(series.x[0], y, series.x[1] - series.x[0], align="edge", color=color)
    elif series.kind == "front":
        ax.step(series.x, y, where="pre", color=color, linewidth=1, alpha=0.7, zorder=0)
    else:
        big = series.kind == "point"
        ax.scatter(
            series.x, y, 34 if big else 9, color=color, marker=marker, alpha=1 if big else 0.45,
            edgecolors="white" if big else "none", linewidths=0.6, zorder=3 if big else 2, clip_on=False,
        )  # fmt: skip


def _heat(figure: Figure, ax: Axes, heat: Heat) -> None:
    values = np.array([[np.nan if v is None else v for v in row] for row in heat.values], dtype=float)
    image = ax.pcolormesh(values, cmap="Blues", vmin=0, vmax=100, edgecolors="white", linewidth=0.4)
    ax.invert_yaxis()
    ax.grid(False)
    ax.set_yticks(np.arange(len(heat.rows)) + 0.5, [_short(row) for row in heat.rows])
    if len(heat.columns) <= 24:
        names = [_short(column) for column in heat.columns]
        ax.set_xticks(np.arange(len(names)) + 0.5, names, rotation=60, ha="right", rotation_mode="anchor")
    else:
        ax.set_xlabel(f"{len(heat.columns)} weight tensors")
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    figure.colorbar(image, ax=ax, label=heat.title, fraction=0.04, pad=0.02)


def _handle(key: Key, label: str) -> Line2D:
    color = _color(key.color)
    if key.kind == "bar":
        return Line2D([], [], color=color, linewidth=5, label=label, solid_capstyle="butt")
    if key.kind == "point":
        marker = MARKERS[key.style % len(MARKERS)]
        return Line2D([], [], color=color, linestyle="none", marker=marker, label=label)
    dash: Any = "-" if key.kind == "front" else DASHES[key.style % len(DASHES)]
    return Line2D([], [], color=color, linestyle=dash, linewidth=1 if key.kind == "front" else 1.3, label=label)


def _lines(text: str, most: int) -> str:
    """At most three lines of so many letters."""
    return textwrap.fill(_short(text, 3 * most), most, max_lines=3, placeholder="…", break_on_hyphens=False)


def _short(text: str, most: int = 34) -> str:
    text = text.replace("$", r"\$")  # no formula
    return text if len(text) <= most else text[: most - 1] + "…"


def _color(name: str) -> str:
    return COLORS.get(name, OTHER)
