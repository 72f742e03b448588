"""Asking the closure twice: either kind of closure, and no trace of the second evaluation."""

import copy
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sr2 import L0, L1, SR2, param_groups
from sr2.optim.closure.watch import ASKED
from sr2.rules import Tolerant
from tests.optimizers import OPTIMIZERS, SETS, named
from tests.tools import X, Y, forward_only, small_network, values

every = pytest.mark.parametrize("case", OPTIMIZERS, ids=named)


def assert_same(a, b):
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


def lbfgs_kind(model, optimizer):
    def closure():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(X), Y)
        loss.backward()
        return loss

    return closure


def lbfgs_kind_in_place(model, optimizer):
    def closure():
        optimizer.zero_grad(set_to_none=False)
        loss = F.cross_entropy(model(X), Y)
        loss.backward()
        return loss

    return closure


def lbfgs_kind_number(model, optimizer):
    inner = lbfgs_kind(model, optimizer)
    return lambda: inner().item()


# ---- kinds of closures


WAYS = [(case, options, lbfgs_kind) for case, options in SETS]
WAYS += [(case, "plain", write) for case in OPTIMIZERS for write in (lbfgs_kind_in_place, lbfgs_kind_number)]


@pytest.mark.parametrize(("case", "options", "write"), WAYS, ids=named)
def test_both_kinds_of_closure_give_the_same_bits(case, options, write):
    ends, losses = [], []
    for how in (forward_only, write):
        model = small_network()
        optimizer = case.make(model, L1(1e-3), options)
        closure = how(model, optimizer)
        losses.append([float(optimizer.step(closure)) for _ in range(25)])
        ends.append(values(model))
    assert losses[0] == losses[1]
    assert len(set(losses[0])) > 20
    assert_same(*ends)


@every
@pytest.mark.parametrize("backward", [False, True], ids=["forward only", "LBFGS kind"])
def test_gradient_accumulation_is_the_big_batch(case, backward):
    ends = []
    for chunks in (1, 4):
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).double()
        optimizer = case.make(model, L1(1e-3))

        def closure(model=model, chunks=chunks, optimizer=optimizer):
            if backward:
                optimizer.zero_grad()
            total = 0.0
            for x, y in zip(X.double().chunk(chunks), Y.chunk(chunks), strict=True):
                loss = F.cross_entropy(model(x), y) * len(x) / len(X)
                if backward:
                    loss.backward()
                    loss = loss.item()
                total = total + loss
            return total

        for _ in range(15):
            optimizer.step(closure)
        ends.append(values(model))
        if case.judges:
            assert optimizer.counts["accepted"] > 5
    for name in ends[0]:
        torch.testing.assert_close(ends[0][name], ends[1][name], rtol=1e-10, atol=1e-12)


@every
@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda model: None, "returned None"),
        (lambda model: model(X).mean(0), r"returned a torch.float32 tensor of shape \(3,\)"),
        (lambda model: (model(X).mean(), model(X)), "return the loss alone"),
        (lambda model: model(X).mean().detach(), "does not depend on the parameters"),
        (lambda model: torch.tensor(3), "torch.int64"),
        (lambda model: 3.0, "does not depend on the parameters"),
        (lambda model: "loss", "'loss'"),
        (lambda model: model(X).mean().backward(), "returned None"),
        (lambda model: {"loss": model(X).mean()}, "returned an object of type dict: end it with `return loss`"),
        (lambda model: (model(X).mean(), {"accuracy": 0.5}), "returned an object of type dict: end it with"),
    ],
    ids=["None", "vector", "outputs too", "detached", "int", "number", "string", "backward and None", "dict", "a log"],
)
def test_a_wrong_closure_is_one_sentence(case, wrong, words):
    model = small_network()
    optimizer = case.make(model)
    weights = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(ValueError, match=words) as error:
        optimizer.step(lambda: wrong(model))
    assert str(error.value).startswith("the closure")
    assert "\n" not in str(error.value)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), weights, strict=True))


def test_a_one_element_loss_is_a_loss():
    model = small_network()
    optimizer = SR2(model, sigma=2.0)
    loss = optimizer.step(lambda: F.cross_entropy(model(X), Y).reshape(1, 1))
    assert loss.shape == ()
    assert not loss.requires_grad


def test_the_loss_of_another_network_is_one_sentence():
    model, other = small_network(), small_network()
    with pytest.raises(ValueError, match=r"^the loss depends on no trained parameter: give SR2 the module that"):
        SR2(model).step(lambda: F.cross_entropy(other(X), Y))


def test_step_without_a_closure():
    optimizer = SR2(small_network(), sigma=2.0)
    with pytest.raises(
        TypeError, match=r"SR2.step needs a closure.*optimizer.step\(lambda: loss_fn\(model\(x\), y\)\)"
    ):
        optimizer.step()


def test_grad_scaler_is_told_about_bfloat16():
    model = small_network()
    optimizer = SR2(model, sigma=2.0)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(F.cross_entropy(model(X), Y)).backward()
    with pytest.raises(TypeError, match=r"GradScaler.*bfloat16 autocast"):
        scaler.step(optimizer)


# ---- mixed precision


@every
def test_autocast_outside_the_step_is_autocast_inside_the_closure(case):
    """autocast keeps the cast copies of weights for as long as its region lasts: no evaluation may see stale ones."""
    ends, losses, steps = [], [], []
    for outside in (False, True):
        model = small_network(dropout=False)
        optimizer = case.make(model, L1(1e-3))

        def closure(model=model, outside=outside):
            with torch.autocast("cpu", torch.bfloat16, enabled=True):  # a nested region shares the outer one's copies
                return F.cross_entropy(model(X).float(), Y)

        with torch.autocast("cpu", torch.bfloat16) if outside else nullcontext():
            for _ in range(10):
                losses.append(optimizer.step(closure).item())
                steps.append(getattr(optimizer, "last_step", None))
        ends.append(values(model))
    assert losses[:10] == losses[10:]
    assert steps[:10] == steps[10:]
    assert_same(*ends)
    if case.judges:
        assert all(s.loss != s.trial_loss for s in steps)


# ---- no trace


class Interrupted(nn.Module):
    """Raises at the evaluation of that number."""

    def __init__(self, inner, error):
        super().__init__()
        self.inner, self.error, self.at, self.calls = inner, error, None, 0

    def forward(self, x):
        out = self.inner(x)
        self.calls += 1
        if self.calls == self.at:
            raise self.error
        return out


@pytest.mark.parametrize("error", [RuntimeError("disk on fire"), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("foreach", [False, True, None])
@pytest.mark.parametrize(
    "options", [{}, {"momentum": 0.9, "metric": "adam", "sigma": 200.0}], ids=["plain", "momentum"]
)
def test_an_exception_in_the_trial_leaves_no_trace(error, foreach, options):
    model = Interrupted(small_network(), error)
    optimizer = SR2(model, L1(1e-2), foreach=foreach, **{"sigma": 100.0} | options)
    closure = forward_only(model, optimizer)
    for _ in range(3):
        optimizer.step(closure)
    before, state = values(model), copy.deepcopy(optimizer.state_dict())
    model.at = model.calls + 2
    with pytest.raises(type(error)):
        optimizer.step(closure)
    assert_same(values(model), before)
    after = optimizer.state_dict()
    assert str(after) == str(state)
    optimizer.step(closure)
    assert not torch.equal(model.inner[0].weight, before["inner.0.weight"])


@pytest.mark.parametrize("write", [forward_only, lbfgs_kind])
@pytest.mark.parametrize("sigma", [100.0, 1e-3], ids=["accepted", "rejected"])
def test_grad_after_the_step_is_the_gradient_at_x(write, sigma):
    model = small_network(dropout=False)
    optimizer = SR2(model, L1(1e-3), sigma=sigma)
    expected = torch.autograd.grad(F.cross_entropy(model(X), Y), list(model.parameters()))
    optimizer.step(write(model, optimizer))
    assert optimizer.last_step.accepted == (sigma == 100.0)
    for p, g in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(p.grad, g, rtol=0, atol=0)


@pytest.mark.parametrize("write", [forward_only, lbfgs_kind])
@pytest.mark.parametrize("sigma", [2.0, 1e-3], ids=["accepted", "rejected"])
def test_batch_norm_and_dropout_see_one_forward(write, sigma):
    """Every buffer and the generator end as after one plain forward; both evaluations draw the same masks."""
    model, masks = small_network(), []

    def record(module, inputs, output):
        masks.append((output == 0) & (inputs[0] != 0))

    model[3].register_forward_hook(record)
    optimizer = SR2(model, L1(1e-3), sigma=sigma, gamma1=1.0001)
    drawn = []
    for t in range(5):
        alone, state = copy.deepcopy(model), torch.get_rng_state()
        alone(X)
        expected, rng = values(alone), torch.get_rng_state()
        masks.clear()
        torch.set_rng_state(state)
        optimizer.step(write(model, optimizer))
        assert optimizer.last_step.accepted == (sigma == 2.0)
        assert torch.equal(torch.get_rng_state(), rng)
        buffers = {name for name, _ in model.named_buffers()}
        assert buffers == {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
        for name in buffers:
            assert torch.equal(values(model)[name], expected[name]), name
        assert len(masks) == (3 if sigma != 2.0 and t < ASKED else 2)  # the first rejections ask once more
        assert masks[0].any()
        if sigma == 2.0:  # where a ReLU died in between there is nothing to drop
            alive = 0.7 * masks[0].sum()
            assert (masks[0] & masks[1]).sum() > alive
        drawn.append(masks[0])
    assert model[1].num_batches_tracked == 5
    assert not torch.equal(drawn[0], drawn[1])  # and new ones at the next step


def test_dropout_alone_leaves_the_loss_where_it_was():
    """With an infinitesimal step both evaluations must agree: other masks would give another loss."""
    model = small_network()
    optimizer = SR2(model, sigma=1e12, sigma_min=1.0, weight_decay=0.0)
    losses = [
        (optimizer.last_step.loss, optimizer.last_step.trial_loss)
        for _ in range(5)
        if optimizer.step(forward_only(model, optimizer)) is not None
    ]
    for loss, trial in losses:
        assert trial == pytest.approx(loss, rel=1e-6)
    assert len({round(loss, 4) for loss, _ in losses}) == 5


def test_a_network_with_batch_norm_and_dropout_trains():
    model = small_network()
    optimizer = SR2(model, L0(1e-4), sigma=1.0)
    losses = [optimizer.step(forward_only(model, optimizer)).item() for _ in range(150)]
    assert sum(losses[-10:]) < 0.7 * sum(losses[:10])
    assert model[1].num_batches_tracked == 150


class Rebinds(nn.Module):
    """A buffer that is bound anew by every forward, one that is made by the first, and one that is changed in place."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(5, 3)
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", None)

    def forward(self, x):
        self.count = self.count + 1
        self.seen += len(x)
        self.mean = x.mean() if self.mean is None else self.mean + 1
        return self.linear(x)


@pytest.mark.parametrize("sigma", [5.0, 1e-3], ids=["accepted", "rejected"])
def test_a_buffer_that_is_bound_anew(sigma):
    model = Rebinds()
    optimizer = SR2(model, L1(1e-3), sigma=sigma, gamma1=1.0001)
    for t in range(1, 4):
        optimizer.step(forward_only(model, optimizer))
        assert model.count == t
        assert model.seen == 24 * t
        assert model.mean.item() == pytest.approx(X.mean().item() + t - 1)


def test_buffers_are_protected_through_param_groups_too():
    model = small_network()
    optimizer = SR2(param_groups(model, [("*.bias", None), ("*", L1(1e-3))]), sigma=2.0)
    optimizer.step(forward_only(model, optimizer))
    assert model[1].num_batches_tracked == 1


def test_eval_mode_stays():
    model = small_network().eval()
    before = {n: b.clone() for n, b in model.named_buffers()}
    SR2(model, L1(1e-3), sigma=2.0).step(lambda: F.cross_entropy(model(X), Y))
    assert not model.training
    for name, b in model.named_buffers():
        assert torch.equal(b, before[name])


# ---- the full objective


def test_the_objective_decides():
    """The batch says go, the whole problem says no; and the other way round."""
    for batch_target, full_target, accepted in ((1.0, -1.0, False), (1.0, 1.0, True)):
        x = nn.Parameter(torch.zeros(2, dtype=torch.float64))
        optimizer = SR2([x], sigma=4.0, rule=Tolerant(rise=1.0))
        full = lambda x=x, a=full_target: (x - a).square().sum() / 2 + 7.0  # noqa: E731
        before = full().item()
        loss = optimizer.step(lambda x=x, a=batch_target: (x - a).square().sum() / 2, full)
        last = optimizer.last_step
        assert loss.item() == last.loss == 1.0
        assert last.accepted is accepted
        trial = torch.full((2,), 0.25, dtype=torch.float64)
        after = ((trial - full_target).square().sum() / 2 + 7.0).item()
        assert last.trial_loss == pytest.approx(after)
        assert last.actual == pytest.approx(before - after)
        assert last.predicted == pytest.approx(2 * 0.25)
        assert x.grad.tolist() == [-1.0, -1.0]  # of the batch


def test_the_objective_leaves_no_trace():
    model = small_network()
    optimizer = SR2(model, L1(1e-3), sigma=2.0)
    state = torch.get_rng_state()
    optimizer.step(lambda: F.cross_entropy(model(X[:8]), Y[:8]), objective=lambda: F.cross_entropy(model(X), Y))
    assert model[1].num_batches_tracked == 1
    after, alone = torch.get_rng_state(), small_network()
    torch.set_rng_state(state)
    alone(X[:8])
    assert torch.equal(torch.get_rng_state(), after)  # as after the batch's forward; the objective drew more
    assert torch.equal(model[1].running_mean, alone[1].running_mean)
