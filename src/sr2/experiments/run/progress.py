"""What a user sees of a run: one live line in a terminal, one plain line per epoch elsewhere."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from ..tasks import Score
from .processes import speaks
from .runner import Metrics
from .shared import Folder
from .train import Trainer


class Watch:
    """Shows runs, one after another.

    Args:
        total: how many runs there will be; each is numbered if there are several.
    """

    def __init__(self, total: int = 1) -> None:
        self.console = Console(highlight=False, soft_wrap=True, quiet=not speaks())
        self._number, self._total = 0, total

    def say(self, sentence: str) -> None:
        """A line above whatever is going on."""
        self.console.print(sentence, markup=False)

    def skipped(self, path: Folder, result: dict[str, Any], score: Score) -> None:
        """A run that was finished before."""
        self._number += 1
        said = f"{str(path).rpartition('/')[2]} is finished already ({_result(result, score)})"
        self.say(f"{self._count()}{said}: delete {path} to train it again")

    def finished(self, path: Folder) -> None:
        """A run that ended just now."""
        row, score = self._trainer.metrics[-1], self._trainer.problem.task.score
        row = {**row, score.name: row[f"test_{score.name}"], "held_out": self._trainer.config.hold_out}
        row[f"average_{score.name}"] = row.get(f"average_test_{score.name}")
        self.say(f"{self._count()}{self._trainer.config.label}: {_result(row, score)}, in {path}")

    @contextlib.contextmanager
    def run(self, trainer: Trainer) -> Iterator[None]:
        """Around the training of one run."""
        self._number += 1
        self._trainer, self._since, self._from = trainer, time.perf_counter(), trainer.epoch
        config = trainer.config
        what = f"{config.label} on {config.data} with {config.model}, seed {config.seed}"
        examples = config.epochs * trainer.examples_per_epoch
        done = trainer.epoch * trainer.examples_per_epoch + trainer.runner.examples
        resumed = f", from epoch {trainer.epoch + 1}, step {trainer.step + 1}" if done else ""
        self.say(f"{self._count()}{what}{resumed}")
        if not self.console.is_terminal:
            self._live = None
            yield
            return
        columns = (
            TextColumn("{task.description}"),
            BarColumn(20),
            TimeRemainingColumn(compact=True),
            TextColumn("left"),
        )
        with Progress(*columns, console=self.console, transient=True) as self._live:
            self._task = self._live.add_task("", total=examples, completed=done)
            self._live.update(self._task, description=self._line(trainer.metrics[-1] if trainer.metrics else None))
            yield

    def step(self, examples: int) -> None:
        """A step was taken on that many examples."""
        if self._live is not None:
            self._live.advance(self._task, examples)

    def epoch(self, row: Metrics) -> None:
        """An epoch was measured."""
        if self._live is not None:
            self._live.update(self._task, description=self._line(row))
            return
        epochs = row["epoch"] - self._from
        left = (time.perf_counter() - self._since) / epochs * (self._trainer.config.epochs - row["epoch"])
        self.say(f"{self._line(row)}  {left:.0f} s left")

    def _line(self, row: Metrics | None) -> str:
        epochs = self._trainer.config.epochs
        if row is None:
            return f"epoch 0/{epochs}"
        score = self._trainer.problem.task.score
        words = [
            f"epoch {row['epoch']:{len(str(epochs))}}/{epochs}",
            f"loss {row['loss']:.4f}",
            f"{'held out' if self._trainer.config.hold_out else 'test'} {score.text(row[f'test_{score.name}'])}",
            f"zeros {row['zero_pct']:.2f} %",
        ]
        if row["sigma"] is not None:
            words += [f"sigma {row['sigma']:.3g}"]
            if tested := row["accepted"] + row["rejected"] + row["null"]:  # none where `test_every` is long
                words += [f"accepted {100 * row['accepted'] / tested:.0f} %"]
                words += [f"null {100 * row['null'] / tested:.0f} %"] if row["null"] else []
        if self._trainer.view.compares_halves:
            words += [f"batch {row['batch']}"]
        return "  ".join(words)

    def _count(self) -> str:
        return f"[{self._number}/{self._total}] " if self._total > 1 else ""


def _result(values: dict[str, Any], score: Score) -> str:
    held = f" on {values['held_out']} held out" if values.get("held_out") else ""
    said = f"{score.name} {score.text(values[score.name])}{held}, zeros {values['zero_pct']:.2f} %"
    if (average := values.get(f"average_{score.name}")) is None:
        return said
    return f"{said}; average of the iterates {score.text(average)}, zeros {values['average_zero_pct']:.2f} %"
