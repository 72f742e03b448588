"""Hypothesis: the same examples every time, few enough for every commit."""

import contextlib
import importlib
import os

import torch
from hypothesis import settings

if not torch.cuda.is_available():  # read when Triton is imported: see test_selection.py
    os.environ["TRITON_INTERPRET"] = "1"
    with contextlib.suppress(ImportError):
        importlib.import_module(
            "triton.language"
        )  # now: a test that clears the environment may be the first to need it

settings.register_profile("sr2", max_examples=25, deadline=None, derandomize=True, database=None)
settings.load_profile("sr2")
