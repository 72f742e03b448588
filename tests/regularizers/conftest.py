"""Hypothesis: the same examples every time, few enough for every commit."""

import os

import torch
from hypothesis import settings

if not torch.cuda.is_available():  # read when Triton is imported: see test_selection.py
    os.environ["TRITON_INTERPRET"] = "1"

settings.register_profile("sr2", max_examples=25, deadline=None, derandomize=True, database=None)
settings.load_profile("sr2")
