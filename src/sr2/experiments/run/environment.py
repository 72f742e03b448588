"""Where a run is made: commit, versions, device."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ... import __version__
from .config import RunConfig


def environment(config: RunConfig) -> dict[str, Any]:
    """Where a run is made: commit, versions, device, threads, time."""
    device = torch.device(config.device)
    return {
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "sr2": __version__,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else f"cpu, {platform.machine()}",
        "cpu_count": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _commit() -> str | None:
    """The commit of this source, and whether it was changed since, if it is a git checkout."""
    here = Path(__file__).resolve().parent
    if "site-packages" in here.parts:  # what git says there is about somebody else's project
        return None
    command = ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
