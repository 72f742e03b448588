"""One thread: small tensors gain nothing from more, and sums keep their order."""

import contextlib
import importlib
import os

import pytest
import torch

if not torch.cuda.is_available():  # read when Triton is imported: see test_kernels.py
    os.environ["TRITON_INTERPRET"] = "1"
    with contextlib.suppress(ImportError):
        importlib.import_module(
            "triton.language"
        )  # now: a test that clears the environment may be the first to need it


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)
