"""What people do who come from another optimizer: said in a sentence, or made right."""

from __future__ import annotations

import random
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sr2 import L0, L1, SR2, BatchGrowth, ProxGEN, param_groups
from tests.optimizers import OPTIMIZERS, named
from tests.tools import algorithm_1

every = pytest.mark.parametrize("case", OPTIMIZERS, ids=named)

torch.manual_seed(0)
X, Y = torch.randn(64, 10), torch.randint(3, (64,))


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 3))


def train(optimizer, make_closure, steps):
    for _ in range(steps):
        optimizer.step(make_closure())


def silent(optimizer, closure, steps=40):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(optimizer, lambda: closure, steps)


# ---- a closure that is no function of x


def drawn(model):
    """A batch that the closure draws itself, as next(loader) does."""
    generator = torch.Generator().manual_seed(0)

    def closure():
        rows = torch.randint(64, (8,), generator=generator)
        return F.cross_entropy(model(X[rows]), Y[rows])

    return closure


def noisy(model):
    rng = np.random.default_rng(0)
    return lambda: F.cross_entropy(model(X) + 0.3 * torch.tensor(rng.normal(size=(64, 3))).float(), Y)


def shallow(model):
    """Stochastic depth by Python's own generator."""
    rng = random.Random(0)
    return lambda: F.cross_entropy(model(X) * (2.0 if rng.random() < 0.5 else 1.0), Y)


@pytest.mark.parametrize("write", [drawn, noisy, shallow])
def test_it_is_said_at_the_first_rejection(write):
    model = network()
    optimizer = algorithm_1(model, L1(1e-4))
    closure = write(model)
    with pytest.warns(UserWarning, match=r"gave .* and then .* at the same x.*draw the batch outside it") as seen:
        train(optimizer, lambda: closure, 60)
    assert [warning.filename for warning in seen] == [__file__]  # the user's line


def test_a_function_of_x_is_silent():
    model = network()
    optimizer = SR2(model, L0(1e-4), eta2=0.5)
    silent(optimizer, lambda: F.cross_entropy(model(X), Y))
    assert optimizer.counts["rejected"] > 3


# ---- what is computed outside the closure


@pytest.mark.parametrize("what", ["loss", "logits"])
def test_what_is_computed_outside_the_closure(what):
    model = network()
    optimizer = SR2(model, L1(1e-4), sigma=3.0)

    def closure():
        logits = model(X)
        loss = F.cross_entropy(logits, Y)
        return (lambda: loss) if what == "loss" else (lambda: F.cross_entropy(logits, Y))

    with pytest.warns(UserWarning, match=r"to the bit.*is the network called inside the closure") as seen:
        train(optimizer, closure, 10)
    assert [warning.filename for warning in seen] == [__file__]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_an_interrupt_of_the_third_call_leaves_the_step_done(momentum):
    """It comes after the step: x is back, and sigma, counts, buffers and generators are as after any rejection."""
    ends = []
    for interrupted in (False, True):
        torch.manual_seed(2)
        model = nn.Sequential(nn.Linear(10, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 3))
        optimizer = SR2(model, L1(1e-4), sigma=1e-3, momentum=momentum, cooldown=(1, 100))
        calls = []

        def closure(model=model, calls=calls, interrupted=interrupted):
            calls.append(0)
            if interrupted and len(calls) == 3:
                raise KeyboardInterrupt
            return F.cross_entropy(model(X), Y)

        if interrupted:
            with pytest.raises(KeyboardInterrupt):
                optimizer.step(closure)
        else:
            optimizer.step(closure)
        assert len(calls) == 3
        state = {name: value.clone() for name, value in model.state_dict().items()}
        ends.append((optimizer.sigma, optimizer.counts, optimizer.last_step, torch.get_rng_state().tolist(), state))
    assert ends[0][:4] == ends[1][:4]
    assert all(torch.equal(ends[0][4][name], ends[1][4][name]) for name in ends[0][4])


def test_a_reflection_is_silent():
    """f(x + s) = f(x) where sigma is half of the curvature."""
    x = nn.Parameter(torch.randn(5))
    optimizer = algorithm_1([x], sigma=1.0)
    silent(optimizer, lambda: x.square().sum(), 1)
    assert optimizer.last_step.trial_loss == optimizer.last_step.loss


def test_a_graph_that_is_used_up():
    model = network()
    optimizer = SR2(model, L1(1e-4), sigma=3.0)
    loss = F.cross_entropy(model(X), Y)
    with pytest.raises(RuntimeError, match="add up the losses of several tasks"):
        optimizer.step(lambda: [loss, 0.5 * loss])


def penalty_of_slopes(model):
    """As in a physics-informed loss: a derivative by the input is a part of it."""
    x = X.clone().requires_grad_()
    (slopes,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    return slopes.square().mean()


def test_a_closure_that_differentiates_by_itself_needs_gradients_at_the_trial_point_too():
    model = network()
    optimizer = SR2(model, L1(1e-4), sigma=300.0)
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(RuntimeError, match=r"with torch.enable_grad\(\):") as raised:
        optimizer.step(lambda: penalty_of_slopes(model))
    assert "does not require grad" in str(raised.value.__cause__)
    assert all(torch.equal(p, x) for p, x in zip(model.parameters(), before, strict=True))
    optimizer.step(torch.enable_grad()(lambda: penalty_of_slopes(model)))
    assert optimizer.last_step.accepted


@every
def test_a_regularizer_that_is_written_into_a_group_is_checked_too(case):
    model = network()
    optimizer = case.make(model)
    optimizer.param_groups[0]["regularizer"] = "l1"
    with pytest.raises(TypeError, match="'l1'"):
        optimizer.step(lambda: F.cross_entropy(model(X), Y))
    if not case.takes(L0(1e-3)):
        optimizer.param_groups[0]["regularizer"] = L0(1e-3)
        with pytest.raises(ValueError, match="convex"):
            optimizer.step(lambda: F.cross_entropy(model(X), Y))


# ---- what the closure returns


@every
def test_more_than_the_loss_from_a_closure_that_fills_the_gradients(case):
    model = network()
    optimizer = case.make(model, L1(1e-4))

    def closure():
        optimizer.zero_grad()
        logits = model(X)
        loss = F.cross_entropy(logits, Y)
        loss.backward()
        return loss, (logits.argmax(1) == Y).float().mean()

    with pytest.raises(ValueError, match="must return the loss alone, and returned 2 things"):
        optimizer.step(closure)


def test_the_losses_of_parts_from_a_closure_that_fills_the_gradients():
    model = network()
    optimizer = SR2(model, L1(1e-4), sigma=5.0)

    def closure():
        optimizer.zero_grad()
        losses = [F.cross_entropy(model(x), y) for x, y in zip(X.chunk(4), Y.chunk(4), strict=True)]
        for loss in losses:
            (loss / 4).backward()
        return losses

    expected = F.cross_entropy(model(X), Y).item()
    assert float(optimizer.step(closure)) == pytest.approx(expected)


# ---- groups


@pytest.mark.parametrize("key", ["lr", "betas", "momentum", "penalty", "lam", "regularizers"])
def test_a_key_that_a_group_does_not_have(key):
    with pytest.raises(ValueError, match=f"a group of SR2 has no '{key}': it has params, regularizer"):
        SR2([{"params": network().parameters(), key: 0.1}], L1(1e-3))


def test_a_group_that_joins_a_module_needs_no_names():
    model, head = network(), nn.Linear(3, 2)
    optimizer = SR2(model, L1(1e-3), sigma=5.0)
    optimizer.add_param_group({"params": head.parameters(), "regularizer": L0(1e-3)})
    optimizer.add_param_group({"params": nn.Parameter(torch.ones(2))})
    assert optimizer.param_groups[-2]["param_names"] == ["group2.0", "group2.1"]
    assert optimizer.param_groups[-1]["param_names"] == ["group3.0"]
    optimizer.step(lambda: head(model(X)).square().mean())
    optimizer.load_state_dict(optimizer.state_dict())


def test_a_schedulers_keys_are_no_mistake():
    model = network()
    first = ProxGEN(model, L1(1e-3), lr=0.1)
    torch.optim.lr_scheduler.CyclicLR(first, 0.01, 0.1, cycle_momentum=False)
    assert "initial_lr" in first.param_groups[0]
    ProxGEN([dict(group) for group in first.param_groups], lr=0.1)


def test_names_that_are_given_stay_and_a_set_is_rejected():
    model = network()
    first = SR2(model, L1(1e-3))
    second = SR2([dict(group) for group in first.param_groups])
    assert [group["param_names"] for group in second.param_groups] == [g["param_names"] for g in first.param_groups]
    with pytest.raises(TypeError, match="ordered"):
        SR2([{"params": set(network().parameters())}], L1(1e-3))
    with pytest.raises(ValueError, match="param"):
        first.add_param_group({"params": []})


def test_a_group_of_the_module_keeps_its_names():
    model = network()
    optimizer = SR2(model, L1(1e-3))
    model.append(nn.Linear(3, 2))
    optimizer.add_param_group({"params": model[3].parameters()})
    assert optimizer.param_groups[-1]["param_names"] == ["3.weight", "3.bias"]


# ---- states


@every
def test_the_state_of_another_optimizer(case):
    """It is told by what it lacks."""
    model = network()
    mine = case.make(model.parameters(), L1(1e-3))
    before = str(mine.state_dict())
    needed = {*mine.defaults, *mine._remembered()}
    others = [torch.optim.Adam(model.parameters())]
    others += [other.make(model.parameters(), L1(1e-3)) for other in OPTIMIZERS if other is not case]
    for other in others:
        state = other.state_dict()
        if needed - {*state["param_groups"][0], *state["state"]}:
            with pytest.raises(ValueError, match=f"this is not the state of {case.name}: it has no '"):
                mine.load_state_dict(state)
    assert str(mine.state_dict()) == before


@every
def test_a_whole_checkpoint_is_no_state_of_an_optimizer(case):
    model = network()
    optimizer = case.make(model)
    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    with pytest.raises(ValueError, match=r"its keys are model, optimizer: .*saved\['optimizer'\]"):
        optimizer.load_state_dict(saved)


@every
@pytest.mark.parametrize("first", [L1(1e-3), network().state_dict(), None], ids=["R", "state", "None"])
def test_what_comes_first_is_the_module(case, first):
    with pytest.raises(
        TypeError, match=rf"{case.name}: the first argument is the module, and is a {type(first).__name__}"
    ):
        case.make(first)


@every
def test_a_regularizer_that_would_reach_no_group(case):
    groups = param_groups(network(), [("0.weight", L1(1e-3)), ("*", None)])
    with pytest.warns(UserWarning, match=r"L1\(lam=0.1\) reaches no parameter.*leave it out"):
        case.make(groups, L1(0.1))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("momentum", {"momentum": 0.9, "metric": None, "average": False}),
        ("square", {"momentum": 0.0, "metric": "adam", "average": False}),
        ("average", {"momentum": 0.0, "metric": None, "average": True}),
    ],
)
def test_the_state_of_another_network(name, options):
    a, b = nn.Linear(4, 3), nn.Linear(5, 3)
    first, second = (SR2(m, L1(1e-3), sigma=5.0, **options) for m in (a, b))
    first.step(lambda: a(torch.ones(2, 4)).square().mean())
    with pytest.raises(ValueError, match=rf"the {name} of a parameter of shape \(3, 5\) has shape \(3, 4\)"):
        second.load_state_dict(first.state_dict())


@every
def test_a_state_without_groups(case):
    with pytest.raises(ValueError, match=r"not the state of|number of parameter groups"):
        case.make(network()).load_state_dict({"state": {}, "param_groups": []})


def test_a_hook_that_matches_parameters_by_name_comes_first():
    a, b = nn.Linear(4, 3), nn.Linear(4, 3)
    first = SR2(a.named_parameters(), L1(1e-3), momentum=0.9, sigma=50.0)
    first.step(lambda: a(torch.ones(2, 4)).square().mean())
    second = SR2([("bias", b.bias), ("weight", b.weight)], L1(1e-3), momentum=0.9, sigma=5.0)

    def by_name(optimizer, state):
        (mine,), (saved,) = optimizer.state_dict()["param_groups"], state["param_groups"]
        numbers = dict(zip(saved["param_names"], saved["params"], strict=True))
        entries = {i: state["state"][numbers[name]] for i, name in enumerate(mine["param_names"])}
        return {"state": entries, "param_groups": [{**mine, "search": saved["search"]}]}

    second.register_load_state_dict_pre_hook(by_name)
    second.load_state_dict(first.state_dict())
    assert torch.equal(second.state[b.weight]["momentum"], first.state[a.weight]["momentum"])


@pytest.mark.parametrize(("saved", "loading"), [(None, 4), (8, None), (8, 4)])
def test_batch_growth_that_the_saved_state_has_not(saved, loading):
    model = network()

    def make(batch):
        growth = None if batch is None else BatchGrowth(kappa=1e6, batch=batch, largest=64)
        return SR2(model, L1(1e-3), sigma=5.0, batch_growth=growth)

    first, second = make(saved), make(loading)
    first.step(lambda: F.cross_entropy(model(X), Y))
    second.load_state_dict(first.state_dict())
    assert second.batch_size == (saved if saved and loading else loading)
    second.step(lambda: F.cross_entropy(model(X), Y))


@pytest.mark.parametrize("capturable", [False, True])
def test_a_parameter_that_is_frozen_while_the_state_is_loaded(capturable):
    model = network()
    optimizer = SR2(model, L1(1e-3), momentum=0.9, capturable=capturable, sigma=100.0)

    def closure():
        return F.cross_entropy(model(X), Y)

    optimizer.step(closure)
    model[0].bias.requires_grad_(False)
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.step(closure)
    model[0].bias.requires_grad_(True)
    optimizer.step(closure)
    assert optimizer.counts["accepted"] == 3
