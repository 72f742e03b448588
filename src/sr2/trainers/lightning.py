"""Lightning: SR2 works under automatic optimization as it is. Here are what it shows, and accumulation.

class Net(lightning.LightningModule):
    def configure_optimizers(self):
        return SR2(self, L1(1e-4))

lightning.Trainer(callbacks=[Monitor()]).fit(Net(), loader)
"""

from __future__ import annotations

import inspect
from typing import Any

import lightning
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.trainer import call
from torch import Tensor
from torch.optim import Optimizer

from ..optim.sr2 import SR2
from ..zeros import sparsity


class Monitor(lightning.Callback):
    """Logs sigma, rho and the share of weights that are zero, and shows them in the progress bar.

    Args:
        every: steps between two looks, which count all zeros; None is the trainer's `log_every_n_steps`.
    """

    def __init__(self, every: int | None = None) -> None:
        self.every = every

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Processes that decide alone would wait for one another for ever."""
        for optimizer in trainer.optimizers:
            if isinstance(optimizer, SR2) and trainer.world_size > 1 and not optimizer._processes.several:
                raise ValueError(
                    f"there are {trainer.world_size} processes, and SR2 does not know of the others: return "
                    "SR2(self.trainer.strategy.model, ...) from configure_optimizers"
                )

    def on_train_batch_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, *_: Any, **__: Any
    ) -> None:
        every = self.every or trainer.log_every_n_steps or 1
        for optimizer in trainer.optimizers:
            if isinstance(optimizer, SR2) and trainer.global_step % every == 0:
                last = optimizer.last_step
                if last is not None:
                    zeros = sparsity(pl_module).fraction
                    pl_module.log_dict({"sigma": last.sigma, "rho": last.rho, "zeros": zeros}, prog_bar=True)


class Accumulates(lightning.LightningModule):
    """A module that trains with SR2 under `accumulate_grad_batches=n`: the closure evaluates all n batches.

    Lightning hands an optimizer the last of them alone. Derive from this class; `on_train_batch_start` of your own
    calls that of `super()`.
    """

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
        kept: list[tuple[Any, int]] = self.__dict__.setdefault("_kept", [])
        kept.append((batch, batch_idx))
        return None

    def optimizer_step(
        self, epoch: int, batch_idx: int, optimizer: Optimizer | LightningOptimizer, optimizer_closure: Any = None
    ) -> None:
        *earlier, _ = self.__dict__["_kept"]
        optimizer.zero_grad()  # what Lightning has accumulated is evaluated again

        def closure() -> Any:
            optimizer.zero_grad()
            losses = [self._part(batch, index, optimizer) for batch, index in earlier]
            return sum(losses) + optimizer_closure()

        optimizer.step(closure=closure)
        self.__dict__["_kept"] = []

    def _part(self, batch: Any, index: int, optimizer: Any) -> Tensor:
        """One of the earlier batches: its share of the loss, its gradients added."""
        arguments = (batch, index) if "batch_idx" in inspect.signature(self.training_step).parameters else (batch,)
        output = call._call_strategy_hook(self.trainer, "training_step", *arguments)
        loss: Tensor = (output["loss"] if isinstance(output, dict) else output) / self.trainer.accumulate_grad_batches
        call._call_strategy_hook(self.trainer, "backward", loss, getattr(optimizer, "optimizer", optimizer))
        return loss.detach()
