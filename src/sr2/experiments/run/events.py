"""TensorBoard's event files, for those who ask for them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from ..errors import UserError
from .runner import Metrics


@contextlib.contextmanager
def events(folder: Path | None) -> Iterator[Callable[[Metrics], None]]:
    """Where rows go for TensorBoard."""
    if folder is None:
        yield lambda row: None
        return
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise UserError("--tensorboard needs TensorBoard: pip install 'sr2[tensorboard]'") from error

    def log(row: Metrics) -> None:
        for name, value in row.items():
            if value is not None and name != "epoch":
                writer.add_scalar(name, value, row["epoch"])
        writer.flush()

    with contextlib.closing(SummaryWriter(str(folder / "tensorboard"))) as writer:
        yield log
