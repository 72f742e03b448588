"""The one protocol by which a run asks its optimizer, whatever the optimizer's class."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from ...optim import SR2, Certificate, certificate
from ...optim.parts.schedules import Cooldown

COUNTS = ("accepted", "rejected", "null", "broken")
"""How a step can end."""
_OLD_WORDS = {"refused": "rejected"}


def modern(counts: dict[str, Any]) -> dict[str, Any]:
    """The same with the words of today: what was "refused" is "rejected".

    >>> modern({"accepted": 3, "refused": 1})
    {'accepted': 3, 'rejected': 1}
    """
    return {_OLD_WORDS.get(name, name): value for name, value in counts.items()}


class OptimizerView:
    """All that a run asks of an optimizer: what an optimizer does not have is None, 0, empty or False here.

    An optimizer needs `step`, `state_dict` and `load_state_dict`, and no more. What else it may have, under these
    names: `before_step` (which is told the number of steps that are done), `sigma`, `counts` and `figures` (the rows of
    an epoch), `batch_size` and `batch_growth` (batches that grow), `converged` and `stationarity` (an end before the
    last epoch), `estimate_sigma`, `capturable`, `averaging` and `averaged`.

    >>> from sr2 import L1, ProxGEN
    >>> model = torch.nn.Linear(2, 1)
    >>> view = OptimizerView(ProxGEN(model, L1(0.5), lr=0.1), batch=16)
    >>> view.sigma, view.batch, view.converged, view.counts()
    (None, 16, False, {})

    Args:
        optimizer: to be asked.
        batch: examples per step, unless the optimizer asks for another number.
        cooldown: the first and the last step of a cooldown that lowers the learning rate, if there is to be one.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, batch: int, cooldown: tuple[int, int] | None = None) -> None:
        self.optimizer, self._batch = optimizer, batch
        self._cooldown = cooldown
        self._lrs = [float(group["lr"]) for group in optimizer.param_groups] if self._cooldown else []

    def _ask(self, name: str, missing: Any = None) -> Any:
        return getattr(self.optimizer, name, missing)

    def step(self, closure: Callable[[], Any]) -> Tensor:
        """One step; returns the loss at its starting point."""
        loss: Tensor = self.optimizer.step(closure)  # type: ignore[assignment]
        return loss

    # ---- before a step

    @property
    def batch(self) -> int:
        """Examples of the next step."""
        return int(self._ask("batch_size") or self._batch)

    @property
    def compares_halves(self) -> bool:
        """Whether it wants the losses of the two halves of a batch: their spread is the noise of the gradient."""
        return self._ask("batch_growth") is not None

    @property
    def captures(self) -> bool:
        """Whether its steps may be replayed as a CUDA graph."""
        return bool(self._ask("capturable", False))

    @property
    def needs_sigma(self) -> bool:
        """Whether the first sigma is still to be estimated."""
        return hasattr(self.optimizer, "estimate_sigma") and self.sigma is not None and math.isnan(self.sigma)

    def estimate_sigma(self, closure: Callable[[], Any]) -> None:
        """Estimate the first sigma by this closure, which can be differentiated twice."""
        self.optimizer.estimate_sigma(closure)  # type: ignore[attr-defined]

    def before_step(self, steps: int) -> None:
        """After so many steps. In a cooldown the learning rate falls as 1 / sigma does, which SR2 sees to itself."""
        if (own := self._ask("before_step")) is not None:
            own(steps)
        if self._cooldown is None:
            return
        share = float(Cooldown(*self._cooldown).left(torch.tensor(steps)))
        for group, lr in zip(self.optimizer.param_groups, self._lrs, strict=True):
            if isinstance(group["lr"], Tensor):  # which a CUDA graph reads
                group["lr"].fill_(lr * share)
            else:
                group["lr"] = lr * share

    # ---- after it

    @property
    def sigma(self) -> float | None:
        """The inverse step size, as the next step will use it."""
        sigma: float | None = self._ask("sigma")
        return sigma

    @property
    def rho(self) -> Tensor | None:
        """Of the last step, without waiting for the device."""
        figures = self._ask("figures")
        return None if figures is None else figures.rho

    def counts(self) -> dict[str, int]:
        """How its steps ended so far, by the words of `COUNTS`."""
        return modern(self._ask("counts", {}))

    def penalty(self) -> float:
        """R(x), of all groups together."""
        groups = [g for g in self.optimizer.param_groups if g.get("regularizer") is not None]
        return sum(float(g["regularizer"].value([p.detach() for p in g["params"]])) for g in groups)

    @property
    def converged(self) -> bool:
        """Whether it is as stationary as the user asked for."""
        return bool(self._ask("converged", False))

    @property
    def stationarity(self) -> tuple[float, float]:
        """The mean of |s|^2 and its standard error, where it measures them."""
        measure = self._ask("stationarity")
        return measure.mean, measure.standard_error

    def certificate(self, model: torch.nn.Module, batches: list[Any], loss: Callable[..., Tensor]) -> Certificate:
        """The paper's bound at the last point."""
        assert isinstance(self.optimizer, SR2)
        return certificate(model, batches, self.optimizer, loss)

    # ---- the average of the iterates

    @property
    def keeps_average(self) -> bool:
        """Whether there is one."""
        return self._ask("averaging") is not None

    def averaged(self) -> AbstractContextManager[None]:
        """Inside, the parameters hold it."""
        context: AbstractContextManager[None] = self._ask("averaged")()
        return context

    # ---- what lasts

    def state_dict(self) -> dict[str, Any]:
        """Of the optimizer."""
        return self.optimizer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Of the optimizer."""
        self.optimizer.load_state_dict(state)
