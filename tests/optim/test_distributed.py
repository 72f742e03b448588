"""Two processes with their own batches decide alike, to the bit, also where only one of them sees a trial break."""

import math
import os
import random
import warnings

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard

from sr2 import L1, SR2, BatchGrowth, L0Ball, ProxGEN
from sr2.optim.closure.losses import loss_and_gradients
from sr2.optim.curvature import estimate_sigma0
from sr2.optim.theory.batch_growth import GradientNoise
from tests.tools import same_bits

STEPS, BROKEN = 30, (7, 19)


def work(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    try:
        found = {
            **train(rank),
            "compiled": estimated_and_compiled(rank),
            "warned": mistakes(rank),
            "impure": impure(rank),
            "growing": growing(rank),
            "sharded": sharded(),
            "in buckets": [filled(rank, gradient_as_bucket_view=view) for view in (False, True)],
        }
        torch.save(found, f"{folder}/{rank}")
        dist.barrier()
    finally:  # gloo's threads would abort the process, and the traceback with it
        dist.destroy_process_group()
    os._exit(0)  # a thread of torch's that still runs while Python leaves is an abort, now and then


def train(rank):
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 3))
    model = nn.parallel.DistributedDataParallel(inner)
    optimizer = SR2(model, L1(1e-3), sigma=0.05, eta2=0.5)
    generator = torch.Generator().manual_seed(100 + rank)
    rows, losses = [], []
    for t in range(STEPS):
        x, y = torch.randn(8, 6, generator=generator), torch.randint(0, 3, (8,), generator=generator)
        calls = []

        def closure(x=x, y=y, t=t, calls=calls):
            calls.append(0)
            loss = F.cross_entropy(model(x), y)
            return loss * math.inf if t == BROKEN[rank] and len(calls) == 2 else loss

        losses.append(optimizer.step(closure).item())
        last = optimizer.last_step
        rows.append((last.accepted, last.sigma, last.loss, last.actual, last.predicted))
    raised = False
    try:  # a loss that breaks on one of them at x_t must be an error on both, or the other would wait for ever
        optimizer.step(lambda: F.cross_entropy(model(x), y) * (math.nan if rank else 1.0))
    except FloatingPointError:
        raised = True
    weights = {name: p.detach() for name, p in inner.named_parameters()}
    return {"rows": rows, "losses": losses, "weights": weights, "raised": raised}


def estimated_and_compiled(rank):
    """torch.compile hides the DistributedDataParallel; sigma_0 is the curvature of the mean of their losses."""
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3))
    model = torch.compile(nn.parallel.DistributedDataParallel(inner), backend="eager")
    optimizer = SR2(model, L1(1e-3), eta2=0.5)
    generator, sigmas, alone, whole = torch.Generator().manual_seed(100 + rank), [], None, None
    for _ in range(20):
        x, y = (1 + rank) * torch.randn(8, 6, generator=generator), torch.randint(0, 3, (8,), generator=generator)

        def closure(x=x, y=y):
            return F.cross_entropy(model(x), y)

        if alone is None:
            alone = estimate_sigma0(lambda x=x, y=y: F.cross_entropy(inner(x), y), inner, list(inner.parameters()))
            xs, ys = ([torch.empty_like(t) for _ in range(2)] for t in (x, y))
            dist.all_gather(xs, x)
            dist.all_gather(ys, y)
            of_all = lambda: F.cross_entropy(inner(torch.cat(xs)), torch.cat(ys))  # noqa: B023, E731
            whole = estimate_sigma0(of_all, inner, list(inner.parameters()))
            optimizer.estimate_sigma(closure)
            sigmas.append(optimizer.sigma)
        optimizer.step(closure)
        sigmas.append(optimizer.sigma)
    return {
        "alone": alone,
        "whole": whole,
        "sigmas": sigmas,
        "weights": {n: p.detach() for n, p in inner.named_parameters()},
    }


def filled(rank, **options):
    """A closure that fills the gradients, as Lightning's, whose second backward goes through the same buckets."""
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Linear(6, 3), **options)
    optimizer = SR2(model, L1(1e-3))
    x, y = torch.randn(2, 8, 6)[rank], torch.randn(2, 8, 3)[rank]

    def closure():
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        return loss

    for _ in range(5):
        optimizer.step(closure)
    return [p.detach() for p in model.parameters()]


def mistakes(rank):
    """What would let the processes part: said, not done."""
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Linear(6, 3))
    x = torch.randn(8, 6)
    with pytest.raises(ValueError, match="under DistributedDataParallel the closure must return one loss"):
        SR2(model, L1(1e-3)).step(lambda: [model(half).square().mean() for half in x.split(4)])
    with pytest.raises(ValueError, match="and returned 2"):
        ProxGEN(model, L1(1e-3), lr=0.1).step(lambda: [model(half).square().mean() for half in x.split(4)])
    with pytest.warns(UserWarning, match="there are 2 processes, and each decides alone"):
        SR2(model.parameters(), L1(1e-3), sigma=5.0).step(lambda: model(x).square().mean())
    return True


def impure(rank):
    """What one process finds out about its closure must not change how often it asks: the others would wait."""
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Linear(6, 3))
    optimizer = SR2(model, L1(1e-3), sigma=1e-3, gamma1=1.1)
    chance, x, calls = random.Random(rank), torch.randn(8, 6), []

    def closure():
        calls.append(0)
        optimizer.zero_grad()
        loss = model(x).square().mean() * (1 + chance.random() if rank else 1.0)
        loss.backward()
        return loss

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(8):
            optimizer.step(closure)
    return {"calls": len(calls), "warned": len(seen), "rejected": optimizer.counts["rejected"]}


A = torch.randn(256, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
B = 3 * torch.randn(256, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def small():
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1)).double()


def growing(rank):
    """Batches that grow: each process has its own rows, one part each."""
    model = nn.parallel.DistributedDataParallel(small())
    optimizer = SR2(model, sigma=5.0, batch_growth=BatchGrowth(3.0, 8, largest=64))
    sizes = []
    for i in range(12):
        rows = torch.arange(32 * i + 16 * rank, 32 * i + 16 * rank + optimizer.batch_size) % len(A)
        closure = lambda rows=rows: F.mse_loss(model(A[rows])[:, 0], B[rows])  # noqa: E731
        if i == 0:
            with GradientNoise(optimizer._parameters()) as noise:
                loss_and_gradients(closure, optimizer._parameters())
            estimate = noise.estimate(optimizer._processes)
        optimizer.step(closure)
        sizes.append(optimizer.batch_size)
    return {"estimate": estimate, "sizes": sizes, "weights": [p.detach() for p in model.parameters()]}


def sharded(shard=fully_shard):
    """FSDP2: each process has half of the rows, and all see the same batch, so that one process is the oracle."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3)).double()
    for layer in (model[0], model[2]):
        shard(layer)
    shard(model)
    optimizer = SR2(model, L0Ball(density=0.5), sigma=20.0, reach=(1, 6))
    generator = torch.Generator().manual_seed(5)
    for _ in range(10):
        x, y = torch.randn(8, 6, generator=generator).double(), torch.randint(0, 3, (8,), generator=generator)
        optimizer.step(lambda x=x, y=y: F.cross_entropy(model(x), y))
    weights = [p.full_tensor() if hasattr(p, "full_tensor") else p.detach() for p in model.parameters()]
    decays = [group["weight_decay"] for group in optimizer.param_groups]
    return {"weights": weights, "sigma": optimizer.sigma, "counts": optimizer.counts, "decays": decays}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("processes")
    mp.spawn(work, (str(folder),), nprocs=2)
    return [torch.load(folder / str(rank), weights_only=True) for rank in (0, 1)]


def test_a_compiled_module_and_sigma_0_are_agreed_upon(found):
    a, b = (one["compiled"] for one in found)
    assert a["sigmas"] == b["sigmas"]
    assert not 0.9 < a["alone"] / b["alone"] < 1.1
    assert a["sigmas"][0] == pytest.approx(a["whole"], rel=1e-4)
    for name in a["weights"]:
        assert torch.equal(a["weights"][name], b["weights"][name]), name


def test_parts_of_the_weights_are_the_weights(found):
    """tests/optim/test_shards.py, of `make torture`, has all of it."""
    a, b = (one["sharded"] for one in found)
    alone = sharded(lambda module: module)
    assert a["counts"] == b["counts"] == alone["counts"]
    assert a["sigma"] == b["sigma"] == pytest.approx(alone["sigma"], rel=1e-9)
    assert a["decays"] == b["decays"] == pytest.approx(alone["decays"], rel=1e-12)
    for x, z, expected in zip(a["weights"], b["weights"], alone["weights"], strict=True):
        assert torch.equal(x, z)
        torch.testing.assert_close(x, expected, rtol=1e-8, atol=1e-10)
        assert torch.equal(x == 0, expected == 0)


def test_gradients_may_be_views_of_buckets(found):
    for process in found:
        assert same_bits(*process["in buckets"])


def test_what_would_let_them_part_is_said(found):
    assert [one["warned"] for one in found] == [True, True]


def test_all_ask_the_closure_as_often(found):
    a, b = (one["impure"] for one in found)
    assert a["rejected"] == b["rejected"] > 3
    assert a["calls"] == b["calls"]
    assert (a["warned"], b["warned"]) == (0, 1)


def test_batches_grow_alike(found):
    """The parts are those of all processes, and all decide alike."""
    a, b = (one["growing"] for one in found)
    model, h = small(), []
    for rows in (torch.arange(8), torch.arange(16, 24)):
        gs = torch.autograd.grad(F.mse_loss(model(A[rows])[:, 0], B[rows]), list(model.parameters()))
        h.append(torch.cat([g.flatten() for g in gs]))
    assert a["estimate"] == b["estimate"] == pytest.approx(((h[0] - h[1]).norm() / 2).item(), rel=1e-10)
    assert a["sizes"] == b["sizes"]
    assert a["sizes"][-1] > 8
    assert same_bits(a["weights"], b["weights"])


def test_two_processes_agree(found):
    a, b = found
    assert a["rows"] == b["rows"]
    assert a["losses"] != b["losses"]  # they did have their own batches
    for t in range(STEPS):
        assert a["rows"][t][2] == (a["losses"][t] + b["losses"][t]) / 2
    for name in a["weights"]:
        assert torch.equal(a["weights"][name], b["weights"][name]), name
    accepted = [row[0] for row in a["rows"]]
    assert not any(accepted[t] for t in BROKEN)
    for t in BROKEN:
        assert a["rows"][t][1] == 5.56 * a["rows"][t - 1][1]
    assert accepted.count(False) > 2
    assert accepted.count(True) > 15
    assert a["raised"]
    assert b["raised"]
