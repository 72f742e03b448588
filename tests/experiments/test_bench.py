"""`sr2 bench`: its tables, its figures as JSON, its words; and how it counts what waits for the device."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from sr2.cli import main
from sr2.experiments import bench
from sr2.experiments.bench import BenchConfig, Timing, host_reads, interleave
from sr2.experiments.host_reads import HostReads

TRAINING = ["sgd", "sr2 l1", "sr2 l0", "proxgen l1", "proxsgd l1"]
OWN = ["copy", "sgd", "adamw", "adamw, fused", "sr2", "sr2 l1", "sr2 l0"]
TINY = ["--model", "mlp", "--batch", "8", "--steps", "1", "--repeats", "3", "--parameters", "1000"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    # As if there were no compiler: compiling takes longer than all the rest.
    monkeypatch.setattr(bench, "shutil", SimpleNamespace(which=lambda name: None), raising=False)


def check_rows(rows: list[dict[str, Any]], names: list[str]) -> None:
    assert [row["name"] for row in rows][: len(names)] == names
    for row in rows:
        assert row["milliseconds"] > 0
        assert 0 < row["ratio_low"] <= row["ratio"] <= row["ratio_high"]
        assert row["peak_bytes"] is None  # figures of a CUDA device
        assert row["host_reads"] is None
    (sgd,) = (row for row in rows if row["name"] == "sgd")
    assert (sgd["ratio"], sgd["ratio_low"], sgd["ratio_high"]) == (1, 1, 1)


def test_tables_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    started = time.perf_counter()
    assert main(["bench", *TINY, "2000", "--out", "figures/bench.json"]) == 0
    assert time.perf_counter() - started < 20
    said = capsys.readouterr().out
    assert "a training step of mlp, batch 8, fp32 on CPU" in said
    assert "the optimizer's own work on 1,000 parameters" in said
    assert "the optimizer's own work on 2,000 parameters" in said
    assert all(word in said for word in ("x SGD", "from", "peak MB", "host reads", "of copy's"))
    assert all(name in said for name in (*TRAINING, *OWN))
    assert "the figures are in figures/bench.json" in said
    figures = json.loads(Path("figures/bench.json").read_text())
    assert list(figures) == ["config", "versions", "device", "training", "own_work"]
    assert figures["config"]["parameters"] == [1000, 2000]
    assert BenchConfig(**{**figures["config"], "parameters": (1000, 2000)}).model == "mlp"
    assert figures["versions"]["torch"] == torch.__version__
    assert figures["device"] == f"CPU, {torch.get_num_threads()} threads"
    check_rows(figures["training"], TRAINING)
    assert [part["parameters"] for part in figures["own_work"]] == [1000, 2000]
    for part in figures["own_work"]:
        check_rows(part["rows"], OWN)


def test_capture_is_nothing_to_a_cpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def captured(*_: object, **__: object) -> None:
        raise AssertionError("a CPU has no graphs")

    made: list[bool] = []
    plain = bench.SR2

    def spied(*args: Any, **options: Any) -> Any:
        made.append(options["capturable"])
        return plain(*args, **options)

    monkeypatch.setattr(bench, "CapturedStep", captured)
    monkeypatch.setattr(bench, "_graph", captured)
    monkeypatch.setattr(bench, "SR2", spied)
    names = []
    for flag in ("--capture", "--no-capture"):
        assert main(["bench", *TINY, *([flag] if flag != "--capture" else []), "--out", "b.json"]) == 0
        figures = json.loads(Path("b.json").read_text())
        names.append([row["name"] for row in figures["training"]])
        assert figures["config"]["capture"] is (flag == "--capture")
    assert names[0] == names[1] == TRAINING
    assert made
    assert not any(made)
    assert "the figures are in b.json" in capsys.readouterr().out


def test_without_out_nothing_is_written(tmp_path: Path) -> None:
    assert main(["bench", *TINY, "--precision", "bf16"]) == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--model mpl", "unknown network 'mpl': did you mean mlp"),
        ("--precision fp8", "precision must be one of fp32, tf32, bf16, and is 'fp8'"),
        ("--precision tf32", "use fp32 or bf16"),
        ("--device cuda:77", "there is no device 'cuda:77' here"),
        ("--device gpu", "unknown device 'gpu': use cpu, cuda"),
        ("--device mps", "the device must be cpu or cuda"),
        ("--steps 0", "steps must be from 1 to 2147483647, and is 0"),
        ("--repeats 0", "repeats must be from 1 to 2147483647, and is 0"),
        ("--batch 0", "batch must be from 1 to 2147483647, and is 0"),
        ("--size 0", "size must be from 1 to 2147483647, and is 0"),
        ("--parameters 1000 -3", "parameters must be from 1 to 2147483647, and are -3"),
        ("--batch 99999999999", "batch must be from 1 to 2147483647, and is 99999999999"),
        ("--size 100000000", "this does not fit into memory ("),
    ],
)
def test_a_mistake_is_one_sentence(flags: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *TINY, *flags.split(), "--out", "b.json"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert words in error
    assert not Path("b.json").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about a machine without CUDA")
def test_without_cuda(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *TINY, "--device", "cuda"]) == 2
    assert "there is no device 'cuda' here" in capsys.readouterr().err


def test_a_place_that_cannot_be_written_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    Path("file").write_text("")
    assert main(["bench", *TINY, "--out", "file/b.json"]) == 2
    assert capsys.readouterr().err.startswith("error: file/b.json cannot be written")


def test_ratios_are_of_the_same_round() -> None:
    rows = bench._rows([Timing("sgd", [1.0, 2.0, 4.0]), Timing("sr2", [2.0, 6.0, 4.0])], "sgd")
    assert [(r["ratio_low"], r["ratio"], r["ratio_high"]) for r in rows] == [(1, 1, 1), (1, 2, 3)]
    assert [r["milliseconds"] for r in rows] == [2000, 4000]


def test_timings_take_turns() -> None:
    calls: list[str] = []
    timings = [Timing("a"), Timing("b")]
    bodies = [lambda: calls.append("a"), lambda: calls.append("b")]
    interleave(bodies, timings, BenchConfig(steps=2, repeats=3), torch.device("cpu"))
    assert "".join(calls) == "ab" + 3 * "aabb"  # each once to warm up
    assert [len(t.seconds) for t in timings] == [3, 3]


# ---- what waits for the device


def test_copies_to_the_host_are_counted() -> None:
    with FakeTensorMode():  # tensors that say they are on CUDA
        x, host = torch.empty(3, device="cuda"), torch.empty(3)

        def step() -> None:
            y = x * 2 + x.sum()
            y.cpu()
            y.to("cpu", torch.float64)
            host.copy_(y)
            host.add_(1)

        assert host_reads(step) == 3
        assert host_reads(lambda: torch.stack([x, x]).mean()) == 0
        assert host_reads(lambda: host.double().sum()) == 0


@pytest.mark.parametrize("name", ["_local_scalar_dense", "equal", "is_nonzero", "nonzero", "add"])
def test_reads_of_values_are_counted(name: str) -> None:
    class OnCuda(Tensor):
        is_cuda = True

    def fake(*_: object, **__: object) -> float:
        return 1.0

    fake.overloadpacket = SimpleNamespace(__name__=name)  # type: ignore[attr-defined]
    reads = HostReads()
    assert reads.__torch_dispatch__(fake, (), (torch.ones(2).as_subclass(OnCuda),)) == 1.0
    assert reads.seen == [name] * (name != "add")
    reads.__torch_dispatch__(fake, (), (torch.ones(2),))  # a read of the host's own memory waits for nothing
    assert reads.seen == [name] * (name != "add")


def test_a_cpu_step_waits_for_no_device() -> None:
    x = torch.ones(3)
    assert host_reads(lambda: x.sum().item() + float(x[0]) + len(x.nonzero())) == 0
