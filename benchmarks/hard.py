"""`python -m benchmarks.hard`: where a batch calls steps good that are too long, or bad that are not.

Minutes of a core.

Batches of one to four examples of the panel's tables and digits; a policy gradient, whose surrogate always gains; an
LSTM over 16 steps and a normalizing flow, on which single steps often lose. Errors on held-out data, of SR2 the average
of the iterates; AdamW has cosine and the best of three rates, on the same data. `--density 0.05` has a budget, and
gradual magnitude pruning in AdamW's place; `--l1 1e-4` and `--l0 1e-4` a penalty, and ProxGEN, and zeros in brackets.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import statistics
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sr2 import L0, L1, SR2, L0Ball, ProxGEN
from sr2.experiments.baselines import GMP
from sr2.experiments.panel import tasks
from sr2.regularizers.base import Regularizer

ADAMW_RATES = (1e-3, 3e-3, 1e-2)
GMP_RATES = (0.01, 0.03, 0.1)


@dataclass
class Task:
    model: nn.Module
    steps: int
    batch: Callable[[], Any]
    loss: Callable[[Any], Tensor]
    error: Callable[[], float]


def few(name: str, batch_size: int, steps: int, seed: int) -> Task:
    """A task of the panel with small batches."""
    problem = dataclasses.replace(tasks.make(name, seed), batch_size=batch_size, steps=steps)
    batches = problem.batches()
    return Task(
        problem.model,
        steps,
        lambda: next(batches),
        lambda b: problem.loss(problem.model(b[0]), b[1]),
        lambda: problem.error(problem.validation),
    )


def bandit(seed: int) -> Task:
    """REINFORCE on 20 numbers with five arms; the error is how often the best arm is not the likeliest one."""
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(seed)
    best, inputs = torch.randn(20, 5, generator=draw), torch.randn(4000, 20, generator=draw)
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 5))

    def batch() -> tuple[Tensor, Tensor, Tensor]:
        x = torch.randn(128, 20, generator=draw)
        with torch.no_grad():
            arm = torch.multinomial(model(x).softmax(1), 1, generator=draw)
        reward = ((x @ best).argmax(1, keepdim=True) == arm).float()
        return x, arm, reward - reward.mean()

    def loss(b: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        x, arm, advantage = b
        return -(model(x).log_softmax(1).gather(1, arm) * advantage).mean()

    wrong = lambda: (model(inputs).argmax(1) != (inputs @ best).argmax(1)).float().mean().item()  # noqa: E731
    return Task(model, 1000, batch, loss, wrong)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells, self.head = nn.LSTM(4, 64, batch_first=True), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cells(x)[0][:, -1])  # type: ignore[no-any-return]


def lstm(seed: int) -> Task:
    """The digits as 16 steps of four pixels."""
    torch.manual_seed(seed)
    images, labels = tasks.datasets().load_digits(return_X_y=True)
    order = torch.randperm(len(labels))
    x, y = torch.tensor(images[order] / 16, dtype=torch.float32).view(-1, 16, 4), torch.tensor(labels[order])
    model = Recurrent()
    batch = lambda: torch.randint(1000, (64,))  # noqa: E731
    wrong = lambda: (model(x[1000:]).argmax(1) != y[1000:]).float().mean().item()  # noqa: E731
    return Task(model, 400, batch, lambda b: cross_entropy(model(x[b]), y[b]), wrong)


class Flow(nn.Module):
    """Six affine couplings of four numbers; the output is the negative log-likelihood."""

    def __init__(self) -> None:
        super().__init__()
        layers = ([nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4)] for _ in range(6))
        self.couplings = nn.ModuleList([nn.Sequential(*layer) for layer in layers])

    def forward(self, x: Tensor) -> Tensor:
        volume = torch.zeros(len(x))
        for coupling in self.couplings:
            kept, moved = x.chunk(2, 1)
            scale, shift = coupling(kept).chunk(2, 1)
            scale = 3 * torch.tanh(scale / 3)
            volume = volume + scale.sum(1)
            x = torch.cat([moved * scale.exp() + shift, kept], 1)[:, [1, 2, 3, 0]]
        return 0.5 * x.square().sum(1) + 2 * math.log(2 * math.pi) - volume


def flow(seed: int) -> Task:
    """Points near a curve: the density is a hundred times as high on it as beside it, and the loss goes below 0."""
    torch.manual_seed(seed)
    z = torch.randn(5000, 4)
    t, noise = z[:, 0], 0.01 * z[:, 1:]
    x = torch.stack([t.cos(), t.sin(), 0.5 * (2 * t).cos(), 0.3 * t * t.sin()], 1) + noise[:, [0, 1, 2, 0]]
    model = Flow()
    batch = lambda: torch.randint(4000, (128,))  # noqa: E731
    return Task(model, 1000, batch, lambda b: model(x[b]).mean(), lambda: model(x[4000:]).mean().item())


TASKS: dict[str, Callable[[int], Task]] = {
    "friedman1, 1 example": lambda seed: few("friedman1", 1, 4000, seed),
    "classes4, 4 examples": lambda seed: few("classes4", 4, 2000, seed),
    "digits_mlp, 2 examples": lambda seed: few("digits_mlp", 2, 1500, seed),
    "policy gradient": bandit,
    "LSTM, 16 steps": lstm,
    "flow (log-likelihood)": flow,
}


def train(task: Task, optimizer: Any) -> None:
    task.model.train()
    for _ in range(task.steps):
        batch = task.batch()
        optimizer.step(lambda batch=batch: task.loss(batch))


def sr2(task: Task, R: Regularizer | None, **options: Any) -> float:
    train(task, optimizer := SR2(task.model, R, **options))
    with optimizer.averaged(), torch.no_grad():
        return task.error()


def proxgen(task: Task, R: Regularizer, lr: float) -> float:
    train(task, ProxGEN(task.model, R, lr=lr, metric="adam", momentum=0.9))
    with torch.no_grad():
        return task.error()


def zeros(task: Task) -> float:
    weights = [p for p in task.model.parameters() if p.dim() > 1]
    return sum(int((p == 0).sum()) for p in weights) / sum(p.numel() for p in weights)


def adamw(task: Task, lr: float) -> float:
    optimizer = torch.optim.AdamW(task.model.parameters(), lr)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, task.steps)
    for _ in range(task.steps):
        optimizer.zero_grad()
        task.loss(task.batch()).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        cosine.step()
    with torch.no_grad():
        return task.error()


def gmp(task: Task, density: float, lr: float) -> float:
    optimizer = GMP(task.model, None, lr, density=density, steps=task.steps)
    for t in range(task.steps):
        optimizer.before_step(t)
        batch = task.batch()
        optimizer.step(lambda batch=batch: task.loss(batch))
    with optimizer.averaged(), torch.no_grad():
        return task.error()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", nargs="*", default=list(TASKS), choices=list(TASKS))
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--density", type=float)
    kind.add_argument("--l1", type=float)
    kind.add_argument("--l0", type=float)
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1])
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    R: Regularizer | None = None
    penalized = args.l1 is not None or args.l0 is not None
    if args.density is not None:
        R, named, rates = L0Ball(density=args.density), "GMP", GMP_RATES
        baseline: Callable[[Task, float], float] = lambda task, lr: gmp(task, args.density, lr)  # noqa: E731
    elif penalized:
        penalty = R = L1(args.l1) if args.l1 is not None else L0(args.l0)
        named, rates, baseline = "ProxGEN", ADAMW_RATES, lambda task, lr: proxgen(task, penalty, lr)
    else:
        named, rates, baseline = "AdamW", ADAMW_RATES, adamw
    methods = [lambda task: sr2(task, R), lambda task: sr2(task, R, steps=task.steps)]
    methods += [lambda task, lr=lr: baseline(task, lr) for lr in rates]  # type: ignore[misc]

    def cell(made: Callable[[int], Task], method: Callable[[Task], float]) -> str:
        runs = [(method(task), zeros(task)) for task in map(made, args.seeds)]
        error, share = map(statistics.mean, zip(*runs, strict=True))
        return f"{error:.3f} ({100 * share:.0f} %)" if penalized else f"{error:.3f}"

    print(f"| | SR2 | SR2, `steps=n` | {named} {', '.join(f'{r:g}' for r in rates)} |")
    print("|---|---|---|---|")
    for name in args.tasks:
        cells = [cell(TASKS[name], method) for method in methods]
        print(f"| {name} | {cells[0]} | {cells[1]} | {', '.join(cells[2:])} |", flush=True)


if __name__ == "__main__":
    main()
