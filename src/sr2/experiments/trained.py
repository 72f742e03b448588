"""A finished run, taken up again to be used or measured. Nothing here trains."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from .run.config import checked
from .run.problem import Problem
from .run.store import RunStore, read_run, read_weights


def trained(folder: Path | str, device: str | None = None) -> Problem:
    """The network of a finished run with its weights, and the images that it was trained and tested on.

    >>> problem = trained("runs/digits-cnn-sr2-l1-0.001-s0-a5b134183c", device="cpu")  # doctest: +SKIP
    >>> problem.model  # a torch.nn.Module, in evaluation mode                         # doctest: +SKIP
    >>> for x, y in problem.test: ...  # images scaled as it has learnt them           # doctest: +SKIP

    Args:
        folder: of the run.
        device: where to, if not where the run was trained.
    """
    record = read_run(Path(folder))
    weights = read_weights(record.path)
    # A CPU has no tf32, and compiling does not pay for a few passes.
    config = dataclasses.replace(record.config, compile=False, device=device or record.config.device)
    if config.precision == "tf32" and not config.device.startswith("cuda"):
        config = dataclasses.replace(config, precision="fp32")
    problem = Problem(checked(config))
    RunStore(record.path, config).check_network(problem.model)
    problem.load_weights(weights, record.path)
    return problem
