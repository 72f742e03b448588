"""`sr2 train` in one process or under torchrun, and what makes two such runs the same to rounding."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from sr2.experiments.run.store import WEIGHTS, read_run

NET = """
from torch import nn
def net():  # batch norms, whose statistics must be those of the whole batch
    features = nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU()
    return nn.Sequential(*features, nn.Flatten(), nn.Linear(288, 10))
"""


def start(folder: Path, runs: str, flags: list[str], processes: int = 1, **options: Any) -> subprocess.Popen[str]:
    """`sr2 train --model normed:net` with these flags, into the folder `runs`."""
    (folder / "normed.py").write_text(NET)
    several = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    command = [sys.executable, *(several if processes > 1 else []), "-m", "sr2", "train", "--model", "normed:net"]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [*command, *flags, "--runs", runs], cwd=folder, env=environ, stdout=pipe, stderr=pipe, text=True, **options
    )


def close_runs(one: Path, other: Path, rtol: float = 1e-4) -> dict[str, Any]:
    """Two folders of one run each: the same key, counts, and numbers to rounding; returns the sums of their counts."""
    (a,), (b,) = (list(folder.iterdir()) for folder in (one, other))
    assert a.name == b.name
    first, second = read_run(a), read_run(b)
    assert first.result is not None
    assert second.result is not None
    for x, y in zip(first.metrics, second.metrics, strict=True):
        for name in x:
            if name != "seconds":
                assert x[name] == pytest.approx(y[name], rel=rtol), name
    weights, theirs = load_file(a / WEIGHTS), load_file(b / WEIGHTS)
    for name in weights:
        torch.testing.assert_close(weights[name].float(), theirs[name].float(), rtol=rtol, atol=rtol)
    return {name: sum(row[name] or 0 for row in first.metrics) for name in ("accepted", "rejected")}
