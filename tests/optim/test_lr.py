"""The groups of SR2 show 1 / sigma as `lr`, for schedulers and monitors; what they write there is not read."""

import copy
import pickle
import warnings

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from sr2 import L1, SR2, ProxGEN

X, Y = torch.randn(32, 6, generator=torch.Generator().manual_seed(1)), torch.arange(32) % 3
BOTH = pytest.mark.parametrize("capturable", [False, True])


def made(**options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = SR2(model, L1(1e-3), eta2=0.3, **options)
    return model, optimizer, lambda: nn.functional.cross_entropy(model(X), Y)


def weights(model):
    return [p.detach().clone() for p in model.parameters()]


@BOTH
@pytest.mark.parametrize("sigma", [2.0, "auto"])
def test_lr_is_the_inverse_of_sigma(capturable, sigma):
    _, optimizer, closure = made(capturable=capturable, sigma=sigma)
    lr = float(optimizer.param_groups[0]["lr"])
    assert lr == 0.5 if sigma == 2.0 else lr != lr
    shared = optimizer.param_groups[0]["lr"]
    for _ in range(5):
        optimizer.step(closure)
        assert [float(group["lr"]) for group in optimizer.param_groups] == [1.0 / optimizer.sigma] * 2
    assert optimizer.sigma != sigma
    if capturable:  # in place: a CUDA graph writes the same tensor at every replay
        assert all(group["lr"] is shared for group in optimizer.param_groups)


@BOTH
def test_a_new_group_and_an_estimate_show_it_too(capturable):
    _, optimizer, closure = made(capturable=capturable)
    optimizer.estimate_sigma(closure)
    assert float(optimizer.param_groups[1]["lr"]) == 1.0 / optimizer.sigma
    extra = nn.Parameter(torch.ones(3))
    optimizer.add_param_group({"params": [extra]})
    assert float(optimizer.param_groups[2]["lr"]) == 1.0 / optimizer.sigma  # for whoever reads it before the next step
    optimizer.step(lambda: closure() + extra.square().sum())
    assert float(optimizer.param_groups[2]["lr"]) == 1.0 / optimizer.sigma


SCHEDULERS = {
    "step": lambda o: lr_scheduler.StepLR(o, 2, gamma=0.1),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 10),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda t: 1.0 / (t + 1)),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=20, cycle_momentum=False),
    "warm": lambda o: lr_scheduler.LinearLR(o),
}


@BOTH
@pytest.mark.parametrize("sigma", [2.0, "auto"])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_is_told_once_and_changes_no_step(name, sigma, capturable):
    model, optimizer, closure = made(capturable=capturable, sigma=sigma)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        scheduler = SCHEDULERS[name](optimizer)
        for _ in range(6):
            optimizer.step(closure)
            scheduler.step()
    assert [str(w.message)[:31] for w in seen] == ["a scheduler has written 'lr', a"]
    assert seen[0].filename == __file__
    alone, other, again = made(capturable=capturable, sigma=sigma)
    for _ in range(6):
        other.step(again)
    assert all(torch.equal(a, b) for a, b in zip(weights(model), weights(alone), strict=True))


def test_a_scheduler_that_writes_what_it_read_is_silent():
    _, optimizer, closure = made(sigma=2.0)
    scheduler = lr_scheduler.StepLR(optimizer, 100)
    plateau = lr_scheduler.ReduceLROnPlateau(optimizer, patience=100)
    for _ in range(5):
        loss = optimizer.step(closure)
        scheduler.step()
        plateau.step(loss)


@BOTH
def test_a_state_has_an_lr_and_goes_on(capturable):
    model, optimizer, closure = made(capturable=capturable)
    for _ in range(3):
        optimizer.step(closure)
    state = copy.deepcopy(optimizer.state_dict())
    assert {type(group["lr"]) for group in state["param_groups"]} == {float}
    other_model, other, _ = made(capturable=capturable)
    other_model.load_state_dict(model.state_dict())
    other.load_state_dict(state)
    assert [float(group["lr"]) for group in other.param_groups] == [1.0 / optimizer.sigma] * 2
    other.step(lambda: nn.functional.cross_entropy(other_model(X), Y))


@BOTH
@pytest.mark.parametrize(
    "copier", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))], ids=["copy", "pickle"]
)
def test_a_copy_shows_its_own(copier, capturable):
    model, optimizer, closure = made(capturable=capturable)
    optimizer.step(closure)
    other_model, other = copier((model, optimizer))
    for _ in range(4):
        other.step(lambda: nn.functional.cross_entropy(other_model(X), Y))
    assert float(other.param_groups[1]["lr"]) == 1.0 / other.sigma != 1.0 / optimizer.sigma
    assert float(optimizer.param_groups[1]["lr"]) == 1.0 / optimizer.sigma


def best_of(kind, **options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    return model, kind(model, L1(1e-3), **options)


@pytest.mark.parametrize(
    ("kind", "options"),
    [(SR2, {}), (SR2, {"momentum": 0.9, "metric": "adam"}), (SR2, {"capturable": True}), (ProxGEN, {"lr": 0.1})],
    ids=str,
)
def test_a_state_loads_as_often_as_one_likes(kind, options):
    """A loop goes back to its best checkpoint again and again; Accelerate loads into what it has loaded into."""
    model, optimizer = best_of(kind, **options)
    closure = lambda: nn.functional.cross_entropy(model(X), Y)  # noqa: E731
    for _ in range(3):
        optimizer.step(closure)
    best = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    ends = []
    for _ in range(3):
        model.load_state_dict(best[0])
        optimizer.load_state_dict(copy.deepcopy(best[1]))
        for _ in range(4):
            optimizer.step(closure)
        ends.append(weights(model))
        optimizer.load_state_dict(optimizer.state_dict())  # Accelerate: state_dict, moved to a device, loaded again
    assert all(torch.equal(a, b) for end in ends[1:] for a, b in zip(end, ends[0], strict=True))
