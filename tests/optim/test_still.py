"""sigma that stands still for 50 tests at a rho far from the rule's aim: told once, with the way out."""

from __future__ import annotations

import dataclasses
import warnings

import pytest
import torch

from sr2 import SR2
from sr2.rules import Ratio, Rule, Tolerant, Verdict


def told(rule: Rule, curvature: float, steps: int = 60, **options: object) -> list[str]:
    """What is said of steps on curvature / 2 (x - b)^2 with b drawn anew: rho is 1 - curvature / 2 at sigma = 1."""
    draw = torch.Generator().manual_seed(0)
    x = torch.nn.Parameter(torch.zeros(3, dtype=torch.float64))
    given = {"sigma": 1.0, "metric": None, "momentum": 0.0, "average": False, **options}
    optimizer = SR2([x], rule=rule, **given)  # type: ignore[arg-type]
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for _ in range(steps):
            b = torch.randn(3, generator=draw, dtype=torch.float64)
            optimizer.step(lambda b=b: 0.5 * curvature * (x - b).square().sum())
    return [str(warning.message) for warning in found]


def test_a_ratio_between_eta1_and_eta2_is_told_once() -> None:
    said = told(Ratio(), 0.1, steps=200)
    assert len(said) == 1
    assert "sigma has stayed at 1 for 50 tests" in said[0]
    assert "mean rho of 0.95" in said[0]
    assert "steps could be 10 times as long" in said[0]
    assert "take eta2=0.9" in said[0]


def test_not_before_fifty() -> None:
    assert told(Ratio(), 0.1, steps=50) == []
    assert len(told(Ratio(), 0.1, steps=51)) == 1


@pytest.mark.parametrize(
    ("rule", "curvature"),
    [
        (Ratio(eta2=0.6), 0.6),  # sigma falls, to where rho is 0.53, and rests
        (Ratio(), 0.6),  # rho = 0.7: the steps are about as long as the curvature allows
        (Ratio(eta2=0.6, gamma3=1.0), 0.6),  # a sigma that may not fall, at a good rho
        (Tolerant(), 1.0),  # rho = 0.5: the dead zone is where it is meant to rest
        (Tolerant(), 3.4),  # rho = -0.7, which momentum makes good
        (Tolerant(), 0.1),  # sigma falls
    ],
)
def test_nothing_is_said_where_sigma_moves_or_may_rest(rule: Rule, curvature: float) -> None:
    assert told(rule, curvature) == []


def test_tolerant_next_to_its_bound() -> None:
    (said,) = told(Tolerant(rise=1.0), 3.8)
    assert "mean rho of -0.9" in said
    assert "larger batch" in said
    assert "Tolerant(rise=0.5)" in said


def test_the_way_out_is_one() -> None:
    assert told(Tolerant(rise=0.5), 3.8) == []
    assert told(Ratio(eta2=0.9), 0.1) == []


def test_a_schedule_that_moves_sigma_is_a_change() -> None:
    assert told(Ratio(), 0.1, steps=70, cooldown=(10, 70)) == []


def test_steps_on_trust_do_not_count() -> None:
    assert told(Ratio(), 0.1, steps=150, test_every=4) == []
    assert len(told(Ratio(), 0.1, steps=250, test_every=4)) == 1


def test_capturable_says_nothing() -> None:
    assert told(Ratio(), 0.1, capturable=True) == []


def test_a_rule_with_a_verdict_of_its_own_has_no_aim() -> None:
    @dataclasses.dataclass(frozen=True)
    class Constant(Ratio):
        def judge(self, evidence, state) -> Verdict:  # type: ignore[no-untyped-def]
            verdict = super().judge(evidence, state)
            return verdict._replace(sigma=state.sigma)

    assert told(Constant(), 0.1) == []
