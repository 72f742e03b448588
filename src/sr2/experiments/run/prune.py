"""The pruning sweep: set |w| <= 10^-k to zero for k = 1..8, without retraining, and look at the score."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console

from ...zeros import prune_
from ..listing import headed_table
from ..names import Which
from .evaluate import evaluate, has_statistics, percent_zero, recalibrate_
from .problem import Problem
from .store import AVERAGE, RunRecord, RunStore, read_run, weights_file
from .trained import trained, with_weights

LEVELS = range(1, 9)


def sweep(problem: Problem) -> dict[str, Any]:
    """Score and sparsity at every threshold, with batch-norm's statistics as they are and estimated anew.

    The network has its own weights again afterwards.
    """
    kept = {name: tensor.clone() for name, tensor in problem.model.state_dict().items()}
    score, rows = problem.task.score.name, []
    try:
        unpruned = {score: evaluate(problem)[1], "sparsity_pct": percent_zero(problem.model)}
        for k in LEVELS:
            problem.model.load_state_dict(kept)
            pruned = prune_(problem.model, 10.0**-k)
            plain = evaluate(problem)[1]
            again = evaluate(problem)[1] if recalibrate_(problem) else plain
            rows.append(
                {
                    "alpha": 10.0**-k,
                    "k": k,
                    "sparsity_pct": 100 * pruned.fraction,
                    score: plain,
                    f"{score}_recalibrated": again,
                }
            )
    finally:
        problem.model.load_state_dict(kept)
    return {"rows": rows, "unpruned": unpruned}


def _pruned(folder: Path, problem: Problem, weights: Which | None) -> dict[str, Any]:
    """The sweep of a finished run, written to its `prune.json`; the stored weights are only read."""
    result = sweep(problem)
    if weights_file(folder, weights).name == AVERAGE:
        result["weights"] = "average"
    RunStore(folder, read_run(folder).config).write_prune(result)
    return result


def prune_runs(
    records: Iterable[RunRecord], device: str | None = None, *, trust: bool = False, weights: Which | None = None
) -> int:
    """Prune the runs that have their weights, and print their sweeps; the exit code of `sr2 prune`."""
    console, done = Console(), 0
    for record in with_weights(records):
        with console.status(f"pruning {record.path}"):
            problem = trained(record.path, device, trust=trust, weights=weights)
            sweep = _pruned(record.path, problem, weights)
        score = record.score
        which = ", average of the iterates" if "weights" in sweep else ""
        title = f"{record.config.label} ({record.path.name}){which}"
        names = {score.name: score.heading}
        names |= {f"{score.name}_recalibrated": "batch-norm anew"} if has_statistics(problem.model) else {}
        table = headed_table(title, "|w| <=", "zeros %", *names.values())
        plain, digits = sweep["unpruned"], score.digits
        table.add_row("as trained", f"{plain['sparsity_pct']:.2f}", f"{plain[score.name]:.{digits}f}")
        for row in reversed(sweep["rows"]):
            scores = (f"{row[name]:.{digits}f}" for name in names)
            table.add_row(f"1e-{row['k']}", f"{row['sparsity_pct']:.2f}", *scores)
        console.print(table)
        done += 1
    if not done:
        print("error: there is nothing to prune: no run that was named has its weights", file=sys.stderr)
    return 0 if done else 2
