"""The examples run as they are printed, without a warning, and show what they say."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(name, *arguments):
    done = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / name, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done


def test_quickstart():
    done = run("quickstart.py")
    *epochs, _, _, _, _, _, total = done.stdout.splitlines()
    assert [int(line.split()[1].rstrip(":")) for line in epochs] == [5, 10, 15, 20]
    accuracies = [float(re.search(r"test accuracy ([\d.]+) %", line)[1]) for line in epochs]
    assert accuracies[-1] > 90
    share = float(re.fullmatch(r"total +[\d,]+ +4,810 +([\d.]+) %", total)[1])
    assert 25 < share < 95
    assert "parameter" in done.stdout
    assert re.search(r"0.weight +64x64", done.stdout)


def test_sparsify():
    """The front of a short run: the zeros that were asked for, a score near the dense one's, and smaller files."""
    head, *rows, last = run("sparsify.py", "--steps", "50").stdout.splitlines()
    assert head.split() == ["accuracy", "%", "zeros", "%", "bytes", "shrunk:", "parameters", "bytes"]
    front = {
        name.strip(): [float(n) for n in numbers.replace(",", "").split()]
        for name, numbers in (re.fullmatch(r"(.*?) +((?:[\d.,]+ +){4}[\d.,]+)", row).groups() for row in rows)
    }
    assert list(front) == [
        "dense",
        "2:4",
        "10 % of the weights",
        "3 % of the weights",
        "50 % of the channels",
        "25 % of the channels",
    ]
    score, zeros, file, parameters, small = zip(*front.values(), strict=True)
    assert score[0] > 90
    assert min(score[1:3]) > score[0] - 5
    assert score[4] > score[0] - 10
    assert zeros[0] == 0
    assert zeros[1] == pytest.approx(49.2, abs=0.1)  # of all parameters; the first layer has blocks of one
    assert [100 - z for z in zeros[2:4]] == pytest.approx([10.9, 3.9], abs=0.2)
    assert file[3] < file[2] < file[1] < file[0]
    assert parameters[5] < parameters[4] < parameters[0] / 3
    assert small[4] < file[4]
    assert last == f"the last one, shrunk, saved and loaded: {score[5]:.2f} %"


def test_every_example_is_run_here():
    assert {p.name for p in EXAMPLES.glob("*.py")} == {"quickstart.py", "sparsify.py"}
