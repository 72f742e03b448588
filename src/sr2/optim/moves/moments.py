"""The averages of the fused kernel: two buffers each, of which one is the next; and how tensors lie in memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...numerics import capturing
from ..parts.metrics import State
from .base import NEEDS_A_STEP


class Moment:
    """A bias-corrected average that the kernel moves on: of the gradients, or of their squares.

    Args:
        name: under which a parameter's state has it, with its weight beside it.
        beta: the weight of the past.
        xs: the parameters, for buffers of their layout.
    """

    def __init__(self, name: str, beta: float, xs: Sequence[Tensor]) -> None:
        self.name, self._beta = name, beta
        self.nexts = [torch.empty_like(x) for x in xs]

    def find(self, xs: Sequence[Tensor], states: Sequence[State]) -> None:
        """The averages so far, zero at first, laid out as x; and the weights of the next ones."""
        name, weight = self.name, f"{self.name}_weight"
        for x, state in zip(xs, states, strict=True):
            if name not in state:
                if capturing():
                    raise RuntimeError(NEEDS_A_STEP)
                state[name], state[weight] = torch.zeros_like(x), 0.0
            elif not alike(state[name], x):
                state[name] = torch.empty_like(x).copy_(state[name])
        self.olds = [state[name] for state in states]
        weights, device = [state[weight] for state in states], xs[0].device
        if any(isinstance(w, Tensor) for w in weights):
            self._old_weights = torch.stack([torch.as_tensor(w, dtype=torch.float64, device=device) for w in weights])
        else:
            self._old_weights = torch.tensor(weights, dtype=torch.float64, device="cpu").to(device, non_blocking=True)
        self.new_weights = self._beta * self._old_weights + (1 - self._beta)

    def take(self, states: Sequence[State]) -> None:
        """The next averages replace the old: the two buffers change places."""
        for state, new in zip(states, self.nexts, strict=True):
            state[self.name] = new
            state[f"{self.name}_weight"] = self._beta * state[f"{self.name}_weight"] + (1 - self._beta)
        self.nexts = self.olds

    def take_if(self, sound: Tensor, states: Sequence[State]) -> None:
        """Their weights likewise where `sound`, in place; the kernel has copied the averages."""
        weights = torch.where(sound, self.new_weights, self._old_weights).unbind()
        for state, weight in zip(states, weights, strict=True):
            if not isinstance(state[f"{self.name}_weight"], Tensor):
                if capturing():
                    raise RuntimeError(NEEDS_A_STEP)
                state[f"{self.name}_weight"] = torch.empty_like(weight)
        torch._foreach_copy_([state[f"{self.name}_weight"] for state in states], weights)


def dense(x: Tensor) -> bool:
    return x.is_contiguous() or x.is_contiguous(memory_format=torch.channels_last)


def aligned(x: Tensor) -> bool:
    return x.data_ptr() % 16 == 0


def laid_like(v: Tensor, x: Tensor) -> Tensor:
    """v in x's order in memory. The stride of a dimension of one entry says nothing: 1 x 1 convolutions have two."""
    return v if alike(v, x) else torch.empty_like(x).copy_(v)


def alike(v: Tensor, x: Tensor) -> bool:
    same = all(a == b for a, b, size in zip(v.stride(), x.stride(), x.shape, strict=True) if size != 1)
    return same and v.dtype == x.dtype and v.device == x.device and aligned(v)
