"""DTensor parameters: 1, 2 and 4 processes make one run, whoever has which part of the weights.

Layers have 7, 5 and 3 rows: no number of processes divides them, and with four of them some have nothing. The last
layer belongs to the outermost module, whose whole weights fully_shard keeps between evaluations.
"""

import functools
import math
import os
import warnings
from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from sr2 import (
    L0,
    L1,
    NM,
    SR2,
    BatchGrowth,
    Box,
    GroupL0,
    GroupL2,
    KeepZeros,
    L0Ball,
    Nuclear,
    ProxGEN,
    ProxSGD,
    prune_,
    sparsity,
)
from sr2.numerics import whole
from sr2.rules import Ratio, Tolerant

pytestmark = pytest.mark.torture  # two processes at once; test_distributed.py has a few steps of it

NAMED = {
    "L1": L1(3e-3),
    "L0": L0(1e-3),
    "L0Ball": L0Ball(density=0.5),
    "GroupL2": GroupL2(1e-2, "rows"),
    "NM": NM(2, 4),
}
ALGORITHM_1 = {"sigma": 0.3, "rule": Ratio(eta2=0.5, gamma3=0.8), "metric": None, "momentum": 0.0, "average": False}
EVERYTHING = {"sigma": "auto", "rule": Tolerant(), "metric": "adam", "momentum": 0.9, "average": True, "reach": None}
X = torch.randn(64, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
Y = torch.randn(64, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


def sr2(R, options, **more):
    return lambda model: SR2(model, R, **options, **more)


def healing(model):
    prune_(model, 0.1)
    return SR2(model, KeepZeros(), **ALGORITHM_1)


MADE = {name: sr2(R, ALGORITHM_1) for name, R in NAMED.items()}
ALL_OPTIONS = {f"{name}, all options": sr2(R, EVERYTHING) for name, R in NAMED.items()}
OTHERS = {
    "columns": sr2(GroupL0(1e-3, "columns"), ALGORITHM_1),
    "few rows": sr2(L0Ball(k=4, groups="rows"), ALGORITHM_1),
    "Nuclear": sr2(Nuclear(1e-2), ALGORITHM_1),
    "Nuclear, all options": sr2(Nuclear(1e-3), EVERYTHING),
    "Box": sr2(Box(-0.3, 0.3), ALGORITHM_1),
    "reach": sr2(L0Ball(density=0.3), {**EVERYTHING, "reach": (2, 9)}),
    "on trust": sr2(L0(1e-3), EVERYTHING, test_every=4),
    "KeepZeros": healing,
    "by heart": lambda model: SR2(model, steps_per_epoch=5),
    "ProxGEN": lambda model: ProxGEN(model, Nuclear(1e-3), lr=0.02, momentum=0.9, metric="adam"),
    "ProxSGD": lambda model: ProxSGD(model, GroupL2(1e-2, "rows")),
}
OF_TENSOR = ("L0Ball, all options", "NM, all options", "Nuclear, all options", "by heart")
RUNS = {
    "ddp": MADE | {"by heart": OTHERS["by heart"]},
    "fsdp": MADE | ALL_OPTIONS | OTHERS,
    "tensor": MADE | {name: (ALL_OPTIONS | OTHERS)[name] for name in OF_TENSOR},
}
SAVED = {"all": sr2(L0Ball(density=0.5), EVERYTHING), "none": MADE["GroupL2"], "ProxSGD": OTHERS["ProxSGD"]}


# ---- one run


def network(how):
    torch.manual_seed(0)
    hidden, last = (8, 4) if how == "tensor" else (7, 5)  # torch's own layers must be cut into equal parts
    layers = [nn.Linear(6, hidden), nn.Tanh(), nn.Linear(hidden, last), nn.Tanh(), nn.Linear(last, 3)]
    return nn.Sequential(*layers).double()


def spread(how, model):
    """The same network over all processes; in one piece where there are none."""
    if not dist.is_initialized():
        return model
    if how == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    if how == "tensor":  # and the last layer is no DTensor at all
        return parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    for layer in (model[0], model[2]):
        fully_shard(layer)  # whose default is a new mesh at every call
    return fully_shard(model, mesh=mesh)


class Run:
    """A run that can be stopped; in tensor parallelism all processes have the same batch."""

    def __init__(self, how, make):
        self.inner = network(how)
        self.model = spread(how, self.inner)
        self.optimizer = make(self.model)
        together = dist.is_initialized() and how != "tensor"
        self.part, self.parts = (dist.get_rank(), dist.get_world_size()) if together else (0, 1)
        self.rows, self.t = [], 0

    def steps(self, n):
        for _ in range(n):
            draw = torch.Generator().manual_seed(self.t)
            rows = torch.randperm(64, generator=draw)[:8].chunk(self.parts)[self.part]
            self.optimizer.step(lambda rows=rows: F.mse_loss(self.model(X[rows]), Y[rows]))
            self.t += 1
            last = getattr(self.optimizer, "last_step", None)
            self.rows.append(last and (last.accepted, last.sigma, last.loss, last.predicted, last.step_norm))
        return self

    @torch.no_grad()
    def weights(self):
        return [whole(p.detach()).clone() for p in self.inner.parameters()]

    @torch.no_grad()
    def found(self):
        found = {"rows": self.rows, "weights": self.weights(), "zeros": sparsity(self.inner).zeros}
        found["loss"] = self.model(X).square().mean().item()
        if getattr(self.optimizer, "averaging", None):
            with self.optimizer.averaged():
                found["weights"] += self.weights()
                found["mean"] = self.model(X).square().mean().item()
            assert self.model(X).square().mean().item() == found["loss"]
        return found

    def save(self, folder):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        dcp.save({"model": model, "optimizer": optimizer}, checkpoint_id=folder)

    def load(self, folder, t):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        state = {"model": model, "optimizer": optimizer}
        dcp.load(state, checkpoint_id=folder)
        given = {"model_state_dict": state["model"], "optim_state_dict": state["optimizer"]}
        set_state_dict(self.model, self.optimizer, **given)
        self.t = t
        return self


# ---- what the processes do


def work(rank, world, folder, steps, names):
    torch.set_num_threads(1)
    quietly()
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet{world}_{steps}", rank=rank, world_size=world)
    try:
        found = {
            (how, name): Run(how, make).steps(steps).found()
            for how in RUNS
            for name, make in RUNS[how].items()
            if names is None or name in names
        }
        found["mistakes"] = mistakes(rank) if world > 1 else None
        found["broken"] = broken(rank)
        found["loaded"] = {
            (name, before): Run("fsdp", make).load(f"{folder}/{name}_{before}", 5).steps(5).found()
            for name, make in SAVED.items()
            for before in (1, 2)
            if os.path.exists(f"{folder}/{name}_{before}")
        }
        for name, make in SAVED.items() if names is None else ():
            Run("fsdp", make).steps(5).save(f"{folder}/{name}_{world}")
        torch.save(found, f"{folder}/{world}_{rank}")
        dist.barrier()
    finally:  # gloo's threads would abort the process, and the traceback with it
        dist.destroy_process_group()
    os._exit(0)  # a thread of torch's that still runs while Python leaves is an abort, now and then


def quietly():
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", message=r"R\(x_0\) is infinite")
    warnings.filterwarnings("ignore", message="this state_dict holds the last iterate")
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # torch's word for one process


def mistakes(rank):
    """Each is one sentence before anything is moved, on all processes."""
    closure = lambda model: lambda: model(X[8 * rank : 8 * rank + 8]).square().mean()  # noqa: E731
    model = spread("fsdp", network("fsdp"))
    before = [whole(p.detach()) for p in model.parameters()]
    for wrong, words in [
        (lambda: SR2(model.parameters(), L1(1e-3)), "must know the network"),
        (lambda: SR2(model, L1(1e-3), metric="andrei"), r"metric=Andrei\(floor=0.01\) may couple entries"),
        (lambda: SR2(model, L1(1e-3), **ALGORITHM_1, capturable=True), "capturable=True"),
        (lambda: SR2(model, L1(1e-3), **ALGORITHM_1, batch_growth=BatchGrowth(1.0)), "batch_growth"),
    ]:
        with pytest.raises(ValueError, match=words):
            wrong().step(closure(model))
    assert all(torch.equal(whole(p.detach()), b) for p, b in zip(model.parameters(), before, strict=True))
    other = network("fsdp")
    fully_shard(other[0], mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    two_dimensions = init_device_mesh("cpu", (dist.get_world_size(), 1), mesh_dim_names=("copies", "parts"))
    fully_shard(other[2], mesh=two_dimensions)
    with pytest.raises(ValueError, match="must be on one mesh"):
        SR2(other, L1(1e-3)).step(closure(other))
    apart = network("fsdp")
    fully_shard(apart, ignored_params={apart[4].bias})
    with pytest.raises(ValueError, match="another gradient on every process"):
        SR2(apart, L1(1e-3)).step(closure(apart))
    return True


def broken(rank):
    """What only one process sees is rejected, or an error, on all."""
    run = Run("fsdp", MADE["NM"]).steps(3)
    before, calls = run.weights(), []

    def trial_breaks():
        calls.append(0)
        loss = F.mse_loss(run.model(X), Y)
        return loss * math.inf if rank == 0 and len(calls) == 2 else loss

    run.optimizer.step(trial_breaks)
    accepted = run.optimizer.last_step.accepted
    with pytest.raises(FloatingPointError, match="the loss at x_t is nan"):
        run.optimizer.step(lambda: F.mse_loss(run.model(X), Y) * (math.nan if rank == 0 else 1.0))
    assert all(torch.equal(a, b) for a, b in zip(run.weights(), before, strict=True))
    loss = run.optimizer.step(lambda: F.mse_loss(run.model(X), Y)).item()  # of these weights, not of the trial's
    return {"accepted": accepted, "loss": loss, "weights": before}


# ---- what they must have found


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """With checkpoints of one process."""
    folder = tmp_path_factory.mktemp("shards")
    with one_process(folder):
        for name, make in SAVED.items():
            Run("fsdp", make).steps(5).save(folder / f"{name}_1")
    return folder


@contextmanager
def one_process(folder):
    """In this process, which is a group of its own."""
    meet = folder / "alone"
    dist.init_process_group("gloo", init_method=f"file://{meet}", rank=0, world_size=1)
    try:
        with warnings.catch_warnings():
            quietly()
            yield
    finally:
        dist.destroy_process_group()
        meet.unlink(missing_ok=True)


def spawned(folder, world, steps, names=None):
    mp.spawn(work, (world, str(folder), steps, names), nprocs=world)
    return [torch.load(folder / f"{world}_{rank}", weights_only=True) for rank in range(world)]


STEPS = 12


@pytest.fixture(scope="module")
def two(folder):
    return spawned(folder, 2, STEPS)


@pytest.fixture(autouse=True)
def _quietly():
    with warnings.catch_warnings():
        quietly()
        yield


def close(a, b):
    return all(torch.allclose(x, y, rtol=1e-9, atol=1e-11) for x, y in zip(a, b, strict=True))


@functools.cache
def alone(cut, name, steps):
    """The run of one process that has everything."""
    return Run("tensor" if cut else "fsdp", RUNS["fsdp"][name]).steps(steps).found()


def assert_one_run(found, how, name, steps):
    """All processes decide alike, to the bit, and as one process that has everything."""
    first, expected = found[0][how, name], alone(how == "tensor", name, steps)
    for other in found[1:]:
        assert other[how, name]["rows"] == first["rows"]
    assert close(first["weights"], expected["weights"])
    assert first["zeros"] == expected["zeros"]
    for mine, other in zip(first["rows"], expected["rows"], strict=True):
        assert (mine is None) == (other is None)
        if mine is not None:
            assert mine[0] is other[0]
            assert mine[1:] == pytest.approx(other[1:], rel=1e-7, abs=1e-12, nan_ok=True)
    for what in {"loss", "mean"} & expected.keys():
        assert first[what] == pytest.approx(expected[what], rel=1e-9)
    decisions = [row and row[0] for row in expected["rows"]]
    if name in MADE:
        assert decisions.count(False) > 0
        assert decisions.count(True) > steps / 2


CASES = [(how, name) for how in RUNS for name in RUNS[how]]


@pytest.mark.parametrize(("how", "name"), CASES)
def test_two_processes_are_one(two, how, name):
    assert_one_run(two, how, name, STEPS)


def test_what_is_not_supported_is_one_sentence(two):
    assert [one["mistakes"] for one in two] == [True, True]


def test_what_one_process_sees_all_decide_upon(two):
    a, b = (one["broken"] for one in two)
    assert a["accepted"] is b["accepted"] is False
    whole_model = network("fsdp")
    with torch.no_grad():
        for p, w in zip(whole_model.parameters(), a["weights"], strict=True):
            p.copy_(w)
    assert a["loss"] == pytest.approx(F.mse_loss(whole_model(X), Y).item(), rel=1e-12)


def assert_goes_on(found, name):
    expected = Run("fsdp", SAVED[name]).steps(10).found()
    assert close(found["weights"], expected["weights"])
    assert [r and r[0] for r in found["rows"]] == [r and r[0] for r in expected["rows"][5:]]
    for what in {"loss", "mean"} & expected.keys():
        assert found[what] == pytest.approx(expected[what], rel=1e-9)


@pytest.mark.parametrize("kind", [SR2, ProxGEN, ProxSGD])
@pytest.mark.parametrize("flat", [True, False])
def test_the_first_fsdp_is_refused(folder, kind, flat):
    with one_process(folder):
        warnings.filterwarnings("ignore")  # torch's own about it
        model = FullyShardedDataParallel(network("fsdp"), use_orig_params=not flat, device_id=torch.device("cpu"))
        optimizer = kind(model, L1(1e-3))
        with pytest.raises(ValueError, match=rf"{kind.__name__} needs parameters with their own shapes.*fully_shard"):
            optimizer.step(lambda: model(X).square().mean())


@pytest.mark.parametrize("name", SAVED)
def test_a_checkpoint_of_one_goes_on_with_two(two, name):
    for one in two:
        assert_goes_on(one["loaded"][name, 1], name)


@pytest.mark.parametrize("name", SAVED)
def test_a_checkpoint_of_two_goes_on_with_one(two, folder, name):
    with one_process(folder):
        found = Run("fsdp", SAVED[name]).load(folder / f"{name}_2", 5).steps(5).found()
    assert_goes_on(found, name)


@pytest.mark.parametrize("name", SAVED)
def test_a_network_in_one_piece_goes_on_from_it_too(two, folder, name):
    assert_goes_on(Run("plain", SAVED[name]).load(folder / f"{name}_2", 5).steps(5).found(), name)


@pytest.mark.torture
@pytest.mark.parametrize("world", [1, 2, 4])
def test_200_steps(folder, two, world):
    found = spawned(folder, world, 200, list(NAMED))
    for how, name in CASES:
        if name in NAMED:
            assert_one_run(found, how, name, 200)
    for (name, _before), loaded in found[0]["loaded"].items():
        assert_goes_on(loaded, name)
