"""Every example of examples/trainers runs as it is printed, learns, and finds zeros."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples" / "trainers"
NEEDS = {
    "accelerate_digits": "accelerate",
    "huggingface_bert": "transformers",
    "lightning_digits": "lightning",
    "script_loop": "tensorboard",
    "skorch_digits": "skorch",
}


def run(name, *arguments):
    pytest.importorskip(NEEDS[name])
    done = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def number(pattern, text):
    return float(re.search(pattern, text)[1])


def test_lightning():
    output = run("lightning_digits")
    assert number(r"accuracy ([\d.]+) %", output) > 75
    assert number(r"total .* ([\d.]+) %", output) > 1


def test_huggingface():
    output = run("huggingface_bert")
    assert number(r"then ([\d.]+)", output) < 0.3 < number(r"loss ([\d.]+), then", output)
    assert number(r"([\d.]+) % of the weights", output) > 2


def test_accelerate(tmp_path):
    output = run("accelerate_digits", str(tmp_path))
    assert number(r"loss ([\d.]+)", output) < 0.3
    sigma, again = re.search(r"sigma (\S+)\nsigma (\S+) again", output).groups()
    assert sigma == again
    assert number(r"([\d.]+) % of the weights", output) > 2


def test_skorch():
    output = run("skorch_digits")
    assert number(r"accuracy ([\d.]+) %", output) > 90
    assert number(r"([\d.]+) % of the weights", output) > 5


def test_a_script_and_tensorboard(tmp_path):
    output = run("script_loop", str(tmp_path))
    assert number(r"accuracy ([\d.]+) %", output) > 80
    assert number(r"([\d.]+) % of the weights", output) > 10
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path)).Reload()
    assert {"loss", "sigma", "rho", "zeros"} <= set(events.Tags()["scalars"])
    assert events.Scalars("loss")[-1].value < events.Scalars("loss")[0].value


def test_every_example_is_run_here():
    assert {p.stem for p in EXAMPLES.glob("*.py")} == set(NEEDS)
