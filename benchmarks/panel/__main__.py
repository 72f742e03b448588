"""`python -m benchmarks.panel --folder RUNS`: run what is missing, then print the table and draw the figure."""

from __future__ import annotations

import argparse
import fnmatch
from pathlib import Path

import torch

from . import methods, runner, tasks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--tasks", nargs="*", default=[name for name in tasks.TASKS if name != "characters_mini"])
    parser.add_argument("--methods", nargs="*", default=["*"], help="patterns")
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    args = parser.parse_args()
    torch.set_num_threads(1)
    chosen = {n: m for n, m in methods.baselines().items() if any(fnmatch.fnmatch(n, p) for p in args.methods)}
    runner.run_all(args.folder, args.tasks, chosen, args.seeds)


if __name__ == "__main__":
    main()
