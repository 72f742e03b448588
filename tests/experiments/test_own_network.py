"""`sr2 train --model mynet:build`: a network that does not fit, cannot be trained or has changed is a sentence."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from sr2.cli import main
from sr2.experiments.run.build import checked
from sr2.experiments.run.config import RunConfig
from sr2.experiments.run.problem import Problem
from sr2.experiments.run.stop import StopSignals
from sr2.experiments.run.store import RunStore, find_runs, read_weights
from sr2.experiments.run.train import Trainer


def train(*flags: str) -> int:
    return main(["train", "--model", "mlp", "--epochs", "2", "--batch", "200", *flags])


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_network_that_does_not_fit_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    Path("nets.py").write_text(
        "from torch import nn\n"
        "def narrow(): return nn.Sequential(nn.Flatten(), nn.Linear(64, 3))\n"
        "def wide(): return nn.Sequential(nn.Flatten(), nn.Linear(99, 10))\n"
    )
    assert train("--model", "nets:narrow") == 2
    assert "must be of shape (2, 10)" in capsys.readouterr().err
    assert train("--model", "nets:wide") == 2
    assert "nets:wide fails on the 1 x 8 x 8 images of digits" in capsys.readouterr().err
    assert train("--batch", "5000") == 2
    assert "the batch size must be from 1 to" in capsys.readouterr().err
    assert find_runs([Path("runs")], missing_ok=True) == []  # nothing started


def test_a_network_that_cannot_be_trained_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    Path("untrainable.py").write_text(
        "import torch\n"
        "from torch import nn\n"
        "def bare(): return nn.Sequential(nn.Flatten(), nn.AvgPool1d(6, 6))\n"
        "def frozen(): return nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).requires_grad_(False)\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.layer = nn.Linear(64, 10)\n"
        "class Detached(Net):\n"
        "    def forward(self, x): return self.layer(x.flatten(1)).detach()\n"
        "class Failing(Net):\n"
        "    def forward(self, x):\n"
        "        if self.training: raise ValueError('not in training')\n"
        "        return self.layer(x.flatten(1))\n"
    )
    for flags, words in {
        ("untrainable:bare",): "untrainable:bare has no parameters to train",
        ("untrainable:frozen",): "untrainable:frozen has no parameters to train",
        ("untrainable:Detached",): "untrainable:Detached while training do not depend on its parameters",
        ("untrainable:Failing",): "images of digits while training, 200 in a batch: not in training",
        ("resnet18", "--batch", "1"): "while training, 1 in a batch: Expected more than 1 value per channel",
    }.items():
        assert train("--model", *flags) == 2
        error = capsys.readouterr().err
        assert words in error
        assert error.count("\n") == 1
    assert find_runs([Path("runs")], missing_ok=True) == []  # nothing started


def test_trying_the_network_leaves_no_trace() -> None:
    made = Problem(RunConfig())
    before = {name: tensor.clone() for name, tensor in made.model.state_dict().items()}
    made.model.append(torch.nn.Dropout(0.5))  # type: ignore[operator]
    randomness = torch.get_rng_state()
    made.check_training(RunConfig())
    assert torch.equal(torch.get_rng_state(), randomness)
    assert all(torch.equal(before[name], tensor) for name, tensor in made.model.state_dict().items())
    assert not any(module.training for module in made.model.modules())
    assert all(p.grad is None for p in made.model.parameters())


def own_network(layers: str) -> None:
    """A module of the user's, as a new process finds it."""
    sys.modules.pop("mynet", None)
    Path("mynet.py").write_text(f"from torch import nn\ndef build(): return nn.Sequential(nn.Flatten(), {layers})\n")


def test_a_network_that_is_another_by_now_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    relu = "nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10)"
    others = relu.replace("ReLU", "Tanh"), relu.replace("8)", "9)").replace("(8", "(9")
    another = "was trained with another mynet:build than the code makes now: change the code back"

    def said(*argv: str) -> str:
        assert main([*argv]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        return error

    own_network(relu)
    config = checked(RunConfig.of(model="mynet:build", epochs=2, batch=200))
    store = RunStore(Path("runs") / config.key, config)
    with store.locked():
        trainer = Trainer(config, store, StopSignals())
        store.start(trainer.problem.model)
        next(trainer.run())  # and killed here
    again = ["train", "--model", "mynet:build", "--epochs", "2", "--batch", "200"]
    for layers in others:
        own_network(layers)
        assert another in said(*again)
    env = (store.path / "env.json").read_text()
    (store.path / "env.json").write_text("{}")  # of before networks were recorded
    assert f"the weights of {store.path} do not fit its network mynet:build: Error" in said(*again)
    (store.path / "env.json").write_text(env)
    own_network(relu)
    assert main(again) == 0
    for layers in others:
        own_network(layers)
        assert another in said(*again)  # finished
        assert another in said("prune", "runs", "--trust")
    own_network(relu)
    assert main(again) == 0
    assert "is finished already" in capsys.readouterr().out


def test_a_finished_run_of_an_own_network_is_found_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One whose first forward makes its parameters, and one that was trained before networks were recorded."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    own_network("nn.LazyLinear(8), nn.ReLU(), nn.Linear(8, 10)")
    again = ["train", "--model", "mynet:build", "--epochs", "1", "--batch", "200"]
    assert main(again) == 0
    assert main(again) == 0
    assert "is finished already" in capsys.readouterr().out
    (folder,) = Path("runs").iterdir()
    (folder / "env.json").write_text("{}")
    Path("mynet.py").unlink()
    sys.modules.pop("mynet")
    assert main(again) == 0
    assert "is finished already" in capsys.readouterr().out


def test_tied_weights_survive() -> None:
    Path("tied.py").write_text(
        "from torch import nn\n"
        "def net():\n"
        "    a, b = nn.Linear(64, 64), nn.Linear(64, 64)\n"
        "    b.weight = a.weight\n"
        "    return nn.Sequential(nn.Flatten(), a, nn.ReLU(), b, nn.Linear(64, 10))\n"
    )
    assert train("--model", "tied:net") == 0
    (record,) = find_runs([Path("runs")])
    weights = read_weights(record.path)
    assert torch.equal(weights["1.weight"], weights["3.weight"])
    assert main(["prune", "runs", "--trust"]) == 0
