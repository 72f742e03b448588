"""The baselines that people would take instead: AdamW, SGD, and SGD with gradual magnitude pruning. torch underneath.

A run tells them its number of steps, and before every step which one it is: learning rates and masks are tensors that
stay in their place, so that steps may be replayed as a CUDA graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..checks import check_number
from ..optim.closure.losses import loss_and_gradients
from ..optim.groups import module_groups
from ..optim.parts.averaging import Averaging, as_averaging, averaged, move_toward
from ..regularizers import L0Ball, Regularizer


class Baseline(torch.optim.Optimizer):
    """What a torch optimizer needs to stand beside SR2: a closure, a schedule, and the same average of the iterates.

    The learning rate of step t of n is  lr min(1, (t + 1) / w) (1 + cos(pi max(0, t - w) / (n - w))) / 2  with a
    warm-up of w steps. Weights decay; biases and norms do not, unless everything is penalized.
    """

    def _set_up(
        self, params: nn.Module, lr: float, steps: int, warmup: float, average: bool | Averaging, capturable: bool
    ) -> None:
        self.capturable, self.averaging = capturable, as_averaging(average)
        self._module, self._lr, self._steps, self._warmup = params, lr, steps, round(warmup * steps)
        self._place()

    def _place(self) -> None:
        """With `capturable` the learning rates and the number of the step are tensors on the device."""
        device = self.param_groups[0]["params"][0].device if self.capturable else torch.device("cpu")
        self._t = torch.ones((), dtype=torch.int64, device=device)
        for group in self.param_groups:
            lr = group["lr"]
            group["lr"] = torch.as_tensor(lr, dtype=torch.float32, device=device) if self.capturable else float(lr)

    def before_step(self, step: int) -> None:
        """The learning rate of this step, of those that the run has from 0 on; called by the host."""
        left = max(1, self._steps - self._warmup)
        cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, max(0, step - self._warmup) / left)))
        lr = self._lr * min(1.0, (step + 1) / max(1, self._warmup)) * cosine
        self._t.fill_(step + 1)
        for group in self.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(lr)
            else:
                group["lr"] = lr

    @torch.no_grad()
    def step(self, closure: Callable[[], Any]) -> Tensor:  # type: ignore[override]
        """One step on the closure's loss, which is returned."""
        xs = [p for group in self.param_groups for p in group["params"] if p.requires_grad]
        loss, _ = loss_and_gradients(closure, xs, self._module)
        self._change_gradients()
        super().step()
        if self.averaging is not None:
            moved = [p for p in xs if p.grad is not None]
            self.averaging.update(moved, self.state, self._t, partial(move_toward, looking=not self.capturable))
        torch.clear_autocast_cache()  # inside a user's own region it holds casts of the weights before the step
        return loss

    def _change_gradients(self) -> None:
        """Before the step is taken."""

    def averaged(self) -> AbstractContextManager[None]:
        """Inside `with optimizer.averaged():` the parameters hold the average of the iterates, as SR2's do."""
        groups = [{"params": g["params"], "regularizer": g["penalized"] or None} for g in self.param_groups]
        return averaged(self, groups)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved state, on this optimizer's device."""
        super().load_state_dict(state_dict)
        self._place()


def _groups(
    kind: type, module: nn.Module, penalize: str, lr: float, warmup: float, weight_decay: float
) -> list[dict[str, Any]]:
    """Of weights, which decay, and of the rest; torch's own words on wrong constants name no way out."""
    check_number(kind.__name__, "lr", lr, 0, open_low=True)
    check_number(kind.__name__, "warmup", warmup, 0, 1)
    check_number(kind.__name__, "weight_decay", weight_decay, 0)
    found = [(g, g["regularizer"] is not None) for g in module_groups(module, L0Ball(density=1.0), penalize)]
    return [{"params": g["params"], "penalized": is_, "weight_decay": is_ * weight_decay} for g, is_ in found]


class AdamW(Baseline, torch.optim.AdamW):  # type: ignore[misc]  # a step without a closure is none here
    """torch's AdamW with a cosine and a warm-up.

    >>> model, x = nn.Linear(3, 1), torch.ones(5, 3)
    >>> optimizer = AdamW(model, steps=100)
    >>> optimizer.before_step(0)
    >>> loss = optimizer.step(lambda: model(x).square().mean())

    Args:
        params: a module.
        regularizer: None; it has none.
        lr: the largest learning rate, from which a cosine falls to 0.
        beta1, beta2: of the means of g and of g^2.
        weight_decay: decoupled, of weights only.
        warmup: the share of the run in which the learning rate rises along a line.
        average: keep an average of the iterates too, `Polynomial()` or an object of `sr2.averaging`.
        steps: of the whole run.
        penalize: what decays, "weights" (no biases, no norms) or "all".
        capturable: for CUDA graphs.
    """

    def __init__(
        self,
        params: nn.Module,
        regularizer: Regularizer | None = None,
        lr: float = 1e-3,
        *,
        beta1: float = 0.9,
        beta2: float = 0.999,
        weight_decay: float = 1e-2,
        warmup: float = 0.05,
        average: bool | Averaging = True,
        steps: int = 1,
        penalize: str = "weights",
        capturable: bool = False,
    ) -> None:
        groups, betas = _groups(type(self), params, penalize, lr, warmup, weight_decay), (beta1, beta2)
        torch.optim.AdamW.__init__(self, groups, lr, betas, capturable=capturable, fused=True)
        self._set_up(params, lr, steps, warmup, average, capturable)


class SGD(Baseline, torch.optim.SGD):  # type: ignore[misc]
    """torch's SGD with Nesterov's momentum, a cosine and a warm-up.

    >>> model, x = nn.Linear(3, 1), torch.ones(5, 3)
    >>> optimizer = SGD(model, lr=0.1, steps=100)
    >>> optimizer.before_step(0)
    >>> loss = optimizer.step(lambda: model(x).square().mean())

    Args:
        params: a module.
        regularizer: None; it has none.
        lr: the largest learning rate, from which a cosine falls to 0.
        momentum: of Nesterov, where it is not 0.
        weight_decay: of weights only, added to the gradient.
        warmup: the share of the run in which the learning rate rises along a line.
        average: keep an average of the iterates too, `Polynomial()` or an object of `sr2.averaging`.
        steps: of the whole run.
        penalize: what decays, "weights" (no biases, no norms) or "all".
        capturable: for CUDA graphs.
    """

    def __init__(
        self,
        params: nn.Module,
        regularizer: Regularizer | None = None,
        lr: float = 0.1,
        *,
        momentum: float = 0.9,
        weight_decay: float = 5e-4,
        warmup: float = 0.05,
        average: bool | Averaging = True,
        steps: int = 1,
        penalize: str = "weights",
        capturable: bool = False,
    ) -> None:
        check_number(type(self).__name__, "momentum", momentum, 0, 1)
        groups, nesterov = _groups(type(self), params, penalize, lr, warmup, weight_decay), momentum != 0
        torch.optim.SGD.__init__(self, groups, lr, momentum=momentum, nesterov=nesterov, fused=True)
        self._set_up(params, lr, steps, warmup, average, capturable)


FIRST, LAST = 0.1, 0.7
"""The shares of the run between which weights are pruned; what is left of the cosine is for recovery."""


class Pruning(Baseline):
    """Gradual global magnitude pruning (Zhu and Gupta, 2017) around a baseline: what is pruned stays zero.

    Between a tenth and seven tenths of the run, at least 20 times and at least every 100 steps, the share
    s_f (1 - (1 - u)^3) of all weights together, the smallest, becomes zero, with u from 0 to 1. No tensor loses
    everything: it has the floor of `L0Ball`. Pruned weights have no gradient and no momentum.
    """

    def _plan(self, density: float, steps: int) -> None:
        check_number(type(self).__name__, "density", density, 0, 1, open_low=True)
        self.density = density
        self._first = round(FIRST * steps)
        self._last = max(self._first, min(round(LAST * steps), steps - 1))
        self._every = max(1, min(100, (self._last - self._first) // 20))

    @property
    def _pruned(self) -> list[Tensor]:
        return [p for group in self.param_groups if group["penalized"] for p in group["params"] if p.requires_grad]

    def density_at(self, step: int) -> float:
        """The share of the weights that is left at a step.

        >>> gmp = GMP(nn.Linear(8, 1), steps=1000, density=0.1)
        >>> [round(gmp.density_at(step), 4) for step in (0, 100, 400, 700, 999)]
        [1.0, 1.0, 0.2125, 0.1, 0.1]
        """
        u = min(1.0, max(0, step - self._first) / max(1, self._last - self._first)) if step < self._last else 1.0
        return 1 - (1 - self.density) * (1 - (1 - u) ** 3)

    @torch.no_grad()
    def before_step(self, step: int) -> None:
        """The learning rate of this step, and the masks, if it is one at which weights are pruned."""
        super().before_step(step)
        # Not before the first step, unless it is the only one: torch's AdamW takes a state with anything in it for one
        # that has its means.
        for p in self._pruned if step > 0 or self._last == 0 else []:
            if "mask" not in self.state[p]:
                self.state[p]["mask"] = torch.ones_like(p)
        since = step - self._first
        if step == self._last or (0 < since < self._last - self._first and since % self._every == 0):
            self._prune(self.density_at(step))

    def _prune(self, density: float) -> None:
        """Masks are written in their place, where a CUDA graph reads them."""
        xs = self._pruned
        for x, kept in zip(xs, L0Ball(density=density).prox(xs, 1.0), strict=True):
            state = self.state[x]
            state["mask"].copy_(kept != 0)
            x.copy_(kept)
            for momentum in (state.get(name) for name in ("momentum_buffer", "exp_avg")):
                if momentum is not None:
                    momentum.mul_(state["mask"])

    def _change_gradients(self) -> None:
        pairs = [(p.grad, self.state[p].get("mask")) for p in self._pruned]
        found = [(gradient, mask) for gradient, mask in pairs if gradient is not None and mask is not None]
        if found:
            torch._foreach_mul_(*map(list, zip(*found, strict=True)))


class GMP(Pruning, SGD):  # type: ignore[misc]
    """That SGD with gradual global magnitude pruning, see `Pruning`.

    >>> model, x = nn.Linear(8, 1), torch.ones(5, 8)
    >>> optimizer = GMP(model, steps=100, density=0.25)
    >>> for step in range(100):
    ...     optimizer.before_step(step)
    ...     loss = optimizer.step(lambda: model(x).square().mean())
    >>> int((model.weight != 0).sum())
    2

    Args:
        params: a module.
        regularizer: None; it has none.
        lr: the largest learning rate, from which a cosine falls to 0.
        density: the share of the weights that is left, 1 - s_f.
        momentum: of Nesterov, where it is not 0.
        weight_decay: of weights only, added to the gradient.
        warmup: the share of the run in which the learning rate rises along a line.
        average: keep an average of the iterates too, `Polynomial()` or an object of `sr2.averaging`.
        steps: of the whole run.
        penalize: what is pruned and decays, "weights" (no biases, no norms) or "all".
        capturable: for CUDA graphs.
    """

    def __init__(
        self,
        params: nn.Module,
        regularizer: Regularizer | None = None,
        lr: float = 0.1,
        *,
        density: float = 0.1,
        momentum: float = 0.9,
        weight_decay: float = 5e-4,
        warmup: float = 0.05,
        average: bool | Averaging = True,
        steps: int = 1,
        penalize: str = "weights",
        capturable: bool = False,
    ) -> None:
        options: dict[str, Any] = {"momentum": momentum, "weight_decay": weight_decay, "penalize": penalize}
        super().__init__(
            params, None, lr, warmup=warmup, average=average, steps=steps, capturable=capturable, **options
        )
        self._plan(density, steps)
