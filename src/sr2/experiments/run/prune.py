"""The pruning sweep: set |w| <= 10^-k to zero for k = 1..8, without retraining, and look at the accuracy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...zeros import prune_
from .evaluate import accuracy, percent_zero, recalibrate_
from .problem import Problem
from .store import RunStore, read_run
from ..trained import trained

LEVELS = range(1, 9)


def sweep(problem: Problem) -> dict[str, Any]:
    """Accuracy and sparsity at every threshold, with batch-norm's statistics as they are and estimated anew.

    The network has its own weights again afterwards.
    """
    kept = {name: tensor.clone() for name, tensor in problem.model.state_dict().items()}
    rows = []
    try:
        unpruned = {"accuracy": accuracy(problem)[1], "sparsity_pct": percent_zero(problem.model)}
        for k in LEVELS:
            problem.model.load_state_dict(kept)
            pruned = prune_(problem.model, 10.0**-k)
            plain = accuracy(problem)[1]
            again = accuracy(problem)[1] if recalibrate_(problem) else plain
            rows.append(
                {
                    "alpha": 10.0**-k,
                    "k": k,
                    "sparsity_pct": 100 * pruned.fraction,
                    "accuracy": plain,
                    "accuracy_recalibrated": again,
                }
            )
    finally:
        problem.model.load_state_dict(kept)
    return {"rows": rows, "unpruned": unpruned}


def prune_run(folder: Path, device: str | None = None) -> dict[str, Any]:
    """The sweep of a finished run, written to its `prune.json`; the stored weights are only read.

    Args:
        folder: of the run.
        device: where to evaluate, if not where the run was trained.
    """
    result = sweep(trained(folder, device))
    RunStore(folder, read_run(folder).config).write_prune(result)
    return result
