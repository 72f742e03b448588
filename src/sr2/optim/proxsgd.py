"""ProxSGD: a convex combination of x and a proximal point (Yang, Yuan, Chatzimichailidis, van Sloun, Lei and
Chatzinotas, 2020)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..regularizers.base import Regularizer, Step, check_compatible, check_number
from .base import Params, ProximalOptimizer
from .evaluation import Closure, loss_and_gradients
from .metrics import Metric


class ProxSGD(ProximalOptimizer):
    r"""For convex R:  x^_t = prox_{R / tau_t}(x_t - v_t / tau_t),   x_{t+1} = x_t + eps_t (x^_t - x_t),

    v_t = (1 - rho_t) v_{t-1} + rho_t g_t,   eps_t = lr / (t + 4)^lr_decay,   rho_t = rho / (t + 4)^rho_decay,

    with v_0 = 0, t = 1, 2, ..., and tau_t the metric: "adam" gives sqrt(r_t / (1 - beta^t)) + 1e-8. The convex
    combination never reaches an exact zero unless eps_t = 1: prune what is small.

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
        check_number("ProxSGD", "lr_decay", lr_decay, 0)
        check_number("ProxSGD", "rho_decay", rho_decay, 0)
        if rho is not None:
            check_number("ProxSGD", "rho", rho, 0, open_low=True)
        defaults: dict[str, Any] = {"lr": lr, "lr_decay": lr_decay, "rho": rho, "rho_decay": rho_decay}
        super().__init__(
            params, regularizer, defaults, metric=metric, penalize=penalize, foreach=foreach, capturable=capturable
        )
        self._own["schedule"] = {"t": 0}
        self._place()

    def _place(self) -> None:
        super()._place()
        schedule, device = self._own["schedule"], self.param_groups[0]["params"][0].device
        schedule["t"] = torch.tensor(int(schedule["t"]), device=device) if self.capturable else int(schedule["t"])

    def _check_fits(self, regularizer: Regularizer | None) -> None:
        instead = "use SR2 or ProxGEN, which take any regularizer with a prox, or a convex one such as L1"
        check_compatible("ProxSGD", regularizer, convex=instead)
        super()._check_fits(regularizer)

    def _options(self) -> str:
        first = self.param_groups[0]
        words = f"lr={first['lr']:g}, lr_decay={first['lr_decay']:g}"
        words += (
            f", rho={first['rho']:g}, rho_decay={first['rho_decay']:g}" if first["rho"] is not None else ", rho=None"
        )
        return words + f", metric={self.metric!r}"

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Tensor | None:  # type: ignore[override]
        """One step on the closure's loss (either kind of closure), or on the gradients that are there."""
        loss = None if closure is None else loss_and_gradients(closure, self._parameters(), self._module)[0]
        self._own["schedule"]["t"] += 1
        t = self._own["schedule"]["t"]
        for number, group in enumerate(self.param_groups):
            proposal = self._propose(group, momentum=0.0)
            if proposal is None:
                continue
            xs = proposal.xs
            if group["rho"] is not None:
                rho = _falling(group["rho"], t, group["rho_decay"])
                old = [state.get("v", torch.zeros_like(x)) for x, state in zip(xs, proposal.states, strict=True)]
                proposal.vs = [_between(v, g, rho) for v, g in zip(old, proposal.gs, strict=True)]
                proposal.news = [{**new, "v": v} for new, v in zip(proposal.news, proposal.vs, strict=True)]
            kept = self._move(number, proposal, 1.0)
            eps = _falling(group["lr"], t, group["lr_decay"])
            torch._foreach_copy_(xs, [_between(old, z, eps) for old, z in zip(kept, xs, strict=True)])
        torch.clear_autocast_cache()  # inside a user's own region it holds casts of the weights before the step
        return loss


def _falling(first: Step, t: Step, power: float) -> Step:
    """first / (t + 4)^power, at most 1."""
    t = t.double() if isinstance(t, Tensor) else t  # a power of an int64 tensor is float32
    value = first / (t + 4) ** power
    return value.clamp_max(1.0) if isinstance(value, Tensor) else min(1.0, value)


def _between(x: Tensor, z: Tensor, weight: Step) -> Tensor:
    return torch.lerp(x, z, weight.to(x.dtype) if isinstance(weight, Tensor) else weight)
