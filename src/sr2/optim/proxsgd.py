"""ProxSGD: a convex combination of x and a proximal point (Yang, Yuan, Chatzimichailidis, van Sloun, Lei and
Chatzinotas, 2020)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..checks import check_number
from ..regularizers.base import Regularizer, Step, check_convex
from .arguments import names_the_way
from .base import Params, ProximalOptimizer, Remembered
from .closure.losses import Closure, loss_and_gradients
from .moves.base import Proposal
from .parts.directions import Direction, Toward, between
from .parts.metrics import Metric


class ProxSGD(ProximalOptimizer):
    r"""For convex R:  x^_t = prox_{R / tau_t}(x_t - v_t / tau_t),   x_{t+1} = x_t + eps_t (x^_t - x_t),

    v_t = (1 - rho_t) v_{t-1} + rho_t g_t,   eps_t = lr / (t + 4)^lr_decay,   rho_t = rho / (t + 4)^rho_decay,

    with v_0 = 0, t = 1, 2, ..., and tau_t the metric: "adam" gives sqrt(r_t / (1 - beta^t)) + 1e-8. The convex
    combination never reaches an exact zero unless eps_t = 1: prune what is small. Nor does it enter a `Box` from
    outside, which it only approaches: start within it.

    >>> from torch import nn
    >>> from sr2 import ProxSGD, L1
    >>> model, x = nn.Linear(3, 1), torch.ones(5, 3)
    >>> optimizer = ProxSGD(model, L1(1e-3))
    >>> _ = optimizer.step(lambda: model(x).square().mean())

    Args:
        params: a module, an iterable of (named) parameters, or group dicts that may each name their own `regularizer`.
        regularizer: a convex R of the groups that name none.
        lr: eps; in the groups, so torch's schedulers work.
        lr_decay: a, the power by which eps_t falls; 0 keeps it.
        rho: the weight of the newest gradient; None turns momentum off, v = g (as in SR2's paper).
        rho_decay: b, the power by which rho_t falls.
        metric: tau_t; None turns it off, tau = 1 (as in SR2's paper).
        penalize: with a module, "weights" (no biases, no norms) or "all" (every parameter, as SR2's paper does).
        foreach, capturable: as in SR2; with `capturable`, `lr` is kept as a tensor, which torch's schedulers fill.
    """

    @names_the_way
    def __init__(
        self,
        params: Params,
        regularizer: Regularizer | None = None,
        lr: float = 0.06,
        *,
        lr_decay: float = 0.5,
        rho: float | None = 0.9,
        rho_decay: float = 0.5,
        metric: Metric | str | None = "adam",
        penalize: str = "weights",
        foreach: bool | None = None,
        capturable: bool = False,
    ) -> None:
        check_number("ProxSGD", "lr", lr, 0, open_low=True)
        check_number("ProxSGD", "lr_decay", lr_decay, 0, 10)  # a power of t: Python would compute 5 ** 10**30
        check_number("ProxSGD", "rho_decay", rho_decay, 0, 10)
        if rho is not None:
            check_number("ProxSGD", "rho", rho, 0, open_low=True)
        defaults: dict[str, Any] = {"lr": lr, "lr_decay": lr_decay, "rho": rho, "rho_decay": rho_decay}
        super().__init__(
            params, regularizer, defaults, metric=metric, penalize=penalize, foreach=foreach, capturable=capturable
        )
        self._count = StepCount()
        self._place()

    def _remembered(self) -> dict[str, Remembered]:
        return {"schedule": self._count}

    def _place(self) -> None:
        super()._place()
        beside = (p.device for p in self._all_parameters())
        self._count.t = self._count.t.to(next(beside, "cpu") if self.capturable else "cpu")

    def _check_fits(self, regularizer: Regularizer | None) -> None:
        instead = "use SR2 or ProxGEN, which take any regularizer with a prox, or a convex one such as L1"
        check_convex("ProxSGD", regularizer, instead)

    def _options(self) -> str:
        first = self.param_groups[0]
        words = f"lr={first['lr']:g}, lr_decay={first['lr_decay']:g}"
        words += (
            f", rho={first['rho']:g}, rho_decay={first['rho_decay']:g}" if first["rho"] is not None else ", rho=None"
        )
        return words + f", metric={self.metric!r}"

    def _direction_of(self, group: dict[str, Any]) -> Direction | None:
        return None if group["rho"] is None else Toward(_falling(group["rho"], self._t, group["rho_decay"]))

    @property
    def _t(self) -> Step:
        return self._count.t.double() if self.capturable else int(self._count.t)

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Tensor | None:  # type: ignore[override]
        """One step on the closure's loss (either kind of closure), or on the gradients that are there."""
        if self._bound != self._trained():
            self._bind()
        loss = None if closure is None else loss_and_gradients(closure, self._parameters(), self._module)[0]
        self._count.t += 1
        for number, group in enumerate(self.param_groups):
            proposal = Proposal.of(group, self.state, 1.0, self.metric, self._direction_of(group), self._processes)
            if proposal is None:
                continue
            (kept,), xs = self._take(number, proposal), proposal.xs
            eps = _falling(group["lr"], self._t, group["lr_decay"])
            torch._foreach_copy_(xs, [between(old, z, eps) for old, z in zip(kept, xs, strict=True)])
        torch.clear_autocast_cache()  # inside a user's own region it holds casts of the weights before the step
        return loss


class StepCount:
    """t, as a 0-dim tensor on the host or on the device."""

    def __init__(self) -> None:
        self.t = torch.zeros((), dtype=torch.int64, device="cpu")

    def state_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {"t": int(self.t)}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Go on from there."""
        self.t.fill_(int(saved["t"]))


def _falling(first: Step, t: Step, power: float) -> Step:
    """first / (t + 4)^power, at most 1."""
    value = first / (t + 4) ** power
    return value.clamp_max(1.0) if isinstance(value, Tensor) else min(1.0, value)
