"""What the first evaluations of a closure show: signs of a mistake, and the arithmetic in which it computes."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ...numerics import local

LOW = (torch.bfloat16, torch.float16)
COMPILED = "CompiledFunctionBackward"


class Signs(NamedTuple):
    """What is seen of one evaluation."""

    autocast: torch.dtype | None = None
    """The dtype below float32 that it computes in."""
    statistics: bool = False
    """Batch norm has moved its running statistics."""
    compiled: bool = False
    """torch.compile has made some of it."""


def in_graph(result: object) -> Signs | None:
    """The signs in the graph of what a closure has returned, also after its backward; None where there is no graph.

    >>> layer, x = nn.Linear(3, 1), torch.ones(2, 3)
    >>> with torch.autocast("cpu", torch.bfloat16):
    ...     loss = layer(x).float().mean()
    >>> in_graph(loss)
    Signs(autocast=torch.bfloat16, statistics=False, compiled=False)
    """
    losses = result if isinstance(result, (list, tuple)) else [result]
    nodes = [loss.grad_fn for loss in losses if isinstance(loss, Tensor) and loss.grad_fn is not None]
    if not nodes:
        return None
    seen, low, moved, compiled = set(nodes), None, False, False
    while nodes:
        node = nodes.pop()
        low = low or next((m.dtype for m in node._input_metadata if m.dtype in LOW), None)
        compiled |= node.name() == COMPILED
        moved |= bool(getattr(node, "_saved_training", False)) and _has_statistics(node)
        following = {n for n, _ in node.next_functions if n is not None} - seen
        seen |= following
        nodes += following
    return Signs(low, moved, compiled)


def _has_statistics(node: object) -> bool:
    try:
        return getattr(node, "_saved_running_mean", None) is not None
    except RuntimeError:  # its tensors are freed: the closure has called backward() itself
        return True


@contextmanager
def in_forwards(device: torch.device) -> Iterator[list[Signs]]:
    """The signs that the modules called inside show, for closures that keep their graph to themselves."""
    found: list[Signs] = []

    def look(module: nn.Module, _: object) -> None:
        on = torch.is_autocast_enabled(device.type)
        low = torch.get_autocast_dtype(device.type) if on else None
        norm = isinstance(module, nn.modules.batchnorm._NormBase)
        found.append(Signs(low, norm and module.training and module.running_mean is not None))

    hook = nn.modules.module.register_module_forward_pre_hook(look)
    try:
        yield found
    finally:
        hook.remove()


@contextmanager
def scaled(parameters: Sequence[Tensor]) -> Iterator[list[float]]:
    """The factor by which gradients are multiplied after the backward passes inside; none where they are not.

    It is seen at the smallest parameter. Several processes exchange gradients after a backward pass: nothing is seen.
    """
    factors: list[float] = []
    trained = [p for p in parameters if p.requires_grad and p.is_leaf]
    if not trained or (dist.is_available() and dist.is_initialized()):
        yield factors
        return
    filled: list[Tensor] = []
    smallest = min(trained, key=Tensor.numel)
    hook = smallest.register_post_accumulate_grad_hook(lambda p: filled.append(p.grad.clone()))  # type: ignore[no-untyped-call]
    try:
        yield factors
    finally:
        hook.remove()
    g = smallest.grad
    if filled and g is not None and g.layout == torch.strided and not torch.equal(filled[-1], g):
        before, after = filled[-1].double().flatten(), g.double().flatten()
        factor = float(before @ after / (before @ before))
        factors += [factor] if math.isfinite(factor) else []  # of a broken batch nothing is said


def is_average(factor: float) -> bool:
    """Whether this is 1 / n: the mean of n parts, or a scale taken back.

    >>> is_average(1 / 3), is_average(1 / 65536), is_average(0.3)
    (True, True, False)
    """
    return 0 < factor <= 1 and abs(round(1 / factor) * factor - 1) < 1e-6


class Gradients:
    """The gradients that are there now; those that come later, other than by a step, can be told from them."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._known: dict[Tensor, torch.dtype | None] = {}
        self.note(parameters)

    def note(self, parameters: Sequence[Tensor]) -> None:
        """These too; those of parameters that are frozen meanwhile stay known."""
        for p in parameters:
            self._known[p] = None if p.grad is None else p.grad.dtype
            if p.grad is not None:  # on itself: a weak reference is in the way of torch.utils.swap_tensors
                p.grad._seen_by_sr2 = p.grad._version  # type: ignore[attr-defined]

    def others(self, parameters: Sequence[Tensor]) -> bool:
        """Whether there are others now, and not zero."""
        others = (local(p.grad) for p in parameters if p.grad is not None and self._is_other(p, p.grad))
        return any(g.layout != torch.strided or bool(g.count_nonzero()) for g in others)

    def _is_other(self, parameter: Tensor, gradient: Tensor) -> bool:
        if parameter not in self._known:  # of a group that was added since
            return False
        if (known := self._known[parameter]) is None:
            return True
        # Of another dtype it is the same one, converted with the network.
        return known == gradient.dtype and getattr(gradient, "_seen_by_sr2", None) != gradient._version


def accumulated_by_accelerate() -> int:
    """Of how many batches Accelerate, where it is in use, skips the steps of all but the last."""
    state = getattr(sys.modules.get("accelerate.state"), "GradientState", None)
    shared = getattr(state, "_shared_state", {})
    return int(shared.get("plugin_kwargs", {}).get("num_steps", 1))
