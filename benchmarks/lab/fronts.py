"""Score against zeros under l1: the lab's SR2 and ProxGEN (Adam's metric, a grid of rates), three lambdas each.

`python -m benchmarks.lab.fronts --folder RUNS`
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import torch

from sr2.experiments.panel import runner

from .search import Rule, Setting
from .variants import lab

LAMBDAS = (1e-4, 1e-3, 5e-3)
RATES = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--tasks", nargs="*", default=["digits_mlp", "friedman1", "classes4"])
    parser.add_argument("--seeds", nargs="*", type=int, default=[0])
    parser.add_argument("--lambdas", nargs="*", type=float, default=LAMBDAS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    base = Setting(first="search")
    rules = {"wide_0.9": Rule(eta1=-1.0, eta2=0.9)}
    methods = {}
    for lam in args.lambdas:
        for name, rule in rules.items():
            methods[f"{name}_l1_{lam:g}"] = lab(replace(base, rule=rule, l1=lam))
        for rate in RATES:
            fixed = replace(base, rule=Rule("fixed"), first="none", sigma0=1 / rate, l1=lam)
            methods[f"proxgen_{rate:g}_l1_{lam:g}"] = lab(fixed)
    runner.run_all(args.folder, args.tasks, methods, args.seeds)


if __name__ == "__main__":
    main()
