"""The figures that the tests here find are printed at the end, for docs/reliability.md."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable

import pytest

FIGURES: list[str] = []


@pytest.fixture
def figure() -> Callable[[str], None]:
    """Keeps a line for the end."""
    return FIGURES.append


@pytest.fixture
def chance(figure: Callable[[str], None], request: pytest.FixtureRequest) -> random.Random:
    """Other random numbers in every session; SR2_TORTURE_SEED repeats one."""
    seed = int(os.environ.get("SR2_TORTURE_SEED", time.time_ns() % 10**6))
    print(f"SR2_TORTURE_SEED={seed}")
    return random.Random(f"{seed} {request.node.name}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if FIGURES:
        terminalreporter.section("figures")
        for line in FIGURES:
            terminalreporter.write_line(line)
