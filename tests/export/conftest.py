"""Timings are taken once: no test here is about how fast something is."""

import pytest

from sr2.export import measure


@pytest.fixture(autouse=True)
def _measure_once(monkeypatch):
    monkeypatch.setattr(measure, "REPEATS", 1)
    monkeypatch.setattr(measure, "LEAST_SECONDS", 0.0)
