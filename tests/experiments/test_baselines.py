"""The baselines: torch's own steps, masks that hold, the same average as SR2's; from the command line and in a grid."""

from __future__ import annotations

import copy
import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sr2.averaging import Polynomial
from sr2.cli import main
from sr2.experiments.baselines import GMP, SGD, AdamW, Baseline
from sr2.experiments.errors import UserError
from sr2.experiments.run.build import checked
from sr2.experiments.run.compare import Grid, expand
from sr2.experiments.run.config import RunConfig

DRAW = torch.Generator().manual_seed(0)
X, Y = torch.randn(5, 16, 6, generator=DRAW), torch.randint(3, (5, 16), generator=DRAW)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 20), nn.BatchNorm1d(20), nn.Tanh(), nn.Linear(20, 3))


def train(optimizer: Any, model: nn.Sequential, first: int, last: int) -> list[list[Tensor]]:
    points = []
    for t in range(first, last):
        optimizer.before_step(t)
        optimizer.step(lambda t=t: F.cross_entropy(model(X[t % 5].to(model[0].weight)), Y[t % 5]))
        points.append([p.detach().clone() for p in model.parameters()])
    return points


@pytest.mark.parametrize("kind", [AdamW, SGD])
def test_it_is_the_loop_that_anybody_would_write(kind: type[Baseline]) -> None:
    mine, theirs = network().double(), network().double()
    optimizer = kind(mine, lr=0.05, steps=40, warmup=0.1, weight_decay=0.1)  # type: ignore[call-arg]
    weights, rest = [theirs[0].weight, theirs[3].weight], [theirs[0].bias, *theirs[1].parameters(), theirs[3].bias]
    groups: list[dict[str, Any]] = [{"params": weights, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    plain: torch.optim.Optimizer = (
        torch.optim.AdamW(groups) if kind is AdamW else torch.optim.SGD(groups, momentum=0.9, nesterov=True)
    )
    train(optimizer, mine, 0, 40)
    for t in range(40):
        for group in plain.param_groups:
            group["lr"] = 0.05 * ((t + 1) / 4 if t < 4 else 0.5 + 0.5 * math.cos(math.pi * (t - 4) / 36))
        plain.zero_grad()
        F.cross_entropy(theirs(X[t % 5].double()), Y[t % 5]).backward()
        plain.step()
    for x, y in zip(mine.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(x, y)


def test_masks_follow_the_cubic_and_hold() -> None:
    model = network()
    optimizer = GMP(model, lr=0.2, steps=200, density=0.1)
    points = train(optimizer, model, 0, 200)
    weights = [torch.cat([p[0].flatten(), p[4].flatten()]) for p in points]
    nonzeros = [int((w != 0).sum()) for w in weights]
    assert nonzeros[20] == 180
    assert nonzeros[80] == round(180 * (1 - 0.9 * (1 - 0.5**3)))  # u = 1/2 at 80 of 20 to 140
    assert nonzeros[140:] == [18] * 60
    for before, after in itertools.pairwise(weights):
        assert not bool(((before == 0) & (after != 0)).any())  # in spite of momentum and decay
    assert bool((weights[150] != weights[199]).any())  # and what is left recovers
    assert not any(bool((p == 0).any()) for p in (model[0].bias, model[1].weight))


def test_the_largest_weights_are_kept() -> None:
    model = network()
    optimizer = GMP(model, lr=1e-12, steps=10, density=0.2)
    for layer in (model[0], model[3]):
        nn.init.normal_(layer.weight)
    before = torch.cat([model[0].weight.detach().abs().flatten(), model[3].weight.detach().abs().flatten()])
    train(optimizer, model, 0, 10)
    kept = torch.cat([model[0].weight.detach().flatten(), model[3].weight.detach().flatten()]) != 0
    assert int(kept.sum()) == 36
    assert float(before[kept].min()) >= float(before[~kept].max())  # neither layer is at its floor


@pytest.mark.parametrize("kind", [AdamW, SGD, GMP])
def test_the_average_is_sr2s(kind: type[Baseline]) -> None:
    model = network()
    optimizer = kind(model, lr=0.05, steps=30, average=Polynomial(3.0))  # type: ignore[call-arg]
    points = train(optimizer, model, 0, 30)
    for number, p in enumerate(model.parameters()):
        mean = points[0][number].double()
        for t, point in enumerate(points[1:], 2):
            mean = mean + 4 / (3 + t) * (point[number].double() - mean)
        with optimizer.averaged():  # type: ignore[attr-defined]
            found = p.detach().double()
        zero = (p.detach() == 0) & (p.dim() > 1)
        assert bool((found[zero] == 0).all())
        torch.testing.assert_close(found[~zero], mean[~zero], rtol=1e-4, atol=1e-6)
    assert (kind is GMP) == bool((model[0].weight == 0).any())
    with pytest.raises(ValueError, match=rf"there is no average: make the optimizer with {kind.__name__}"):
        kind(model, average=False).averaged()  # type: ignore[call-arg, attr-defined]


@pytest.mark.parametrize("kind", [AdamW, SGD, GMP])
def test_a_saved_state_goes_on_to_the_same_bits(kind: type[Baseline]) -> None:
    whole, half, again = network(), network(), network()
    options: dict[str, Any] = {"lr": 0.05, "steps": 20}
    one, two, three = (kind(m, **options) for m in (whole, half, again))
    train(one, whole, 0, 20)
    train(two, half, 0, 9)
    again.load_state_dict(half.state_dict())
    three.load_state_dict(copy.deepcopy(two.state_dict()))
    train(three, again, 9, 20)
    assert all(torch.equal(x, y) for x, y in zip(whole.parameters(), again.parameters(), strict=True))


@pytest.mark.parametrize(("wrong", "words"), [({"density": 0.0}, "density must be"), ({"lr": -1.0}, "lr must be")])
def test_wrong_constants(wrong: dict[str, float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        GMP(network(), **wrong)  # type: ignore[arg-type]


def test_no_regularizer() -> None:
    assert checked(RunConfig(optimizer="adamw")).label == "AdamW"
    assert checked(RunConfig.of(optimizer="gmp", density=0.05)).label == "GMP density=0.05"
    with pytest.raises(UserError, match="sgd has no regularizer: leave out --regularizer"):
        checked(RunConfig(optimizer="sgd", regularizer="l0"))
    with pytest.raises(UserError, match="adamw has no budget: leave out --density, or use --optimizer gmp or sr2"):
        checked(RunConfig(optimizer="adamw", regularizer="l0_ball", reg=("density=0.1",)))
    with pytest.raises(UserError, match="sgd has no option cooldown"):
        checked(RunConfig.of(optimizer="sgd", cooldown=0.2))


def test_a_grid_has_one_run_of_each() -> None:
    grid = Grid.of(optimizers=("sr2", "gmp,density=0.05", "gmp,density=0.02", "adamw", "sgd"), lams=(0.1, 0.2), lr=0.01)
    runs, left_out = expand(grid)
    assert [run.label for run in runs][4:] == ["GMP density=0.05", "GMP density=0.02", "AdamW", "SGD"]
    assert [run.options.get("lr") for run in runs] == [None] * 4 + [0.01] * 4
    assert not left_out
    grid = Grid.of(
        optimizers=("sr2", "gmp", "adamw"),
        regularizers=("l0_ball,density=0.1", "l0_ball,density=0.05", "l1"),
        lams=(0.1,),
    )
    assert [run.label for run in expand(grid)[0]][3:] == ["GMP density=0.1", "GMP density=0.05", "GMP", "AdamW"]


@pytest.mark.parametrize("typed", ["--regularizer l1", "--lam 0.001", "--regularizer l1 --lam 0.001"])
def test_a_regularizer_that_was_typed_is_not_ignored(typed: str, capsys: pytest.CaptureFixture[str]) -> None:
    """These are the defaults, of which nothing is said where nobody typed them."""
    for optimizer in ("adamw", "gmp"):
        assert main(["train", "--optimizer", optimizer, *typed.split()]) == 2
        words = f"error: {optimizer} has no regularizer: leave out {typed}, or use --optimizer sr2\n"
        assert capsys.readouterr().err == words


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "gmp"])
def test_sr2_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, optimizer: str) -> None:
    monkeypatch.chdir(tmp_path)
    flags = ["--model", "cnn", "--epochs", "6", "--batch", "64", "--optimizer", optimizer, "--precision", "bf16"]
    own = ["--opt", "density=0.2"] if optimizer == "gmp" else []
    assert main(["train", *flags, "--lr", "0.01" if optimizer == "adamw" else "0.1", *own]) == 0
    (folder,) = (tmp_path / "runs").iterdir()
    result = json.loads((folder / "result.json").read_text())
    assert result["accuracy"] > 90
    weights = [layer for layer in result["layers"] if len(layer["shape"]) > 1]
    zeros, total = (sum(layer[name] for layer in weights) for name in ("zeros", "total"))
    assert zeros == (total - round(0.2 * total) if optimizer == "gmp" else 0)
