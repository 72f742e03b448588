"""Timings beside another process, and multiply-adds."""

import time

import pytest
import torch
from torch import nn

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


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.of = nn.MultiheadAttention(8, 2)

    def forward(self, x):
        return self.of(x, value=x, key=x)[0]


@pytest.mark.parametrize(
    ("layer", "shape", "macs"),
    [
        (nn.Conv2d(4, 6, 3, stride=2, padding=1), (2, 4, 8, 8), 2 * 4 * 4 * 6 * 4 * 9),
        (nn.Conv2d(4, 8, 3, groups=2, padding=1), (1, 4, 8, 8), 8 * 8 * 8 * 2 * 9),
        (nn.ConvTranspose2d(4, 6, 2, stride=2), (2, 4, 8, 8), 2 * 8 * 8 * 4 * 6 * 4),  # every input meets every weight
        (nn.ConvTranspose2d(4, 6, 2, groups=2), (1, 4, 8, 8), 8 * 8 * 4 * 3 * 4),
        (nn.LSTM(3, 5, batch_first=True), (2, 7, 3), 2 * 7 * 4 * (5 * 3 + 5 * 5)),
        (Attention(), (5, 2, 8), 10 * 4 * 8 * 8),
        (nn.TransformerEncoderLayer(8, 2, 16), (5, 2, 8), 10 * (4 * 8 * 8 + 2 * 8 * 16)),
    ],
)
def test_multiply_adds(layer, shape, macs):
    assert measure.macs(layer.eval(), torch.zeros(shape)) == macs
