"""SR2 with FSDP2: every process has a part of the weights, and all take one decision.

torchrun --nproc-per-node 2 examples/trainers/fsdp.py

On machines with an accelerator per process, take its device and backend ("cuda", "nccl") in the two lines that name the
CPU's. Against a script for one process: the mesh, `fully_shard`, and each process draws its own batch.
"""

import sys
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from sklearn.datasets import load_digits
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from sr2 import SR2, L0Ball, sparsity


def build(mesh):
    torch.manual_seed(0)  # the same first weights on all processes
    model = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 10))
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    settings = {"metric": "adam", "momentum": 0.9, "average": True, "reach": (1, 30)}
    return model, SR2(model, L0Ball(density=0.2), **settings)  # after fully_shard, and given the module itself


def train(model, optimizer, x, y, steps, first=0):
    for step in range(first, first + steps):
        draw = torch.Generator().manual_seed(1000 * step + dist.get_rank())
        rows = torch.randint(len(x), (64,), generator=draw)
        optimizer.step(lambda rows=rows: nn.functional.cross_entropy(model(x[rows]), y[rows]))


@torch.no_grad()
def accuracy(model, x, y):
    return 100 * (model(x).argmax(1) == y).double().mean().item()


def save(folder, model, optimizer):
    weights, state = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=folder)


def load(folder, model, optimizer):
    """Into any number of processes."""
    weights, state = get_state_dict(model, optimizer)
    saved = {"model": weights, "optimizer": state}
    dcp.load(saved, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=saved["model"], optim_state_dict=saved["optimizer"])


def main(folder):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    images, labels = (torch.tensor(a) for a in load_digits(return_X_y=True))
    x, y, x_test, y_test = images[:1400].float() / 16, labels[:1400], images[1400:].float() / 16, labels[1400:]
    model, optimizer = build(mesh)
    train(model, optimizer, x, y, steps=30)
    with optimizer.averaged():
        half_way = accuracy(model, x_test, y_test)
    save(folder, model, optimizer)

    model, optimizer = build(mesh)  # as a new job would
    load(folder, model, optimizer)
    train(model, optimizer, x, y, steps=30, first=30)
    zeros, sigma = sparsity(model), optimizer.sigma  # exchanged between the processes, so asked for by all of them
    with optimizer.averaged():
        share = accuracy(model, x_test, y_test)
    if dist.get_rank() == 0:
        rows = [len(layer.weight.to_local()) for layer in (model[0], model[2])]
        print(f"the first of {dist.get_world_size()} processes has {rows[0]} of 96 rows and {rows[1]} of 10")
        print(
            f"accuracy {half_way:.1f} %, then {share:.1f} %, sigma {sigma:.4g}, steps {sum(optimizer.counts.values())}"
        )
        print(zeros)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    try:
        place = [sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()]
        dist.broadcast_object_list(place)  # one folder, which all processes must reach
        main(place[0])
    finally:
        dist.destroy_process_group()
