"""Asking the closure twice: at x and at the trial point, with buffers and randomness as after one forward.

SR2 compares two values of the same function, so both evaluations must see the same dropout masks, and the second one
must leave no trace: not in batch-norm's statistics, not in the random number generators, not in the gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

Closure = Callable[[], Any]
"""Returns the loss. It may also zero and fill the gradients itself, as the closures of torch's LBFGS do."""


class Buffers:
    """A copy of every buffer of a module, to be put back: contents, and identity where a forward rebinds a buffer."""

    def __init__(self, module: nn.Module | None) -> None:
        owners = [] if module is None else [m._buffers for m in module.modules() if m._buffers]
        self._slots = [(owner, name, b) for owner in owners for name, b in owner.items() if b is not None]
        self._copies = [torch.empty_like(b) for _, _, b in self._slots]
        copy_each([b for _, _, b in self._slots], self._copies)

    def restore(self) -> None:
        for owner, name, tensor in self._slots:
            owner[name] = tensor
        copy_each(self._copies, [b for _, _, b in self._slots])


class Randomness:
    """The states of torch's generators on the CPU and on the devices in use."""

    def __init__(self, devices: Iterable[torch.device]) -> None:
        self._cpu = torch.get_rng_state()
        self._cuda = {d: torch.cuda.get_rng_state(d) for d in devices if d.type == "cuda"}

    def restore(self) -> None:
        torch.set_rng_state(self._cpu)
        for device, state in self._cuda.items():
            torch.cuda.set_rng_state(state, device)


class TwoEvaluations:
    """One step's evaluations: `first` (with gradients), then `again` (no trace), or `undo` if the step is called off.

    Args:
        module: whose buffers to protect; None protects none.
        parameters: those the closure's gradients are wanted for.
    """

    def __init__(self, module: nn.Module | None, parameters: Sequence[Tensor]) -> None:
        self._module = module
        self._parameters = parameters
        self._devices = {p.device for p in parameters}
        self._before = Buffers(module)
        self._randomness = Randomness(self._devices)
        self._fills_gradients = False

    def first(self, closure: Closure) -> Tensor:
        """The loss at x, detached; every parameter's gradient is in its `.grad`."""
        loss, self._fills_gradients = loss_and_gradients(closure, self._parameters)
        self._after = Buffers(self._module)
        self._randomness_after = Randomness(self._devices)
        return loss

    def again(self, closure: Closure) -> Tensor:
        """The loss where the parameters are now; buffers, generators and gradients stay as `first` left them."""
        # Inside a user's own autocast region the cast copies of the weights are cached, and are those of another x.
        torch.clear_autocast_cache()
        self._randomness.restore()
        gradients = [p.grad for p in self._parameters]
        for p in self._parameters:  # so that a closure which zeroes in place cannot touch the kept gradients
            p.grad = None
        try:
            with torch.set_grad_enabled(self._fills_gradients):
                return as_loss(closure())
        finally:
            for p, g in zip(self._parameters, gradients, strict=True):
                p.grad = g
            self._after.restore()
            self._randomness_after.restore()
            torch.clear_autocast_cache()

    def undo(self) -> None:
        """Put the buffers back to where they were before `first`."""
        self._before.restore()


def loss_and_gradients(closure: Closure, parameters: Sequence[Tensor]) -> tuple[Tensor, bool]:
    """The closure's loss, detached, with gradients in `.grad`; and whether the closure filled them itself."""
    for p in parameters:
        p.grad = None
    with torch.enable_grad():
        result = closure()
        filled = any(p.grad is not None for p in parameters)
        if not filled:
            if not isinstance(result, Tensor) or not result.requires_grad:
                raise ValueError(
                    f"the closure returned {_describe(result)} that does not depend on the parameters: return the loss "
                    "tensor, undetached, or call backward() inside the closure"
                )
            as_loss(result)  # a vector is the user's mistake and is said before autograd says it
            result.sum().backward()  # type: ignore[no-untyped-call]
    return as_loss(result), filled


def as_loss(result: object) -> Tensor:
    """A closure's result as a detached 0-dim tensor."""
    if isinstance(result, (int, float)) and not isinstance(result, bool):
        return torch.tensor(result, dtype=torch.float64)
    if not isinstance(result, Tensor) or result.numel() != 1 or not result.is_floating_point():
        raise ValueError(f"the closure must return the loss, one number, and returned {_describe(result)}")
    return result.detach().reshape(())


def copy_each(sources: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
    """targets[i] <- sources[i], one launch for each dtype and device."""
    kinds: dict[tuple[torch.dtype, torch.device], tuple[list[Tensor], list[Tensor]]] = {}
    for source, target in zip(sources, targets, strict=True):
        pair = kinds.setdefault((target.dtype, target.device), ([], []))
        pair[0].append(source)
        pair[1].append(target)
    with torch.no_grad():
        for from_, to in kinds.values():
            torch._foreach_copy_(to, from_)


def _describe(result: object) -> str:
    if isinstance(result, Tensor):
        return f"a {result.dtype} tensor of shape {tuple(result.shape)}"
    return repr(result)
