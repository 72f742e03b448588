"""Steps on a CUDA device that is not there, in a process of its own: see `test_fake_cuda.py`.

What is asked of each: that no tensor of the wrong device comes in; with `capturable` that a step reads nothing back,
and that one inside a CUDA graph leaves all state where it was and takes no number of the host for a constant; without
it that SR2 reads once per step, and the others never.
"""

from __future__ import annotations

import itertools
import re
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import sr2
from sr2 import L0, L1, SR2, ElasticNet, KeepZeros, L0Ball, ProxGEN, Regularizer, Ridge, param_groups
from sr2.directions import Average
from sr2.optim.moves.fused import SCORE
from sr2.rules import Evidence, Follow, Ratio, Tolerant, Verdict
from tests.fake_cuda import Launches, Watch, capture, fake_cuda, load_guard
from tests.optimizers import OPTIMIZERS, OptimizerCase
from tests.registry import REGULARIZERS

WAYS = [(None, True), (True, True), (False, True), (None, False)]
"""`foreach` and `capturable`."""


class Case(NamedTuple):
    """An optimizer on a small network."""

    make: Callable[..., Any]
    R: Regularizer | None
    options: dict[str, Any]
    dtype: torch.dtype = torch.float32
    fails: str = ""
    """What is said of it, where it is a mistake that must be found."""

    @property
    def name(self) -> str:
        return f"{getattr(self.make, '__name__', self.make)}(model, {self.R!r}, {self.options}), {self.dtype}"


def network(dtype: torch.dtype) -> nn.Module:
    """Several layouts, and more entries than a chunk of the kernels has. No norm has a scale: a read that is answered
    with a one would say of it that the network was trained before."""
    with torch.device("cuda"):
        layers = (
            nn.Conv2d(3, 8, 3, bias=False),
            nn.BatchNorm2d(8, affine=False),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(288, 15),
        )
        model = nn.Sequential(*layers)
    for p in model.parameters():
        p.data = p.data.to(dtype)
    model[0].weight.data = model[0].weight.data.contiguous(memory_format=torch.channels_last)
    return model


def held(optimizer: Any) -> dict[Any, int]:
    """Where everything lies that a replayed step must find again."""
    found: dict[Any, Any] = {(i, name): t for i, s in enumerate(optimizer.state.values()) for name, t in s.items()}
    for owner in (getattr(optimizer, "_search", None), getattr(optimizer, "_count", None)):
        for name, value in vars(owner).items() if owner is not None else ():
            parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, tuple) else ()
            found |= {name: value, **{(name, part): t for part, t in parts}}
    found |= {("lr", i): group.get("lr") for i, group in enumerate(optimizer.param_groups)}
    return {name: t.data_ptr() for name, t in found.items() if isinstance(t, Tensor) and t.is_cuda}


def steps(case: Case, watch: Watch) -> None:
    """Three, of which the first may look around; the last is inside a graph where that is promised."""
    model, x = network(case.dtype), torch.empty(4, 3, 8, 8, device="cuda", dtype=case.dtype)
    y = torch.zeros(4, dtype=torch.long, device="cuda")
    optimizer = case.make(model, case.R, **case.options)
    judges, testing = hasattr(optimizer, "_search"), getattr(optimizer, "testing", None)

    def step() -> None:
        watch.begin()
        optimizer.step(lambda: F.cross_entropy(model(x), y))

    step()
    if not optimizer.capturable:
        for _ in range(2):
            step()
            assert len(watch.reads) <= judges, f"it reads {watch.reads}"
        return
    step()
    assert not watch.reads, f"it reads {watch.reads}"
    assert not watch.waits, f"it waits for {watch.waits}"
    for tested in (True, False) if testing is not None else (None,):
        before = held(optimizer)
        if testing is not None:
            testing.forced = tested
        with capture():
            step()
        assert not watch.reads + watch.waits, f"inside a graph it waits for {watch.reads + watch.waits}"
        assert not watch.passing, f"a graph would copy again from memory that is gone: {watch.passing}"
        assert not watch.constants, f"a graph would keep numbers of the host: {watch.constants}"
        moved = [name for name, place in held(optimizer).items() if before.get(name) != place]
        assert not moved, f"inside a graph it makes anew {moved}"
        assert len(before) > 2 or not judges


def of_regularizers() -> Iterator[Case]:
    """Every R."""
    for R in [*(case.regularizer for case in REGULARIZERS), KeepZeros()]:
        for foreach, capturable in WAYS:
            yield Case(SR2, R, {"sigma": 3.0, "foreach": foreach, "capturable": capturable})


OPTIONS: list[dict[str, Any]] = [
    {},
    {"sigma": 3.0, "eta1": 0.1},
    {"momentum": 0.0},
    {"metric": None, "momentum": 0.9},
    {"metric": "andrei"},
    {"metric": "rmsprop"},
    {"metric": "adagrad"},
    {"average": False},
    {"weight_decay": 0.1},
    {"weight_decay": "5e-4/step"},
    {"weight_decay": "5e-4/step", "metric": None, "momentum": 0.0},
    {"weight_decay": 0.1, "rule": Tolerant(usual=30.0)},
    {"steps": 100, "steps_per_epoch": 10},
    {"cooldown": (2, 8)},
    {"reach": (1, 4)},
    {"reach": None},
    {"test_every": 4},
    {"test_every": 4, "momentum": 0.0, "metric": None, "rule": Ratio()},
    {"test_every": 4, "weight_decay": 0.1, "cooldown": (2, 8), "reach": (1, 4)},
    {"rule": Follow()},
    {"autocast": torch.bfloat16},
    {"epsilon": 1e-3},
    {"penalize": "all"},
    {"direction": Average(0.5)},
]


class WithObjective(SR2):
    """Its steps are tested on another function than the batch's loss."""

    def step(self, closure: Any = None) -> Tensor:  # type: ignore[override]
        return super().step(closure, objective=closure)


def in_groups(model: nn.Module, R: Regularizer | None, **options: Any) -> SR2:
    """Groups of which one has no R, and so a decay of its own."""
    return SR2(param_groups(model, [("0.*", R), ("*", None)]), **options)


FUSED = [None, L0Ball(density=0.1), L1(1e-4), L0(1e-4), ElasticNet(1e-4, 1e-3), Ridge(0.1, L0Ball(k=50))]
"""What the kernel knows."""


def of_options() -> Iterator[Case]:
    """Every option beside what the kernel knows; and other dtypes, which it does not."""
    for number, options in enumerate(OPTIONS):
        sigma = {"sigma": 3.0} if number else {}  # or it is searched for, which takes longer
        for R in FUSED:
            yield Case(SR2, R, {**sigma, **options, "capturable": True})
        yield Case(SR2, L1(1e-4), {**sigma, **options, "foreach": True, "capturable": True})
        yield Case(SR2, L0Ball(density=0.1), {**sigma, **options, "capturable": False})
        if "penalize" not in options:
            yield Case(in_groups, L1(1e-4), {**sigma, **options, "capturable": True})
        yield Case(WithObjective, None, {**sigma, **options, "capturable": True})
    for dtype, (foreach, capturable) in itertools.product((torch.bfloat16, torch.float64), WAYS):
        for R in (L1(1e-4), L0Ball(density=0.1)):
            yield Case(SR2, R, {"sigma": 3.0, "foreach": foreach, "capturable": capturable}, dtype)


def of_optimizers() -> Iterator[Case]:
    """Every optimizer with each of its sets of options."""
    for case in OPTIMIZERS:
        for options, R in itertools.product(case.options, (L1(1e-4), None, L0Ball(density=0.1))):
            for foreach, capturable in WAYS if case.takes(R) else ():
                yield Case(_named(case, options), R, {"foreach": foreach, "capturable": capturable})


def _named(case: OptimizerCase, options: str) -> Callable[..., Any]:
    def make(model: nn.Module, R: Regularizer | None, **more: Any) -> Any:
        return case.make(model, R, options, **more)

    make.__name__ = f"{case.name} {options}"
    return make


class Looks(Ratio):
    """It asks what a step has gained."""

    def judge(self, evidence: Evidence, state: Any) -> Verdict:
        verdict = super().judge(evidence, state)
        return verdict if evidence.actual > 0 else verdict._replace(sigma=2 * verdict.sigma)


class OfTheHost(Ratio):
    """Its factor lives on the host."""

    def judge(self, evidence: Evidence, state: Any) -> Verdict:
        verdict = super().judge(evidence, state)
        return verdict._replace(sigma=verdict.sigma * torch.ones((), device="cpu"))


class Copies(Ratio):
    """It brings a number along at every step."""

    def judge(self, evidence: Evidence, state: Any) -> Verdict:
        verdict = super().judge(evidence, state)
        return verdict._replace(sigma=verdict.sigma * torch.tensor([1.0], device="cpu").to("cuda")[0])


class MakesAnew(SR2):
    """Its state is another tensor after every step."""

    def step(self, *given: Any) -> Tensor:  # type: ignore[override]
        loss = super().step(*given)
        self._search.sums = self._search.sums.clone()
        return loss


class Mixes(Ratio):
    """It adds what lies on two devices."""

    def judge(self, evidence: Evidence, state: Any) -> Verdict:
        verdict = super().judge(evidence, state)
        return verdict._replace(sigma=verdict.sigma + torch.ones(2, device="cpu")[:1])


def of_mistakes() -> Iterator[Case]:
    """What must be found."""
    found = {Looks: "it reads", Copies: "it waits for", OfTheHost: "keep numbers of the host", Mixes: "two devices"}
    for rule, words in found.items():
        yield Case(SR2, L1(1e-4), {"sigma": 3.0, "rule": rule(), "capturable": True}, fails=words)
    yield Case(MakesAnew, L1(1e-4), {"sigma": 3.0, "capturable": True}, fails="makes anew ['sums']")


def of_few_launches() -> Iterator[Case]:
    """With each kernel at least once."""
    plain: dict[str, Any] = {"momentum": 0.0, "metric": None, "weight_decay": 0.0, "rule": Ratio()}
    for R, options in itertools.product((None, L0Ball(density=0.1)), ({}, plain)):
        yield Case(SR2, R, {"sigma": 3.0, **options, "test_every": 4, "capturable": True})
    yield Case(ProxGEN, ElasticNet(1e-4, 1e-3), {"momentum": 0.9, "weight_decay": 0.1, "capturable": True})


def of_all_launches() -> Iterator[Case]:
    """With each kind of each kernel."""
    yield from of_options()
    yield from of_optimizers()


def tried(cases: Iterable[Case], watch: Watch) -> bool:
    """Whether all of them do as they should; what others say is printed."""
    wrong = count = 0
    for case in cases:
        count, said = count + 1, ""
        try:
            steps(case, watch)
        except Exception:
            said = traceback.format_exc(limit=-4)
        if case.fails not in said or bool(case.fails) != bool(said):
            wrong += 1
            print(f"{case.name}:\n{said or 'nothing is said'}")
    print(f"{wrong} of {count} wrong")
    return not wrong


def compiled(launches: Launches) -> None:
    """Every kind of launch to machine code of sm_90; a thread reads and writes 16 bytes of a whole block at a time."""
    names = set()
    for name, c, code in launches.compiled():
        wide = tuple(len(re.findall(rf"{kind}\.global\S*\.v4\.b32", code["ptx"])) for kind in ("ld", "st"))
        assert code["cubin"]
        names.add(name)
        if name == "move":
            averages = c["MOMENTUM"] + c["METRIC"]
            written = 2 * averages + 1 + c["KEEPS"]  # the averages and what they were, x and what it was
            assert wide == (2 + averages, 2 if c["PASS"] == SCORE else written), (c, wide)
        elif name == "copy_if":
            assert wide == (c["END"] - c["FIRST"],) * 2, (c, wide)
        elif name == "toward":
            assert wide == (2, 1), wide
    source = Path(sr2.__file__).parent
    known = {name for path in source.rglob("*.py") for name in re.findall(KERNEL, path.read_text())}
    assert names == known, f"never launched: {known - names}"
    print(f"{len(launches.seen)} kinds of launches of {len(names)} kernels compiled")


KERNEL = r"@triton\.jit.*\ndef ([a-z]\w*)"
"""What a host launches; others begin with an underscore."""


def main(parts: Sequence[str]) -> bool:
    """Each part with the number of cases of which one is tried, in turn: "options=5"."""
    warnings.simplefilter("ignore")  # numbers that nobody has computed look odd
    with tempfile.TemporaryDirectory() as folder:
        load_guard(Path(folder))
    right = True
    for name, _, every in (part.partition("=") for part in parts):
        with fake_cuda() as (watch, launches):
            right &= tried(itertools.islice(globals()[f"of_{name}"](), 0, None, int(every or 1)), watch)
        if "launches" in name:
            compiled(launches)
    return right


if __name__ == "__main__":
    sys.exit(0 if main(sys.argv[1:]) else 1)
