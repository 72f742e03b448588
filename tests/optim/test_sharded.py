"""Parameters of which each process has a part are refused in one sentence, before the first step."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

from sr2 import L1, SR2, ProxGEN, ProxSGD


@pytest.fixture
def mesh(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.mark.parametrize("kind", [SR2, ProxGEN, ProxSGD])
@pytest.mark.parametrize("how", ["fully_shard", "tensor parallel"])
def test_one_sentence_with_the_way_out(mesh, kind, how):
    model = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 2))
    if how == "fully_shard":
        fully_shard(model, mesh=mesh)
    else:
        parallelize_module(model, mesh, {"0": ColwiseParallel()})
    before = [p.to_local().clone() if hasattr(p, "to_local") else p.clone() for p in model.parameters()]
    for given in (model, model.parameters(), [{"params": list(model.parameters())}]):
        with pytest.raises(ValueError, match=rf"{kind.__name__} needs whole parameters.*use DistributedDataParallel"):
            kind(given, L1(1e-3))
    after = [p.to_local() if hasattr(p, "to_local") else p for p in model.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
