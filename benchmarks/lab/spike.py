"""One bad batch: inputs times 1e5, NaN or Inf at one step; training accuracy afterwards against the run without it."""

from __future__ import annotations

from dataclasses import replace

import torch

from sr2.experiments.panel import tasks

from .search import SR2, Rule, Setting


def run(setting: Setting, task: str, factor: float, when: int, seed: int) -> tuple[float, float, float, float]:
    problem = tasks.make(task, seed)
    optimizer = SR2(problem.model, setting)
    problem.model.train()
    for k, (x, y) in enumerate(problem.batches()):
        batch = x * factor if k == when else x
        before = float(optimizer.rejected)
        optimizer.step(lambda x=batch, y=y: problem.loss(problem.model(x), y))  # type: ignore[misc]
        if k == when:
            rejected = float(optimizer.rejected) - before
    problem.model.eval()
    return problem.error(problem.train), problem.objective(problem.train), float(optimizer.sigma), rejected


def main() -> None:
    torch.set_num_threads(1)
    wide = Setting(first="search", rule=Rule(eta1=-1.0))
    found = {"wide": wide, "identity": replace(wide, metric="identity", sigma0=10.0)}
    for name in tuple(found):
        found[f"{name}_outlier10"] = replace(found[name], outlier=10.0)
        found[f"{name}_rise10"] = replace(found[name], rise=10.0)
        found[f"{name}_both"] = replace(found[name], outlier=10.0, rise=10.0)
    for name, setting in found.items():
        for factor in (1.0, 1e5, 1e2, float("nan"), float("inf")):
            rows = [run(setting, "digits_mlp", factor, 40, seed) for seed in (0, 1)]
            print(
                f"{name:24} x{factor:<8g}",
                *(f"error {e:.3f} F {f:8.4g} sigma {s:8.3g} rejected {r:.0f} |" for e, f, s, r in rows),
            )


if __name__ == "__main__":
    main()
