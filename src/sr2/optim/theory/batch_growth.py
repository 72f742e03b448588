"""Batches that grow: the paper's assumption 3, tested at every step.

SR2's theory asks of each batch that |f(x + s) - f(x) - g's| <= kappa |s|^2, f being the full objective. Since

    |f(x + s) - f(x) - g's| <= |f(x + s) - f(x) - grad f's| + |grad f - g| |s|,

and with f(., xi) of the batch, whose gradient g is, in the first term on the right, the test is

    |f(x + s, xi) - f(x, xi) - g's| + noise * |s| <= kappa |s|^2,      noise^2 = E|g - grad f|^2.

The noise comes at no extra arithmetic from the parts of a batch: a closure that calls backward() for each micro-batch,
or one that returns one loss for each part (two halves, say). Where the test fails the step is not taken and the next
batch is larger; at the largest batch the step is judged by rho alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from ...checks import check_integer, check_number
from ..parts.rules import Evidence
from ..processes import ALONE, Processes


@dataclass(frozen=True)
class BatchGrowth:
    """When and how the batch grows.

    >>> growth = BatchGrowth(kappa=50.0, batch=128, factor=2.0, largest=1024)
    >>> growth.next(128), growth.next(1000)
    (256, 1024)

    Args:
        kappa: kappa_m of assumption 3. Useful values are above L / 2, half the curvature: `sigma_0` estimates L.
        batch: the first batch size.
        factor: by which the batch grows when a step fails the test.
        largest: the largest batch; there the test no longer applies.
    """

    kappa: float
    batch: int = 128
    factor: float = 2.0
    largest: int = 4096

    def __post_init__(self) -> None:
        check_number(self, "kappa", self.kappa, 0, open_low=True)
        check_number(self, "factor", self.factor, 1, open_low=True)
        check_integer(self, "batch", self.batch, 1)
        check_integer(self, "largest", self.largest, self.batch)

    def next(self, batch: int) -> int:
        """The size after a failure at size `batch`."""
        return min(self.largest, math.ceil(self.factor * batch))

    def larger(self, evidence: Evidence, batch: int, noise: float) -> int | None:
        """The next size where a step with this one fails the test, None where it passes.

        What is not finite, and the largest batch, are not tested.

        Args:
            evidence: what was seen of the step.
            batch: the size it was made with.
            noise: sqrt(E|g - grad f|^2), NaN where it is not known.
        """
        if batch >= self.largest or not evidence.all_finite:
            return None
        error = float(abs(evidence.f_trial - evidence.f - evidence.vs))
        noise = 0.0 if math.isnan(noise) else noise
        return None if self.passes(error, noise, float(evidence.ss), float(evidence.slack)) else self.next(batch)

    def passes(self, model_error: float, noise: float, ss: float, slack: float) -> bool:
        """Assumption 3 for one step: model_error = |f(x + s) - f(x) - g's|, ss = |s|^2."""
        return max(0.0, model_error - slack) + noise * math.sqrt(ss) <= self.kappa * ss


class GradientNoise:
    """Watches the backward passes of one evaluation: an estimate of E|g - grad f|^2 from the parts of the batch.

    With M parts whose gradients h_i add up to g, the variance of g is (M sum|h_i|^2 - |g|^2) / (M - 1).
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._parameters = parameters
        self._passes = [0] * len(parameters)
        self._squares: list[Tensor] = []

    def __enter__(self) -> GradientNoise:
        hooks = [p.register_hook(self._watch(i)) for i, p in enumerate(self._parameters)]  # type: ignore[no-untyped-call]
        self._hooks = hooks
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def _watch(self, i: int) -> Callable[[Tensor], None]:
        def seen(gradient: Tensor) -> None:
            self._passes[i] += 1
            self._squares.append(gradient.detach().double().square().sum())

        return seen

    @torch.no_grad()
    def estimate(self, together: Processes = ALONE) -> float:
        """noise = sqrt(E|g - grad f|^2), NaN if there was only one part; over the parts of all these processes."""
        parts, apart = max(self._passes, default=0), float(sum(square.cpu() for square in self._squares))
        for group in together.groups:  # g is the mean of the processes' gradients, so a part weighs 1 / world in it
            shared = torch.tensor([parts, apart], dtype=torch.float64, device=self._parameters[0].device)
            dist.all_reduce(shared, group=group)
            parts, apart = int(shared[0]), float(shared[1]) / dist.get_world_size(group) ** 2
        if parts < 2:
            return math.nan
        whole = float(sum(p.grad.double().square().sum().cpu() for p in self._parameters if p.grad is not None))
        return math.sqrt(max(0.0, parts * apart - whole) / (parts - 1))
