"""The examples run as they are printed, without a warning, and show what they say."""

import os
import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_quickstart():
    done = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / "quickstart.py"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    *epochs, _, _, _, _, _, total = done.stdout.splitlines()
    assert [int(line.split()[1].rstrip(":")) for line in epochs] == [5, 10, 15, 20]
    accuracies = [float(re.search(r"test accuracy ([\d.]+) %", line)[1]) for line in epochs]
    assert accuracies[-1] > 90
    share = float(re.fullmatch(r"total +[\d,]+ +4,810 +([\d.]+) %", total)[1])
    assert 25 < share < 95
    assert "parameter" in done.stdout
    assert re.search(r"0.weight +64x64", done.stdout)


def test_every_example_is_run_here():
    assert {p.name for p in EXAMPLES.glob("*.py")} == {"quickstart.py"}
