"""The only loop over epochs. A run that is finished is skipped, one that was interrupted goes on, to the same bits."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ...optim import Certificate
from .build import cooldown_steps, cools_by_itself, make_optimizer
from .config import RunConfig
from .evaluate import SMALL, averaged, evaluate, histogram, layers, percent_zero
from .problem import Problem
from .prune import sweep
from .runner import CapturedRunner, Metrics, StepRunner
from .stop import DivergedError, StoppedError, StopSignals
from .store import AVERAGE, RunStore, modern_row
from .view import OptimizerView

FREE_SAVING, SAVING_SHARE = 1.0, 0.03
"""Checkpoints take this many seconds, and after that this share of the time: a large network trains faster than a disk
takes its weights after every epoch."""


AVERAGE_TIMES = 4
"""How often in a run the average of the iterates is measured; each time takes a pass over the training examples."""


class Trainer:
    """A run from its checkpoint, or from its start, to its end.

    Args:
        config: checked.
        store: where it is kept.
        stop: asked after every step.
        problem: of the config, with its first weights; made here unless given.
    """

    def __init__(self, config: RunConfig, store: RunStore, stop: StopSignals, problem: Problem | None = None) -> None:
        self.config, self.store, self.stop = config, store, stop
        self.problem = problem or Problem(config)
        self.together = self.problem.together
        self.problem.check_training(config)
        largest = min(config.largest_batch, self.problem.batches.seen)  # no batch is larger than an epoch
        steps = config.epochs * len(self.problem.batches)
        network = self.problem.trained.model
        self.optimizer = make_optimizer(dataclasses.replace(config, largest_batch=largest), network, steps)
        cooldown = None if cools_by_itself(config.optimizer) else cooldown_steps(config, steps)
        self.view = OptimizerView(self.optimizer, config.batch, cooldown)
        captured = self.view.captures and self.problem.device.type == "cuda" and self.together.size == 1
        self.runner = (CapturedRunner if captured else StepRunner)(self.problem, self.view)
        self.epoch = 0
        """Epochs that are done."""
        self.step = 0
        """Steps that are done in the epoch in progress."""
        self.steps = 0
        """Steps that are done in all."""
        self.metrics: list[Metrics] = []
        self.certified = ""
        """The certificate of the end, in a line, if one was asked for."""
        self.seconds = 0.0
        self._made, self._saving = time.perf_counter(), 0.0
        store.check_network(self.problem.model)
        state = store.load_checkpoint()
        if state is not None:
            self._load_state_dict(state)

    @property
    def examples_per_epoch(self) -> int:
        """Examples per epoch; with growing batches, at most."""
        return self.problem.batches.seen

    @property
    def score(self) -> str:
        """The name of the task's score, as rows have it."""
        return self.problem.task.score.name

    def run(self, on_step: Callable[[int], None] = lambda examples: None) -> Iterator[Metrics]:
        """Train to the end; yields the metrics of each epoch once they are saved."""
        self.store.write_metrics(self.metrics)
        while self.epoch < self.config.epochs and not self._converged():
            self._train_epoch(on_step)
            self.metrics.append(self._measured())
            self.epoch, self.step = self.epoch + 1, 0
            self.runner.start_epoch()
            if saved := self.epoch == self.config.epochs or self._may_save():
                self.save()
            self.store.write_metrics(self.metrics)
            yield self.metrics[-1]
            if self._asked():
                if not saved:
                    self.save()
                raise self._stopped()
        if self.together.first:  # the others have nothing more to do
            self._finish()

    def _converged(self) -> bool:
        """Whether the optimizer is as stationary as the user asked for; an epoch that was begun is first finished."""
        return bool(self.metrics) and not self.step and self.view.converged

    @property
    def stopped_early(self) -> str:
        """Why the run ended before its last epoch, in a sentence; empty if it did not."""
        if self.epoch == self.config.epochs or not self._converged():
            return ""
        mean, error = self.view.stationarity
        epsilon = float(self.config.option("epsilon") or 0)
        return (
            f"stopped after epoch {self.epoch} of {self.config.epochs}: the mean of |s|^2 is {mean:.3g} ± "
            f"{2 * error:.2g}, below epsilon^2 = {epsilon**2:.3g}"
        )

    def _train_epoch(self, on_step: Callable[[int], None]) -> None:
        self.problem.model.train()
        before, started = self.seconds, time.perf_counter()
        self.runner.begin(self.epoch)
        while not self.runner.done:
            seen = self.runner.examples
            self.view.before_step(self.steps)
            try:
                self.runner.run()
            except FloatingPointError as error:
                raise DivergedError(f"{self.config.key} stopped in epoch {self.epoch + 1}: {error}") from error
            self.step += 1
            self.steps += 1
            on_step(self.runner.examples - seen)
            if self._asked():
                self.seconds = before + time.perf_counter() - started
                self.save()
                raise self._stopped()
        if self.problem.device.type == "cuda":
            torch.cuda.synchronize(self.problem.device)
        self.seconds = before + time.perf_counter() - started

    def _asked(self) -> bool:
        """Whether the user asked one of the processes to stop."""
        return self.together.any(self.stop.asked)

    def _stopped(self) -> StoppedError:
        where = f"step {self.step} of epoch {self.epoch + 1}" if self.step else f"epoch {self.epoch}"
        return StoppedError(f"stopped after {where} of {self.config.epochs}, and saved: run the same command to go on")

    def _measured(self) -> Metrics:
        """The epoch that was just trained, measured."""
        means = self.runner.means()
        if means.pop("broken", 0):
            raise DivergedError(
                f"{self.config.key} stopped in epoch {self.epoch + 1}: a loss or its gradient was not finite; "
                "look for what is not finite in the data or the model"
            )
        if not math.isfinite(means["loss"]):
            raise DivergedError(
                f"{self.config.key} stopped in epoch {self.epoch + 1}: its mean loss is {means['loss']}; "
                "use a smaller --lr, or sr2, which needs none"
            )
        r = self.view.penalty()
        test_loss, test_score = evaluate(self.problem, self.together)
        row = {
            "epoch": self.epoch + 1,
            "steps": self.steps,
            "loss": means.pop("loss"),
            "R": r,
            "objective": 0.0,
            f"train_{self.score}": means.pop(f"train_{self.score}"),
            "test_loss": test_loss,
            f"test_{self.score}": test_score,
            "zero_pct": percent_zero(self.problem.model),
            "small_pct": percent_zero(self.problem.model, SMALL),
            **means,
            "seconds": self.seconds,
        }
        row["objective"] = row["loss"] + r
        if self.view.keeps_average and (self.epoch + 1) % max(1, self.config.epochs // AVERAGE_TIMES) == 0:
            row |= self._measured_average()
        return {name: _finite(value) for name, value in row.items()}

    def _measured_average(self) -> Metrics:
        """The average of the iterates at this point, measured; batch norm is estimated anew for it."""
        with averaged(self.problem, self.view):
            test_loss, test_score = evaluate(self.problem)
            return {
                "average_test_loss": test_loss,
                f"average_test_{self.score}": test_score,
                "average_zero_pct": percent_zero(self.problem.model),
                "average_small_pct": percent_zero(self.problem.model, SMALL),
            }

    # ---- what lasts

    def _may_save(self) -> bool:
        """Whether checkpoints, which a killed run redoes to the same bits from the last one, still cost little."""
        cheap = self._saving <= FREE_SAVING + SAVING_SHARE * (time.perf_counter() - self._made)
        return self.together.any(self.together.first and cheap)

    def save(self) -> None:
        """Write a checkpoint: all that the rest of the run depends on."""
        started = time.perf_counter()
        self.store.save_checkpoint(
            {
                "epoch": self.epoch,
                "step": self.step,
                "steps": self.steps,
                "rows": self.metrics,
                "seconds": self.seconds,
                "model": self.problem.model.state_dict(),
                "optimizer": self.view.state_dict(),
                "sums": self.runner.state_dict(),
                "randomness": torch.get_rng_state(),
                "cuda_randomness": self._cuda_randomness(),
            }
        )
        self._saving += time.perf_counter() - started

    def _load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.step, self.steps = state["epoch"], state["step"], state["steps"]
        self.metrics, self.seconds = [modern_row(row) for row in state["rows"]], state["seconds"]
        self.problem.load_weights(state["model"], self.store.path)
        self.view.load_state_dict(state["optimizer"])
        self.runner.load_state_dict(state["sums"])
        torch.set_rng_state(state["randomness"])
        if state["cuda_randomness"] is not None:
            torch.cuda.set_rng_state(state["cuda_randomness"], self.problem.device)

    def _cuda_randomness(self) -> Tensor | None:
        return torch.cuda.get_rng_state(self.problem.device) if self.problem.device.type == "cuda" else None

    def _finish(self) -> None:
        """Weights, the certificate, the pruning sweep, and, last, the result."""
        model, last = self.problem.model, self.metrics[-1]
        stopped = "converged" if self._converged() else "epochs"
        if self.config.certificate:
            found = self._certificate()
            path = self.store.write_certificate(json.loads(json.dumps(found.as_dict()), parse_constant=lambda _: None))
            self.certified = (
                f"certificate: E dist(0, dF(x + s))^2 is at most {found.bound:.4g}, delta {found.delta:.4g}, proximal "
                f"residual {found.residual:.4g} ± {found.residual_error:.2g}, in {path}"
            )
        self.store.write_weights(model.state_dict())
        average = self._finish_average()
        if average is None:
            self.store.write_prune(sweep(self.problem))
        self.store.finish(
            {
                "config": self.config.to_dict(),
                **({"held_out": self.config.hold_out} if self.config.hold_out else {}),
                self.score: last[f"test_{self.score}"],
                f"best_{self.score}": max(row[f"test_{self.score}"] for row in self.metrics),
                **{name: last[name] for name in ("zero_pct", "small_pct", "loss", "objective")},
                **(average or {}),
                "parameters": sum(p.numel() for p in model.parameters()),
                "epochs": self.epoch,
                "stopped": stopped,
                "seconds": self.seconds,
                "layers": layers(model),
                "histogram": histogram(model),
            }
        )

    def _finish_average(self) -> Metrics | None:
        """Weights and the pruning sweep of the average, where there is one, and what it is worth."""
        if not self.view.keeps_average:
            return None
        last = self.metrics[-1]
        if "average_zero_pct" not in last:  # it stopped early
            last |= {name: _finite(value) for name, value in self._measured_average().items()}
            self.store.write_metrics(self.metrics)
        with averaged(self.problem, self.view):
            self.store.write_weights(self.problem.model.state_dict(), AVERAGE)
            self.store.write_prune(sweep(self.problem) | {"weights": "average"})
        found = {f"average_{self.score}": last[f"average_test_{self.score}"]}
        return found | {name: last[name] for name in ("average_zero_pct", "average_small_pct")}

    def _certificate(self) -> Certificate:
        """The paper's bound at the last point, over the batches of one more epoch."""
        self.problem.model.train()
        batches = list(self.problem.batches.epoch(self.epoch))
        task = self.problem.task
        with self.problem.arithmetic():
            return self.view.certificate(self.problem.model, batches, lambda out, y: task.loss(out.float(), y))


def _finite(value: Any) -> Any:
    """JSON has no inf and no nan: null."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
