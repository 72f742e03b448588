"""ProxGEN: proximal gradient with momentum and a diagonal metric (Yun, Lozano and Yang, 2021)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..checks import check_number
from ..regularizers.base import Regularizer
from .arguments import names_the_way
from .base import Params, ProximalOptimizer
from .closure.losses import Closure, loss_and_gradients
from .moves.base import Proposal
from .parts.directions import Direction, as_direction
from .parts.metrics import Metric


class ProxGEN(ProximalOptimizer):
    r"""x_{t+1} = prox_{lr R / D_t}(x_t - lr v_t / D_t): every step is taken, none is tested.

    v_t is the bias-corrected average of gradients and D_t the metric. With momentum=0.9, metric="adam" and no
    regularizer this is AdamW; with neither (the defaults) it is proximal SGD, as in SR2's paper.

    >>> from torch import nn
    >>> from sr2 import ProxGEN, L0
    >>> model, x = nn.Linear(3, 1), torch.ones(5, 3)
    >>> optimizer = ProxGEN(model, L0(1e-3), lr=0.1, momentum=0.9, metric="adam")
    >>> scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    >>> _ = optimizer.step(lambda: model(x).square().mean())
    >>> scheduler.step()

    Args:
        params: a module, an iterable of (named) parameters, or group dicts that may each name their own `regularizer`.
        regularizer: R of the groups that name none.
        lr: the step size; in the groups, so torch's schedulers work.
        momentum: beta of v_t; 0 is the plain gradient.
        metric: D_t, by name or as an object; None is the identity.
        weight_decay: decoupled, (1 - lr * weight_decay) x in the place of x, as in the authors' code and in AdamW.
        penalize: with a module, "weights" (no biases, no norms) or "all" (every parameter, as SR2's paper does).
        foreach, capturable: as in SR2; with `capturable`, `lr` is kept as a tensor, which torch's schedulers fill.
    """

    @names_the_way
    def __init__(
        self,
        params: Params,
        regularizer: Regularizer | None = None,
        lr: float = 1e-3,
        *,
        momentum: float = 0.0,
        metric: Metric | str | None = None,
        weight_decay: float = 0.0,
        penalize: str = "weights",
        foreach: bool | None = None,
        capturable: bool = False,
    ) -> None:
        check_number("ProxGEN", "lr", lr, 0, open_low=True)
        check_number("ProxGEN", "momentum", momentum, 0, 1)
        check_number("ProxGEN", "weight_decay", weight_decay, 0)
        defaults: dict[str, Any] = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__(
            params, regularizer, defaults, metric=metric, penalize=penalize, foreach=foreach, capturable=capturable
        )
        self._place()

    def _options(self) -> str:
        first = self.param_groups[0]
        words = f"lr={first['lr']:g}, momentum={first['momentum']:g}"
        words += f", weight_decay={first['weight_decay']:g}" if first["weight_decay"] else ""
        return words + (f", metric={self.metric!r}" if self.metric else "")

    def _direction_of(self, group: dict[str, Any]) -> Direction | None:
        return as_direction("ProxGEN", group["momentum"])

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Tensor | None:  # type: ignore[override]
        """One step on the closure's loss (either kind of closure), or on the gradients that are there."""
        if self._bound != self._trained():
            self._bind()
        loss = None if closure is None else loss_and_gradients(closure, self._parameters(), self._module)[0]
        for number, group in enumerate(self.param_groups):
            parts = (group["lr"], self.metric, self._direction_of(group))
            proposal = Proposal.of(group, self.state, *parts, self._processes, group["weight_decay"])
            if proposal is not None:
                self._take(number, proposal)
        torch.clear_autocast_cache()  # inside a user's own region it holds casts of the weights before the step
        return loss
