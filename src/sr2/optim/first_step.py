"""Before the first step: x_0 to where R is finite, sigma_0 from the curvature there, gamma_3 from R(x_0)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor

from ..regularizers.base import Regularizer, value_in_parts
from .base import ProximalOptimizer
from .evaluation import Closure, capturing
from .search import Search, gamma3_for
from .sigma0 import estimate_sigma0, leaves_half


class FirstStep(ProximalOptimizer):
    """What SR2 chooses from x_0 and its first batch, once; its state is in `_own["search"]`."""

    search: Search

    @contextmanager
    def _first_step_or_nothing(self) -> Iterator[list[tuple[Tensor, Tensor]]]:
        """Where a first step fails, x_0 is not left at its prox nor sigma_0 estimated on a broken batch.

        Gives the list for `_enter_domain` to put what it moves and where it was.
        """
        search = self._own["search"]
        before = {name: search[name] for name in ("entered", "sigma_known", "gamma3")}
        left: list[tuple[Tensor, Tensor]] = []
        estimates, sound = not before["sigma_known"], False
        broken = search["broken"] + 0 if not before["entered"] or estimates else None  # a copy, if it is a tensor
        try:
            yield left
            # A capturable step counts what another one raises; the host waits for it only where something was moved.
            sound = broken is None or not (left or estimates) or bool(search["broken"] == broken)
        finally:
            if not sound:
                with torch.no_grad():
                    for x, old in left:
                        x.copy_(old)
                search.update(before)
                if not before["sigma_known"]:
                    search["sigma"] = torch.full_like(search["sigma"], math.nan) if self.capturable else math.nan

    def _check_processes(self) -> None:
        processes = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
        if processes > 1 and self._process_group() is None:
            warnings.warn(
                f"there are {processes} processes, and each decides alone on its steps: give SR2 the "
                "DistributedDataParallel module itself, not its parameters",
                stacklevel=6,
            )

    def estimate_sigma(self, closure: Closure) -> None:
        """Set sigma_0 now, from the curvature of this closure's loss at x; the same on all processes.

        The first step does it unless it was done. Call it yourself to estimate on another closure: on a larger batch,
        or on the network before it was compiled, since a compiled one cannot be differentiated twice.
        """
        with self._first_step_or_nothing() as left:
            if not self._own["search"]["entered"]:
                with torch.no_grad():
                    self._enter_domain(left)
            self._estimate_sigma(closure)

    def _estimate_sigma(self, closure: Closure) -> None:
        parameters = self._parameters()
        alone = self._parallel.no_sync() if self._parallel is not None else nullcontext()
        with alone:
            estimate = estimate_sigma0(closure, self._module, parameters)
        group = self._process_group()
        if group is not None:
            shared = torch.tensor(estimate, dtype=torch.float64, device=parameters[0].device)
            dist.all_reduce(shared, group=group)
            estimate = float(shared) / dist.get_world_size(group)
        search = self._own["search"]
        sigma = leaves_half(self._penalized(), max(self.search.sigma_min, estimate))
        search["sigma"] = torch.full_like(search["sigma"], sigma) if self.capturable else sigma
        search["sigma_known"] = True

    def _choose_gamma3(self) -> None:
        if capturing():
            raise RuntimeError("gamma3='auto' needs a step before a CUDA graph is captured, or give it a number")
        values = [value_in_parts(r, xs) for r, xs in self._penalized() if r is not None and xs]
        self._own["search"]["gamma3"] = gamma3_for(float(sum(values)))
        self.search = replace(self.search, gamma3=self._own["search"]["gamma3"])

    def _penalized(self) -> list[tuple[Regularizer | None, list[Tensor]]]:
        return [(g["regularizer"], [p for p in g["params"] if p.requires_grad]) for g in self.param_groups]

    def _enter_domain(self, left: list[tuple[Tensor, Tensor]]) -> None:
        """Algorithm 1 starts where R is finite: a group that does not is moved to its prox, once."""
        for number, (regularizer, xs) in enumerate(self._penalized()):
            if regularizer is None or not xs or regularizer.coefficients is not None:
                continue  # finite everywhere
            if not bool(regularizer.value(xs).isposinf()):
                continue
            left += [(x, x.clone()) for x in xs]
            step = 1.0 / float(self._own["search"]["sigma"]) if self._own["search"]["sigma_known"] else 1.0
            for x, z in zip(xs, regularizer.prox(xs, step), strict=True):
                x.copy_(z)
            if not bool(regularizer.value(xs).isfinite()):
                raise ValueError(f"{regularizer!r} is not finite at its own prox (group {number}): correct its prox")
            warnings.warn(
                f"R(x_0) is infinite under {regularizer!r} (group {number}): x_0 was moved to its prox",
                stacklevel=5,  # past step and torch's two wrappers around it: the user's line
            )
        self._check_processes()
        self._own["search"]["entered"] = True
