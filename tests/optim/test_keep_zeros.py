"""KeepZeros under every optimizer: what is zero before the first step stays zero, also in a resumed run."""

import copy
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import prune

from sr2 import L1, SR2, KeepZeros
from tests.optimizers import OPTIMIZERS, named

DRAW = torch.Generator().manual_seed(0)
X, Y = torch.randn(32, 6, generator=DRAW), torch.randint(3, (32,), generator=DRAW)


def half_zero():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 3))
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() > 1:
                p.mul_(torch.rand_like(p) < 0.5)
    return model


@pytest.mark.parametrize("case", OPTIMIZERS, ids=named)
def test_zeros_stay_also_in_a_resumed_run(case):
    if not case.takes(KeepZeros()):
        pytest.skip(f"{case.kind.__name__} does not take it")
    model = half_zero()
    zeros = [p == 0 for p in model.parameters() if p.dim() > 1]
    before = [p.detach().clone() for p in model.parameters()]

    def steps(model, optimizer):
        for _ in range(5):
            optimizer.step(lambda: F.cross_entropy(model(X), Y))
        kept = [p == 0 for p in model.parameters() if p.dim() > 1]
        assert all(bool((now | ~then).all()) for now, then in zip(kept, zeros, strict=True))

    optimizer = case.make(model, KeepZeros())
    steps(model, optimizer)
    assert any(not torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))
    again = copy.deepcopy(model)
    resumed = case.make(again, KeepZeros())
    resumed.load_state_dict(optimizer.state_dict())
    steps(again, resumed)


def test_layers_that_are_frozen_and_unfrozen_keep_their_own_zeros():
    layers = nn.Sequential(*(nn.Linear(4, 4, bias=False) for _ in range(3)))
    with torch.no_grad():
        for i, layer in enumerate(layers):
            layer.weight[i] = 0.0
    x = torch.randn(16, 4, generator=DRAW)
    layers[0].weight.requires_grad_(False)
    optimizer = SR2(layers, KeepZeros(), sigma=20.0)
    optimizer.step(lambda: (layers(x) - x).square().mean())
    layers[0].weight.requires_grad_(True)
    layers[2].weight.requires_grad_(False)
    for _ in range(3):
        optimizer.step(lambda: (layers(x) - x).square().mean())
    assert [(layer.weight == 0).all(1).nonzero().flatten().tolist() for layer in layers] == [[0], [1], [2]]


@pytest.mark.parametrize("masked", [False, True])
def test_a_network_without_a_zero_is_told_once(masked):
    """Neither a dense one has any, nor one whose zeros are in a mask beside its weights."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 3))
    if masked:
        prune.l1_unstructured(model[0], "weight", 0.5)
    optimizer = SR2(model, KeepZeros(), sigma=20.0)
    step = partial(optimizer.step, lambda: F.cross_entropy(model(X), Y))
    words = r"KeepZeros\(\) found no zero among 180 entries.*prune_\(model, alpha\).*remove\(layer, 'weight'\)"
    with pytest.warns(UserWarning, match=words):
        step()
    model[2].weight.requires_grad_(False)  # shown its tensors anew, it says nothing more
    step()
    if masked:
        prune.remove(model[0], "weight")
        SR2(model, KeepZeros(), sigma=20.0).step(lambda: F.cross_entropy(model(X), Y))


def test_sigma_may_be_estimated_before_the_first_step():
    model = half_zero()
    optimizer = SR2(model, KeepZeros())
    optimizer.estimate_sigma(lambda: F.cross_entropy(model(X), Y))
    assert optimizer.sigma > 0


@pytest.mark.parametrize("foreach", [False, True, None])
def test_a_prox_of_ones_own_is_not_replaced_by_its_parents(foreach):
    class Nonnegative(L1):
        def prox_tensor(self, x, step):
            return (x - self.lam * step).clamp_min(0.0)

    assert Nonnegative(0.1).coefficients is None
    assert L1(0.1).coefficients == (0.1, 0.0, 0.0)
    x = nn.Parameter(torch.randn(64, 512, generator=DRAW))
    optimizer = SR2([x], Nonnegative(1e-3), sigma=10.0, foreach=foreach)
    optimizer.step(lambda: (x + 1).square().sum())
    assert optimizer.counts["accepted"] == 1
    assert bool((x >= 0).all())
