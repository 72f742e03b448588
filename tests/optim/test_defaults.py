"""The defaults of SR2: which arguments bring those of the library, and which Algorithm 1's."""

from __future__ import annotations

import inspect

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sr2 import L1, SR2, BatchGrowth
from sr2.averaging import Polynomial
from sr2.directions import Average
from sr2.metrics import Adam, RMSprop
from sr2.optim.arguments import ALGORITHM_1, TUNED, said, unsaid
from sr2.rules import Follow, Ratio, Tolerant
from tests.tools import same_bits

NOTHING = dict.fromkeys(("eta1", "eta2", "gamma1", "gamma2", "gamma3"))
CONSTANTS = {"eta1": 7.5e-4, "eta2": 0.99, "gamma1": 5.56, "gamma2": 5.56, "gamma3": 0.8}


def parts(**options: object) -> tuple[object, ...]:
    made = SR2([nn.Parameter(torch.ones(2))], L1(0.1), **options)
    return made.rule, made.direction, made.metric, made.averaging


def test_the_librarys_defaults() -> None:
    assert parts() == (Tolerant(), Average(0.9), Adam(), Polynomial())


def test_the_papers_defaults() -> None:
    assert parts(**SR2.paper_defaults()) == (Ratio(**CONSTANTS), None, None, None)


@pytest.mark.parametrize(
    "options",
    [
        *({name: value} for name, value in CONSTANTS.items()),
        {"rule": Ratio()},
        {"epsilon": 1e-3},
        {"batch_growth": BatchGrowth(1.0)},
    ],
    ids=str,
)
def test_what_brings_algorithm_1(options: dict[str, object]) -> None:
    assert parts(**options) == (Ratio(**{k: v for k, v in options.items() if k in CONSTANTS}), None, None, None)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"sigma": 1.0, "cooldown": (5, 9), "test_every": 4}, parts()),
        ({"rule": Follow()}, (Follow(), *parts()[1:])),
        ({"metric": None}, (Tolerant(), Average(0.9), None, Polynomial())),
        ({"momentum": 0.0}, (Tolerant(rise=0.0), None, Adam(), Polynomial())),
        ({"momentum": 0.2}, (Tolerant(rise=0.5), Average(0.2), Adam(), Polynomial())),
        ({"momentum": 0.5}, (Tolerant(rise=1.0), Average(0.5), Adam(), Polynomial())),
        ({"momentum": 0.0, "rule": Tolerant()}, (Tolerant(), None, Adam(), Polynomial())),
        ({"direction": Average(0.7)}, (Tolerant(), Average(0.7), Adam(), Polynomial())),
        ({"average": False}, (Tolerant(), Average(0.9), Adam(), None)),
        ({"eta2": 0.5, "metric": "rmsprop", "momentum": 0.8}, (Ratio(eta2=0.5), Average(0.8), RMSprop(), None)),
        ({"rule": Ratio(), "average": True}, (Ratio(), None, None, Polynomial())),
        ({"metric": "auto", "momentum": "auto", "average": "auto"}, parts()),
    ],
    ids=str,
)
def test_what_is_said_has_the_last_word(options: dict[str, object], expected: tuple[object, ...]) -> None:
    assert parts(**options) == expected


def test_unsaid_and_said() -> None:
    assert unsaid(NOTHING, None) == TUNED
    assert unsaid(NOTHING, None, None, None) == TUNED
    assert unsaid(NOTHING, Ratio()) == ALGORITHM_1
    assert unsaid(NOTHING, None, 1e-3, None) == ALGORITHM_1
    assert unsaid({**NOTHING, "gamma3": 0.5}, None) == ALGORITHM_1._replace(rule=Ratio(gamma3=0.5))
    assert unsaid(NOTHING, Follow()) == TUNED._replace(rule=Follow())
    assert (said("auto", 3), said(None, 3), said(0.0, 3), said(False, 3)) == (3, None, 0.0, False)
    with pytest.raises(ValueError, match="says it already: leave out eta1, gamma1"):
        unsaid({**NOTHING, "eta1": 0.1, "gamma1": 2.0}, Tolerant())
    with pytest.raises(TypeError, match=r"rule must be an object of sr2.rules, and is 'ratio'"):
        unsaid(NOTHING, "ratio")


def test_the_papers_defaults_are_algorithm_1_with_its_constants() -> None:
    """Two ways to say it, the same bits."""

    def run(**options: object) -> tuple[nn.Module, SR2]:
        torch.manual_seed(0)
        model, x = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)), torch.randn(32, 5)
        optimizer = SR2(model, L1(1e-3), sigma=0.5, **options)
        for _ in range(30):
            optimizer.step(lambda: F.cross_entropy(model(x), torch.arange(32) % 3))
        return model, optimizer

    (one, a), (other, b) = run(**SR2.paper_defaults()), run(rule=Ratio(gamma3=0.8))
    assert same_bits(one.parameters(), other.parameters())
    assert (a.sigma, a.counts, a.last_step) == (b.sigma, b.counts, b.last_step)
    assert a.counts["rejected"] > 0


@pytest.mark.parametrize("name", ["lr", "betas", "epochs"])
def test_what_other_optimizers_are_told_has_its_way(name):
    with pytest.raises(TypeError, match=rf"SR2 has no {name}=0.5: (it|give)"):
        SR2(nn.Linear(2, 1), **{name: 0.5})
    assert name not in inspect.signature(SR2).parameters
