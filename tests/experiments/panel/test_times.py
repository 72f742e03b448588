"""Equal time: what a step costs, and how many of SR2's fit into the time of AdamW's."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from sr2.experiments.panel import methods, runner, summary, tasks, times
from sr2.experiments.panel.times import Costs


@pytest.mark.parametrize(("tested", "first"), [(1.0, 1.0), (1.5, 1.5), (3.0, 10.0), (3.3, 0.1)])
def test_steps_that_are_all_tested(tested: float, first: float) -> None:
    steps = Costs(tested, 1.0, first, 9).affordable(100)
    assert steps == math.floor((100 - first) / tested + 1 + 1e-9)


def test_a_first_step_that_is_too_expensive() -> None:
    assert Costs(1.0, 1.0, 11.0, 9).affordable(10) == 0


def test_auto_tests_ever_fewer_steps() -> None:
    """19 tests of single steps; the 20th and 19 more begin two steps, then 20 four, eight, sixteen, all others 32."""
    costs = Costs(tested=2.0, trusted=1.0, first=2.0, blocks=9)
    every = itertools.chain.from_iterable([k] * (19 if k == 1 else 20) for k in (1, 2, 4, 8, 16))
    kinds = itertools.chain.from_iterable([2.0] + [1.0] * (k - 1) for k in itertools.chain(every, itertools.repeat(32)))
    budget = 1000.0
    expected = sum(1 for spent in itertools.takewhile(lambda spent: spent <= budget, itertools.accumulate(kinds)))
    assert costs.affordable(1000, "auto") == expected
    assert costs.affordable(1000) == 500 < expected < costs.affordable(1000, 10**9) == 999


class Counted:
    """A clock that says how often a function was called."""

    def __init__(self) -> None:
        self.calls = 0.0

    def __call__(self) -> float:
        return self.calls


def test_costs_are_ratios_of_what_the_clock_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted in forwards, a tested step is two of AdamW's, one on trust is one."""
    problem, clock = tasks.make("diabetes", 0), Counted()

    def loss(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        clock.calls += 1
        return (output - y).square().mean()

    object.__setattr__(problem, "loss", loss)
    costs = times.measure(problem, clock)
    assert costs.tested == pytest.approx(2.0)
    assert costs.trusted == pytest.approx(1.0)
    assert costs.first > 2
    assert costs.blocks == times.LEAST


def test_measuring_leaves_the_problem_and_the_generator() -> None:
    problem = tasks.make("breast_cancer", 0)
    before = [p.detach().clone() for p in problem.model.parameters()]
    torch.manual_seed(5)
    ticks = itertools.count()
    state = torch.get_rng_state()
    times.measure(problem, clock=lambda: float(next(ticks)))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(before, problem.model.parameters(), strict=True))


@pytest.mark.parametrize("name", summary.IN_TIME)
def test_methods_in_time_take_fewer_steps(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "measure", lambda problem, **options: Costs(2.0, 1.0, 4.0, 9))
    found = runner.run("diabetes", methods.own()[name], 0)
    assert found["steps"] == 120
    assert found["taken"] == (75 if "auto" in name else 59)
    assert found["cost_tested"] == 2.0
    assert math.isfinite(found["average"]["test"])


def test_in_time_with_all_of_it_is_the_run_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "measure", lambda problem, **options: Costs(1.0, 1.0, 1.0, 9))
    known = methods.own()
    for name in ("sr2", "sr2_steps"):
        alone, timed = (runner.run("diabetes", known[n], 0) for n in (name, f"{name}_time"))
        assert alone["last"] == timed["last"]
        assert alone["average"] == timed["average"]
        assert timed["taken"] == 120
