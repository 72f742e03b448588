"""Every example of examples/trainers runs as it is printed, learns, and finds zeros."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples" / "trainers"
NEEDS = {
    "accelerate_digits": "accelerate",
    "fsdp": "sklearn",
    "huggingface_bert": "transformers",
    "lightning_digits": "lightning",
    "script_loop": "tensorboard",
    "skorch_digits": "skorch",
}


@pytest.fixture
def run(capsys, monkeypatch):
    def output_of(name, *arguments):
        pytest.importorskip(NEEDS[name])
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
        return capsys.readouterr().out

    yield output_of
    state = sys.modules.get("accelerate.state")  # which keeps its settings in classes
    if state is not None:
        state.AcceleratorState._reset_state(reset_partial_state=True)
        state.GradientState._reset_state()


def number(pattern, text):
    return float(re.search(pattern, text)[1])


def test_lightning(run):
    output = run("lightning_digits")
    assert number(r"accuracy ([\d.]+) %", output) > 75
    assert number(r"total .* ([\d.]+) %", output) > 1


def test_huggingface(run):
    output = run("huggingface_bert")
    assert number(r"then ([\d.]+)", output) < 0.3 < number(r"loss ([\d.]+), then", output)
    assert number(r"([\d.]+) % of the weights", output) > 2


def test_accelerate(run, tmp_path):
    output = run("accelerate_digits", str(tmp_path))
    assert number(r"loss ([\d.]+)", output) < 0.3
    sigma, again = re.search(r"sigma (\S+)\nsigma (\S+) again", output).groups()
    assert sigma == again
    assert number(r"([\d.]+) % of the weights", output) > 2


def test_skorch(run):
    output = run("skorch_digits")
    assert number(r"accuracy ([\d.]+) %", output) > 90
    assert number(r"([\d.]+) % of the weights", output) > 5


def test_a_script_and_tensorboard(run, tmp_path):
    output = run("script_loop", str(tmp_path))
    assert number(r"accuracy ([\d.]+) %", output) > 80
    assert number(r"([\d.]+) % of the weights", output) > 10
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path)).Reload()
    assert {"loss", "sigma", "rho", "zeros"} <= set(events.Tags()["scalars"])
    assert events.Scalars("loss")[-1].value < events.Scalars("loss")[0].value


@pytest.mark.torture
def test_fsdp_on_two_processes(tmp_path):
    """A process of its own for each, and one that starts them."""
    free = "--standalone"  # torchrun finds a port
    command = [sys.executable, "-W", "error", "-m", "torch.distributed.run", free, "--nproc-per-node", "2"]
    done = subprocess.run(
        [*command, EXAMPLES / "fsdp.py", tmp_path],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error::UserWarning:__main__"},
    )
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    assert "the first of 2 processes has 48 of 96 rows and 5 of 10" in done.stdout
    assert number(r"then ([\d.]+) %", done.stdout) > 75
    assert "steps 60" in done.stdout
    assert number(r"0.weight .* ([\d.]+) %", done.stdout) > 70
    assert (tmp_path / ".metadata").exists()


def test_every_example_is_run_here():
    assert {p.stem for p in EXAMPLES.glob("*.py")} == set(NEEDS)
