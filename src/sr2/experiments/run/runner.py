"""Steps of training: on any device, and on CUDA as one graph that is replayed."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...optim import SR2, CapturedStep, ProximalOptimizer
from ...optim.capture import run_beside
from ..data.batches import Plan
from .problem import Problem

Row = dict[str, Any]


class StepRunner:
    """Steps of training through the images of an epoch, and the sums of the epoch so far.

    The sums stay on the device, in float64: beside the one read of SR2's own test, no step waits for the host.
    """

    def __init__(self, problem: Problem, optimizer: ProximalOptimizer) -> None:
        self.problem, self.optimizer = problem, optimizer
        self.start_epoch()

    def start_epoch(self) -> None:
        """Forget the sums."""
        self.sums = torch.zeros(4, dtype=torch.float64, device=self.problem.device)
        self.images = 0
        self.counts_before = self._counts()

    def begin(self, epoch: int) -> None:
        """Take up an epoch, after the images that the sums have seen."""
        self.plan = self.problem.batches.plan(epoch)

    @property
    def batch(self) -> int:
        """Images of the next step."""
        return getattr(self.optimizer, "batch_size", None) or self.problem.batches.batch_size

    @property
    def done(self) -> bool:
        """Whether the epoch has no whole batch left."""
        return self.images + self.batch > self.problem.batches.seen

    def run(self) -> None:
        """Step on the next batch."""
        self._estimate_sigma()
        size = self.batch
        x, y = self.problem.batches.make(self.plan[self.images : self.images + size])
        self._step(x, y)
        self.images += size

    def _step(self, x: Tensor, y: Tensor) -> None:
        parts = self._parts(y)
        right: list[Tensor] = []

        def loss_of(part: slice) -> Tensor:
            loss, count = self.problem.loss(x[part], y[part])
            right.append(count)
            return loss

        def closure() -> Any:
            losses = [loss_of(part) for part in parts]
            return losses if len(parts) > 1 else losses[0]

        loss: Tensor = self.optimizer.step(closure)  # type: ignore[assignment]
        correct = sum(right[1 : len(parts)], right[0])  # at the starting point; the others are of the trial point
        self.sums += torch.stack([loss.double() * len(y), correct.double(), *self._rho()])

    def _parts(self, y: Tensor) -> list[slice]:
        """The batch; where it may grow, its halves: their spread is the noise of the gradient, at the same cost."""
        half = len(y) // 2
        if half == 0 or getattr(self.optimizer, "batch_growth", None) is None:
            return [slice(None)]
        return [slice(half), slice(half, None)]

    def _estimate_sigma(self) -> None:
        """By `logits`: a compiled loss, or one of weights that were cast together, cannot be differentiated twice."""
        optimizer = self.optimizer
        if isinstance(optimizer, SR2) and math.isnan(optimizer.sigma):
            x, y = self.problem.batches.make(self.plan[self.images : self.images + self.batch])
            parts = self._parts(y)
            optimizer.estimate_sigma(lambda: [F.cross_entropy(self.problem.logits(x[p]), y[p]) for p in parts])

    def _rho(self) -> tuple[Tensor, Tensor]:
        """The step's rho and 1, or zeros where there was no test."""
        figures = getattr(self.optimizer, "figures", None)
        rho = self.sums.new_full((), math.nan) if figures is None else figures[2].to(self.sums.device)
        tested = rho.isfinite()
        return torch.where(tested, rho, 0.0), tested.double()

    def means(self) -> Row:
        """The epoch's means: loss, accuracy, rho, and how its steps ended (None for optimizers without a test)."""
        loss, correct, rho, tested = self.sums.tolist()
        counts = {name: count - self.counts_before[name] for name, count in self._counts().items()}
        return {
            "loss": loss / self.images,
            "train_accuracy": 100 * correct / self.images,
            "sigma": getattr(self.optimizer, "sigma", None),
            "rho": rho / tested if tested else None,
            "batch": self.batch,
            **{name: counts.get(name) for name in ("accepted", "refused", "null", "broken")},
        }

    def _counts(self) -> dict[str, int]:
        return dict(getattr(self.optimizer, "counts", {}))

    def state_dict(self) -> dict[str, Any]:
        """The sums, for a checkpoint within an epoch."""
        return {name: getattr(self, name) for name in ("sums", "images", "counts_before")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from saved sums."""
        self.__dict__.update(state)
        self.sums = self.sums.to(self.problem.device)


class CapturedRunner(StepRunner):
    """The same on CUDA: the batch, both evaluations, the step and the sums replay as one graph, without a host read."""

    def __init__(self, problem: Problem, optimizer: ProximalOptimizer) -> None:
        self._graph: CapturedStep[None] | None = None
        self._warm_up = 2
        self._cursor = torch.zeros((), dtype=torch.int64, device=problem.device)
        self._offsets = torch.arange(problem.batches.batch_size, device=problem.device)
        self._next = torch.compile(self._next_batch) if problem.network.compiled else self._next_batch
        super().__init__(problem, optimizer)

    def start_epoch(self) -> None:
        if self._graph is None:
            super().start_epoch()
        else:  # the graph adds to these very sums
            self.sums.zero_()
            self.images, self.counts_before = 0, self._counts()

    def begin(self, epoch: int) -> None:
        plan = self.problem.batches.plan(epoch)
        if self._graph is None:
            self.plan = plan
        else:  # and reads this very plan
            self.plan.copy_(plan)
        self._cursor.fill_(self.images)

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
                self._graph = CapturedStep(self.optimizer, self._body, warmup=1)
        self.images += self.batch

    def _body(self) -> None:
        self._step(*self._next(self.plan.tensors))
        self._cursor += self.problem.batches.batch_size

    def _next_batch(self, plan: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        index = self._cursor + self._offsets
        return self.problem.batches.make(Plan(*(t[index] for t in plan)))
