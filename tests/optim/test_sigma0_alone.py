"""Each process estimates the curvature on its own gradients: those that processes exchange are of another function.

In a metric sigma_0 is searched along the first step, which all processes share, and so they exchange gradients for it.
"""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from sr2 import L1, SR2
from tests.tools import algorithm_1


@pytest.fixture
def _one_process(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("_one_process")
@pytest.mark.parametrize("fills", [False, True])
@pytest.mark.parametrize(("make", "exchange"), [(algorithm_1, False), (SR2, True)])
def test_the_estimate_exchanges_no_gradients_unless_it_is_of_a_step_and_a_step_does(fills, make, exchange):
    model, x = nn.parallel.DistributedDataParallel(nn.Linear(6, 3)), torch.randn(8, 6)
    optimizer, exchanges = make(model, L1(1e-3)), []

    def closure():
        exchanges.append(model.require_backward_grad_sync)
        loss = model(x).square().mean()
        if fills:
            optimizer.zero_grad()
            loss.backward()
        return loss

    optimizer.estimate_sigma(closure)
    assert exchanges
    assert set(exchanges) == {exchange}
    exchanges.clear()
    optimizer.step(closure)
    assert exchanges
    assert all(exchanges)
