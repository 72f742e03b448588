"""Where the host decides, plain numbers stand for 0-dim tensors: the same lines, to the same bits."""

import itertools
import math

import pytest
import torch

from sr2 import SR2, averaging, rules, schedules
from sr2.numerics import Plain, Rounding, at_least, between, by_torch
from sr2.optim.parts.rules import Evidence
from sr2.optim.processes import ALONE
from sr2.optim.state import Outcome, SearchState
from sr2.optim.trust import on_trust
from sr2.rules import Ratio, Tolerant, Verdict
from sr2.schedules import Cooldown, Reach

CPU = torch.device("cpu")
ODD = [0.0, 0.25, -0.125, 1e-9, math.inf, -math.inf, math.nan]
RULES = [
    Ratio(0.25, 0.5, 5.56, 7.0, 0.8),
    Tolerant(0.5),
    Tolerant(0.25, usual=3.0),
    Tolerant(2.9, usual=5.3, longest=1.3),
    Tolerant(usual=0.1),
    Tolerant(usual=12.0),
]


def losses_and_models():
    """Some at random, zeros and ties, and whatever is not finite."""
    draw = torch.Generator().manual_seed(0)
    for _ in range(300):
        loss = torch.rand((), generator=draw)
        f, f_trial, *model = (torch.rand(6, generator=draw, dtype=torch.float64) - 0.3) * 0.1
        yield (loss, loss + f, loss + f_trial.float()), [*model[:2], model[2].abs(), model[3]]
    for f_trial, vs, dR, ss in itertools.product(ODD, ODD, ODD, [0.0, 1.0, math.inf, math.nan]):
        numbers = torch.tensor([vs, dR, ss, ss], dtype=torch.float64)
        yield (torch.tensor(0.5), torch.tensor(0.5), torch.tensor(f_trial)), list(numbers)
    for loss, f in itertools.product([0.5, *ODD[4:]], repeat=2):
        yield (torch.tensor(loss), torch.tensor(f), torch.tensor(0.5)), list(torch.ones(4, dtype=torch.float64))


def bits(state, outcome):
    """What a step leaves, as bytes: NaN is equal to NaN, and -0 is not 0."""
    numbers = [*state.memory.values(), state.sigma, *state.sums, *state.seen]
    flags = [bool(getattr(outcome, name)) for name in ("accepted", "null", "sound", "learns")]
    whole = [*state.fates.tolist(), int(outcome.steps)]
    return torch.stack(numbers).nan_to_num(nan=-7.5).numpy().tobytes(), flags, whole


@pytest.mark.parametrize("coarse", [0.0, 0.3])
@pytest.mark.parametrize("trusting", [False, True])
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_plain_numbers_decide_as_tensors_do(rule, trusting, coarse):
    assert rule.plain
    fates, rounding = set(), Rounding(1e-7, coarse)
    for number, (losses, model) in enumerate(losses_and_models()):
        found = []
        for plain in (False, True):
            memory = {"largest_loss": 0.3 * (number % 3)} if trusting else {}
            state = SearchState.start(1.0 + number % 7, memory, None)
            state.sums.fill_(0.3)
            evidence = Evidence.gather(losses, model, rounding, ALONE, CPU, reaching=number % 2 == 0, plain=plain)
            numbers = [n for name, n in vars(evidence).items() if name != "of_batch"]
            assert all(isinstance(n, (float, bool)) == plain for n in numbers)
            searched = state.read() if plain else state
            if trusting and number % 3:
                outcome = on_trust(evidence, None, rule, searched, 0.9, ALONE, capturable=not plain, away=True)
            else:
                sound = math.isfinite(losses[0]) and math.isfinite(losses[1])
                sound = sound if plain else torch.tensor(sound)
                verdict = rule.judge(evidence, searched)
                outcome = Outcome.of(verdict, evidence, sound, searched, 0.9, rule.forgets)
            state.record(outcome)
            found.append(bits(state, outcome))
        assert found[0] == found[1], (losses, model)
        fates |= {i for i, n in enumerate(state.fates.tolist()) if n}
    assert fates == ({0, 1, 2, 3, 4} if trusting else {0, 1, 2, 3})


@pytest.mark.parametrize("part", [Cooldown(7, 31), averaging.Polynomial(8.0), averaging.Polynomial(0.3)], ids=repr)
def test_schedules_and_averages_give_the_same_bits(part):
    assert part.plain
    first = 0.0
    for t in range(1, 40):
        if isinstance(part, Cooldown):
            tensors = {"sigma_first": torch.tensor(first, dtype=torch.float64)}
            one, memory = part.apply(0.3, t, {"sigma_first": first})
            other, also = part.apply(torch.tensor(0.3, dtype=torch.float64), torch.tensor(t), tensors)
            assert memory == {name: float(n) for name, n in also.items()}
            first = memory["sigma_first"]
        else:
            one, other = part.weight(t), part.weight(torch.tensor(t))
        assert isinstance(one, float)
        assert other.dtype == torch.float64
        assert one == float(other)
    assert [Reach(7, 31).share(t) for t in range(40)] == Reach(7, 31).share(torch.arange(40)).tolist()


def test_log_and_sqrt_are_torchs():
    """Which are not those of Python to the last bit."""
    xs = torch.rand(2000, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).unbind()
    for function in (torch.log, torch.sqrt):
        assert all(by_torch(function, float(x)) == float(by_torch(function, x)) for x in xs)


def test_a_subclass_is_given_tensors_unless_it_says_otherwise():
    seen = []

    class Mine(Tolerant):
        def judge(self, evidence, state):
            seen.extend([evidence.actual, state.sigma, state.steps])
            return Verdict(evidence.actual.isfinite(), state.sigma.clone(), evidence.actual)

    class Late(Cooldown):
        def apply(self, sigma, t, memory):
            seen.extend([sigma, t])
            return super().apply(sigma, t, memory)

    class Mean(averaging.Polynomial):
        def weight(self, t):
            seen.append(t)
            return super().weight(t.double())

    x = torch.nn.Parameter(torch.ones(3))
    for rule in (Mine(), Tolerant()):  # with the other one the number of steps is plain
        optimizer = SR2([x], rule=rule, sigma=1.0, schedule=Late(2, 9), average=Mean())
        for _ in range(3):
            optimizer.step(lambda: (x - 2).square().sum())
    assert len(seen) == 27
    assert all(isinstance(n, torch.Tensor) for n in seen)


def test_who_takes_plain_numbers():
    rooms = [*vars(rules).values(), *vars(schedules).values(), *vars(averaging).values()]
    parts = {part for part in rooms if isinstance(part, type) and issubclass(part, Plain)}
    assert {part.__name__ for part in parts if part.plain} == {"Ratio", "Tolerant", "Cooldown", "Polynomial"}


def test_what_is_no_number_stays_none():
    assert math.isnan(at_least(math.nan, 1.0))
    assert math.isnan(between(math.nan, 0.0, 1.0))
