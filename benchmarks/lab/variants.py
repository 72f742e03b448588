"""The rules that were tried, by name; `python -m benchmarks.lab.variants --help`."""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from ..panel import methods, runner, tasks
from ..panel.methods import Method, Trained
from ..panel.tasks import Problem
from .search import SR2, Rule, Setting

QUICK = [name for name in tasks.TASKS if name != "characters"]


def lab(setting: Setting) -> Method:
    """A method of the panel that trains with the lab's SR2."""

    def run(problem: Problem) -> Trained:
        setting_ = replace(setting, l1=problem.l1) if problem.l1 else setting
        optimizer = SR2(problem.model, setting_)
        problem.model.train()
        path = []
        for k, (x, y) in enumerate(problem.batches()):
            optimizer.step(lambda x=x, y=y: problem.loss(problem.model(x), y))  # type: ignore[misc]
            if k in (10, 50, 100, 200) or k == problem.steps - 1:
                path.append([k, float(f"{float(optimizer.sigma):.4g}"), round(float(optimizer.rho_mean), 3)])
        numbers = {
            "sigma": float(optimizer.sigma),
            "rejected": float(optimizer.rejected),
            "evaluations": float(optimizer.evaluations),
            "rho_mean": float(optimizer.rho_mean),
            "path": path,
        }

        @contextlib.contextmanager
        def at(vector: torch.Tensor) -> Iterator[None]:
            state = {name: value.clone() for name, value in problem.model.state_dict().items()}
            with torch.no_grad():
                optimizer.use(vector)
            methods.recalibrate(problem)
            try:
                yield
            finally:
                problem.model.load_state_dict(state)

        averages = zip(optimizer.averages, setting.windows, strict=True)
        points = {f"average{k}": (lambda v=v: at(v)) for v, k in averages}  # type: ignore[misc]
        return Trained(points, numbers)  # type: ignore[arg-type]

    return run


def _variants() -> dict[str, Setting]:
    base = Setting(windows=(4, 8, 16))
    found = {}
    for eta2 in (0.5, 0.7, 0.8, 0.9):
        found[f"ratio_{eta2}"] = replace(base, rule=Rule(eta2=eta2))
    for sigma0 in (1.0, 1e4):
        found[f"ratio_0.8_from{sigma0:g}"] = replace(base, sigma0=sigma0)
    for aim in (0.5, 0.7, 0.8):
        found[f"mean_{aim}"] = replace(base, rule=Rule("mean", aim=aim, rate=0.05))
        found[f"median_{aim}"] = replace(base, rule=Rule("quantile", aim=aim, share=0.5, rate=0.04))
        found[f"follow_{aim}"] = replace(base, rule=Rule("follow", aim=aim, rate=0.05))
    for mid, soft in ((0.3, 0.02), (0.5, 0.02), (0.5, 0.005)):
        found[f"zones_0.8_{mid}_{soft}"] = replace(base, rule=Rule("zones", eta2=0.8, mid=mid, soft=soft))
    identity = replace(base, metric="identity", sigma0=10.0)
    for eta2 in (0.5, 0.8):
        found[f"identity_ratio_{eta2}"] = replace(identity, rule=Rule(eta2=eta2))
        found[f"identity_median_{eta2}"] = replace(identity, rule=Rule("quantile", aim=eta2, rate=0.04))
    return found


VARIANTS = _variants()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=["*"], help="patterns of variants")
    parser.add_argument("--tasks", nargs="*", default=QUICK)
    parser.add_argument("--seeds", nargs="*", type=int, default=[0])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--baselines", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    chosen = {n: lab(s) for n, s in VARIANTS.items() if any(fnmatch.fnmatch(n, p) for p in args.only)}
    if args.baselines:
        chosen |= methods.baselines()
    runner.run_all(args.folder, args.tasks, chosen, args.seeds)


if __name__ == "__main__":
    main()
