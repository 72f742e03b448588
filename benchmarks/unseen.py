"""`python -m benchmarks.unseen --records FILE`: the defaults on tasks that nobody used to choose them.

The tasks are those of `benchmarks/unseen_tasks.py`, the methods and the number of gradients those of the panel. One
line of JSON per finished run is added to FILE; what is there already is not run again. Then the table is printed.
`--trace TASK` shows what SR2 does there instead. Without `--records` the table is that of the committed records.
"""

from __future__ import annotations

import argparse
import fnmatch
import itertools
import json
import math
import os
import statistics
import time
import warnings
from pathlib import Path
from typing import Any

import torch

from benchmarks.unseen_tasks import TASKS, make
from sr2 import SR2
from sr2.experiments.panel import methods, runner
from sr2.experiments.panel.summary import Panel

RATES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
COMMITTED = Path(__file__).parent / "figures" / "unseen.jsonl"
BEFORE = ("sr2_before", "sr2_steps_before")
"""In the committed records: the defaults before sigma_0 had a least value and a decay's share a largest one."""
ADAMW = [f"adamw_{rate:g}_{schedule}" for schedule in ("constant", "cosine") for rate in RATES]


def all_methods() -> dict[str, methods.Method]:
    named = {"sr2": methods.sr2(), "sr2_steps": methods.sr2(planned=True)}
    for name in ADAMW:
        _, rate, schedule = name.split("_")
        named[name] = methods.adamw(float(rate), schedule == "cosine")
    return named | {"schedulefree": methods.schedulefree, "prodigy": methods.prodigy, "dog": methods.dog}


def run(task: str, name: str, seed: int) -> runner.Record:
    """One run from its seed: training loss, validation and test error of the last iterate, and of the average."""
    problem = make(task, seed)
    torch.manual_seed(seed)
    started = time.process_time()
    trained = all_methods()[name](problem)
    spent = round(time.process_time() - started, 2)
    found = runner.measure(problem, trained)
    points = {point: {k: short(v[k]) for k in ("train", "validation", "test")} for point, v in found.items()}
    return {"task": task, "method": name, "seed": seed, "steps": problem.steps, "cpu_seconds": spent, **points}


def short(value: float) -> float:
    return float(f"{value:.5g}") if math.isfinite(value) else 1e9


def read(path: Path) -> list[runner.Record]:
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) | {"optimum": math.nan} for line in lines]


def run_missing(path: Path, tasks: list[str], names: list[str], seeds: list[int]) -> None:
    done = {(r["task"], r["method"], r["seed"]) for r in read(path)}
    for seed, task, name in itertools.product(seeds, tasks, names):
        if (task, name, seed) in done:
            continue
        if command := methods.missing(name):
            print(f"{name} is left out: {command}", flush=True)
            continue
        record = run(task, name, seed)
        with path.open("a") as file:
            file.write(json.dumps(record) + "\n")
            file.flush()
            os.fsync(file.fileno())
        error = record.get("average", record["last"])["validation"]
        print(f"{task:14} {name:22} s{seed} {record['cpu_seconds']:6.1f} s  {error:.4f}", flush=True)


def neighbour(panel: Panel, task: str, best: str) -> str:
    """The better one, by validation error, of the two rates beside AdamW's best, under the same schedule."""
    _, rate, schedule = best.split("_")
    i = [f"{r:g}" for r in RATES].index(rate)
    beside = [r for k, r in enumerate(RATES) if abs(k - i) == 1]
    return panel.best(task, [f"adamw_{r:g}_{schedule}" for r in beside])


def columns(panel: Panel, task: str) -> dict[str, str]:
    best = panel.best(task, ADAMW)
    found = {name: name for name in ("sr2", "sr2_steps", *BEFORE) if (task, name) in panel.cells}
    found |= {"AdamW 1e-3": "adamw_0.001_constant", "AdamW best of 12": best}
    found["AdamW one step away"] = neighbour(panel, task, best) if best else ""
    return found | {"Schedule-Free": "schedulefree", "Prodigy": "prodigy", "DoG": "dog"}


def table(panel: Panel, key: str = "test") -> str:
    """Markdown: mean error ± deviation per task, and its geometric mean; rates are chosen by validation error."""
    logs: dict[str, list[float]] = {}
    lines: list[list[str]] = []
    for task in panel.tasks:
        cells = [task]
        for title, method in columns(panel, task).items():
            numbers = panel.numbers(task, method, key)
            if not numbers:
                cells.append("not run")
                continue
            logs.setdefault(title, []).append(math.log(statistics.mean(numbers)))
            spread = f" ± {statistics.stdev(numbers):.2g}" if len(numbers) > 1 else ""
            chosen = f" ({method.split('_', 1)[1].replace('_', ', ')})" if "best" in title or "away" in title else ""
            cells.append(f"{statistics.mean(numbers):.4g}{spread}{chosen}")
        lines.append(cells)
    titles = list(columns(panel, panel.tasks[0]))
    whole = [logs.get(title, []) for title in titles]
    means = [f"**{math.exp(statistics.mean(x)):.4g}**" if len(x) == len(panel.tasks) else "-" for x in whole]
    lines = [["task", *titles], ["---"] * (len(titles) + 1), *lines, ["geometric mean", *means]]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def trace(task: str, seed: int, planned: bool, options: dict[str, Any]) -> None:
    """sigma_0 and where the warm-up ends; then, of every tenth of the steps, sigma, rho, rejections and the loss."""
    problem = make(task, seed)
    torch.manual_seed(seed)
    given = {"steps": problem.steps, "steps_per_epoch": problem.steps_per_epoch} if planned else {}
    optimizer = SR2(problem.model, **given, **options)
    problem.model.train()
    seen: list[tuple[float, float, float]] = []
    for t, (x, y) in enumerate(problem.batches()):
        if t == 0:
            optimizer.estimate_sigma(lambda x=x, y=y: problem.loss(problem.model(x), y))
            print(f"sigma_0 {optimizer.sigma:.4g}")
        optimizer.step(lambda x=x, y=y: problem.loss(problem.model(x), y))
        last = optimizer.last_step
        seen.append((last.loss, last.rho, float(not last.accepted)))
        if t == 0:
            decay = [group["weight_decay"] for group in optimizer.param_groups]
            print(f"{optimizer.rule!r}, weight decay {decay}")
        if (t + 1) % (problem.steps // 10) == 0:
            loss, rho, rejected = zip(*seen, strict=True)
            middle = statistics.median(r for r in rho if not math.isnan(r))
            print(
                f"step {t + 1:5}: sigma {optimizer.sigma:9.4g}, loss {statistics.mean(loss):9.4g}, median rho "
                f"{middle:6.2f}, rejected {sum(rejected):3.0f} of {len(seen)}"
            )
            seen.clear()
    with optimizer.averaged():
        methods.recalibrate(problem)
        problem.model.eval()
        print(f"average: validation {problem.error(problem.validation):.4g}, test {problem.error(problem.test):.4g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=Path, help="one JSON line per run; what is missing in it is run")
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--methods", nargs="+", default=["*"], help="shell patterns of the panel's names")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--key", choices=["test", "validation", "train"], default="test", help="what the table has")
    parser.add_argument("--trace", choices=list(TASKS), help="show a run of SR2 instead")
    parser.add_argument("--steps", action="store_true", help="the traced run knows its steps and epochs")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if args.trace:
        trace(args.trace, args.seeds[0], args.steps, {})
        return
    if args.records:
        chosen = [name for name in all_methods() if any(fnmatch.fnmatch(name, p) for p in args.methods)]
        run_missing(args.records, args.tasks, chosen, args.seeds)
    records = [r for r in read(args.records or COMMITTED) if r["task"] in args.tasks and r["seed"] in args.seeds]
    print(table(Panel(records), args.key))


if __name__ == "__main__":
    main()
