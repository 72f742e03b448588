"""`torchrun -m sr2 train`: several processes are the run of one, to rounding."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn

from sr2.experiments.errors import UserError
from sr2.experiments.run.build import checked
from sr2.experiments.run.config import RunConfig
from sr2.experiments.run.problem import Problem
from sr2.experiments.run.processes import ALONE, Processes, check
from sr2.experiments.run.whole_batch import Together
from tests.experiments.tools.processes import close_runs, start

pytestmark = pytest.mark.torture  # two processes at once; see docs/reliability.md

FLAGS = ["--epochs", "2", "--batch", "64", "--sigma", "0.02", "--eta2", "0.9"]  # steps that are too long at first


def test_two_processes_are_the_run_of_one(tmp_path: Path) -> None:
    runs = [start(tmp_path, name, FLAGS, processes) for name, processes in (("one", 1), ("two", 2))]
    for run in runs:
        out, error = run.communicate(timeout=240)
        assert run.returncode == 0, error
        assert out.count("accuracy") == 1  # the first one speaks
        assert "note:" not in error
    row = close_runs(tmp_path / "one", tmp_path / "two")
    assert row["rejected"] > 0


# ---- batch norms over the whole batch, against torch's own on that batch, in float64

X = torch.randn(12, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 1


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv1d(3, 5, 2), nn.BatchNorm1d(5), nn.Tanh(), nn.BatchNorm1d(5, affine=False)).double()


def measured(model: nn.Module, inner: nn.Module, x: Tensor) -> dict[str, Any]:
    """Outputs, gradients, a product with the Hessian, and the statistics."""
    parameters = list(inner.parameters())
    out = model(x)
    loss = out.sin().square().mean()
    gradients = torch.autograd.grad(loss, parameters, create_graph=True)
    products = torch.autograd.grad(gradients, parameters, [torch.ones_like(g) for g in gradients])
    model.eval()
    return {
        "out": out.detach(),
        "gradients": [g.detach() for g in gradients],
        "products": list(products),
        "buffers": dict(inner.named_buffers()),
        "evaluated": model(x).detach(),
    }


def work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    try:
        inner = network()
        found = measured(Together(inner), inner, X[6 * rank : 6 * rank + 6])
        for name in ("gradients", "products"):
            for tensor in found[name]:
                dist.all_reduce(tensor)
                tensor /= 2
        torch.save(found, f"{folder}/{rank}")
        dist.barrier()
    finally:
        dist.destroy_process_group()
    os._exit(0)


def test_batch_norms_see_the_whole_batch(tmp_path: Path) -> None:
    mp.spawn(work, (str(tmp_path),), nprocs=2)  # type: ignore[no-untyped-call]
    a, b = (torch.load(tmp_path / str(rank), weights_only=True) for rank in (0, 1))
    inner = network()
    one = measured(inner, inner, X)
    for name in ("out", "evaluated"):
        torch.testing.assert_close(torch.cat([a[name], b[name]]), one[name], rtol=1e-12, atol=1e-13)
    for found in (a, b):
        for name in ("gradients", "products", "buffers"):
            torch.testing.assert_close(found[name], one[name], rtol=1e-10, atol=1e-12)
    alone = network()(X[:6])
    assert not torch.allclose(alone, one["out"][:6], atol=1e-3)  # its own statistics would be others


# ---- what cannot be equal


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"batch": 10}, "a batch of 10 cannot be cut into 4 equal parts"),
        ({"batch_growth": 1.0}, "batch_growth compares the halves of a batch"),
        ({"compile": True}, "--compile is for one process"),
        ({"device": "cuda:1"}, "use --device cuda, not cuda:1"),
        ({"device": "cuda"}, "4 processes need 4 devices"),
    ],
)
def test_what_several_processes_cannot_do(settings: dict[str, Any], words: str) -> None:
    if torch.cuda.device_count() >= 4 and settings == {"device": "cuda"}:
        pytest.skip("there are 4 devices")
    with pytest.raises(UserError, match=words):
        check(RunConfig.of(**settings), 4)


class Unwrapped(Processes):
    def wrap(self, model: nn.Module) -> nn.Module:
        return model


def test_random_numbers_in_the_network_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = "from torch import nn\ndef net():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.Dropout(0.1))"
    (tmp_path / "drops.py").write_text(net)
    monkeypatch.chdir(tmp_path)
    config = checked(RunConfig(model="drops:net"))
    Problem(config).check_training(config)
    with pytest.raises(UserError, match="drops:net draws random numbers while training, as dropout does, and 2"):
        Problem(config, Unwrapped(size=2)).check_training(config)


def test_one_process_is_alone() -> None:
    numbers = torch.ones(3)
    assert ALONE.total(numbers) is numbers
    assert ALONE.from_first(b"x") == b"x"
    assert [Processes(rank, 4).part(100, 8) for rank in (0, 3)] == [slice(100, 102), slice(106, 108)]
