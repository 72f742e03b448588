"""Mistakes of those who come from other trainers, and autocast that nobody names: seen at the first steps."""

from __future__ import annotations

import sys
import types
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sr2 import L1, SR2, param_groups

torch.manual_seed(0)
X, Y = torch.randn(64, 10), torch.randint(3, (64,))
BF16 = torch.bfloat16


def network(norm=True):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(10, 32), nn.BatchNorm1d(32) if norm else nn.Identity(), nn.ReLU(), nn.Linear(32, 3))


def loss_of(model):
    return F.cross_entropy(model(X), Y)


def messages(body):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        body()
    assert all(warning.filename == __file__ for warning in seen)  # the user's line
    return [str(warning.message) for warning in seen]


def filled(optimizer, model, change=lambda: None, returned=lambda loss: loss):
    """A closure as torch's LBFGS and Lightning write it."""

    def closure():
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        change()
        return returned(loss)

    return closure


FORMS = {
    "forward": lambda o, m: lambda: loss_of(m),
    "filled": filled,
    "detached": lambda o, m: filled(o, m, returned=lambda loss: loss.detach()),
    "number": lambda o, m: filled(o, m, returned=lambda loss: loss.item()),
    "parts": lambda o, m: lambda: [F.cross_entropy(m(x), y) for x, y in zip(X.split(32), Y.split(32), strict=True)],
}
ALL_FORMS = pytest.mark.parametrize("form", FORMS)


# ---- gradients before a step


def test_accumulation_outside_the_closure_is_said_once():
    model = network()
    optimizer = SR2(model, L1(1e-4))

    def body():
        for _ in range(5):
            loss_of(model).backward()  # the first half of a batch
            optimizer.step(lambda: loss_of(model))
            optimizer.zero_grad()

    (said,) = messages(body)
    assert "there were gradients before this step" in said
    assert "list of its parts' losses" in said
    assert "optimizer.zero_grad()" in said


def test_it_is_said_where_accumulation_begins_at_the_second_step():
    model = network()
    optimizer = SR2(model, L1(1e-4))
    optimizer.step(lambda: loss_of(model))
    loss_of(model).backward()  # onto what the step has left
    assert len(messages(lambda: optimizer.step(lambda: loss_of(model)))) == 1


@ALL_FORMS
@pytest.mark.parametrize("clear", [None, True, False], ids=["kept", "none", "zero"])
def test_the_gradients_of_the_last_step_are_none_of_these(form, clear):
    model = network()
    optimizer = SR2(model, L1(1e-4), eta2=0.5)
    closure = FORMS[form](optimizer, model)

    def body():
        for _ in range(6):
            optimizer.step(closure)
            if clear is not None:
                optimizer.zero_grad(set_to_none=clear)

    assert messages(body) == []


def test_nor_are_those_of_the_optimizer_before():
    model = network()
    adam = torch.optim.Adam(model.parameters())
    loss_of(model).backward()
    adam.step()
    optimizer = SR2(model, L1(1e-4))
    assert messages(lambda: optimizer.step(lambda: loss_of(model))) == []


def test_accelerate_that_skips_steps_is_said(monkeypatch):
    state = types.SimpleNamespace(_shared_state={"plugin_kwargs": {"num_steps": 4}})
    monkeypatch.setitem(sys.modules, "accelerate.state", types.SimpleNamespace(GradientState=state))
    model = network()
    optimizer = SR2(model, L1(1e-4))
    (said,) = messages(lambda: [optimizer.step(lambda: loss_of(model)) for _ in range(4)])
    assert "Accelerate skips 3 of 4 calls of step" in said
    assert "gradient_accumulation_steps=1" in said


# ---- gradients that are not the loss's


@pytest.mark.parametrize("norm", [0.01, 0.2])
def test_clipping_is_said(norm):
    model = network(norm=False)
    optimizer = SR2(model, L1(1e-4))
    closure = filled(optimizer, model, lambda: nn.utils.clip_grad_norm_(model.parameters(), norm))
    (said,) = messages(lambda: [optimizer.step(closure) for _ in range(5)])
    assert "the closure multiplies its gradients by 0." in said
    assert "as clipping does" in said


def a_third(model):
    for p in model.parameters():
        p.grad.div_(3)


CHANGES = {
    "a clip that does nothing": lambda model: nn.utils.clip_grad_norm_(model.parameters(), 1e6),
    "the mean of parts": lambda model: a_third(model),
    "nothing": lambda model: None,
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_leaves_the_gradients_those_of_the_loss_is_silent(change):
    model = network()
    optimizer = SR2(model, L1(1e-4))

    def closure():
        optimizer.zero_grad()
        parts = [loss_of(model) for _ in range(3 if "mean" in change else 1)]
        for part in parts:
            part.backward()
        CHANGES[change](model)
        return parts[0].detach()

    assert messages(lambda: [optimizer.step(closure) for _ in range(5)]) == []


def test_gradients_that_are_not_finite_are_not_taken_for_clipped_ones():
    model = network(norm=False)
    optimizer = SR2(model, L1(1e-4))

    def closure():
        optimizer.zero_grad()
        loss = loss_of(model) * torch.nan
        loss.backward()
        return loss

    def body():
        with pytest.raises(FloatingPointError, match="the loss at x_t is nan"):
            optimizer.step(closure)

    assert messages(body) == []


# ---- batch norm that nobody protects


@ALL_FORMS
def test_parameters_alone_with_batch_norm_are_said_once(form):
    model = network()
    optimizer = SR2(model.parameters(), L1(1e-4))
    closure = FORMS[form](optimizer, model)
    (said,) = messages(lambda: [optimizer.step(closure) for _ in range(4)])
    assert "running statistics move twice" in said
    assert "SR2(model, ...)" in said


@ALL_FORMS
@pytest.mark.parametrize("why", ["no norm", "evaluated", "no statistics", "module", "groups"])
def test_other_networks_are_silent(form, why):
    model = network(norm=why != "no norm")
    if why == "evaluated":
        model.eval()
    if why == "no statistics":
        model[1] = nn.BatchNorm1d(32, track_running_stats=False)
    if why == "groups":
        optimizer = SR2(param_groups(model, [("*", L1(1e-4))]))
    else:
        optimizer = SR2(model if why == "module" else model.parameters(), L1(1e-4))
    closure = FORMS[form](optimizer, model)
    assert messages(lambda: [optimizer.step(closure) for _ in range(4)]) == []


# ---- autocast that is not named


def trained(named, form, capturable=False, dtype=BF16, given=lambda model: model):
    model = network(norm=False)
    optimizer = SR2(given(model), L1(1e-4), autocast=named, capturable=capturable, eta2=0.5)
    inner = FORMS[form](optimizer, model)

    def closure():
        with torch.autocast("cpu", dtype, enabled=dtype is not None):
            return inner()

    rows = []
    for _ in range(12):
        optimizer.step(closure)
        rows.append((optimizer.last_step, optimizer.sigma))
    return rows


@ALL_FORMS
@pytest.mark.parametrize("capturable", [False, True])
def test_autocast_is_seen_and_is_as_if_named(form, capturable):
    rows = trained(None, form, capturable)
    assert rows == trained(BF16, form, capturable)
    assert rows != trained(None, form, capturable, dtype=None)


def test_it_is_seen_without_a_module_too():
    rows = [trained(named, "number", given=lambda m: m.parameters()) for named in (None, BF16)]
    assert rows[0] == rows[1]


@ALL_FORMS
def test_float32_is_not_taken_for_it(form):
    model = network()
    optimizer = SR2(model, L1(1e-4))
    for _ in range(4):
        optimizer.step(FORMS[form](optimizer, model))
    assert optimizer._watch.autocast is None


def test_bfloat16_parameters_are_rounded_anyway():
    model = network(norm=False).to(BF16)
    optimizer = SR2(model, L1(1e-4))
    optimizer.step(lambda: F.cross_entropy(model(X.to(BF16)), Y))
    assert optimizer._watch.autocast is None


def test_the_first_steps_alone_are_looked_at():
    """A steady step has no hook on modules, and walks no graph."""
    model = network()
    optimizer = SR2(model, L1(1e-4), sigma=100.0)  # a search for sigma_0 would look too
    hooks = nn.modules.module._global_forward_pre_hooks
    seen = []
    closure = FORMS["number"](optimizer, model)

    def counted():
        seen.append(len(hooks))
        return closure()

    for _ in range(6):
        optimizer.step(counted)
    assert max(seen) == 1
    assert sum(seen) == 3
    assert len(hooks) == 0
