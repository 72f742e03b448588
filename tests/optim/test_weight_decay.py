"""Decoupled weight decay: AdamW's, on every path, and rho sees all of it."""

import copy
import itertools
import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sr2 import L1, SR2, KeepZeros, L0Ball, Ridge
from sr2.metrics import Adam
from sr2.rules import Follow, Rule, Tolerant, Verdict

X, Y = torch.randn(64, 6, generator=torch.Generator().manual_seed(1)), torch.arange(64) % 3


class Always(Rule):
    """Every step is taken, and sigma stays: what is left of SR2 is an optimizer with a learning rate."""

    def judge(self, evidence, state):
        return Verdict(evidence.finite, state.sigma, evidence.actual / evidence.predicted)


def network(dtype=torch.float64):
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(6, 10), nn.LayerNorm(10), nn.Tanh(), nn.Linear(10, 3)).to(dtype)


def parted(model):
    return [p for p in model.parameters() if p.dim() > 1], [p for p in model.parameters() if p.dim() == 1]


def batches(dtype, steps=40):
    for t in range(steps):
        rows = slice(8 * (t % 8), 8 * (t % 8) + 8)
        yield X[rows].to(dtype), Y[rows]


def train(model, optimizer, dtype=torch.float64, steps=40):
    for x, y in batches(dtype, steps):
        optimizer.step(lambda x=x, y=y: F.cross_entropy(model(x), y))
    return [p.detach().clone() for p in model.parameters()]


def trained_by_torch(model, optimizer):
    for x, y in batches(torch.float64):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model.parameters()


@pytest.mark.parametrize("options", [{}, {"foreach": False}, {"capturable": True}, {"compile": True}], ids=str)
def test_at_a_constant_sigma_it_is_adamw(options):
    mine, theirs = network(), network()
    ours = train(mine, SR2(mine, sigma=100.0, rule=Always(), weight_decay=0.3, average=False, **options))
    weights, rest = parted(theirs)
    torch_s = torch.optim.AdamW([{"params": weights, "weight_decay": 0.3}, {"params": rest}], lr=1e-2, weight_decay=0)
    for a, b in zip(ours, trained_by_torch(theirs, torch_s), strict=True):
        torch.testing.assert_close(a, b.detach(), rtol=0, atol=1e-10)


def test_without_a_metric_it_is_the_gradient_of_half_the_square():
    mine, theirs = network(), network()
    options = {"metric": None, "momentum": 0.0, "weight_decay": 0.1}
    ours = train(mine, SR2(mine, sigma=5.0, rule=Always(), **options))
    weights, rest = parted(theirs)
    sgd = torch.optim.SGD([{"params": weights, "weight_decay": 0.1}, {"params": rest}], lr=0.2)
    for a, b in zip(ours, trained_by_torch(theirs, sgd), strict=True):
        torch.testing.assert_close(a, b.detach(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("metric", [None, Adam()], ids=str)
@pytest.mark.parametrize("R", [None, L1(1e-2), L0Ball(density=0.5)], ids=str)
def test_the_actual_decrease_is_that_of_f_decay_and_penalty(metric, R):
    """The first step, by hand: D is |g| + eps, and nothing is linearized."""
    torch.manual_seed(0)
    x0, w, sigma = torch.randn(7, 5, dtype=torch.float64), 0.7, 3.0
    if R is not None:
        x0 = R.prox(x0, 1e-9)
    A, b = torch.randn(9, 35, dtype=torch.float64), torch.randn(9, dtype=torch.float64)

    def f(x):
        return (A @ x.flatten() - b).square().sum() / 50

    p = nn.Parameter(x0.clone())
    options = {"momentum": 0.0, "average": False, "weight_decay": w, "metric": metric, "rule": Always()}
    optimizer = SR2([p], R, sigma=sigma, **options)
    optimizer.step(lambda: f(p))
    g = torch.autograd.grad(f(z := x0.clone().requires_grad_()), z)[0]
    D = torch.ones_like(g) if metric is None else g.abs() + metric.eps
    if metric is not None and R is not None and R.strict:  # `RETURNS`
        D = torch.where(x0 == 0, 4 * D, D)

    def objective(x):
        value = f(x) + w / 2 * (D * x * x).sum()
        return value if R is None else value + R.value([x])

    with torch.no_grad():
        assert optimizer.last_step.actual == pytest.approx(float(objective(x0) - objective(p)), rel=1e-9)
        dR = 0.0 if R is None else float(R.value([x0]) - R.value([p]))
        predicted = dR - float(((g + w * D * x0) * (p - x0)).sum())
        assert optimizer.last_step.predicted == pytest.approx(predicted, rel=1e-9)


@pytest.mark.parametrize("options", [{}, {"foreach": False}, {"capturable": True}], ids=str)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("metric", [None, Adam()], ids=str)
def test_beside_a_full_objective_there_is_the_decay_too(metric, momentum, options):
    """What is predicted has it: without it in what is compared, rho was 0.1 where it is 0.9."""
    x0, w = torch.randn(7, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)), 0.7
    p, squares = nn.Parameter(x0.clone()), torch.zeros_like(x0)
    optimizer = SR2([p], sigma=30.0, momentum=momentum, weight_decay=w, metric=metric, rule=Always(), **options)

    def f(x):
        return (x - 1).square().sum() / 4

    for t in range(1, 4):
        old, noise = p.detach().clone(), torch.randn(7, 5, dtype=torch.float64)
        optimizer.step(lambda noise=noise: f(p) + (noise * p).sum(), lambda: f(p))
        g = (old - 1) / 2 + noise
        squares = 0.999 * squares + 0.001 * g * g
        D = torch.ones_like(g) if metric is None else (squares / (1 - 0.999**t)).sqrt() + metric.eps
        new = p.detach()
        decay = w / 2 * ((D * old * old).sum() - (D * new * new).sum())
        assert optimizer.last_step.actual == pytest.approx(float(f(old) - f(new) + decay), rel=1e-9)


def test_groups_may_name_their_own_and_states_keep_it():
    model = network()
    groups = [
        {"params": [p], "weight_decay": w} for p, w in zip(model.parameters(), (0.1, 0, 0, 0, 0.2, 0), strict=True)
    ]
    optimizer = SR2(groups, L1(1e-4), sigma=10.0)
    train(model, optimizer, steps=2)
    saved = optimizer.state_dict()
    assert [g["weight_decay"] for g in saved["param_groups"]] == [0.1, 0, 0, 0, 0.2, 0]
    other = SR2([{"params": [p], "weight_decay": 0.5} for p in network().parameters()], L1(1e-4), sigma=10.0)
    other.load_state_dict(saved)
    assert [g["weight_decay"] for g in other.param_groups] == [0.1, 0, 0, 0, 0.2, 0]


@pytest.mark.parametrize(
    ("R", "w"),
    [
        (None, "auto"),
        (L0Ball(density=0.5), "auto"),
        (KeepZeros(), "auto"),
        (L1(1e-3), 0.0),
        (Ridge(0.1, L0Ball(k=9)), 0.0),
    ],
    ids=str,
)
def test_a_penalty_has_none_beside_it(R, w):
    model = network()
    assert SR2(model, R).param_groups[0]["weight_decay"] == w
    assert SR2(model, R, **SR2.paper_defaults()).param_groups[0]["weight_decay"] == 0.0
    assert SR2(model, R, weight_decay=0.3).param_groups[0]["weight_decay"] == 0.3


def size(model):
    """By numpy's own sums."""
    weights = torch.cat([p.detach().flatten() for p in model.parameters() if p.dim() > 1]).numpy()
    return math.sqrt(math.pi / 2) * float(abs(weights[weights != 0]).mean())


@pytest.mark.parametrize("options", [{}, {"foreach": False}, {"capturable": True}, {"sigma": 20.0}], ids=str)
@pytest.mark.parametrize("R", [None, L0Ball(density=0.5)], ids=str)
def test_by_default_it_follows_from_the_size_of_the_first_weights(R, options):
    model = network()
    optimizer = SR2(model, R, reach=None if R is None else (1, 30), **options)
    expected = 0.0036 / size(model)
    train(model, optimizer, steps=3)
    assert optimizer.param_groups[0]["weight_decay"] == pytest.approx(expected, rel=1e-12)
    another = network()
    resumed = SR2(another, R, reach=None if R is None else (1, 30), **options)
    resumed.load_state_dict(optimizer.state_dict())
    train(another, resumed, steps=3)
    assert resumed.param_groups[0]["weight_decay"] == optimizer.param_groups[0]["weight_decay"]


@pytest.mark.parametrize(
    ("steps", "relative"), [(782, 2.8 / 782), (391, 2.8 / 391), (400, 0.007), (280, 0.01), (1, 0.01)]
)
def test_where_epochs_are_known_it_is_as_much_per_epoch(steps, relative):
    model = network()
    expected = relative / size(model)
    optimizer = SR2(model, steps_per_epoch=steps)
    copied, twin = copy.deepcopy((optimizer, model))
    for o, m in ((optimizer, model), (copied, twin)):
        train(m, o, steps=1)
        assert o.param_groups[0]["weight_decay"] == pytest.approx(expected, rel=1e-12)
    budget = SR2(model := network(), L0Ball(density=0.5), reach=(1, 30), steps_per_epoch=steps)
    expected = 0.0036 / size(model)
    train(model, budget, steps=1)
    assert budget.param_groups[0]["weight_decay"] == pytest.approx(expected, rel=1e-12)
    assert SR2(network(), weight_decay=0.1, steps_per_epoch=steps).param_groups[0]["weight_decay"] == 0.1


@pytest.mark.parametrize("wrong", [0, -3, 2.5, "len(loader)", True])
def test_what_is_no_number_of_steps_per_epoch(wrong):
    with pytest.raises(ValueError, match=r"steps_per_epoch .* must be an integer of at least 1, and is "):
        SR2(network(), steps_per_epoch=wrong)


def test_a_copy_takes_another_group():
    model = network()
    copied = copy.deepcopy(SR2(model, L1(1e-3)))
    copied.add_param_group({"params": [nn.Parameter(torch.ones(2, 2, dtype=torch.float64))]})
    assert [g["weight_decay"] for g in copied.param_groups] == [0.0, "auto", 0.0]


def test_a_group_that_comes_later_has_it_too():
    model, late = network(), nn.Parameter(torch.full((4, 4), 0.2, dtype=torch.float64))
    optimizer = SR2(model, sigma=10.0)
    train(model, optimizer, steps=2)
    first = optimizer.param_groups[0]["weight_decay"]
    optimizer.add_param_group({"params": [late]})
    optimizer.step(lambda: F.cross_entropy(model(X.double()), Y) + late.square().sum())
    assert optimizer.param_groups[0]["weight_decay"] == first
    assert 0 < optimizer.param_groups[-1]["weight_decay"] < 1


@pytest.mark.parametrize("metric", [None, "andrei"])
def test_there_is_none_where_sigma_is_not_in_the_unit_of_the_weights(metric):
    model = network()
    optimizer = SR2(model, sigma=50.0, metric=metric)
    train(model, optimizer, steps=1)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.0] * len(optimizer.param_groups)


@pytest.mark.parametrize(("R", "others"), [(None, "auto"), (L1(1e-3), 0.0), (KeepZeros(), "auto")], ids=str)
def test_a_group_has_what_it_names_or_what_its_penalty_asks_for(R, others):
    x, y, z = (nn.Parameter(torch.ones(2, 2)) for _ in range(3))
    groups = [{"params": [x]}, {"params": [y], "weight_decay": 0.1}, {"params": [z], "regularizer": L1(1.0)}]
    assert [g["weight_decay"] for g in SR2(groups, R).param_groups] == [others, 0.1, 0.0]
    assert [g["weight_decay"] for g in SR2(groups, R, weight_decay=0.3).param_groups] == [0.3, 0.1, 0.3]


def test_a_start_twice_as_large_is_the_same_run():
    """f sees the direction of each row only; sigma and the decay are in the unit of 1 / x."""

    def directions(scale):
        torch.manual_seed(3)
        weight, last = nn.Parameter(scale * torch.randn(10, 6, dtype=torch.float64)), torch.randn(3, 10).double()
        optimizer = SR2([weight], sigma=400.0 / scale)

        def loss(x, y):
            return F.cross_entropy(torch.tanh(x @ F.normalize(weight, eps=0).mT) @ last.mT, y)

        for x, y in batches(torch.float64, 200):
            optimizer.step(partial(loss, x, y))
        return weight.detach() / scale, optimizer.counts

    (a, counted), (b, again) = directions(1.0), directions(2.0)
    assert counted == again
    torch.testing.assert_close(a, b, rtol=0, atol=1e-5)


def weights_lost(optimizer, model, steps):
    """The share that each step took, of weights whose gradient is zero: what is left of them is the decay's work."""
    left = [model.weight.detach().double().norm()]
    for _ in range(steps):
        optimizer.step(lambda: 0.0 * model.weight.sum() + model.bias.square().sum())
        left.append(model.weight.detach().double().norm())
    return [float(1 - b / a) for a, b in itertools.pairwise(left)]


LEFT = [min(1.0, max(0.02, (20 - t) / 10)) for t in range(20)]
"""Of the length of a step, in a cooldown from step 10 on."""


@pytest.mark.parametrize(("weight_decay", "share"), [(0.3, 0.3 / 50), ("0.003/step", 0.003)])
@pytest.mark.parametrize("options", [{}, {"foreach": False}, {"capturable": True}], ids=str)
def test_the_share_falls_with_a_cooldown(options, weight_decay, share):
    model = nn.Linear(8, 4).double()
    optimizer = SR2(model, sigma=50.0, rule=Always(), weight_decay=weight_decay, cooldown=(10, 20), **options)
    assert weights_lost(optimizer, model, 20) == pytest.approx([share * left for left in LEFT], rel=1e-6)


def test_a_share_is_that_of_every_step_whatever_sigma_is():
    model = nn.Linear(8, 4).double()
    optimizer = SR2(model, sigma=50.0, weight_decay="0.03/step")
    assert weights_lost(optimizer, model, 5) == pytest.approx([0.03] * 5, rel=1e-9)
    assert optimizer.sigma < 50.0


@pytest.mark.parametrize("wrong", [-1.0, "0.1", "much", "2/step", "-1e-3/step", "/step", True, None], ids=str)
def test_what_is_no_decay(wrong):
    with pytest.raises(ValueError, match="SR2: weight_decay must be"):
        SR2(network(), weight_decay=wrong)
    with pytest.raises(ValueError, match="SR2: weight_decay must be"):
        SR2([{"params": network().parameters(), "weight_decay": wrong}])


def test_what_the_first_step_searches_for_has_no_decay():
    def sigma(**options):
        torch.manual_seed(0)
        model = nn.Linear(6, 3).double()
        optimizer = SR2(model, **options)
        optimizer.estimate_sigma(lambda: F.cross_entropy(model(X.double()), Y))
        return optimizer.sigma

    assert sigma() == sigma(weight_decay=0.0) == sigma(weight_decay=0.5)


def test_one_that_is_written_into_a_group():
    model = network()
    optimizer = SR2([{"params": model.parameters(), "weight_decay": "auto"}], sigma=10.0)
    assert optimizer.param_groups[0]["weight_decay"] == "auto"
    optimizer.param_groups[0]["weight_decay"] = "much"
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(ValueError, match=r"SR2: weight_decay must be .* and is 'much'"):
        train(model, optimizer, steps=1)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    optimizer.param_groups[0]["weight_decay"] = 0.1
    train(model, optimizer, steps=1)
    optimizer.param_groups[0]["weight_decay"] = "auto"  # of the weights as they are now
    expected = 0.0036 / size(model)
    train(model, optimizer, steps=1)
    assert optimizer.param_groups[0]["weight_decay"] == pytest.approx(expected)
    optimizer.param_groups[0]["weight_decay"] = 1  # an int, as a scheduler of one's own may write
    train(model, optimizer, steps=1)
    for wrong in (-0.1, math.nan, math.inf):
        optimizer.param_groups[0]["weight_decay"] = wrong
        with pytest.raises(ValueError, match=rf"SR2: weight_decay must be .* and is {wrong}"):
            train(model, optimizer, steps=1)


@pytest.mark.parametrize("rule", [Tolerant(usual=100.0), Tolerant(), Follow()], ids=str)
def test_auto_is_decided_after_sigma_was_estimated_apart(rule):
    model = network()
    optimizer, expected = SR2(model, rule=rule), 0.0036 / size(model)
    optimizer.estimate_sigma(lambda: F.cross_entropy(model(X.double()), Y))
    train(model, optimizer, steps=2)
    assert optimizer.param_groups[0]["weight_decay"] == pytest.approx(expected)


@pytest.mark.parametrize("raises", [True, False], ids=["raises", "nan"])
def test_a_first_step_that_fails_leaves_auto_undecided(raises):
    model = network()
    optimizer = SR2(model)

    def fails():
        if raises:
            raise KeyError("a batch that is not there")
        return F.cross_entropy(model(X.double()), Y) * math.nan

    with pytest.raises((KeyError, FloatingPointError)):
        optimizer.step(fails)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(100)
    expected = 0.0036 / size(model)
    train(model, optimizer, steps=1)
    assert optimizer.param_groups[0]["weight_decay"] == pytest.approx(expected)
