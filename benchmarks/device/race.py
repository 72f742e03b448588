"""Settings race on held-out images, and only the best of them is then run on test images.

    python -m benchmarks.device.race benchmarks/device/race.toml --jobs 5 --minutes 18
    python -m benchmarks.device.race benchmarks/device/race.toml --show      # the means so far, and what is left

Each race has entrants. All run with the first seeds; the best few, by the mean accuracy of the average on held-out
images, with the other seeds too; the best of those (or more, `tested`), by the mean over all seeds, on test images. So
no choice sees a test image. What is finished, here or in results/, is not run again, and what is wanted follows from
that alone: a race that was cut off goes on where it was.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sr2.experiments.run.build import checked
from sr2.experiments.run.config import RunConfig
from sr2.experiments.run.store import find_runs

TREE = Path(__file__).resolve().parents[2]
Scores = Mapping[str, float]
"""Of every finished run by its key: the accuracy of the average, in %."""


@dataclass(frozen=True)
class Race:
    """Entrants by name, each the settings that make it; `shared` is what all runs of all races have."""

    name: str
    entrants: dict[str, dict[str, Any]]
    shared: dict[str, Any]
    hold_out: int
    first: list[int]
    then: list[int]
    best: int
    tested: int = 1

    def run(self, entrant: str, seed: int, hold_out: int) -> RunConfig:
        given = {**self.shared, **self.entrants[entrant]}
        return checked(RunConfig.of(**given, seed=seed, hold_out=hold_out), here=False)

    def held_out(self, entrant: str, seeds: list[int], scores: Scores) -> list[float]:
        runs = (self.run(entrant, seed, self.hold_out).key for seed in seeds)
        return [scores[key] for key in runs if key in scores]

    def wanted(self, scores: Scores) -> Iterator[RunConfig]:
        """What is known to be needed by now, in order; a later stage only after all of the earlier one is finished."""
        field = list(self.entrants)
        for seeds, places in ((self.first, self.best), (self.first + self.then, self.tested)):
            runs = [self.run(entrant, seed, self.hold_out) for seed in seeds for entrant in field]
            yield from runs
            if any(run.key not in scores for run in runs):
                return
            field = sorted(field, key=lambda e: -statistics.mean(self.held_out(e, seeds, scores)))[:places]
        for entrant in field:
            yield from (self.run(entrant, seed, 0) for seed in self.first + self.then)

    def table(self, scores: Scores) -> str:
        lines = [f"{self.name}: held out by seed, mean; test by seed, mean"]
        seeds = self.first + self.then
        for entrant in self.entrants:
            tested = [scores[key] for seed in seeds if (key := self.run(entrant, seed, 0).key) in scores]
            lines.append(f"  {entrant:28} {_row(self.held_out(entrant, seeds, scores))}   test {_row(tested)}")
        return "\n".join(lines)


def _row(numbers: list[float]) -> str:
    return " ".join(f"{n:.2f}" for n in numbers) + (f" mean {statistics.mean(numbers):.2f}" if numbers else "-")


def read(path: Path) -> list[Race]:
    """The races of a file."""
    plan = tomllib.loads(path.read_text())
    return [Race(name, shared=plan["shared"], **race) for name, race in plan["races"].items()]


def finished(folders: list[Path]) -> Scores:
    records = find_runs([folder for folder in folders if folder.exists()], missing_ok=True, damaged=[])
    name = "average_test_accuracy"
    return {r.config.key: r.metrics[-1][name] for r in records if r.result is not None and name in r.metrics[-1]}


def train(settings: str, runs: Path) -> None:
    """One run, in a process of its own."""
    from sr2.experiments.run.one import train as train_one
    from sr2.experiments.run.progress import Watch
    from sr2.experiments.run.stop import StopSignals

    with StopSignals() as stop:
        train_one(checked(RunConfig.from_dict(json.loads(settings))), runs, Watch(1), stop)


def work(races: list[Race], runs: Path, jobs: int, minutes: float, need: float) -> None:
    """Run what is wanted, so many at a time, in turn of the races; begin nothing that `need` minutes do not hold."""
    end = time.time() + 60 * minutes
    running: dict[str, subprocess.Popen[bytes]] = {}
    tried: set[str] = set()
    (runs.parent / "logs").mkdir(parents=True, exist_ok=True)
    while True:
        for key in [key for key, process in running.items() if process.poll() is not None]:
            print(time.strftime("%T"), "ends", key, running.pop(key).returncode, flush=True)
        scores = finished([runs, TREE / "results"])
        left = [[r for r in race.wanted(scores) if r.key not in scores and r.key not in tried] for race in races]
        todo = [run for turn in itertools.zip_longest(*left) for run in turn if run is not None]
        if not todo and not running:
            break
        if time.time() + 60 * need < end:
            for run in todo[: jobs - len(running)]:
                tried.add(run.key)
                print(time.strftime("%T"), "begins", run.key, run.options, run.seed, run.hold_out, flush=True)
                command = [sys.executable, "-m", "benchmarks.device.race", "-", "--runs", str(runs)]
                with open(runs.parent / "logs" / f"{run.key}.txt", "wb") as log:
                    made = subprocess.Popen(
                        [*command, "--train", json.dumps(run.to_dict())], stdout=log, stderr=subprocess.STDOUT
                    )
                running[run.key] = made
        elif not running or time.time() > end:
            break
        time.sleep(1)
    for process in running.values():
        process.terminate()
    print("\n".join(race.table(finished([runs, TREE / "results"])) for race in races), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", type=Path)
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--jobs", type=int, default=4, help="runs at a time")
    parser.add_argument("--minutes", type=float, default=20, help="after which nothing runs any more")
    parser.add_argument("--need", type=float, default=2, help="minutes that must be left for a run to begin")
    parser.add_argument("--show", action="store_true", help="train nothing")
    parser.add_argument("--train", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        train(options.train, options.runs)
        return
    races = read(options.plan)
    if options.show:
        scores = finished([options.runs, TREE / "results"])
        print("\n".join(race.table(scores) for race in races))
        left = [run for race in races for run in race.wanted(scores) if run.key not in scores]
        print("\n".join(f"{run.key}  {dict(run.options)}  hold_out {run.hold_out}" for run in left))
    else:
        work(races, options.runs, options.jobs, options.minutes, options.need)


if __name__ == "__main__":
    main()
