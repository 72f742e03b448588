"""sr2 shrink, sr2 export and sr2 bench --sparse on a finished run, and their tables on the report's page."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import onnxruntime
import pytest
import torch

from sr2.cli import main
from sr2.experiments.errors import UserError
from sr2.experiments.models import build
from sr2.experiments.run import export
from sr2.experiments.run.evaluate import evaluate
from sr2.experiments.run.files import read_json
from sr2.experiments.run.store import AVERAGE, WEIGHTS, RunStore, read_run, read_weights
from sr2.experiments.run.trained import trained
from sr2.export import load, measure, shrink
from tests.experiments.tools.runs import without_sums


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one epoch, then made sparse by hand: half of the first filters, and most of the other weights."""
    runs = tmp_path_factory.mktemp("runs")
    assert main(["train", "--epochs", "1", "--batch", "400", "--runs", str(runs)]) == 0
    (path,) = (path.parent for path in runs.rglob("config.json"))
    weights = read_weights(path)
    for name in ("0.weight", "1.weight", "1.bias"):
        weights[name][:8] = 0
    weights["6.weight"][torch.rand(weights["6.weight"].shape) < 0.9] = 0
    RunStore(path, read_run(path).config).write_weights(weights, AVERAGE)  # which all commands take
    without_sums(path)
    return path


@pytest.fixture
def run(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(measure, "REPEATS", 1)
    return Path(shutil.copytree(finished, tmp_path / "run"))


def row(run: Path, kind: str) -> dict[str, dict[str, float]]:
    record = read_run(run)
    assert record.export is not None
    (found,) = (row for row in record.export["rows"] if row["format"] == kind)
    return dict(found)


def test_shrink(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["shrink", str(run)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("SR2 l1 0.001 (run), batch 1, CPU")  # in one line, which is longer than the table
    assert all(word in said for word in ("bytes", "parameters", "macs", "milliseconds", "accuracy", "before", "after"))
    found, problem = row(run, "shrunk"), trained(run, "cpu")
    assert found["accuracy"]["before"] == found["accuracy"]["after"] == evaluate(problem)[1]
    assert found["bytes"]["after"] < found["bytes"]["before"] == (run / AVERAGE).stat().st_size
    assert found["parameters"] == {"before": 24058, "after": 24058 - 8 * (9 + 2 + 32 * 9)}
    small = load(run / "shrunk.safetensors", build("cnn", 10, (1, 8, 8))).eval()
    x = next(iter(problem.test))[0]
    torch.testing.assert_close(small(x), problem.model(x), atol=1e-5, rtol=1e-5)


def test_export_safetensors(run: Path) -> None:
    assert main(["export", str(run)]) == 0
    found, problem = row(run, "safetensors"), trained(run, "cpu")
    assert found["accuracy"]["before"] == found["accuracy"]["after"]
    assert found["milliseconds"]["before"] == found["milliseconds"]["after"]
    assert found["bytes"]["after"] < 0.5 * found["bytes"]["before"]
    back = load(run / "export.safetensors")
    assert all(torch.equal(back[name], tensor) for name, tensor in problem.model.state_dict().items())


def test_export_onnx_and_the_page(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["shrink", str(run)]) == 0
    assert main(["export", str(run), "--format", "onnx"]) == 0
    assert main(["export", str(run), "--format", "onnx"]) == 0  # again: a row is replaced, not added
    found, problem = row(run, "onnx"), trained(run, "cpu")
    assert found["accuracy"]["after"] == found["accuracy"]["before"]
    session = onnxruntime.InferenceSession(run / "export.onnx", providers=["CPUExecutionProvider"])
    x = next(iter(problem.test))[0]
    (y,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    torch.testing.assert_close(torch.from_numpy(y), problem.model(x).detach(), atol=1e-4, rtol=1e-4)
    assert main(["report", str(run), "--out", str(run / "report")]) == 0
    page = (run / "report" / "index.html").read_text()
    assert page.count("milliseconds") == 2
    assert "Exports" in page
    assert f"{found['bytes']['after']:,}" in page


def test_bench_sparse(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--sparse", str(run)]) == 0
    said = capsys.readouterr().out
    assert "break-even" in said
    assert "64x32x3x3" in said


@pytest.mark.filterwarnings("ignore:R.x_0. is infinite")
def test_two_of_four_rehearsed_without_a_gpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything but the GPU and torch's conversion."""
    quick = ["--model", "mlp", "--epochs", "1", "--batch", "400", "--regularizer", "nm", "--runs", str(tmp_path)]
    assert main(["train", *quick]) == 0
    (folder,) = (path.parent for path in tmp_path.rglob("config.json"))
    monkeypatch.setattr(export, "trained", lambda folder, device, **how: trained(folder, "cpu", **how))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.sparse, "to_sparse_semi_structured", lambda tensor: tensor)
    monkeypatch.setattr(sys.modules["sr2.export.semi_structured"], "_check_device", lambda model: None)
    assert main(["export", str(folder), "--format", "2:4"]) == 0
    found = row(folder, "2:4")
    assert "a GPU" in capsys.readouterr().out
    assert found["accuracy"]["before"] == found["accuracy"]["after"]
    assert load(folder / "export-2-4.safetensors")["1.weight"].dtype == torch.bfloat16


def test_two_of_four_elsewhere_is_one_sentence(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["export", str(run), "--format", "2:4"]) == 2
    assert capsys.readouterr().err == (
        "error: 2:4 needs an NVIDIA GPU, and torch sees none here: use --format safetensors or onnx\n"
    )


def test_a_run_without_weights_is_skipped(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in (WEIGHTS, AVERAGE):
        (run / name).unlink()
    assert main(["shrink", str(run)]) == 2
    said = capsys.readouterr().err
    assert "skipped" in said
    assert "nothing to export" in said


def test_what_sr2_export_finds_wrong_is_a_sentence_for_the_user(run: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.LSTM(3, 3))
    with pytest.raises(UserError, match="LSTM"), export._one_sentence(run):
        shrink(model, torch.zeros(1, 3))


@pytest.mark.parametrize("content", ["{", "[]", '{"rows": [{}]}', '{"rows": [{"format": 3}]}'])
def test_a_damaged_file_of_figures_is_one_sentence(run: Path, content: str, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "export.json").write_text(content)
    assert main(["shrink", str(run)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "sr2 export" in said


def test_what_a_run_says_is_escaped_on_the_page(run: Path) -> None:
    assert main(["export", str(run)]) == 0
    figures = read_json(run / "export.json")
    figures["rows"][0]["device"] = "<script>alert(1)</script>"
    (run / "export.json").write_text(json.dumps(figures))
    assert main(["report", str(run), "--out", str(run / "report")]) == 0
    assert "<script>alert" not in (run / "report" / "index.html").read_text()
