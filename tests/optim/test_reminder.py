"""Who saves a network whose average they never looked at is told so, once; and nothing else is disturbed."""

from __future__ import annotations

import contextlib
import copy
import gc
import io
import pickle
import re
import subprocess
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from sr2 import L1, SR2, L0Ball, prune_
from sr2.export import load, save, shrink, sparse_layers, to_onnx

WORDS = r"holds the last iterate.*with optimizer.averaged\(\)"
X = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))


def trained(model: nn.Module | None = None, steps: int = 3, **options: object) -> tuple[nn.Module, SR2]:
    model = model or nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))
    optimizer = SR2(model, L1(1e-3), **{"average": True, "sigma": 10.0} | options)  # type: ignore[arg-type]
    for _ in range(steps):
        optimizer.step(lambda: model(X).square().mean())
    return model, optimizer


@pytest.fixture
def silent() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def test_it_is_said_once_and_at_the_users_line() -> None:
    model, _optimizer = trained()
    with pytest.warns(UserWarning, match=WORDS) as found:
        model.state_dict()
    assert found[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.state_dict()


def test_who_saves_by_export_is_told_too(tmp_path: Path) -> None:
    model, _optimizer = trained()
    with pytest.warns(UserWarning, match=WORDS) as found:
        save(model, tmp_path / "w.safetensors")
    assert found[0].filename == __file__


@pytest.mark.usefixtures("silent")
def test_who_loads_by_export_is_not_told(tmp_path: Path) -> None:
    save(nn.Linear(4, 1), tmp_path / "w.safetensors")
    model, _optimizer = trained(nn.Linear(4, 1))
    load(tmp_path / "w.safetensors", model)


@pytest.mark.usefixtures("silent")
def test_who_has_looked_is_not_told() -> None:
    model, optimizer = trained()
    with optimizer.averaged():
        model.state_dict()
    model.state_dict()


@pytest.mark.usefixtures("silent")
def test_nor_is_who_has_no_average_or_no_step() -> None:
    trained(average=False)[0].state_dict()
    trained(steps=0)[0].state_dict()


@pytest.mark.usefixtures("silent")
def test_nor_is_who_saves_a_part_or_names_parameters() -> None:
    model, _ = trained()
    model[0].state_dict()  # type: ignore[index]
    model = nn.Linear(4, 1)
    optimizer = SR2(model.parameters(), average=True, sigma=10.0)
    optimizer.step(lambda: model(X).square().mean())
    model.state_dict()


@pytest.mark.usefixtures("silent")
def test_copies_and_pickles_say_nothing() -> None:
    model, _optimizer = trained()
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    again = [copy.deepcopy(model), pickle.loads(pickle.dumps(model)), torch.load(buffer, weights_only=False)]
    for other in again:
        assert [*other.state_dict()] == ["0.weight", "0.bias", "2.weight", "2.bias"]
        other.load_state_dict(other.state_dict())
    pair = copy.deepcopy((model, _optimizer))
    pair[1].step(lambda: pair[0](X).square().mean())
    pair[0].state_dict()


def test_a_pickled_network_needs_no_sr2(tmp_path: Path) -> None:
    model, _optimizer = trained()
    torch.save(model, tmp_path / "model.pt")
    code = (
        "import sys; sys.modules['sr2'] = None; import torch; "
        "print(len(torch.load(sys.argv[1], weights_only=False).state_dict()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "model.pt")], capture_output=True, text=True, check=False
    )
    assert done.stdout == "4\n", done.stderr


@pytest.mark.usefixtures("silent")
def test_the_optimizer_goes_and_so_does_the_hook_and_the_module() -> None:
    model, optimizer = trained()
    assert len(model._state_dict_hooks) == 1
    gone = weakref.ref(optimizer)
    del optimizer
    gc.collect()
    assert gone() is None
    assert len(model._state_dict_hooks) == 0
    model.state_dict()
    both = trained()
    gone_too = weakref.ref(both[0])
    del both
    gc.collect()
    assert gone_too() is None


def test_through_torch_compile() -> None:
    plain = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))
    compiled = torch.compile(plain, backend="eager")
    _, _optimizer = trained(compiled)  # type: ignore[arg-type]
    with pytest.warns(UserWarning, match=WORDS):
        plain.state_dict()
    later = torch.compile(plain, backend="eager")
    _, _other = trained(plain)
    later(X)
    with pytest.warns(UserWarning, match=WORDS):
        later.state_dict()


def test_through_ddp(tmp_path: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'meeting'}", rank=0, world_size=1)
    try:
        plain = nn.Linear(4, 1)
        wrapped = nn.parallel.DistributedDataParallel(plain)
        _, _optimizer = trained(wrapped)
        with pytest.warns(UserWarning, match=WORDS):
            plain.state_dict()
        _, _other = trained(wrapped)
        with pytest.warns(UserWarning, match=WORDS):
            wrapped.state_dict()
    finally:
        dist.destroy_process_group()


# ---- a budget that is not reached


def under_a_budget(taken: int, regularizer: object = L0Ball(density=0.5), **options: object) -> tuple[nn.Module, SR2]:
    """So many of twenty steps; the budget holds from step 14 on."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = SR2(model, regularizer, sigma=10.0, **{"steps": 20} | options)  # type: ignore[arg-type]
    for _ in range(taken):
        optimizer.step(lambda: model(X).square().mean())
    return model, optimizer


def _to_onnx(model: nn.Module, folder: Path) -> object:
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    return to_onnx(model, X, folder / "w.onnx")


USES: dict[str, Callable[[nn.Module, Path], object]] = {
    "save": lambda model, folder: save(model, folder / "w.safetensors"),
    "shrink": lambda model, folder: shrink(model, X, verbose=False),
    "sparse_layers": lambda model, folder: sparse_layers(model, X, verbose=False),
    "to_onnx": _to_onnx,
}
SHORT = r"^this network is that of step 5, and L0Ball\(density=0.5\) holds from step 14 on: save a later one"


def test_a_network_that_is_saved_before_its_budget_is_told_once(tmp_path: Path) -> None:
    model, optimizer = under_a_budget(5)
    with optimizer.averaged(), pytest.warns(UserWarning, match=SHORT) as found:
        torch.save(model.state_dict(), tmp_path / "w.pt")
    assert [w.filename for w in found] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with optimizer.averaged():
            save(model, tmp_path / "w.safetensors")


@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("use", USES)
def test_export_is_told_outside_the_average_too(tmp_path: Path, use: str, average: bool) -> None:
    model, optimizer = under_a_budget(5, average=average)
    with pytest.warns(UserWarning, match=SHORT) as found:
        USES[use](model, tmp_path)
    said = [str(w.message) for w in found]
    assert [bool(re.match(SHORT, words)) for words in said] == [True, False][: 1 + average]
    assert [bool(re.search(WORDS, words)) for words in said] == [False, True][: 1 + average]
    assert {w.filename for w in found} == {__file__}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        USES[use](model, tmp_path)  # once
        _, optimizer = under_a_budget(14, average=average)
        with optimizer.averaged() if average else contextlib.nullcontext():
            USES[use](optimizer._module, tmp_path)


@pytest.mark.usefixtures("silent")
def test_to_evaluate_and_to_write_checkpoints_is_no_mistake(tmp_path: Path) -> None:
    model, optimizer = under_a_budget(0)
    for _ in range(20):
        optimizer.step(lambda: model(X).square().mean())
        with optimizer.averaged():
            model(X)
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "checkpoint.pt")
    with optimizer.averaged():
        save(model, tmp_path / "w.safetensors")
    assert int((model[0].weight == 0).sum() + (model[2].weight == 0).sum()) == 20  # type: ignore[index]


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize(
    ("taken", "regularizer", "options"),
    [
        (0, L0Ball(density=0.5), {}),  # a network nobody has trained is no result
        (14, L0Ball(density=0.5), {}),
        (5, L1(1e-3), {}),  # no budget
        (5, L1(1e-3), {"reach": (2, 14)}),
    ],
)
def test_nor_is_anything_said_where_no_budget_is_missed(
    tmp_path: Path, taken: int, regularizer: object, options: dict[str, object]
) -> None:
    model, optimizer = under_a_budget(taken, regularizer, **options)
    with optimizer.averaged():
        save(model, tmp_path / "w.safetensors")


@pytest.mark.usefixtures("silent")
def test_a_new_optimizer_ends_the_old_ones_budget(tmp_path: Path) -> None:
    model, _old = under_a_budget(5)
    optimizer = SR2(model, L1(1e-3), sigma=10.0)
    optimizer.step(lambda: model(X).square().mean())
    with optimizer.averaged():
        save(model, tmp_path / "w.safetensors")


@pytest.mark.usefixtures("silent")
def test_a_network_that_is_within_its_budget_from_the_start_misses_none(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    prune_(model, 0.4)
    optimizer = SR2(model, L0Ball(density=0.9), sigma=10.0)
    for _ in range(5):
        optimizer.step(lambda: model(X).square().mean())
    with optimizer.averaged():
        save(model, tmp_path / "w.safetensors")
