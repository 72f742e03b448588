"""Wrong arguments at random: a sentence of this library's, never an error from inside torch, never a silent NaN."""

from __future__ import annotations

import inspect
import os
import random
import signal
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import sr2
import sr2.optim
import sr2.regularizers
from sr2 import L1, Regularizer
from sr2.optim import ProximalOptimizer

pytestmark = pytest.mark.torture

CASES = int(os.environ.get("SR2_TORTURE_CASES", "2000"))
SOURCE = str(Path(sr2.__file__).parent)
ODD: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 3, 10**30, -(10**30), 0.0, -0.0, 0.5, 1.0, 1.5, 1e-300, 1e300, 1e-8),
    *(float("nan"), float("inf"), -float("inf"), 1j, "", "x", "auto", "adam", "rows", "weights", b"x", "0.5"),
    *((), [], [1], (2, 4), (4, 2), (0, 0), {}, {"a": 1}, {1}, object(), object, len, lambda *a: 1, range(3), slice(2)),
    *(torch.tensor(0.5), torch.tensor([1.0, 2.0]), torch.tensor(float("nan")), torch.empty(0), torch.float32),
    *(np.float32(0.5), np.int64(2), np.array([1.0, 2.0]), np.nan, L1(0.1), L1, Exception("x"), Path("x")),
]
REGULARIZERS = [getattr(sr2.regularizers, n) for n in sr2.regularizers.__all__]
REGULARIZERS = [c for c in REGULARIZERS if isinstance(c, type) and issubclass(c, Regularizer) and c is not Regularizer]
OPTIMIZERS = [c for c in vars(sr2.optim).values() if isinstance(c, type) and issubclass(c, ProximalOptimizer)]
OPTIMIZERS = [c for c in OPTIMIZERS if c is not ProximalOptimizer]


def some(chance: random.Random, function: Any, skip: int = 0) -> dict[str, Any]:
    """A few of its arguments, odd ones."""
    names = [n for n, p in list(inspect.signature(function).parameters.items())[skip:] if p.kind is not p.VAR_KEYWORD]
    return {name: chance.choice(ODD) for name in names if chance.random() < min(1.0, 2 / max(1, len(names)))}


def use_regularizer(chance: random.Random) -> None:
    kind = chance.choice(REGULARIZERS)
    given = some(chance, kind)
    required = [n for n, p in inspect.signature(kind).parameters.items() if p.default is p.empty]
    made = kind(**{**{n: chance.choice([0.1, 2, chance.choice(ODD)]) for n in required}, **given})
    x = torch.randn(4, 6, 2, 2)
    made = made.start([x])
    made.value([x])
    z = made.prox([x], chance.choice([0.1, 1.0, 1e6]))[0]
    assert not z.isnan().any(), made


def use_optimizer(chance: random.Random) -> None:
    model = torch.nn.Linear(4, 3)
    kind = chance.choice(OPTIMIZERS)
    params: Any = model if chance.random() < 0.9 else chance.choice(ODD)
    R: Any = L1(1e-3) if chance.random() < 0.9 else chance.choice(ODD)
    required = {"lr": 0.1} if kind.__name__ == "ProxGEN" else {}
    optimizer = kind(params, R, **{**required, **some(chance, kind, skip=2)})
    x = torch.randn(8, 4)
    closure: Any = (lambda: model(x).square().mean()) if chance.random() < 0.9 else chance.choice(ODD)
    for _ in range(2):
        optimizer.step(closure)
    if kind is sr2.SR2:  # a baseline diverges as its own method does
        assert all(not p.isnan().any() for p in model.parameters()), optimizer


@pytest.mark.parametrize("use", [use_regularizer, use_optimizer])
def test_odd_arguments(use: Callable[[random.Random], None], chance: random.Random, figure: Any) -> None:
    found: Counter[str] = Counter()
    bad: dict[str, str] = {}
    torch.manual_seed(0)
    signal.signal(signal.SIGALRM, lambda *_: pytest.fail("it does not end"))
    for _ in range(CASES):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            signal.alarm(60)  # what takes longer than that would take for ever
            try:
                use(chance)
                found["worked"] += 1
                continue
            except Exception as caught:
                error = caught
        frames = traceback.extract_tb(error.__traceback__)
        last = frames[-1]
        name = type(error).__name__
        ours = last.filename.startswith(SOURCE) and "\n" not in str(error) and not isinstance(error, AssertionError)
        # Python's words about an argument that is missing, and those of torch's own constructor about `params`.
        known = last.filename == __file__ and isinstance(error, TypeError)
        known |= last.filename.endswith("torch/optim/optimizer.py") and last.name in ("__init__", "add_param_group")
        if (ours or known) and isinstance(error, ValueError | TypeError | FloatingPointError | RuntimeError):
            found["told"] += 1
        else:
            here = [f for f in frames if f.filename.startswith(SOURCE)]
            where = f"{Path(here[-1].filename).name}:{here[-1].lineno}" if here else "test"
            bad.setdefault(f"{where} {name}", str(error)[:150])
    signal.alarm(0)
    for where, words in bad.items():
        print(where, words)
    assert not bad
    figure(
        f"arguments: {CASES} odd calls ({use.__name__[4:]}): {found['told']} a sentence, {found['worked']} worked, "
        "0 errors from inside torch, 0 NaN"
    )
