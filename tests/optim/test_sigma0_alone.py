"""Each process estimates sigma_0 on its own gradients: those that processes exchange are of another function."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from sr2 import L1, SR2


@pytest.fixture
def _one_process(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("_one_process")
@pytest.mark.parametrize("fills", [False, True])
def test_the_estimate_exchanges_no_gradients_and_a_step_does(fills):
    model, x = nn.parallel.DistributedDataParallel(nn.Linear(6, 3)), torch.randn(8, 6)
    optimizer, exchanges = SR2(model, L1(1e-3)), []

    def closure():
        exchanges.append(model.require_backward_grad_sync)
        loss = model(x).square().mean()
        if fills:
            optimizer.zero_grad()
            loss.backward()
        return loss

    optimizer.estimate_sigma(closure)
    assert exchanges
    assert not any(exchanges)
    exchanges.clear()
    optimizer.step(closure)
    assert exchanges
    assert all(exchanges)
