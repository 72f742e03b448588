"""A picture of every regularizer and its prox, by the library itself: python docs/tools/prox_figures.py

Writes docs/figures/prox-<Name>.png. Where R is a sum over entries: R and the prox of one entry, as curves. Where it
couples entries: a small matrix, before and after. Above each stands the regularizer with its constants.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh

import sr2
from sr2 import (
    L0,
    L1,
    MCP,
    NM,
    SCAD,
    Box,
    ElasticNet,
    GroupL0,
    GroupL2,
    KeepZeros,
    L0Ball,
    Lp,
    Nuclear,
    Rank,
    Regularizer,
    Ridge,
)

FIGURES = Path(__file__).parents[1] / "figures"
STEP = 1.0
CURVES: list[Regularizer] = [
    L1(1.0),
    L0(1.0),
    Lp(1.0, 0.5),
    ElasticNet(1.0, 1.0),
    MCP(1.0, 2.0),
    SCAD(0.7, 3.0),
    Ridge(0.4, L0(1.0)),
    Box(-1.0, 1.5),
]
MATRICES: list[Regularizer] = [
    L0Ball(density=0.25),
    GroupL2(2.0, "rows"),
    GroupL0(2.0, "columns"),
    NM(2, 4),
    Nuclear(1.2),
    Rank(2),
    KeepZeros(),
]
INK, BLUE, RED = "#767b84", "#3f76d1", "#d1603f"  # readable on white and on the dark ground


def curves(R: Regularizer) -> None:
    """R of one entry beside its prox."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(6.6, 2.7), constrained_layout=True)
    x = torch.linspace(-3, 3, 2401, dtype=torch.float64)
    x[len(x) // 2] = 0.0  # the middle is 4e-16 otherwise, and l0 sees that
    values = np.array([float(R.value(entry)) for entry in x.view(-1, 1)])
    z = R.prox(x, STEP).numpy()
    draw(left, x.numpy(), np.where(np.isfinite(values), values, np.nan), BLUE)
    if not np.isfinite(values).all():
        left.set_ylim(-0.2, 3)
        ends = x.numpy()[np.isfinite(values)][[0, -1]]
        left.vlines(ends, 0, 3, color=BLUE, lw=2)
        for side, place in zip(("right", "left"), ends + np.array([-0.2, 0.2]), strict=True):
            left.text(place, 1.5, "R = ∞", ha=side, va="center", color=INK)
    left.set(title="R(x)", xlabel="x", xlim=(-3.2, 3.2))
    right.plot(x, x, "--", color=INK, lw=1)
    draw(right, x.numpy(), z, RED)
    right.set(title=f"prox(x), step {STEP:g}", xlabel="x", ylim=(-3.2, 3.2))
    save(figure, R)


def draw(axes: Axes, x: np.ndarray, y: np.ndarray, colour: str) -> None:
    """A curve that is cut where it jumps."""
    parts = np.split(np.arange(len(x)), np.flatnonzero(np.abs(np.diff(y)) > 0.2) + 1)
    for part in parts:
        axes.plot(x[part], y[part], color=colour, lw=2)
        if len(part) == 1:
            axes.plot(x[part], y[part], "o", color=colour, ms=4)
    axes.spines[["top", "right"]].set_visible(False)
    axes.axhline(0, color=INK, lw=0.5, alpha=0.5)
    axes.axvline(0, color=INK, lw=0.5, alpha=0.5)


def matrices(R: Regularizer) -> None:
    """A matrix of 8 x 8, and what the prox leaves of it."""
    torch.manual_seed(3)
    before = torch.randn(8, 8, dtype=torch.float64)
    before *= torch.linspace(0.15, 1.9, 8)[torch.randperm(8), None] * torch.linspace(0.4, 1.5, 8)[torch.randperm(8)]
    shown = {"x": before}
    if isinstance(R, KeepZeros):
        first = torch.where(torch.rand(8, 8) < 0.5, 0.0, before)
        R = R.start([first])
        moved = first + 0.4 * torch.randn(8, 8, dtype=torch.float64)
        shown, before = {"x₀, at the first step": first, "x, after a step": moved}, moved
    if isinstance(R, (Nuclear, Rank)):
        return spectra(R, before)
    after = R.prox([before], STEP)[0]
    shown |= {f"prox(x){step_of(R)}: {int((after == 0).sum())} of 64 are 0": after}
    figure, places = plt.subplots(1, len(shown), figsize=(6.6, 3.5 if len(shown) == 2 else 2.6), layout="constrained")
    for axes, (title, matrix) in zip(places, shown.items(), strict=True):
        image = show(axes, matrix, title)
    scale(figure, image, places)
    save(figure, R)
    return None


def step_of(R: Regularizer) -> str:
    """The step, where the prox depends on it."""
    return "" if isinstance(R, (L0Ball, NM, Rank, KeepZeros)) else f", step {STEP:g}"


def scale(figure: plt.Figure, image: QuadMesh, places: Sequence[Axes]) -> None:
    """What the colours mean."""
    bar = figure.colorbar(image, ax=list(places), fraction=0.03, pad=0.02, extend="both")
    bar.ax.set_title("entry", fontsize=8)
    bar.outline.set_visible(False)


def show(axes: Axes, matrix: torch.Tensor, title: str) -> QuadMesh:
    """Entries as colours; what is exactly zero has no colour, and says so."""
    shown = np.ma.masked_equal(matrix.numpy(), 0.0)[::-1]
    image = axes.pcolormesh(shown, cmap="RdBu", vmin=-2.2, vmax=2.2)
    for line in range(9):
        axes.plot([0, 8], [line, line], color=INK, lw=0.4)
        axes.plot([line, line], [0, 8], color=INK, lw=0.4)
    for row, column in np.argwhere(np.ma.getmaskarray(shown)):
        axes.text(column + 0.5, row + 0.47, "0", ha="center", va="center", color=INK, fontsize=7)
    axes.set(title=title, xticks=[], yticks=[], aspect="equal")
    axes.spines[:].set_visible(False)
    return image


def spectra(R: Regularizer, before: torch.Tensor) -> None:
    """A low rank shows in the singular values, not in the entries."""
    after = R.prox(before, STEP)
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(7.4, 2.7), constrained_layout=True)
    show(left, before, "x")
    scale(figure, show(middle, after, f"prox(x){step_of(R)}"), [left, middle])
    old, new = (torch.linalg.svdvals(m).numpy() for m in (before, after))
    places = np.arange(1, 9)
    right.bar(places - 0.2, old, 0.4, color=INK, label="of x")
    right.bar(places + 0.2, np.where(new > 1e-9, new, 0.0), 0.4, color=RED, label="of prox(x)")
    right.set(title="singular values", xticks=places)
    right.spines[["top", "right"]].set_visible(False)
    right.legend(frameon=False, fontsize=8)
    save(figure, R)


def name(R: Regularizer) -> str:
    """With its constants, such as "L1(lam=1)"."""
    return "KeepZeros()" if isinstance(R, KeepZeros) else re.sub(r"(?<=\d)\.0\b", "", repr(R))


def save(figure: plt.Figure, R: Regularizer) -> None:
    figure.suptitle(name(R), fontsize=10, fontweight="bold", color=INK)
    path = FIGURES / f"prox-{type(R).__name__}.png"
    figure.savefig(path, dpi=150, transparent=True, metadata={"Software": None})
    plt.close(figure)
    print(f"{path.name}: {R!r}")


if __name__ == "__main__":
    mpl.use("Agg")
    colours = dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK)
    mpl.rcParams.update({"font.size": 9, "axes.titlesize": 10, **colours})
    for regularizer in CURVES:
        curves(regularizer)
    for regularizer in MATRICES:
        matrices(regularizer)
    drawn = {type(R).__name__ for R in (*CURVES, *MATRICES)}
    public = {name: getattr(sr2, name) for name in sr2.regularizers.__all__ if name != "Regularizer"}
    assert drawn == {name for name, c in public.items() if issubclass(c, Regularizer)}, "a regularizer has no picture"
