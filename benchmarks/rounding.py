"""What bfloat16 autocast makes of rho, on the network of a run: where `SR2(autocast=…)` has its slack from.

    sr2 train --data digits --model cnn --epochs 60 --runs runs
    python benchmarks/rounding.py runs/digits-cnn-…

Steps s = -g t that promise a given share of f, on the CPU: f(x) - f(x + s) in float32 and under autocast, over
batches of training. A run that is not finished gives its checkpoint.
"""

from __future__ import annotations

import argparse
import math
import statistics
from itertools import islice
from pathlib import Path

import torch

from sr2.experiments.errors import UserError
from sr2.experiments.run.network import Network
from sr2.experiments.run.problem import Problem
from sr2.experiments.run.store import RunStore, read_run, read_weights

SHARES = (1.0, 0.1, 1e-2, 1e-3, 1e-4, 1e-6)
"""Of f, promised."""


def trained(folder: Path) -> Problem:
    """The problem of a run on the CPU, with the weights that it has got to."""
    record = read_run(folder)
    problem = Problem(record.config.having(device="cpu", compile=False, precision="fp32"))
    state = None if record.result else RunStore(folder, record.config).load_checkpoint()
    problem.model.load_state_dict(state["model"] if state else read_weights(folder))
    return problem


def rhos(problem: Problem, batches: int) -> list[list[tuple[float, float]]]:
    """(rho in float32, rho under autocast) of each batch, a list for each of SHARES."""
    model = problem.model.train()
    exact, rounded = (Network(model, "cpu", precision) for precision in ("fp32", "bf16"))
    xs, found = list(model.parameters()), [[] for _ in SHARES]  # type: ignore[var-annotated]
    for x, y in islice(problem.batches.epoch(0), batches):
        gs = list(torch.autograd.grad(exact.loss(x, y)[0], xs))
        gg = math.fsum(float(g.double().square().sum()) for g in gs)
        with torch.no_grad():
            kept = [w.clone() for w in xs]
            before = [float(network.loss(x, y)[0]) for network in (exact, rounded)]
            for share, pairs in zip(SHARES, found, strict=True):
                torch._foreach_add_(xs, gs, alpha=-share * before[0] / gg)
                after = [float(network.loss(x, y)[0]) for network in (exact, rounded)]
                torch._foreach_copy_(xs, kept)
                gains = [(f - f_trial) / (share * before[0]) for f, f_trial in zip(before, after, strict=True)]
                pairs.append((gains[0], gains[1]))
    return found


def main() -> None:
    """Print a line for each length of step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="its folder")
    parser.add_argument("--batches", type=int, default=10)
    args = parser.parse_args()
    try:
        problem = trained(args.run)
    except UserError as error:
        parser.error(str(error))
    eps = torch.finfo(torch.bfloat16).eps
    print("promised, share of f  rho in float32  rho in bf16, first batches  error in bf16: deviation, most, in eps f")
    for share, pairs in zip(SHARES, rhos(problem, args.batches), strict=True):
        error = [share * (coarse - exact) / eps for exact, coarse in pairs]
        first = "  ".join(f"{coarse:8.2f}" for _, coarse in pairs[:3])
        exact = statistics.median(exact for exact, _ in pairs)
        print(f"{share:20g}  {exact:14.2f}  {first}  {statistics.pstdev(error):8.3f}  {max(map(abs, error)):8.3f}")


if __name__ == "__main__":
    main()
