"""DTensor parameters: 1, 2 and 4 processes make one run, whoever has which part of the weights.

Layers have 7, 5 and 3 rows: no number of processes divides them, and with four of them some have nothing. The last
layer belongs to the outermost module, whose whole weights fully_shard keeps between evaluations.
"""

import os
import warnings

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from sr2 import L0, L1, NM, SR2, Box, GroupL0, GroupL2, L0Ball, Nuclear, ProxGEN, ProxSGD, sparsity
from sr2.numerics import whole
from sr2.rules import Tolerant
from tests.optim import checkpoints

NAMED = {
    "L1": L1(3e-3),
    "L0": L0(1e-3),
    "L0Ball": L0Ball(density=0.5),
    "GroupL2": GroupL2(1e-2, "rows"),
    "NM": NM(2, 4),
}
OTHERS = {
    "columns": GroupL0(1e-3, "columns"),
    "few": L0Ball(k=4, groups="rows"),
    "Nuclear": Nuclear(1e-2),
    "Box": Box(-0.3, 0.3),
}
ALGORITHM_1 = {"sigma": 0.3, "rule": None, "metric": None, "momentum": 0.0, "average": False} | {
    "eta2": 0.5,
    "gamma3": 0.8,
}
EVERYTHING = {"sigma": "auto", "metric": "adam", "momentum": 0.9, "average": True, "rule": Tolerant()}
X = torch.randn(64, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
Y = torch.randn(64, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def spread(how, model, world):
    """The same network over so many processes."""
    mesh = init_device_mesh("cpu", (world,))
    if how == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    if how == "fsdp":
        for layer in (model[0], model[2]):
            fully_shard(layer, mesh=mesh)
        return fully_shard(model, mesh=mesh)
    if how == "tensor":  # and the last layer is no DTensor at all
        return parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return model


def batches(steps, rank=0, parts=1):
    generator = torch.Generator().manual_seed(3)
    for _ in range(steps):
        yield torch.randperm(64, generator=generator)[:8].chunk(parts)[rank]


def trained(how, make, steps, rank, world):
    """One run: what was decided, and the weights that all processes have together."""
    inner = network()
    model = spread(how, inner, world)
    optimizer = make(model)
    rows = []
    apart = 1 if how in ("plain", "tensor") else world  # tensor parallelism: all have the same batch
    for numbers in batches(steps, rank % apart, apart):
        optimizer.step(lambda numbers=numbers: F.mse_loss(model(X[numbers]), Y[numbers]))
        last = getattr(optimizer, "last_step", None)
        rows.append(last and (last.accepted, last.sigma, last.loss, last.predicted, last.actual, last.step_norm))
    found = {"rows": rows, "weights": weights(inner), "zeros": sparsity(inner).zeros}
    if getattr(optimizer, "averaging", None):
        with optimizer.averaged(), torch.no_grad():
            found["average"], found["mean loss"] = weights(inner), model(X).square().mean().item()
        with torch.no_grad():
            found["loss"] = model(X).square().mean().item()
    return found


@torch.no_grad()
def weights(model):
    return [whole(p.detach()).clone() for p in model.parameters()]


def cases(ways):
    runs = {(how, name): (how, R, ALGORITHM_1) for how in ways for name, R in NAMED.items()}
    runs |= {("fsdp", name): ("fsdp", R, ALGORITHM_1) for name, R in OTHERS.items()}
    runs |= {("fsdp", f"{name}, all options"): ("fsdp", R, EVERYTHING) for name, R in NAMED.items()}
    return {key: (how, lambda m, R=R, options=options: SR2(m, R, **options)) for key, (how, R, options) in runs.items()}


def baselines(ways):
    made = {
        "ProxGEN": lambda m: ProxGEN(m, L0Ball(density=0.5), lr=0.02, momentum=0.9, metric="adam"),
        "ProxSGD": lambda m: ProxSGD(m, GroupL2(1e-2, "rows")),
    }
    return {(how, name): (how, make) for how in ways for name, make in made.items()}


def work(rank, world, folder, steps, ways):
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", message=r"R\(x_0\) is infinite")
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet{world}", rank=rank, world_size=world)
    try:
        runs = cases(ways) | baselines(["fsdp", "tensor"])
        found = {key: trained(how, make, steps, rank, world) for key, (how, make) in runs.items()}
        found["mistakes"] = mistakes(rank, world)
        found["checkpoints"] = checkpoints.write(rank, world, folder)
        torch.save(found, f"{folder}/{world}_{rank}")
        dist.barrier()
    finally:  # gloo's threads would abort the process, and the traceback with it
        dist.destroy_process_group()
    os._exit(0)  # a thread of torch's that still runs while Python leaves is an abort, now and then
