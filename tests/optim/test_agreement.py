"""How far the first batches agree at x_0, and how long steps may be under penalties."""

from __future__ import annotations

import copy
import io
import itertools
import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from sr2 import L0, L1, SR2, GroupL2, L0Ball, param_groups
from sr2.optim.parts.agreement import BATCHES, Agreement
from sr2.rules import Rule, Tolerant, Verdict

X = torch.randn(600, 10, generator=torch.Generator().manual_seed(0))
Y = (X @ torch.randn(10, 4, generator=torch.Generator().manual_seed(1))).argmax(1)


def network(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(10, 30), nn.Tanh(), nn.Linear(30, 4)).to(dtype)


def closure(model: nn.Module, t: int, examples: int = 32):
    b = slice(t * examples, (t + 1) * examples)
    x = X[b].to(next(model.parameters()).dtype)
    return lambda: cross_entropy(model(x), Y[b])


def gradients(model: nn.Module, examples: int) -> list[torch.Tensor]:
    losses = (closure(model, t, examples)() for t in range(BATCHES))
    return [torch.cat([g.flatten() for g in torch.autograd.grad(f, list(model.parameters()))]) for f in losses]


def run(optimizer: SR2, model: nn.Module, first: int, last: int) -> None:
    for t in range(first, last):
        optimizer.step(closure(model, t))


def share(gs: list[torch.Tensor]) -> float:
    """c, as it is written."""
    pairs = sum(float(a.sign() @ b) for a, b in itertools.permutations(gs, 2))
    return pairs / ((len(gs) - 1) * sum(float(g.abs().sum()) for g in gs))


@pytest.mark.parametrize("examples", [1, 4, 32, 150])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("R", [L1(1e-4), L0(1e-5), GroupL2(1e-4, "rows")], ids=str)
def test_it_is_the_share_that_other_batches_confirm(examples, dtype, R):
    model = network(dtype)
    c = share(gradients(model, examples))
    optimizer, before = SR2(model, R), copy.deepcopy(model.state_dict())
    for t in range(BATCHES - 1):
        optimizer.step(closure(model, t, examples))
        assert optimizer.last_step.accepted is None
        assert all(torch.equal(before[name], x) for name, x in model.state_dict().items())
        assert not any("momentum" in entry for entry in optimizer.state.values())  # it is not learnt from
    optimizer.step(closure(model, BATCHES - 1, examples))
    assert optimizer.rule.longest == pytest.approx(min(max(1.0, 7 * c), 4.0), rel=1e-5)
    assert optimizer.counts["null"] == BATCHES - 1
    assert not any({"gradients", "signs"} & entry.keys() for entry in optimizer.state.values())


def test_sigma_0_is_at_least_that_of_the_longest_step():
    model = network()
    optimizer = SR2(model, L1(1e-6))
    optimizer.estimate_sigma(closure(model, 0))
    found = optimizer.sigma
    run(optimizer, model, 0, BATCHES)
    usual = optimizer.rule.usual
    assert usual / 4 <= found < usual / optimizer.rule.longest  # else there is nothing to see
    assert optimizer.sigma == pytest.approx(usual / optimizer.rule.longest, rel=0.03)  # but for one fall of 2 %


@pytest.mark.parametrize("same", [True, False])
def test_batches_that_are_alike_agree_and_noise_does_not(same):
    model, noise = network(), torch.randn(BATCHES, 600, 4, generator=torch.Generator().manual_seed(2))
    optimizer = SR2(model, L1(1e-6))
    for t in range(BATCHES):
        optimizer.step(closure(model, 0) if same else lambda t=t: (model(X) * noise[t]).mean())
    assert optimizer.rule.longest == (4.0 if same else pytest.approx(1.0, abs=0.9))


@pytest.mark.parametrize(
    ("R", "options"),
    [
        (None, {}),
        (L0Ball(density=0.3), {}),
        (L1(1e-4), {"sigma": 50.0}),
        (L1(1e-4), {"metric": None}),
        (L1(1e-4), {"capturable": True}),
        (L1(1e-4), {"rule": Tolerant(longest=1.0)}),
        (L1(1e-4), {"rule": Tolerant(usual=math.inf)}),
        (L1(1e-4), SR2.paper_defaults()),
    ],
    ids=str,
)
def test_else_nobody_is_asked(R, options):
    model = network()
    optimizer = SR2(model, R, **options)
    run(optimizer, model, 0, 2)
    assert optimizer.counts["null"] == 0
    assert getattr(optimizer.rule, "longest", "auto") in ("auto", 1.0)
    assert optimizer._search.agreement is None


def test_a_group_with_a_budget_beside_one_with_a_penalty_is_a_budget():
    model = network()
    groups = param_groups(model, [("0.weight", L1(1e-4)), ("2.weight", L0Ball(density=0.5)), ("*", None)])
    optimizer = SR2(groups)
    run(optimizer, model, 0, 1)
    assert optimizer.counts["null"] == 0


def test_layers_without_r_are_asked_too():
    model = network()
    c = share(gradients(model, 32))
    optimizer = SR2(param_groups(model, [("0.weight", L1(1e-4)), ("*", None)]))
    run(optimizer, model, 0, BATCHES)
    assert optimizer.rule.longest == pytest.approx(min(max(1.0, 7 * c), 4.0), rel=1e-5)


@pytest.mark.parametrize("steps", range(BATCHES + 1))
def test_a_run_that_is_resumed_meanwhile_goes_on_to_the_same_bits(steps):
    model = network()
    optimizer = SR2(model, L1(1e-4))
    run(optimizer, model, 0, steps)
    file = io.BytesIO()
    torch.save([model.state_dict(), optimizer.state_dict()], file)
    file.seek(0)
    weights, state = torch.load(file, weights_only=True)
    again = network()
    again.load_state_dict(weights)
    resumed = SR2(again, L1(1e-4))
    resumed.load_state_dict(state)
    run(optimizer, model, steps, 10)
    run(resumed, again, steps, 10)
    assert (resumed.counts, resumed.sigma, resumed.rule) == (optimizer.counts, optimizer.sigma, optimizer.rule)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


class Broken(torch.autograd.Function):
    """A finite loss, and a gradient that is not."""

    @staticmethod
    def forward(context, x):
        return x.clone()

    @staticmethod
    def backward(context, g):
        return g * math.nan


@pytest.mark.parametrize("at", range(BATCHES))
@pytest.mark.parametrize(
    ("spoil", "words"), [(lambda f: f * math.nan, "the loss at x_t is nan"), (Broken.apply, "its gradient is not")]
)
def test_a_broken_batch_is_an_error_and_is_not_counted(at, spoil, words):
    model, other = network(), network()
    optimizer, sound = SR2(model, L1(1e-4)), SR2(other, L1(1e-4))
    run(optimizer, model, 0, at)
    with pytest.raises(FloatingPointError, match=words):
        optimizer.step(lambda: spoil(closure(model, at)()))
    run(optimizer, model, at, 8)
    run(sound, other, 0, 8)
    assert (optimizer.counts, optimizer.rule) == (sound.counts, sound.rule)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("steps", range(BATCHES + 1))
def test_torch_distributed_checkpoint_asks_anew(steps, tmp_path):
    """It asks a fresh optimizer for the names of what is to be loaded, and the gradients are none of them."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    model = network()
    optimizer = SR2(model, L1(1e-4))
    run(optimizer, model, 0, steps)
    weights, state = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=tmp_path)
    again = network()
    resumed = SR2(again, L1(1e-4))
    weights, state = get_state_dict(again, resumed)
    dcp.load({"model": weights, "optimizer": state}, checkpoint_id=tmp_path)
    set_state_dict(again, resumed, model_state_dict=weights, optim_state_dict=state)
    run(resumed, again, steps, steps + 6)
    assert resumed.rule.longest > 2.0
    assert resumed.counts["null"] == (BATCHES - 1 if steps in (0, BATCHES) else BATCHES - 1 + steps)


OTHERS = [
    (None, {}),
    (L0Ball(density=0.3), {}),
    (L1(1e-4), {"rule": Tolerant(longest=1.0)}),
    (L1(1e-4), {"capturable": True}),
    (L1(1e-4), SR2.paper_defaults()),
]


@pytest.mark.filterwarnings("ignore:group 0 was saved under")
@pytest.mark.parametrize(("R", "options"), OTHERS, ids=str)
def test_who_asks_nobody_does_not_go_on_asking(R, options):
    model = network()
    optimizer = SR2(model, L1(1e-4))
    run(optimizer, model, 0, 2)
    other = SR2(model, R, **options)
    other.load_state_dict(optimizer.state_dict())
    run(other, model, 2, 6)
    assert other.counts["null"] == 2  # those of before
    assert getattr(other.rule, "longest", "auto") in ("auto", 1.0)
    assert not any({"gradients", "signs"} & entry.keys() for entry in other.state.values())


@pytest.mark.filterwarnings("ignore:R.x_0. is infinite")
@pytest.mark.parametrize("R", [None, L0Ball(density=0.3)], ids=str)
def test_where_the_penalty_is_taken_away_meanwhile_nobody_is_asked(R):
    model = network()
    optimizer = SR2(model, L1(1e-4))
    run(optimizer, model, 0, 2)
    for group in optimizer.param_groups:
        group["regularizer"] = R
    run(optimizer, model, 2, 6)
    assert optimizer.counts["null"] == 2
    assert optimizer.rule.longest == "auto"


@pytest.mark.parametrize(("steps", "null"), [(2, 0), (39, 0), (40, 3), (None, 3)])
def test_short_runs_are_for_training(steps, null):
    model = network()
    optimizer = SR2(model, L1(1e-4), steps=steps)
    run(optimizer, model, 0, min(steps or 5, 5))
    assert optimizer.counts["null"] == null


def test_a_cooldown_begins_with_the_sigma_that_batches_bear():
    model = network()
    optimizer = SR2(model, L1(1e-6), cooldown=(1, 40))
    run(optimizer, model, 0, BATCHES - 1)
    assert float(optimizer._search.memory["sigma_first"]) == 0  # nothing yet
    run(optimizer, model, BATCHES - 1, 8)
    assert float(optimizer._search.memory["sigma_first"]) >= 0.98**4 * optimizer.rule.usual / optimizer.rule.longest


def test_an_estimate_afterwards_has_the_same_bound():
    model = network()
    optimizer = SR2(model, L1(1e-6))
    run(optimizer, model, 0, BATCHES)
    optimizer.estimate_sigma(closure(model, 0))
    assert optimizer.sigma >= optimizer.rule.usual / max(3.0, optimizer.rule.longest)


def test_without_a_metric_of_signs_nobody_is_asked():
    model = network()
    optimizer = SR2(model, L1(1e-4), metric=None, rule=Tolerant(usual=10.0))
    run(optimizer, model, 0, 2)
    assert optimizer.counts["null"] == 0


class Own(Rule):
    """It asks, and has nothing to take."""

    asks, usual_sigma = True, 20.0

    def judge(self, evidence, state):
        return Verdict(evidence.actual >= 0, state.sigma, rho=evidence.actual / evidence.predicted)


def test_a_rule_of_ones_own_may_ask():
    model = network()
    optimizer = SR2(model, L1(1e-4), rule=Own(), metric="adam", momentum=0.9)
    run(optimizer, model, 0, 6)
    assert optimizer.counts["null"] == BATCHES - 1


def test_what_a_rule_of_ones_own_may_say():
    class Says(Tolerant):
        def agreed(self, share):
            return None

    model = network()
    before, optimizer = copy.deepcopy(model.state_dict()), SR2(model, L1(1e-4), rule=Says())
    with pytest.raises(TypeError, match=r"a rule's agreed must return its constants by name, or {} for none, .* None"):
        optimizer.step(closure(model, 0))
    assert all(torch.equal(before[name], x) for name, x in model.state_dict().items())


@pytest.mark.parametrize("gradient", [0.0, math.nan, math.inf])
def test_without_gradients_steps_are_usual_ones(gradient):
    agreement = Agreement()
    for _ in range(BATCHES):
        agreement.take(gradient, gradient)
    assert agreement.over
    assert agreement.share == 0.0


def test_a_layer_that_is_frozen_meanwhile_and_a_step_that_fails():
    model = network()
    optimizer = SR2(model, L1(1e-4))
    run(optimizer, model, 0, 1)
    model[0].weight.requires_grad_(False)
    with pytest.raises(ZeroDivisionError):
        optimizer.step(lambda: 1 / 0)
    run(optimizer, model, 1, 6)
    assert 1.0 <= optimizer.rule.longest <= 4.0
    assert optimizer.counts["null"] == BATCHES - 1


@pytest.mark.filterwarnings("ignore:.*had no gradient in the first batch")  # two examples leave much untouched
def test_small_batches_of_the_digits_have_usual_steps_and_large_ones_longer():
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 16 - 0.3, dtype=torch.float32), torch.tensor(labels)
    found = {}
    for examples in (2, 64):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        optimizer = SR2(model, L1(1e-4))
        for b in torch.randperm(len(x))[: BATCHES * examples].split(examples):
            optimizer.step(lambda b=b, model=model: cross_entropy(model(x[b]), y[b]))
        found[examples] = optimizer.rule.longest
    assert found[2] < 1.6
    assert 2.5 < found[64] <= 4.0
