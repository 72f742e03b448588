"""`sr2 train --certificate`: the paper's bound at the end of a run, in its folder and in the report."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from sr2.cli import main
from sr2.experiments.run.files import read_json
from sr2.experiments.run.store import WEIGHTS, RunRecord, find_runs
from tests.experiments.tools.runs import NET, same_run

PARTS = ["bound", "step_term", "variance_term", "delta", "residual", "residual_error", "lipschitz", "sigma"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


ALGORITHM_1 = ("--eta2", "0.99")
"""Of whose steps a certificate is."""


def train(*flags: str) -> int:
    return main(["train", "--model", "mlp", "--epochs", "2", "--batch", "200", *flags])


def only_run(root: str = "runs") -> RunRecord:
    (record,) = find_runs([Path(root)])
    return record


def certified(record: RunRecord) -> dict[str, Any]:
    found: dict[str, Any] = read_json(record.path / "certificate.json")
    return found


def numbers(value: Any) -> Iterator[float]:
    if isinstance(value, dict):
        for part in value.values():
            yield from numbers(part)
    else:
        yield value


def test_finite_numbers_that_fit_together(capsys: pytest.CaptureFixture[str]) -> None:
    assert train("--certificate", *ALGORITHM_1) == 0
    record = only_run()
    found = certified(record)
    numbers_said = (
        f"at most {found['bound']:.4g}, delta {found['delta']:.4g}, proximal residual {found['residual']:.4g}"
    )
    last = capsys.readouterr().out.splitlines()[-1]
    assert numbers_said in last
    assert last.endswith(f"in {record.path}/certificate.json")
    assert list(found) == [*PARTS, "batches", "accepted"]
    assert all(math.isfinite(number) and number > 0 for number in numbers(found))
    assert found["bound"] == found["step_term"]["mean"] + found["variance_term"]["mean"]
    assert found["sigma"] == record.metrics[-1]["sigma"]
    assert 0 < found["accepted"] <= found["batches"] == 7
    squares = found["step_term"]["mean"] / (3 * (found["lipschitz"] ** 2 + found["sigma"] ** 2))
    assert squares <= found["delta"] ** 2 * (1 + 1e-12)


def test_what_is_not_known_is_null_in_json() -> None:
    assert train("--certificate", *ALGORITHM_1, "--batch", "1400") == 0  # one batch has no spread
    found = certified(only_run())
    assert found["batches"] == 1
    assert found["step_term"]["half_width"] is None
    assert found["variance_term"] == {"mean": 0.0, "half_width": None}
    assert main(["report", "runs"]) == 0


@pytest.mark.parametrize("flags", [["--model", "dropnet:net"], ["--regularizer", "l0", "--lam", "1e-5"]])
def test_training_is_the_same_with_and_without(flags: list[str], tmp_path: Path) -> None:
    (tmp_path / "dropnet.py").write_text(NET)  # batch-norm and dropout: buffers and random numbers must be untouched
    assert train(*flags, *ALGORITHM_1, "--certificate", "--runs", "with") == 0
    state = torch.get_rng_state()
    assert train(*flags, *ALGORITHM_1, "--runs", "without") == 0
    assert torch.equal(torch.get_rng_state(), state)
    one, other = only_run("with"), only_run("without")
    same_run(one.path, other.path)
    assert one.prune == other.prune
    assert not (other.path / "certificate.json").exists()
    results = [
        {k: v for k, v in (r.result or {}).items() if k not in ("config", "seconds", "files")} for r in (one, other)
    ]
    assert results[0] == results[1] != {}


def test_the_report_shows_it() -> None:
    assert train("--certificate", *ALGORITHM_1) == 0
    assert train() == 0
    assert main(["report", "runs"]) == 0
    page = Path("runs/report/index.html").read_text()
    (record,) = (r for r in find_runs([Path("runs")]) if (r.path / "certificate.json").exists())
    found = certified(record)
    assert '<h2 id="certificates">Certificates</h2>' in page
    assert 'href="#certificates"' in page
    section = page.split('<h2 id="certificates">')[1]
    assert section.count('<div class="card">') == 1  # only the run that has one
    for name in ("bound", "delta", "residual", "lipschitz"):
        assert f"<dt>{name}</dt><dd>{found[name]:.4g}</dd>" in section
    term = found["step_term"]
    assert f"<dt>step_term</dt><dd>{term['mean']:.4g} ± {term['half_width']:.4g}</dd>" in section
    assert "--certificate" in page  # in the command that makes the run again


def test_a_report_without_certificates_has_no_such_section() -> None:
    assert train() == 0
    assert main(["report", "runs"]) == 0
    assert "ertificate" not in Path("runs/report/index.html").read_text()


def test_a_damaged_one_is_said_to_be_so() -> None:
    assert train("--certificate", *ALGORITHM_1) == 0
    path = only_run().path / "certificate.json"
    path.write_text('{"bound": <b>')
    assert main(["report", "runs"]) == 0
    page = Path("runs/report/index.html").read_text()
    assert f"{path} is damaged" in page
    assert "<b>'" not in page


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--optimizer", "proxgen"], "a certificate is about steps of sr2, and the optimizer is proxgen"),
        (["--optimizer", "proxsgd"], "a certificate is about steps of sr2, and the optimizer is proxsgd"),
        ([], "plain gradients: add --momentum 0 --metric none"),
        ([*ALGORITHM_1, "--momentum", "0.9"], "plain gradients: add --momentum 0 --metric none"),
        ([*ALGORITHM_1, "--metric", "adam"], "plain gradients: add --momentum 0 --metric none"),
    ],
)
def test_a_mistake_is_named_before_anything_starts(
    flags: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train("--certificate", *flags) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert words in error
    assert not Path("runs").exists()


def test_options_that_say_nothing_are_no_obstacle() -> None:
    assert train("--certificate", "--momentum", "0", "--metric", "none", "--epochs", "1") == 0
    record = only_run()
    assert (record.path / WEIGHTS).is_file()
    assert certified(record)["batches"] == 7
