"""The device's paths without a device: what is asked of them is in `on_fake_cuda.py`, how in `fake_cuda.py`.

In processes of their own: the tests of this one may have asked Triton to interpret, and what lets torch be on a CUDA
device cannot be taken back. In CI one of five or seven cases, in turn of each kind; in `make torture` all of them.
"""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import sr2

pytest.importorskip("triton")
pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device: see test_cuda.py"),
    pytest.mark.skipif(shutil.which("g++") is None, reason="torch's guard of a device needs g++"),
]
FEW = ["regularizers=5 options=7", "optimizers=5 mistakes few_launches"]
ALL = [pytest.param(part, marks=pytest.mark.torture) for part in ("regularizers", "all_launches")]


@pytest.mark.parametrize("parts", FEW + ALL)
def test_steps_on_a_device_that_is_not_there(parts, tmp_path):
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    command = [sys.executable, "-m", "tests.optim.on_fake_cuda", *parts.split()]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr


KERNELS = [path for path in Path(sr2.__file__).parent.rglob("*.py") if "@triton.jit" in path.read_text()]


@pytest.mark.parametrize("path", KERNELS, ids=lambda path: path.name)
def test_numbers_in_kernels_are_float32s(path):
    """What stands alone in `tl.where` or `tl.store` is one when compiled, beside float64 too; not when interpreted."""
    numbers = [node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)]
    floats = [number for number in numbers if isinstance(number, float)]
    limits = np.finfo(np.float32)
    assert [x for x in floats if limits.tiny <= x <= limits.max and float(np.float32(x)) != x] == []
