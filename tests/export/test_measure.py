"""Timings beside another process."""

import time

import pytest

from sr2.export import measure


@pytest.fixture(autouse=True)
def as_shipped(monkeypatch):
    monkeypatch.setattr(measure, "REPEATS", 9)
    monkeypatch.setattr(measure, "LEAST_SECONDS", 0.002)


class Shared:
    """A core that another process has every second slice of: the clock jumps after each slice of work."""

    SLICE = 0.004

    def __init__(self, first):
        self.now, self.left = 0.0, first

    def work(self, seconds):
        while seconds >= self.left:
            seconds -= self.left
            self.now += self.left + self.SLICE
            self.left = self.SLICE
        self.now += seconds
        self.left -= seconds


@pytest.mark.parametrize("first", [0.001, 0.002, 0.003, 0.004])
@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_a_process_beside_it_turns_no_comparison_around(monkeypatch, first, factor):
    core = Shared(first)
    monkeypatch.setattr(time, "perf_counter", lambda: core.now)
    a, b = measure.milliseconds(lambda: core.work(1.05e-5), lambda: core.work(factor * 1.05e-5))
    assert b / a == pytest.approx(factor, rel=0.1)
