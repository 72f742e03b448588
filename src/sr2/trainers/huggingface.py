"""Hugging Face's Trainer calls `step()` without a closure, and SR2 needs the loss twice: `SR2Trainer` keeps the batch.

trainer = SR2Trainer(model, TrainingArguments("folder"), train_dataset=data, regularizer=L1(1e-4))
trainer.train()
with trainer.averaged():
    trainer.save_model("network")
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler
from transformers import Trainer

from ..optim.groups import param_groups
from ..optim.processes import parallel
from ..optim.sr2 import SR2
from ..regularizers.base import Regularizer

Rules = list[tuple[Any, Regularizer | None]]
ALONE = {"steps", "cooldown", "schedule", "epsilon", "batch_growth", "eta1", "eta2", "gamma1", "gamma2", "gamma3"}
"""Who names one of these says how the run ends, or wants Algorithm 1, which goes on as long as one lets it."""


class SR2Trainer(Trainer):
    """`Trainer` that trains with SR2: accumulation, bf16, checkpoints and logs as ever; `learning_rate` is 1 / sigma.

    SR2 is told how many steps there will be, and how many an epoch has: a budget is reached, and the last steps are
    short. A constant of Algorithm 1 among the options, or `steps` itself, has the last word.

    Args:
        regularizer: R of the weights, or the rules of `sr2.param_groups`.
        sr2: further options of SR2, as {"momentum": 0.9}.
        args, kwargs: those of `Trainer`. `max_grad_norm` clips gradients that are used already, and changes nothing.
    """

    optimizer: Any
    lr_scheduler: Any

    def __init__(
        self,
        *args: Any,
        regularizer: Regularizer | Rules | None = None,
        sr2: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._regularizer, self._options = regularizer, sr2 or {}
        self._told: dict[str, Any] = {}
        self._kept: list[Any] = []

    def set_initial_training_values(self, *args: Any, **kwargs: Any) -> Any:
        """Those of `Trainer`, which SR2 wants to know."""
        _, steps_per_epoch, *_, steps = found = super().set_initial_training_values(*args, **kwargs)
        if not ALONE & self._options.keys():
            self._told = {"steps": max(2, steps), "steps_per_epoch": steps_per_epoch}
        return found

    def create_optimizer(self, model: nn.Module | None = None) -> Any:
        """SR2 on the model; the step that the trainer asks for has been taken by `training_step`."""
        if self.optimizer is None:
            model, R = self.model if model is None else model, self._regularizer
            options = {**self._told, **self._options}
            if R is None or isinstance(R, Regularizer):
                self._sr2 = _Taken(model, R, **options)
            else:
                self._sr2 = _Taken(param_groups(model, R), **options)
            self.optimizer = self._sr2
        return self.optimizer

    def averaged(self) -> AbstractContextManager[None]:
        """Inside `with trainer.averaged():` the model is the average of the iterates: evaluate and save it there.

        `trainer.optimizer` is Accelerate's, which has no such method.
        """
        if self.optimizer is None:
            raise RuntimeError("there is no average before the first step: call trainer.train() first")
        return self._sr2.averaged()

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """None of the arguments': SR2 chooses its steps."""
        if self.lr_scheduler is None:
            self.lr_scheduler = _Reads(self.optimizer if optimizer is None else optimizer)
        return self.lr_scheduler

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """Keeps the batch; with the last one of an accumulation, one step on all of them."""
        self._kept.append(self._prepare_inputs(inputs))
        if not self.accelerator.sync_gradients:
            return torch.zeros((), device=self.args.device)
        parts, self._kept = self._kept, []
        self._sr2.join(model)
        model.train()

        def closure() -> Tensor:
            if len(parts) == 1:
                with self.compute_loss_context_manager():
                    loss: Tensor = self.compute_loss(model, parts[0], num_items_in_batch=num_items_in_batch)
                return loss
            self._sr2.zero_grad()  # part by part, each with its backward: memory for one
            step = super(SR2Trainer, self).training_step
            return torch.stack([step(model, dict(part), num_items_in_batch) for part in parts]).sum()

        return self._sr2.step(closure)


class _Taken(SR2):
    """SR2 whose step the trainer asks for once it is taken."""

    def join(self, model: nn.Module) -> None:
        """The trainer wraps the model after it has made the optimizer: all processes must decide alike."""
        if parallel(model) is not None and self._module is not model:
            self._module = model
            self.__dict__.pop("_processes", None)

    def step(self, closure: Any = None, objective: Any = None) -> Tensor:  # type: ignore[override]
        """Without a closure, nothing."""
        return self.figures.loss if closure is None else super().step(closure, objective)


class _Reads(LRScheduler):
    """A scheduler that leaves every `lr` as it is."""

    def get_lr(self) -> list[float | Tensor]:
        return [group["lr"] for group in self.optimizer.param_groups]
