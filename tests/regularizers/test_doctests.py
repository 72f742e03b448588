"""The examples in the docstrings run."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import sr2.regularizers

NAMES = [m.name for m in pkgutil.iter_modules(sr2.regularizers.__path__) if "kernels" not in m.name]


@pytest.mark.parametrize("name", NAMES)
def test_examples(name: str) -> None:
    outcome = doctest.testmod(importlib.import_module(f"sr2.regularizers.{name}"))
    assert outcome.failed == 0
    assert outcome.attempted > 0 or name == "base"
