"""`python -m benchmarks.panel --folder RUNS`: run what is missing, then print the table and draw the figure."""

from __future__ import annotations

import argparse
import fnmatch
from pathlib import Path

import torch

from . import methods, runner, summary, tasks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--tasks", nargs="*", default=tasks.PANEL)
    parser.add_argument("--methods", nargs="*", default=["*"], help="patterns")
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument(
        "--own", nargs="*", default=["sr2", "sr2_steps", "sr2_paper"], help="methods that the table begins with"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    known = methods.own() | methods.baselines()
    chosen = {n: m for n, m in known.items() if any(fnmatch.fnmatch(n, p) for p in args.methods)}
    runner.run_all(args.folder, args.tasks, chosen, args.seeds)
    panel = summary.Panel(runner.read(args.folder))
    print(summary.table(panel, args.own))
    summary.figure(panel, args.own, args.folder / "panel.png")


if __name__ == "__main__":
    main()
