"""KeepZeros: what is zero at the first step stays zero, and nothing else changes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sr2 import SR2, KeepZeros, ProxGEN, prune_, sparsity


def test_prox_and_value() -> None:
    xs = [torch.tensor([[0.0, 1.0], [-0.0, 2.0]]), torch.tensor(0.0), torch.empty(0, 3)]
    R = KeepZeros().start(xs)
    us = [torch.tensor([[3.0, 0.0], [4.0, 5.0]], dtype=torch.float64), torch.tensor(1.0), torch.empty(0, 3)]
    zs = R.prox(us, 0.1)
    assert zs[0].tolist() == [[0.0, 0.0], [0.0, 5.0]]
    assert zs[0].dtype == torch.float64
    assert zs[1].item() == 0
    assert R.value(us) == R.value([-u for u in us]) == torch.inf
    assert R.value(zs) == R.value(xs) == 0  # also where an entry became zero by chance
    assert R.decrease(xs, zs) == 0
    metric = R.prox(us, [torch.rand(u.shape) + 0.1 for u in us])
    assert all(torch.equal(z, m) for z, m in zip(zs, metric, strict=True))


def test_a_start_is_of_its_own_tensors() -> None:
    first, second = KeepZeros().start([torch.zeros(2)]), KeepZeros().start([torch.ones(2)])
    assert first.prox([torch.ones(2)], 1.0)[0].tolist() == [0.0, 0.0]
    assert second.prox([torch.ones(2)], 1.0)[0].tolist() == [1.0, 1.0]
    assert first == KeepZeros()
    assert repr(first) == "KeepZeros()"


def test_other_regularizers_start_as_themselves() -> None:
    from tests.registry import REGULARIZERS

    for case in REGULARIZERS:
        assert case.regularizer.start([torch.ones(2)]) is case.regularizer


@pytest.mark.parametrize("metric", [None, "adam"])
@pytest.mark.parametrize("foreach", [None, False])
def test_a_pruned_network_heals(metric: str | None, foreach: bool | None) -> None:
    torch.manual_seed(0)
    model, x, y = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)), torch.randn(64, 8), torch.randn(64, 1)
    prune_(model, 0.1)
    weights = [p for p in model.parameters() if p.dim() > 1]
    zeros = [p.detach() == 0 for p in weights]
    loss = lambda: nn.functional.mse_loss(model(x), y)  # noqa: E731
    for optimizer in (
        SR2([{"params": weights, "regularizer": KeepZeros().start(weights)}], metric=metric, foreach=foreach),
        ProxGEN([{"params": weights, "regularizer": KeepZeros().start(weights)}], lr=0.1, momentum=0.9, metric=metric),
    ):
        before = float(loss().detach())
        for _ in range(10):
            optimizer.step(loss)
        assert float(loss().detach()) < before
        for p, zero in zip(weights, zeros, strict=True):
            assert torch.equal(p == 0, zero)
    assert sparsity(weights).zeros == sum(int(z.sum()) for z in zeros) > 0
