"""Hugging Face's Trainer and Lightning in two processes: both decide alike, and as a plain loop on whole batches."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.torture

SCRIPT = str(Path(__file__).with_name("two_processes.py"))


@pytest.mark.parametrize(("trainer", "package"), [("huggingface", "transformers"), ("lightning", "lightning")])
def test_two_processes(tmp_path, trainer, package, figure):
    pytest.importorskip(package)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [*launcher, SCRIPT, trainer, str(tmp_path)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1))
    a, b, one = first["together"], second["together"], first["alone"]
    assert a["counts"] == b["counts"] == one["counts"]
    assert one["counts"]["rejected"] > 0
    assert a["sigma"] == b["sigma"] == pytest.approx(one["sigma"], rel=1e-5)
    for x, y, alone in zip(a["weights"], b["weights"], one["weights"], strict=True):
        assert torch.equal(x, y)
        torch.testing.assert_close(x, alone, rtol=1e-4, atol=1e-5)
    figure(f"trainers: {trainer} in 2 processes took the decisions of a plain loop, weights to 1e-4")
