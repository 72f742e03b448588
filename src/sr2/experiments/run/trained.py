"""A finished run, taken up again to be used or measured. Nothing here trains."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from ..errors import UserError
from ..names import Which
from .build import check_place
from .problem import Problem
from .store import WEIGHTS, RunRecord, RunStore, read_run, read_weights


def trained(
    folder: Path | str, device: str | None = None, *, trust: bool = False, weights: Which | None = None
) -> Problem:
    """The network of a finished run with its weights, and the examples that it was trained and tested on.

    >>> problem = trained("runs/digits-cnn-sr2-l1-0.001-s0-a5b134183c", device="cpu")  # doctest: +SKIP
    >>> problem.model  # a torch.nn.Module, in evaluation mode                         # doctest: +SKIP
    >>> for x, y in problem.test: ...  # images scaled as it has learnt them           # doctest: +SKIP

    Args:
        folder: of the run.
        device: where to, if not where the run was trained.
        trust: whether to import the `module:callable` that the run's config.json names for its network or its data.
            A folder that somebody else made may name any code.
        weights: "average" or "last", of the iterates; None is the average where the run has one.
    """
    record = read_run(Path(folder))
    state = read_weights(record.path, weights)
    if not trust:
        _check_own_code(record)
    # A CPU has no tf32, and compiling does not pay for a few passes.
    config = dataclasses.replace(record.config, compile=False, device=device or record.config.device)
    if config.precision == "tf32" and not config.device.startswith("cuda"):
        config = dataclasses.replace(config, precision="fp32")
    problem = Problem(check_place(config))
    RunStore(record.path, config).check_network(problem.model)
    problem.load_weights(state, record.path)
    return problem


def with_weights(records: Iterable[RunRecord]) -> Iterator[RunRecord]:
    """The runs that have their weights; the others are named."""
    for record in records:
        if (record.path / WEIGHTS).exists():
            yield record
        else:
            why = "the run did not finish, or its weights were deleted"
            print(f"skipped: {record.path / WEIGHTS} is not there: {why}", file=sys.stderr)


def _check_own_code(record: RunRecord) -> None:
    """A config.json that was found is data: what it names is run only if the user says so."""
    for name in (record.config.model, record.config.data):
        if ":" in name:
            raise UserError(
                f"{record.path / 'config.json'} names the code {name}: if you know it, add --trust (in Python, "
                "trust=True) to import it"
            )
