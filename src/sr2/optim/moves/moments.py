"""The averages of the fused kernel, with what they were; and how tensors lie in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ...numerics import capturing, in_order_of
from ..parts.metrics import State
from .base import NEEDS_A_STEP


class Moments:
    """The bias-corrected averages that the kernel moves on in place, of the gradients and of their squares; what they
    were is kept, as x is.

    Args:
        betas: the weights of the past, by the name under which a parameter's state has the average, with its own weight
            beside it.
        xs: the parameters, for buffers of their layout.
        capturable: the weights live on the device, as views of one tensor.
    """

    def __init__(self, betas: Mapping[str, float], xs: Sequence[Tensor], *, capturable: bool) -> None:
        self._betas, self._capturable = betas, capturable
        self._kept = {name: [torch.empty_like(x) for x in xs] for name in betas}
        columns = [[beta] for beta in betas.values()]
        self._beta = torch.tensor(columns, dtype=torch.float64, device="cpu").to(xs[0].device)
        self._newest = 1 - self._beta
        self._weights = torch.empty(0, dtype=torch.float64, device=xs[0].device)
        self._views: list[Tensor] = []

    def find(self, xs: Sequence[Tensor], states: Sequence[State]) -> None:
        """The averages so far, zero at first, laid out as x; and the weights of the next ones."""
        for name in self._betas:
            for x, state in zip(xs, states, strict=True):
                if name not in state:
                    if capturing():
                        raise RuntimeError(NEEDS_A_STEP)
                    state[name], state[f"{name}_weight"] = torch.zeros_like(x), 0.0
                elif not alike(state[name], x):
                    state[name] = torch.empty_like(x).copy_(state[name])
        self._now = {name: [state[name] for state in states] for name in self._betas}
        if self._betas:
            self._find_weights(states)
            self.new_weights = torch.addcmul(self._newest, self._beta, self._weights)

    def _find_weights(self, states: Sequence[State]) -> None:
        """As one tensor; with `capturable` the states have views of it, and it is made once."""
        found = [state[f"{name}_weight"] for name in self._betas for state in states]
        if self._views and all(w is view for w, view in zip(found, self._views, strict=True)):
            return
        if self._capturable and capturing():
            raise RuntimeError(NEEDS_A_STEP)
        device, shape = self._beta.device, (len(self._betas), len(states))
        if any(isinstance(w, Tensor) for w in found):
            flat = torch.stack([torch.as_tensor(w, dtype=torch.float64, device=device) for w in found])
        else:
            flat = torch.tensor(found, dtype=torch.float64, device="cpu").to(device, non_blocking=True)
        self._weights = flat.view(shape)
        if self._capturable:
            self._views = list(flat.unbind())
            views = iter(self._views)
            for name in self._betas:
                for state in states:
                    state[f"{name}_weight"] = next(views)

    def corrected(self, name: str) -> list[Tensor]:
        """An average, as the kernel has moved it on, over its new weight."""
        weights = self.new_weights[list(self._betas).index(name)]
        return [average / weight for average, weight in zip(self._now[name], weights, strict=True)]

    @property
    def rows(self) -> list[list[Tensor]]:
        """Of each average its tensors and where they are kept."""
        return [row for name in self._betas for row in (self._now[name], self._kept[name])]

    def put_back(self) -> None:
        """The averages become what they were."""
        for name in self._betas:
            torch._foreach_copy_(self._now[name], self._kept[name])

    def take(self, states: Sequence[State]) -> None:
        """The new averages stay: their weights follow, where the host decides."""
        for name, beta in self._betas.items():
            for state in states:
                state[f"{name}_weight"] = beta * state[f"{name}_weight"] + (1 - beta)

    def take_if(self, sound: Tensor) -> None:
        """Their weights likewise where `sound`, in place; the kernel has put the averages back where not."""
        if self._betas:
            torch.where(sound, self.new_weights, self._weights, out=self._weights)


def dense(x: Tensor) -> bool:
    return x.is_contiguous() or x.is_contiguous(memory_format=torch.channels_last)


def aligned(x: Tensor) -> bool:
    return x.data_ptr() % 16 == 0


def laid_like(v: Tensor, x: Tensor) -> Tensor:
    """v in x's order in memory."""
    return v if alike(v, x) else torch.empty_like(x).copy_(v)


def alike(v: Tensor, x: Tensor) -> bool:
    return in_order_of(v, x) and v.dtype == x.dtype and v.device == x.device and aligned(v)
