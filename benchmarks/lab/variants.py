"""The rules that were tried, by name; `python -m benchmarks.lab.variants --help`."""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from sr2.experiments.panel import methods, runner, tasks
from sr2.experiments.panel.methods import Method, Trained
from sr2.experiments.panel.tasks import Problem

from .search import SR2, Rule, Setting

QUICK = [name for name in tasks.TASKS if name not in ("characters", "cifar_small")]


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
    base = Setting(windows=(4, 8, 16), first="search")
    ratio = {f"ratio_{e}": Rule(eta2=e) for e in (0.5, 0.7, 0.8, 0.9)}
    zones = {f"zones_{m}": Rule("zones", eta2=0.8, mid=m, soft=0.005) for m in (0.3, 0.5)}
    median = {f"median_{a}": Rule("quantile", aim=a, rate=0.04) for a in (0.6, 0.7)}
    mean = {f"mean_{a}": Rule("mean", aim=a, rate=0.05) for a in (0.6, 0.7)}
    follow = {f"follow_{a}": Rule("follow", aim=a, rate=0.05) for a in (0.5, 0.6, 0.7)}
    slow = {f"follow_{a}_slow": Rule("follow", aim=a, rate=0.05, decay=0.99) for a in (0.6, 0.7)}
    found = {name: replace(base, rule=rule) for name, rule in (ratio | zones | median | mean | follow | slow).items()}
    for cool in (0.25, 0.5):
        for aim in (0.5, 0.6, 0.7):
            found[f"follow_{aim}_cool{cool}"] = replace(base, rule=Rule("follow", aim=aim, rate=0.05, cool=cool))
    found["follow_0.7_rate0.02"] = replace(base, rule=Rule("follow", aim=0.7, rate=0.02))
    found["follow_0.7_rate0.2"] = replace(base, rule=Rule("follow", aim=0.7, rate=0.2))
    found["follow_0.75"] = replace(base, rule=Rule("follow", aim=0.75, rate=0.05))
    found["follow_0.8"] = replace(base, rule=Rule("follow", aim=0.8, rate=0.05))
    for share, aim in ((0.1, 0.0), (0.1, 0.3), (0.25, 0.3), (0.05, 0.0)):
        rule = Rule("quantile", aim=aim, share=share, rate=0.02 / share)
        found[f"quantile_{share}_{aim}"] = replace(base, rule=rule)
    for aim in (0.2, 0.3, 0.4, 0.5):
        found[f"mean_{aim}"] = replace(base, rule=Rule("mean", aim=aim, rate=0.05))
    found["median_0.5"] = replace(base, rule=Rule("quantile", aim=0.5, rate=0.04))
    for eta1 in (-0.5, -1.0, -3.0):
        for eta2 in (0.7, 0.8, 0.9):
            found[f"wide_{eta2}_{eta1}"] = replace(base, rule=Rule(eta1=eta1, eta2=eta2))
    for sigma0 in (0.1, 1e5):
        found[f"wide_0.9_-1.0_from{sigma0:g}"] = replace(found["wide_0.9_-1.0"], sigma0=sigma0)
    found["wide_0.9_-1.0_rise10"] = replace(found["wide_0.9_-1.0"], rise=10.0, outlier=10.0)
    found["wide_0.9_-1.0_identity"] = replace(found["wide_0.9_-1.0"], metric="identity", sigma0=10.0)
    found["ratio_0.8_nosearch"] = replace(base, first="none")
    for name in ("ratio_0.8", "follow_0.7"):
        for sigma0 in (0.1, 1e5):
            found[f"{name}_from{sigma0:g}"] = replace(found[name], sigma0=sigma0)
        for early in (3.0, 9.0):
            found[f"{name}_early{early:g}"] = replace(found[name], rule=replace(found[name].rule, early=early))
        found[f"{name}_beta2_0.99"] = replace(found[name], beta2=0.99)
        found[f"{name}_beta1_0"] = replace(found[name], beta1=0.0)
        found[f"{name}_beta1_0.95"] = replace(found[name], beta1=0.95)
    return found


def _images() -> dict[str, Setting]:
    """With batch norm and weight decay: cifar_small."""
    adam = Setting(windows=(4, 8, 16, 32), first="search")
    found = {}
    for aim in (0.5, 0.7, 0.8, 0.9):
        rule = Rule("follow", aim=aim, rate=0.05)
        for decay in (0.0, 0.1, 0.5):
            found[f"im_adam_follow_{aim}_m{decay:g}"] = replace(adam, rule=rule, decay=decay, decay_kind="metric")
    for eta1, eta2 in ((-1.0, 0.8), (-1.0, 0.9), (-0.5, 0.8)):
        found[f"im_adam_wide_{eta2}_{eta1}"] = replace(adam, rule=Rule(eta1=eta1, eta2=eta2))
    found["im_adam_follow_0.7_l2"] = replace(found["im_adam_follow_0.7_m0"], decay=5e-4)
    found["im_adam_ratio_0.8_m0.1"] = replace(adam, decay=0.1, decay_kind="metric")
    for beta1 in (0.0, 0.9):
        identity = replace(adam, metric="identity", beta1=beta1, decay=5e-4, sigma0=10.0)
        found[f"im_id{beta1:g}_ratio_0.5"] = replace(identity, rule=Rule(eta2=0.5))
        for aim in (0.3, 0.5, 0.7):
            found[f"im_id{beta1:g}_follow_{aim}"] = replace(identity, rule=Rule("follow", aim=aim, rate=0.05))
    return found


VARIANTS = _variants() | _images()


def recipe(rate: float) -> Method:
    """SGD as for ResNets: Nesterov 0.9, decay 5e-4, cosine."""

    def run(problem: Problem) -> Trained:
        parameters = problem.model.parameters()
        optimizer = torch.optim.SGD(parameters, lr=rate, momentum=0.9, nesterov=True, weight_decay=5e-4)
        methods._descend(problem, optimizer, cosine=True)
        return Trained()

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=["[!i]*"], help="patterns of variants")
    parser.add_argument("--tasks", nargs="*", default=QUICK)
    parser.add_argument("--seeds", nargs="*", type=int, default=[0])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--baselines", nargs="*", default=[], help="patterns of baselines")
    args = parser.parse_args()
    torch.set_num_threads(1)
    chosen = {n: lab(s) for n, s in VARIANTS.items() if any(fnmatch.fnmatch(n, p) for p in args.only)}
    chosen |= {n: recipe(r) for r in (0.03, 0.1, 0.3) if any(fnmatch.fnmatch(n := f"recipe_{r}", p) for p in args.only)}
    known = methods.baselines().items()
    chosen |= {n: m for n, m in known if any(fnmatch.fnmatch(n, p) for p in args.baselines)}
    runner.run_all(args.folder, args.tasks, chosen, args.seeds)


if __name__ == "__main__":
    main()
