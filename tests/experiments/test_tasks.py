"""Tasks: losses and scores against torch and scikit-learn, and runs of each from `sr2 train` to the report."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_diabetes
from sklearn.linear_model import LinearRegression
from sklearn.metrics import accuracy_score, r2_score

from sr2.cli import main
from sr2.experiments.data import Dataset, fetch, load
from sr2.experiments.errors import UserError
from sr2.experiments.plans import epoch_plan
from sr2.experiments.run.build import checked
from sr2.experiments.run.config import RunConfig
from sr2.experiments.run.problem import Problem
from sr2.experiments.run.store import RunRecord, RunStore, find_runs
from sr2.experiments.tasks import Classification, Images, Regression, Task, Tokens
from sr2.experiments.trained import trained
from tests.experiments.tools.runs import finish, same_run


def score(task: Task, out: torch.Tensor, y: torch.Tensor, pieces: int = 3) -> float:
    """From statistics that were added up over pieces, as a run does."""
    sums = sum(task.statistics(o, t).double() for o, t in zip(out.chunk(pieces), y.chunk(pieces), strict=True))
    return task.value(sums.tolist(), y.numel())  # type: ignore[union-attr]


def test_classification_is_cross_entropy_and_accuracy() -> None:
    torch.manual_seed(0)
    out, y = torch.randn(50, 7), torch.randint(7, (50,))
    task = Classification()
    for reduction in ("mean", "sum"):
        assert torch.equal(task.loss(out, y, reduction), F.cross_entropy(out, y, reduction=reduction))
    assert score(task, out, y) == pytest.approx(100 * accuracy_score(y, out.argmax(1)), rel=1e-12)


def test_tokens_count_every_place() -> None:
    torch.manual_seed(0)
    out, y = torch.randn(12, 5, 7), torch.randint(7, (12, 5))
    task = Tokens()
    assert torch.equal(task.loss(out, y), F.cross_entropy(out.movedim(-1, 1), y))
    assert score(task, out, y) == pytest.approx(100 * accuracy_score(y.flatten(), out.argmax(-1).flatten()), rel=1e-12)
    assert task.output_shape(y, 7) == (12, 5, 7)


@pytest.mark.parametrize("shape", [(40,), (40, 2)])
def test_regression_is_the_squared_error_and_r2(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    y = torch.randn(shape) + 3
    out = (y + 0.3 * torch.randn(shape)).reshape(40, -1)
    task = Regression()
    assert torch.equal(task.loss(out, y), F.mse_loss(out.view_as(y), y))
    assert score(task, out, y) == pytest.approx(r2_score(y.double().flatten(), out.double().flatten()), rel=1e-9)
    assert score(task, torch.zeros(6, 1), torch.ones(6)) == 0.0  # constant targets have no spread to explain


def test_diabetes_is_scikit_learns_and_scaled_by_the_training_rows() -> None:
    data = load("diabetes")
    assert (data.in_shape, len(data.train_inputs), len(data.test_inputs)) == ((10,), 353, 89)
    assert data.train_inputs.mean(0) == pytest.approx(np.zeros(10), abs=1e-6)
    assert data.train_targets.std(correction=0) == pytest.approx(1.0, abs=1e-6)
    x, y = load_diabetes(return_X_y=True)
    test = np.arange(len(y)) % 5 == 0
    theirs = LinearRegression().fit(x[~test], y[~test]).score(x[test], y[test])
    linear = LinearRegression().fit(data.train_inputs, data.train_targets)
    assert linear.score(data.test_inputs, data.test_targets) == pytest.approx(theirs, abs=1e-5)


def test_a_batch_is_the_rows_of_its_plan() -> None:
    for name in ("diabetes", "counting"):
        data = load(name)
        part = epoch_plan(len(data.train_inputs), 1, 2)[3:9]
        x, y = data.task.batch(data.train_inputs, data.train_targets, part, False)
        assert torch.equal(x, data.train_inputs[part.index].to(x.dtype))
        assert torch.equal(y, data.train_targets[part.index].to(y.dtype))
    assert (x.dtype, y.dtype) == (torch.int64, torch.int64)
    assert torch.equal(x[:, 1:], y[:, :-1])  # the next byte


def test_a_text_of_ones_own(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"text is not in .*put a text of your own as input\.txt there"):
        load("text", tmp_path)
    with pytest.raises(UserError, match=r"text is not in .*: put a text of your own as input\.txt there"):
        fetch("text", tmp_path)
    assert not list(tmp_path.iterdir())
    folder = tmp_path / "text"
    folder.mkdir()
    (folder / "input.txt").write_text("short")
    with pytest.raises(UserError, match=r"input\.txt has 5 bytes, and a text needs at least 660"):
        load("text", tmp_path)
    words = ("to be or not to be, that is the question: " * 200).encode()
    (folder / "input.txt").write_bytes(words)
    data = load("text", tmp_path)
    assert bytes(data.train_inputs.flatten().byte().numpy()) == words[: data.train_inputs.numel()]
    assert (data.in_shape, data.outputs) == ((64,), 256)
    (folder / "input.txt").write_bytes(words[::-1])
    assert not torch.equal(load("text", tmp_path).train_inputs, data.train_inputs)  # no cache hides another text


X, Y = torch.zeros(4, 3), torch.zeros(4)


@pytest.mark.parametrize(
    ("task", "inputs", "targets", "words"),
    [
        (Regression(), X, Y[:3], "one for each of the 4 rows"),
        (Regression(), X.long(), Y, "must be floating-point"),
        (Regression(), X, Y / 0, "must be finite"),
        (Tokens(), X.long(), Y.long(), r"one shape \(n, length\)"),
        (Tokens(), X.long() + 9, X.long(), "run from 9 to 9, and 5 classes end at 4"),
        (Classification(), X, Y.long() - 1, "run from -1 to -1"),
        (Images((0.0,), (1.0,)), X, Y.long(), "must be uint8"),
    ],
)
def test_data_that_do_not_fit_their_task(task: Task, inputs: torch.Tensor, targets: torch.Tensor, words: str) -> None:
    with pytest.raises(UserError, match=words):
        Dataset("mine", inputs, targets, inputs, targets, 5, task)


# ---- runs

RUNS = {
    "regression": ["--data", "diabetes", "--model", "mlp", "--batch", "50"],
    "tokens": ["--data", "counting", "--model", "transformer", "--batch", "37"],
}


def only_run() -> RunRecord:
    (record,) = find_runs([Path("runs")])
    return record


@pytest.mark.filterwarnings("ignore:.* had no gradient in the first batch")  # bytes that no text has
@pytest.mark.parametrize("kind", RUNS)
def test_from_training_to_the_report(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", *RUNS[kind], "--epochs", "2"]) == 0
    record = only_run()
    name = record.score.name
    assert name == {"regression": "r2", "tokens": "accuracy"}[kind]
    assert record.metrics[1]["loss"] < record.metrics[0]["loss"]
    assert record.result is not None
    assert (record.prune or {})["unpruned"][name] == record.result[f"average_{name}"]
    for weights, of in (("last", ""), ("average", "average_")):
        assert record.result[f"{of}{name}"] == record.metrics[-1][f"{of}test_{name}"]
        run = trained(record.path, weights=weights)  # type: ignore[arg-type]
        with torch.no_grad():
            out, y = (torch.cat(parts) for parts in zip(*((run.outputs(x), y) for x, y in run.test), strict=True))
        if kind == "regression":
            assert record.result[f"{of}{name}"] == pytest.approx(r2_score(y, out[:, 0]), rel=1e-6)
        else:
            right = accuracy_score(y.flatten(), out.argmax(-1).flatten())
            assert record.result[f"{of}{name}"] == pytest.approx(100 * right, rel=1e-9)
        assert record.metrics[-1][f"{of}test_loss"] == pytest.approx(float(run.task.loss(out, y)), rel=1e-5)
    assert main(["train", *RUNS[kind], "--epochs", "2", "--optimizer", "proxgen", "--lr", "0.1"]) == 0
    capsys.readouterr()
    assert main(["report", "runs"]) == 0
    said = capsys.readouterr().out
    assert {"regression": " r2 ", "tokens": " accuracy % "}[kind] in said
    assert f'<th class="number">{record.score.heading}</th>' in Path("runs/report/index.html").read_text()
    assert main(["train", *RUNS[kind], "--epochs", "2"]) == 0
    assert f"is finished already ({name} " in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore:.* had no gradient in the first batch")  # bytes that no text has
@pytest.mark.parametrize("kind", RUNS)
def test_stopped_at_any_step_it_ends_in_the_same_bits(kind: str, tmp_path: Path) -> None:
    data, model, batch = RUNS[kind][1::2]
    config = checked(RunConfig.of(data=data, model=model, batch=int(batch), epochs=2, momentum=0.9))
    stores = [RunStore(tmp_path / name, config) for name in ("undisturbed", "stopped")]
    finish(config, stores[0])
    steps = finish(config, stores[1], {1, 4, 8}).steps
    assert steps == 2 * (7 if kind == "regression" else 6)
    same_run(stores[0].path, stores[1].path)


OWN = """
import torch
from sr2.experiments.data import Dataset
from sr2.experiments.tasks import Regression, Score
class Absolute(Regression):
    score = Score("minus_mae", "")
    def loss(self, out, y, reduction="mean"):
        return torch.nn.functional.l1_loss(out.view_as(y), y, reduction=reduction)
    def statistics(self, out, y):
        return (out.detach().view_as(y) - y).abs().sum().view(1)
    def value(self, sums, count):
        return -sums[0] / count
def data():
    x = torch.linspace(-1, 1, 200)[:, None] ** torch.arange(1, 4)
    return Dataset("mine", x, x.sum(1), x[::7], x[::7].sum(1), 1, Absolute())
"""


def test_a_task_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own_task.py").write_text(OWN)
    assert main(["train", "--data", "own_task:data", "--model", "mlp", "--batch", "50", "--epochs", "2"]) == 0
    record = only_run()
    last = record.metrics[-1]
    assert last["test_minus_mae"] == pytest.approx(-last["test_loss"], rel=1e-6)
    assert json.loads((record.path / "env.json").read_text())["score"] == {"name": "minus_mae", "unit": ""}
    assert main(["report", "runs"]) == 0
    assert "minus_mae" in capsys.readouterr().out


@pytest.mark.parametrize(("data", "model"), [("digits", "mlp"), ("diabetes", "mlp"), ("counting", "transformer")])
def test_a_batch_and_its_loss_compile_to_one_graph_each(data: str, model: str) -> None:
    """On CUDA both are compiled with the network: a break would cost launches at every step."""
    problem = Problem(RunConfig(data=data, model=model))
    plan = problem.batches.plan(0)[:8]
    batch = torch._dynamo.explain(problem.batches.make)(plan)
    x, y = problem.batches.make(plan)
    loss = torch._dynamo.explain(problem.network._loss_and_statistics)((), x, y)
    torch._dynamo.reset()
    assert (batch.graph_break_count, loss.graph_break_count) == (0, 0)


def test_a_network_of_another_shape_is_a_sentence() -> None:
    for model, data, words in (
        ("mlp", "counting", "fails on the 64 windows of counting"),
        ("cnn", "diabetes", "fails on the 10 rows of diabetes.*; use another --model, as mlp for rows"),
    ):
        with pytest.raises(UserError, match=words):
            Problem(RunConfig(model=model, data=data))
