"""`Tolerant.longest`: steps that are longer need batches that agree with v."""

from __future__ import annotations

import math
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sr2 import L0, L1, SR2, GroupL2, L0Ball
from sr2.optim.saving import from_line, to_line
from sr2.rules import Evidence, Tolerant

SIGMA = 4.0


class State:
    sigma = torch.tensor(SIGMA, dtype=torch.float64)
    memory: ClassVar[dict[str, Tensor]] = {}
    steps = torch.tensor(7)


def judged(
    rule: Tolerant, noise: float, *, gain: float = 1.0, of_batch: bool = True, accepted: bool | None = None
) -> float:
    """sigma after a step that promises 1 and gains this much, on a batch with this noise."""
    number = {
        "loss": 5.0,
        "f": 5.0 + noise,
        "f_trial": 5.0 + noise - gain,
        "vs": -1.0,
        "dR": 0.0,
        "ss": 1.0,
        "sBs": 1.0,
    }
    numbers = {name: torch.tensor(value, dtype=torch.float64) for name, value in number.items()}
    small = torch.tensor(1e-12, dtype=torch.float64)
    evidence = Evidence(**numbers, slack=small, fine=small, all_finite=torch.tensor(True), of_batch=of_batch)
    verdict = rule.judge(evidence, State())
    assert bool(verdict.accepted) == (gain >= -rule.rise if accepted is None else accepted)
    return float(verdict.sigma)


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("gain", [1.0, 0.5, -0.5])
@pytest.mark.parametrize("longest", [1.0, 2.0])
def test_a_longer_step_needs_a_batch_that_agrees(sign, gain, longest):
    rule = Tolerant(rise=1.0, usual=8.0 * longest, longest=longest)
    assert judged(rule, sign * 0.24, gain=gain) == pytest.approx(SIGMA * (0.98 if gain == 1.0 else 1.0))
    assert judged(rule, sign * 0.26, gain=gain) == judged(rule, sign * 1.9, gain=gain) == SIGMA
    assert judged(rule, sign * 2.1, gain=gain) == pytest.approx(SIGMA / 0.98)
    assert judged(rule, sign * 2.1, gain=-1.1) == pytest.approx(SIGMA * 1.5)  # rejected


@pytest.mark.parametrize("gain", [1.0, 0.5, -0.5])
def test_between_the_usual_and_the_longest_step_sigma_goes_with_signal_and_noise(gain):
    """(g - v)'s is about -0.9 times the promise where v is nothing but noise."""
    rule = Tolerant(rise=1.0, usual=8.0, longest=3.0)
    for noise, factor in ((3.0, 0.98), (0.0, 0.98), (-0.3, 0.98), (-0.5, 1.0), (-0.7, 1.0), (-0.9, 1 / 0.98)):
        assert judged(rule, noise, gain=gain) == pytest.approx(factor * SIGMA)
    assert judged(Tolerant(rise=1.0, usual=SIGMA, longest=3.0), -0.9, gain=gain) == SIGMA
    at_the_longest = Tolerant(rise=1.0, usual=8.0, longest=8.0 / SIGMA)
    assert judged(at_the_longest, -0.9, gain=gain) == pytest.approx(SIGMA / 0.98)
    assert judged(at_the_longest, -0.3, gain=gain) == SIGMA
    assert judged(Tolerant(rise=1.0, usual=8.0, longest=math.inf), -0.9, gain=gain) <= SIGMA
    assert judged(rule, -0.9, gain=gain, of_batch=False) == pytest.approx(0.98 * SIGMA)


def test_sigma_rises_no_further_than_to_the_usual_step():
    assert judged(Tolerant(rise=1.0, usual=4.01, longest=1.0), 5.0) == 4.01
    assert judged(Tolerant(rise=1.0, usual=SIGMA, longest=1.0), 5.0) == SIGMA


@pytest.mark.parametrize(
    ("rule", "of_batch"),
    [
        (Tolerant(rise=1.0, usual=2.0, longest=1.0), True),  # the warm-up
        (Tolerant(rise=1.0, usual=8.0, longest=3.0), True),  # no longer than allowed
        (Tolerant(rise=1.0, usual=math.inf, longest=1.0), True),  # a network that was trained before
        (Tolerant(rise=1.0, usual=8.0, longest=math.inf), True),
        (Tolerant(rise=1.0), True),  # not decided yet
        (Tolerant(rise=1.0, usual=8.0, longest=1.0), False),  # an objective has no noise
    ],
    ids=str,
)
def test_else_the_noise_is_not_asked_for(rule, of_batch):
    assert judged(rule, 100.0, of_batch=of_batch) == pytest.approx(0.98 * SIGMA)


@pytest.mark.parametrize("sign", [-1, 1])
def test_a_batch_that_is_nearly_all_of_v_may_lose_no_more_than_it_promised(sign):
    rule = Tolerant(rise=3.0, usual=8.0, longest=math.inf)
    for noise, gain, accepted in ((6.9, -2.9, True), (7.1, -1.1, False), (7.1, -0.9, True), (6.9, -3.1, False)):
        assert judged(rule, sign * noise, gain=gain, accepted=accepted) == SIGMA * (1.0 if accepted else 1.5)
    assert judged(rule, sign * 7.1, gain=-2.9, of_batch=False) == SIGMA  # an objective has no noise
    assert judged(Tolerant(rise=0.5, usual=8.0), sign * 7.1, gain=-0.6) == 1.5 * SIGMA


@pytest.mark.parametrize("longest", [1.0, 2.0])
def test_a_long_step_may_lose_less_and_a_far_longer_one_must_gain(longest):
    """rho >= -rise q, where q = 2 longest sigma / usual is less than 1, and >= eta2 - (eta2 + rise) (15 q)^2."""
    for usual, gain, accepted in (
        *((3.0, -2.9, True), (8.0, -2.9, True), (16.0, -1.4, True), (16.0, -1.6, False)),
        *((40.0, -0.55, True), (40.0, -0.65, False), (240.0, -0.07, True), (240.0, -0.08, False)),
    ):
        rule = Tolerant(rise=3.0, usual=usual * longest, longest=longest)
        assert (judged(rule, 1.0, gain=gain, accepted=accepted) > SIGMA) == (not accepted)
    for gain, accepted in ((0.89, False), (0.91, True)):
        rule = Tolerant(rise=3.0, usual=8e3 * longest, longest=longest)
        assert judged(rule, 1.0, gain=gain, accepted=accepted) == (SIGMA if accepted else 8e3)


def test_a_rejected_step_of_more_than_thirty_usual_lengths_is_followed_by_usual_ones():
    for usual, sigma in ((121.0, 121.0), (119.0, 6.0), (3.0, 6.0)):
        assert judged(Tolerant(rise=1.0, usual=usual), 1.0, gain=-2.0) == sigma


def test_a_sigma_that_is_far_above_the_usual_one_falls_fast():
    for usual, factor in ((SIGMA / 29, 0.98), (SIGMA / 31, 0.8)):
        assert judged(Tolerant(usual=usual), 0.0) == pytest.approx(factor * SIGMA)
        assert judged(Tolerant(usual=usual), 0.0, gain=0.8) == pytest.approx(0.98 * SIGMA)
        assert Tolerant(usual=usual).on_trust(SIGMA) == pytest.approx(0.98 * SIGMA)
    assert judged(Tolerant(usual=SIGMA / 31, gamma3=0.7), 0.0) == pytest.approx(0.7 * SIGMA)


def test_a_state_of_before_goes_on_with_what_the_rule_says_today():
    """What was "auto" once is saved with it, rise and beyond. longest is "auto" today too, and it asks no more."""
    model, x = network(), torch.randn(8, 10)
    old = SR2(model, L1(1e-4))
    old.step(lambda: model(x).square().mean())
    usual = old.rule.usual
    old._search.chosen |= {"rise": 1.0, "longest": 5.0, "beyond": 1.0}
    saved = old.state_dict()
    line = from_line(saved["param_groups"][0]["search"])
    saved["param_groups"][0]["search"] = to_line({k: v for k, v in line.items() if k != "agreement"})
    new = SR2(model, L1(1e-4))
    new.load_state_dict(saved)
    new.step(lambda: model(x).square().mean())
    assert new.rule == Tolerant(usual=usual, longest=5.0)
    assert new.counts["null"] == 1  # that of the first one


@pytest.mark.parametrize("wrong", [0.5, -1.0, math.nan, "2", True, None])
def test_a_wrong_length_is_one_sentence(wrong):
    with pytest.raises(
        ValueError, match=r"Tolerant: longest must be a number of at least 1, math.inf .* or 'auto', and is"
    ):
        Tolerant(longest=wrong)


@pytest.mark.parametrize("R", [None, L1(1e-4), L0Ball(density=0.5)], ids=str)
@pytest.mark.parametrize("capturable", [False, True])
def test_what_follows_from_x_0_is_saved(R, capturable):
    model, x = network(), torch.randn(8, 10)
    optimizer = SR2(model, R, capturable=capturable)
    optimizer.step(lambda: model(x).square().mean())
    again = SR2(network(), R, capturable=capturable)
    again.load_state_dict(optimizer.state_dict())
    assert again.rule == optimizer.rule == Tolerant(usual=optimizer.rule.usual)


def network(outputs: int = 1) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(10, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, outputs))


@pytest.mark.filterwarnings("ignore:.*had no gradient in the first batch")  # one example leaves much untouched
@pytest.mark.parametrize("R", [None, L0Ball(density=0.1), L1(1e-4)], ids=str)
def test_batches_of_one_example_do_not_make_steps_ever_longer(R):
    """Of four classes: most examples have next to no curvature along a step, and a rho near 1 whatever sigma is."""
    errors, sigmas = [], []
    for longest in (1.0, math.inf):
        torch.manual_seed(1)
        w, v, x = torch.randn(10, 8), torch.randn(8, 4), torch.randn(3000, 10)
        y, model = (torch.tanh(x @ w) @ v).argmax(1), network(4)
        options = {"metric": "adam", "momentum": 0.9, "average": True}
        optimizer = SR2(model, R, rule=Tolerant(rise=1.0, longest=longest), **options)
        for i in torch.randint(2000, (800, 1)):
            optimizer.step(lambda i=i, model=model, x=x, y=y: cross_entropy(model(x[i]), y[i]))
        with optimizer.averaged(), torch.no_grad():
            errors.append(float((model(x[2000:]).argmax(1) != y[2000:]).float().mean()))
        sigmas.append(optimizer.sigma / optimizer.rule.usual_sigma)
    assert errors[0] < 0.8 * errors[1]
    assert sigmas[0] > 2 * sigmas[1]


@pytest.mark.parametrize("R", [None, L1(1e-4), L0(1e-4), L0Ball(density=0.1), GroupL2(1e-3, "rows")], ids=str)
@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("factor", [1e-3, 1e3])
def test_a_sigma_0_that_is_wrong_by_a_thousand_is_mended(R, bf16, factor):
    """Steps a thousand times too long once lost the network: their promise is as large, and so was what they could
    lose. From a sigma a thousand times too large 340 steps went by until steps were usual ones."""
    torch.manual_seed(1)
    x, w, v = torch.randn(3000, 10), torch.randn(10, 8), torch.randn(8, 4)
    y, model = (torch.tanh(x @ w) @ v).argmax(1), network(4)
    optimizer = SR2(model, R, sigma=factor * 100)  # about 100 is usual

    def closure(i):
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            output = model(x[i])
        return cross_entropy(output.float(), y[i])

    for i in torch.randint(2000, (250, 64)):
        optimizer.step(lambda i=i: closure(i))
    with optimizer.averaged(), torch.no_grad():
        wrong = float((model(x[2000:]).argmax(1) != y[2000:]).float().mean())
    assert 0.1 < optimizer.sigma / optimizer.rule.usual_sigma < 10
    assert wrong < 0.2
