"""The methods: each takes a problem and trains its model with one gradient per batch.

A method's name says all of it: `adamw_0.001_cosine`, `sgd_0.1_constant`, `schedulefree`, `prodigy`, `dog`, `sr2`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ...optim import SR2
from ...regularizers import L1
from .tasks import Problem
from .times import measure

PACKAGES = {"schedulefree": "schedulefree", "prodigy": "prodigyopt", "dog": "dog-optimizer"}
"""What a baseline needs beside this library, as pip names it."""
ADAMW_RATES = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
SGD_RATES = (0.01, 0.03, 0.1, 0.3, 1.0)


@dataclass
class Trained:
    """What a method leaves beside the weights: other points worth evaluating, and what it counted."""

    points: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = field(default_factory=dict)
    numbers: dict[str, float] = field(default_factory=dict)


Method = Callable[[Problem], Trained]


def missing(method: str) -> str:
    """The command that installs what a method needs and this machine has not; empty where nothing is missing."""
    package = PACKAGES.get(method, "")
    here = not package or importlib.util.find_spec(package.removesuffix("-optimizer")) is not None
    return "" if here else f"missing, pip install {package}"


def _descend(problem: Problem, optimizer: torch.optim.Optimizer, cosine: bool = False) -> None:
    rates = [group["lr"] for group in optimizer.param_groups]
    problem.model.train()
    for k, (x, y) in enumerate(problem.batches()):
        if cosine:
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * 0.5 * (1 + math.cos(math.pi * k / problem.steps))
        optimizer.zero_grad()
        problem.penalized(problem.model, x, y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def adamw(rate: float, cosine: bool) -> Method:
    def run(problem: Problem) -> Trained:
        _descend(problem, torch.optim.AdamW(problem.model.parameters(), lr=rate), cosine)
        return Trained()

    return run


def sgd(rate: float, cosine: bool) -> Method:
    def run(problem: Problem) -> Trained:
        _descend(problem, torch.optim.SGD(problem.model.parameters(), lr=rate, momentum=0.9), cosine)
        return Trained()

    return run


def schedulefree(problem: Problem) -> Trained:
    """Schedule-Free AdamW with its own defaults; at its evaluation point, batch norm is estimated anew."""
    from schedulefree import AdamWScheduleFree

    optimizer = AdamWScheduleFree(problem.model.parameters())
    optimizer.train()
    _descend(problem, optimizer)
    optimizer.eval()
    recalibrate(problem)
    return Trained()


def prodigy(problem: Problem) -> Trained:
    from prodigyopt import Prodigy

    _descend(problem, Prodigy(problem.model.parameters()))
    return Trained()


def dog(problem: Problem) -> Trained:
    """DoG with its own defaults, and the polynomial average that its authors ask for."""
    from dog import DoG, PolynomialDecayAverager

    optimizer = DoG(problem.model.parameters())
    averager = PolynomialDecayAverager(problem.model)
    problem.model.train()
    for x, y in problem.batches():
        optimizer.zero_grad()
        problem.penalized(problem.model, x, y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        averager.step()
    average = {name: value.clone() for name, value in averager.averaged_model.named_parameters()}
    return Trained({"average": lambda: _at(problem, average)})


@contextlib.contextmanager
def _at(problem: Problem, values: dict[str, Tensor]) -> Iterator[None]:
    """The model with other parameters, batch norm estimated anew; as it was afterwards."""
    before = {name: value.clone() for name, value in problem.model.state_dict().items()}
    with torch.no_grad():
        for name, p in problem.model.named_parameters():
            p.copy_(values[name])
    recalibrate(problem)
    try:
        yield
    finally:
        problem.model.load_state_dict(before)


def recalibrate(problem: Problem) -> None:
    """Means and variances of batch norm over whole passes of training batches, one equal vote each."""
    norms = [m for m in problem.model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    if not norms:
        return
    momenta = [m.momentum for m in norms]
    for m in norms:
        m.reset_running_stats()
        m.momentum = None
    problem.model.train()
    with torch.no_grad():
        for k, (x, _) in enumerate(problem.batches()):
            if k == 50:
                break
            problem.model(x)
    for m, momentum in zip(norms, momenta, strict=True):
        m.momentum = momentum


def sr2(*, planned: bool = False, equal_time: bool = False, **options: Any) -> Method:
    """The library's SR2 with its average; the task's own penalty is a regularizer. Without options, as it comes.

    Args:
        planned: it is told the number of steps, and how many an epoch has.
        equal_time: it takes as many steps as fit into the time of AdamW's, see `times`.
        options: of SR2.
    """

    def train(problem: Problem) -> Trained:
        steps, numbers = problem.steps, dict[str, float]()
        if equal_time:
            costs = measure(problem, **options)
            steps = min(steps, costs.affordable(steps, options.get("test_every", 1)))
            numbers = {f"cost_{name}": float(value) for name, value in vars(costs).items()}
        given = options | ({"steps": steps, "steps_per_epoch": problem.steps_per_epoch} if planned else {})
        started = time.process_time()
        optimizer = SR2(problem.model, L1(problem.l1) if problem.l1 else None, **given)
        problem.model.train()
        for x, y in itertools.islice(problem.batches(), steps):
            optimizer.step(lambda x=x, y=y: problem.loss(problem.model(x), y))
        numbers |= {"taken": steps, "cpu_training": time.process_time() - started}

        @contextlib.contextmanager
        def average() -> Iterator[None]:
            buffers = {name: b.clone() for name, b in problem.model.named_buffers()}
            with optimizer.averaged():
                recalibrate(problem)
                yield
            for name, b in problem.model.named_buffers():
                b.copy_(buffers[name])

        return Trained({"average": average}, numbers)

    return train


def own() -> dict[str, Method]:
    """SR2 as it comes, told how many steps there will be, and as Algorithm 1; then in AdamW's time."""
    return {
        "sr2": sr2(),
        "sr2_steps": sr2(planned=True),
        "sr2_paper": sr2(eta1=7.5e-4, average=True),
        "sr2_time": sr2(equal_time=True),
        "sr2_steps_time": sr2(planned=True, equal_time=True),
        "sr2_auto_time": sr2(planned=True, equal_time=True, test_every="auto"),
    }


def baselines() -> dict[str, Method]:
    """Every baseline by its name."""
    methods: dict[str, Method] = {"schedulefree": schedulefree, "prodigy": prodigy, "dog": dog}
    for schedule in ("constant", "cosine"):
        methods |= {f"adamw_{rate:g}_{schedule}": adamw(rate, schedule == "cosine") for rate in ADAMW_RATES}
        methods |= {f"sgd_{rate:g}_{schedule}": sgd(rate, schedule == "cosine") for rate in SGD_RATES}
    return methods
