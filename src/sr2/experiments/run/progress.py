"""What a user sees of a run: one live line in a terminal, one plain line an epoch elsewhere."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from .runner import Row
from .train import Trainer


class Watch:
    """Shows runs, one after another.

    Args:
        total: how many runs there will be; each is numbered if there are several.
    """

    def __init__(self, total: int = 1) -> None:
        self.console = Console(highlight=False, soft_wrap=True)
        self._number, self._total = 0, total

    def say(self, sentence: str) -> None:
        """A line above whatever is going on."""
        self.console.print(sentence, markup=False)

    def skipped(self, path: Path, result: dict[str, Any]) -> None:
        """A run that was finished before."""
        self._number += 1
        self.say(f"{self._count()}{path.name} is finished already ({_result(result)}): delete {path} to train it again")

    def finished(self, path: Path) -> None:
        """A run that ended just now."""
        self.say(f"{self._count()}{self._trainer.config.label}: {_result(self._trainer.rows[-1])}, in {path}")

    @contextlib.contextmanager
    def run(self, trainer: Trainer) -> Iterator[None]:
        """Around the training of one run."""
        self._number += 1
        self._trainer, self._since, self._from = trainer, time.perf_counter(), trainer.epoch
        config = trainer.config
        what = f"{config.label} on {config.data} with {config.model}, seed {config.seed}"
        images = config.epochs * trainer.images_per_epoch
        done = trainer.epoch * trainer.images_per_epoch + trainer.runner.images
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
            self._task = self._live.add_task("", total=images, completed=done)
            self._live.update(self._task, description=self._line(trainer.rows[-1] if trainer.rows else None))
            yield

    def step(self, images: int) -> None:
        """A step was taken on that many images."""
        if self._live is not None:
            self._live.advance(self._task, images)

    def epoch(self, row: Row) -> None:
        """An epoch was measured."""
        if self._live is not None:
            self._live.update(self._task, description=self._line(row))
            return
        epochs = row["epoch"] - self._from
        left = (time.perf_counter() - self._since) / epochs * (self._trainer.config.epochs - row["epoch"])
        self.say(f"{self._line(row)}  {left:.0f} s left")

    def _line(self, row: Row | None) -> str:
        epochs = self._trainer.config.epochs
        if row is None:
            return f"epoch 0/{epochs}"
        words = [
            f"epoch {row['epoch']:{len(str(epochs))}}/{epochs}",
            f"loss {row['loss']:.4f}",
            f"test {row['test_accuracy']:.2f} %",
            f"zeros {row['zero_pct']:.2f} %",
        ]
        if row["sigma"] is not None:
            steps = max(1, row["accepted"] + row["refused"] + row["null"])
            words += [f"sigma {row['sigma']:.3g}", f"accepted {100 * row['accepted'] / steps:.0f} %"]
        if self._trainer.config.batch_growth is not None:
            words += [f"batch {row['batch']}"]
        return "  ".join(words)

    def _count(self) -> str:
        return f"[{self._number}/{self._total}] " if self._total > 1 else ""


def _result(values: dict[str, Any]) -> str:
    found = values.get("test_accuracy", values.get("accuracy"))
    return f"accuracy {found:.2f} %, zeros {values['zero_pct']:.2f} %"
