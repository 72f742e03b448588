"""A network in a run's arithmetic: weights that are cast together give the bits that autocast gives."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sr2.experiments.models import build
from sr2.experiments.run.network import Network


def losses_and_gradients(name: str, precision: str, fast: bool) -> tuple[Tensor, list[Tensor], dict[str, Tensor]]:
    torch.manual_seed(0)
    model = build(name, 10, (3, 32, 32)).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x, y = torch.randn(8, 3, 32, 32), torch.arange(8)
    network = Network(model, "cpu", precision)
    loss = network.loss(x, y)[0] if fast else F.cross_entropy(network.outputs(x), y)
    loss.backward()
    return loss.detach(), [p.grad for p in model.parameters() if p.grad is not None], model.state_dict()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", ["cnn", "mlp", "resnet18"])
def test_the_loss_is_autocasts_to_the_bit(name: str, precision: str) -> None:
    loss, gradients, state = losses_and_gradients(name, precision, fast=True)
    other_loss, other_gradients, other_state = losses_and_gradients(name, precision, fast=False)
    assert torch.equal(loss, other_loss)
    assert loss.dtype == torch.float32
    assert len(gradients) == len(other_gradients)
    for g, other in zip(gradients, other_gradients, strict=True):
        assert g.dtype == torch.float32
        assert torch.equal(g, other)
    assert all(torch.equal(state[key], other_state[key]) for key in state)  # batch-norm's statistics too


def test_how_many_are_right() -> None:
    model = nn.Linear(3, 3, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.eye(3))
    x = torch.eye(3)
    _, right = Network(model, "cpu").loss(x, torch.tensor([0, 1, 0]))
    assert int(right) == 2
    assert not right.requires_grad


def test_tied_and_parametrized_weights_are_left_to_autocast() -> None:
    tied = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    tied[1].weight = tied[0].weight
    parametrized = nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))
    for model, classes in ((tied, 4), (parametrized, 3)):
        x, y = torch.randn(5, 4), torch.randint(classes, (5,))
        network = Network(model, "cpu", "bf16")
        loss, _ = network.loss(x, y)
        assert torch.equal(loss, F.cross_entropy(network.outputs(x), y))
        loss.backward()  # type: ignore[no-untyped-call]
        assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in model.parameters())
