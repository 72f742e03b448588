"""Every cell of the paper beside our runs of it, and whether the order of the optimizers is the paper's: Markdown."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..report.charts import pruning
from ..report.figures import draw, encode
from ..report.formats import line
from ..report.groups import group, settings_text, short
from ..run.registry import printed
from ..run.store import RunRecord
from .cells import EPOCHS, Cell, cells, match
from .queue import diverged
from .recipes import departures

CLASSES = {"cifar10": 10, "cifar100": 100}
LEVEL = 1.0
"""Points below which two numbers are level: one seed says no more."""
_ALLOWED = {"precision", "epochs"}  # a run with these departures is still the paper's
_NAMED_BY_THE_PAPER = {"sigma", "eta1", "eta2", "gamma1", "gamma3"}


@dataclass(frozen=True)
class Outcome:
    """Where a run stands after an epoch, in percent."""

    epoch: int
    accuracy: float
    zero_pct: float
    small_pct: float
    words: str = ""
    """Which run it is, where it is not the paper's."""
    end: str = ""
    """Of a run that diverged: why."""

    @staticmethod
    def of(record: RunRecord, epoch: int, words: str = "") -> Outcome:
        """After that epoch; at the end of a run, what its result says."""
        row: Mapping[str, Any] = record.metrics[epoch - 1]
        accuracy = row[record.test_score]
        if record.result is not None and epoch == len(record.metrics):
            row, accuracy = record.result, record.result[record.score.name]
        return Outcome(epoch, accuracy, row["zero_pct"], row["small_pct"], words, diverged(record))

    def text(self, cell: Cell) -> str:
        """Accuracy, zeros and small weights; a network that knows no more than chance has collapsed."""
        numbers = f"{self.accuracy:.2f}, {self.zero_pct:.2f}, {self.small_pct:.2f}"
        state = "diverged: " if self.end else "collapsed: " if collapsed(cell.data, self.accuracy) else ""
        return f"{state}{numbers}{f' ({self.words})' if self.words else ''}"


def collapsed(data: str, accuracy: float) -> bool:
    """Whether an accuracy is that of a network which gives every image the same answer, or hardly more.

    >>> collapsed("cifar10", 10.0), collapsed("cifar10", 29.33), collapsed("cifar100", 1.0)
    (True, False, True)
    """
    return accuracy <= 1.2 * 100 / CLASSES[data]


def comparison(records: Iterable[RunRecord]) -> str:
    """The text of `cells.md`."""
    blocks = _blocks(records)
    out = ["## Cell by cell", "", _LEGEND, ""]
    names = ["data", "network", "R", "λ", "optimizer", "paper", "epochs", "ours", "beside it"]
    out += [line(names), line([":--"] * len(names), str)]
    out += [line(row) for block in blocks for row in block.rows()]
    orders = [block.order() for block in blocks if block.whole]
    names = ["data", "network", "R", "λ", "epochs", "accuracy, paper", "ours", "agrees"]
    names += ["zeros, paper", "ours", "agrees"]
    out += ["", "## The order of the optimizers", "", _ORDER, "", line(names), line([":--"] * len(names), str)]
    out += [line(row) for row in orders]
    same = [sum(row[i] == "yes" for row in orders) for i in (7, 10)]
    whole = f"Problems with a run of each of their optimizers: {len(orders)} of {len(blocks)}."
    out += ["", f"{whole} The order is the paper's by accuracy in {same[0]}, by zeros in {same[1]}."]
    return "\n".join(out) + "\n"


def pruning_figures(records: Iterable[RunRecord]) -> dict[str, bytes]:
    """The paper's figures of pruning, accuracy and zeros against 10^-k, by the names of their files."""
    files: dict[str, bytes] = {}
    for block in _blocks(records):
        chart = pruning(group(run for run in block.drawn() if run.prune))
        for plate in chart.plates:
            named = replace(plate, title=f"{plate.title} · {short(block.cells[0].lam)}")
            for kind, data in encode(draw(chart, named)).items():
                files[f"{plate.name}-{short(block.cells[0].lam)}.{kind}"] = data
    return files


def _blocks(records: Iterable[RunRecord]) -> list[Block]:
    runs: dict[Cell, list[RunRecord]] = {}
    for record in records:
        if record.metrics and (cell := match(record.config)):
            runs.setdefault(cell, []).append(record)
    return [Block(list(same), runs) for _, same in itertools.groupby(cells().values(), key=_problem)]


_LEGEND = (
    f"Accuracy, w = 0 and |w| ≤ 1e-3 in percent: of the paper after {EPOCHS} epochs, of ours after as many as all "
    "optimizers of a problem have had. Ours has the paper's settings; bf16 arithmetic is the one departure. Beside it "
    "stand, where they were run: the same for longer; the best learning rate of ProxGEN and ProxSGD, by accuracy on "
    "the test images; SR2 with the library's defaults; the most accurate run with any other settings. A network that "
    "is right about hardly more images than chance has collapsed."
)
_ORDER = (
    f"Less than {LEVEL:g} point apart is level (≈). An order agrees unless a pair stands the other way round by more "
    "in both. Zeros are exact ones."
)


def _problem(cell: Cell) -> tuple[str, str, str, float]:
    return cell.data, cell.model, cell.regularizer, cell.lam


class Block:
    """The cells of one problem, data, network, R and lambda, and their runs."""

    def __init__(self, same: Sequence[Cell], runs: Mapping[Cell, list[RunRecord]]) -> None:
        self.cells, self.runs = same, {cell: runs.get(cell, []) for cell in same}
        self.papers = {cell: _furthest(r for r in self.runs[cell] if _as_the_paper(r)) for cell in same}
        reached = [len(run.metrics) for run in self.papers.values() if run is not None and not diverged(run)]
        self.epochs = min(reached, default=0)

    @property
    def whole(self) -> bool:
        """Whether each cell was run as the paper has it."""
        return all(run is not None for run in self.papers.values())

    def ours(self, cell: Cell) -> Outcome | None:
        """The run with the paper's settings, after as many epochs as the others have."""
        run = self.papers[cell]
        return None if run is None else Outcome.of(run, min(self.epochs or len(run.metrics), len(run.metrics)))

    def others(self, cell: Cell) -> list[tuple[RunRecord, Outcome]]:
        """The best learning rate of a baseline or SR2 with the library's defaults, and the best of all the others."""
        named: list[tuple[RunRecord, Outcome]] = []
        rest: list[tuple[RunRecord, Outcome]] = []
        for record in self.runs[cell]:
            changed = departures(record.config) or {}
            changed = {name: value for name, value in changed.items() if name not in _ALLOWED}
            if not changed:
                continue
            if cell.optimizer == "sr2" and not _NAMED_BY_THE_PAPER & set(record.config.options):
                named.append((record, Outcome.of(record, len(record.metrics), "the library's defaults")))
            else:
                some = named if set(changed) == {"lr"} else rest
                some.append((record, Outcome.of(record, len(record.metrics), settings_text(changed))))
        return [max(some, key=lambda pair: (not pair[1].end, pair[1].accuracy)) for some in (named, rest) if some]

    def drawn(self) -> list[RunRecord]:
        """The runs of `rows`."""
        papers = [run for run in self.papers.values() if run is not None]
        return papers + [run for cell in self.cells for run, _ in self.others(cell)]

    def rows(self) -> list[list[str]]:
        """A line for each cell."""
        out = []
        for cell in self.cells:
            ours, run = self.ours(cell), self.papers[cell]
            theirs = Outcome(EPOCHS, cell.accuracy, cell.zero_pct, cell.small_pct)
            words = [cell.data, cell.model, cell.regularizer, short(cell.lam), printed(cell.optimizer)]
            words += [theirs.text(cell), str(ours.epoch) if ours else "", ours.text(cell) if ours else "missing"]
            longer = [] if run is None else [Outcome.of(run, len(run.metrics), "the same run")]
            more = [other for other in longer if ours and other.epoch > ours.epoch]
            more += [other for _, other in self.others(cell)]
            out.append([*words, "; ".join(f"{other.epoch} epochs: {other.text(cell)}" for other in more) or "–"])
        return out

    def order(self) -> list[str]:
        """How the optimizers follow each other."""
        first = self.cells[0]
        words = [first.data, first.model, first.regularizer, short(first.lam), str(self.epochs)]
        for name in ("accuracy", "zero_pct"):
            theirs = {printed(cell.optimizer): float(getattr(cell, name)) for cell in self.cells}
            ours = {printed(cell.optimizer): float(getattr(self.ours(cell), name)) for cell in self.cells}
            words += [order_text(theirs), order_text(ours), agreement(theirs, ours)]
        return words


def _as_the_paper(record: RunRecord) -> bool:
    return set(departures(record.config) or {}) <= _ALLOWED


def _furthest(records: Iterable[RunRecord]) -> RunRecord | None:
    return max(records, key=lambda record: (len(record.metrics), record.result is not None), default=None)


def order_text(values: Mapping[str, float]) -> str:
    """Names from the largest to the smallest.

    >>> order_text({"SR2": 93.9, "ProxGEN": 86.0, "ProxSGD": 85.1})
    'SR2 > ProxGEN ≈ ProxSGD'
    """
    names = sorted(values, key=lambda name: -values[name])
    out = names[0]
    for before, name in itertools.pairwise(names):
        out += f" {'≈' if values[before] - values[name] < LEVEL else '>'} {name}"
    return out


def agreement(theirs: Mapping[str, float], ours: Mapping[str, float]) -> str:
    """Whether no pair stands the other way round, or which does.

    >>> agreement({"SR2": 90.0, "ProxGEN": 80.0}, {"SR2": 70.0, "ProxGEN": 70.5})
    'yes'
    >>> agreement({"SR2": 90.0, "ProxGEN": 80.0}, {"SR2": 70.0, "ProxGEN": 75.0})
    'no: SR2, ProxGEN'
    """
    for a, b in itertools.combinations(theirs, 2):
        there, here = theirs[a] - theirs[b], ours[a] - ours[b]
        if there * here < 0 and min(abs(there), abs(here)) >= LEVEL:
            return f"no: {a}, {b}"
    return "yes"
