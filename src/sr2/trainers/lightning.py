"""Lightning: SR2 works under automatic optimization as it is. Here are what it shows, its average, and accumulation.

class Net(lightning.LightningModule):
    def configure_optimizers(self):
        return SR2(self, L1(1e-4))

lightning.Trainer(callbacks=[Monitor(), Averaged()]).fit(Net(), loader, validation)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import ExitStack
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


class Averaged(lightning.Callback):
    """Validates the average of the iterates, and puts it into checkpoints, in the place of the last iterate.

    A checkpoint's `state_dict` is then the network that was validated: `Net.load_from_checkpoint` gives the average.
    The last iterate is beside it as `current_model_state`, as in Lightning's `WeightAveraging`, and `fit(...,
    ckpt_path=...)` with this callback goes on from it. After `fit` the module holds the last iterate.

    Args:
        recalibrate: called with the module when it holds the average, for its batch norms:
            `lambda net: recalibrate_(net.network, loader)`.
    """

    LAST = "current_model_state"

    def __init__(self, recalibrate: Callable[[Any], object] | None = None) -> None:
        self.recalibrate = recalibrate
        self._inside = ExitStack()

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        for optimizer in _averaging(trainer):
            optimizer.averaged()  # from now on it need not remind of its average

    def on_validation_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        if trainer.state.fn == "fit":  # elsewhere the weights are those of a file, or the user's
            self._enter(trainer, pl_module, self._inside)

    def on_validation_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        self._inside.close()  # before the checkpoint is written, since Lightning calls ModelCheckpoint last

    def on_exception(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, exception: BaseException
    ) -> None:
        self._inside.close()

    def on_save_checkpoint(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        checkpoint[self.LAST] = _copied(checkpoint["state_dict"])
        with ExitStack() as inside:
            self._enter(trainer, pl_module, inside)
            checkpoint["state_dict"] = _copied(pl_module.state_dict())

    def on_load_checkpoint(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        if trainer.state.fn == "fit" and self.LAST in checkpoint:
            pl_module.load_state_dict(checkpoint[self.LAST])

    def _enter(self, trainer: lightning.Trainer, module: lightning.LightningModule, inside: ExitStack) -> None:
        for optimizer in _averaging(trainer):
            inside.enter_context(optimizer.averaged())
        if self.recalibrate is not None:
            self.recalibrate(module)


def _averaging(trainer: lightning.Trainer) -> list[SR2]:
    return [o for o in trainer.optimizers if isinstance(o, SR2) and o.averaging is not None]


def _copied(state: dict[str, Any]) -> dict[str, Any]:
    return {name: value.clone() if isinstance(value, Tensor) else value for name, value in state.items()}


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
