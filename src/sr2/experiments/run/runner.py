"""Steps of training: on any device, and on CUDA as one graph that is replayed."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ...optim import CapturedStep
from ...optim.capture import run_beside
from ..plans import Plan
from .problem import Problem
from .view import COUNTS, OptimizerView, modern

Metrics = dict[str, Any]
"""What is measured of one epoch: a line of metrics.jsonl."""


class StepRunner:
    """Steps of training through the examples of an epoch, and the sums of the epoch so far.

    The sums stay on the device, in float64: beside the one read of SR2's own test, no step waits for the host.
    """

    def __init__(self, problem: Problem, view: OptimizerView) -> None:
        self.problem, self.view = problem, view
        self.start_epoch()

    def start_epoch(self) -> None:
        """Forget the sums: of the losses, of rho and of the steps that have one, and of the score's statistics."""
        self.sums = torch.zeros(3 + self.problem.statistics, dtype=torch.float64, device=self.problem.device)
        self.examples = 0
        self.counts_before = self.view.counts()

    def begin(self, epoch: int) -> None:
        """Take up an epoch, after the examples that the sums have seen."""
        self.plan = self.problem.batches.plan(epoch)

    @property
    def done(self) -> bool:
        """Whether the epoch has no whole batch left."""
        return self.examples + self.view.batch > self.problem.batches.seen

    def run(self) -> None:
        """Step on the next batch."""
        self._estimate_sigma()
        size = self.view.batch
        x, y = self._batch()
        self._step(x, y)
        self.examples += size

    def _batch(self) -> tuple[Tensor, Tensor]:
        """The next batch; of several processes each makes its part of it."""
        return self.problem.batches.make(self.plan[self.problem.together.part(self.examples, self.view.batch)])

    def _step(self, x: Tensor, y: Tensor) -> None:
        parts = self._parts(y)
        seen: list[Tensor] = []

        def loss_of(part: slice) -> Tensor:
            loss, statistics = self.problem.loss(x[part], y[part])
            seen.append(statistics)
            return loss

        def closure() -> Any:
            losses = [loss_of(part) for part in parts]
            return losses if len(parts) > 1 else losses[0]

        loss = self.view.step(closure)
        statistics = sum(seen[1 : len(parts)], seen[0])  # at the starting point; the others are of the trial point
        numbers = torch.stack([loss.double() * len(y), *self._rho()])
        self.sums += torch.cat([numbers, statistics.double()])

    def _parts(self, y: Tensor) -> list[slice]:
        """The batch, or its halves where the optimizer compares them, at the same cost."""
        half = len(y) // 2
        if half == 0 or not self.view.compares_halves:
            return [slice(None)]
        return [slice(half), slice(half, None)]

    def _estimate_sigma(self) -> None:
        """By `outputs`: a compiled loss, or one of weights that were cast together, cannot be differentiated twice."""
        if self.view.needs_sigma:
            problem = self.problem
            x, y = self._batch()
            parts = self._parts(y)
            self.view.estimate_sigma(lambda: [problem.task.loss(problem.trained.outputs(x[p]), y[p]) for p in parts])

    def _rho(self) -> tuple[Tensor, Tensor]:
        """The step's rho and 1, or zeros where there was no test."""
        rho = self.view.rho
        rho = self.sums.new_full((), math.nan) if rho is None else rho.to(self.sums.device)
        tested = rho.isfinite()
        return torch.where(tested, rho, 0.0), tested.double()

    def means(self) -> Metrics:
        """The epoch's means: loss, score, rho, and how its steps ended (None for optimizers without a test)."""
        loss, rho, tested, *statistics = self._total().tolist()
        counts = {name: count - self.counts_before[name] for name, count in self.view.counts().items()}
        task, targets = self.problem.task, self.examples * self.problem.targets_per_example
        return {
            "loss": loss / self.examples,
            f"train_{task.score.name}": task.value(statistics, targets),
            "sigma": self.view.sigma,
            "rho": rho / tested if tested else None,
            "batch": self.view.batch,
            **{name: counts.get(name) for name in (*COUNTS, *(n for n in counts if n not in COUNTS))},
        }

    def _total(self) -> Tensor:
        """The sums over all processes; rho and the tests are the same in each."""
        total = self.problem.together.total(self.sums)
        return torch.cat([total[:1], self.sums[1:3], total[3:]])

    def state_dict(self) -> dict[str, Any]:
        """The sums, for a checkpoint within an epoch."""
        return {"sums": self._total(), "examples": self.examples, "counts_before": self.counts_before}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from saved sums."""
        if "images" in state:  # of the first version, whose sums stood in another order
            loss, right, rho, tested = state["sums"]
            state = {**state, "sums": torch.stack([loss, rho, tested, right]), "examples": state["images"]}
        self.sums, self.examples = state["sums"].to(self.problem.device), state["examples"]
        if not self.problem.together.first:  # whose sums are the first one's now
            self.sums[:1], self.sums[3:] = 0, 0
        self.counts_before = modern(state["counts_before"])


class CapturedRunner(StepRunner):
    """The same on CUDA: the batch, both evaluations, the step and the sums replay as one graph, without a host read."""

    def __init__(self, problem: Problem, view: OptimizerView) -> None:
        self._graph: CapturedStep[None] | None = None
        self._warm_up = 2
        self._cursor = torch.zeros((), dtype=torch.int64, device=problem.device)
        self._offsets = torch.arange(problem.batches.batch_size, device=problem.device)
        self._next = torch.compile(self._next_batch) if problem.network.compiled else self._next_batch
        super().__init__(problem, view)

    def start_epoch(self) -> None:
        if self._graph is None:
            super().start_epoch()
        else:  # the graph adds to these very sums
            self.sums.zero_()
            self.examples, self.counts_before = 0, self.view.counts()

    def begin(self, epoch: int) -> None:
        plan = self.problem.batches.plan(epoch)
        if self._graph is None:
            self.plan = plan
        else:  # and reads this very plan
            self.plan.copy_(plan)
        self._cursor.fill_(self.examples)

    def run(self) -> None:
        """The first steps are for real; each has its own learning rate, so that a run resumes to the same bits."""
        if self._graph is not None:
            self._graph()
        else:
            self._estimate_sigma()
            if self._warm_up:
                self._warm_up -= 1
                run_beside(self._body)
            else:
                self._graph = CapturedStep(self.view.optimizer, self._body, warmup=1)
        self.examples += self.view.batch

    def _body(self) -> None:
        self._step(*self._next(self.plan.tensors))
        self._cursor += self.problem.batches.batch_size

    def _next_batch(self, plan: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        index = self._cursor + self._offsets
        return self.problem.batches.make(Plan(*(t[index] for t in plan)))
