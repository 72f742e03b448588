"""Which examples a network is given: marks by which they are known when they come again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

WIDEST = 4096
"""So many numbers of an example are looked at, at most, evenly over it."""
WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integers of as many bytes as a number has."""


class Examples:
    """Around an evaluation: the marks of what `module` is called with in it; `then` is given them if the step is done.

    >>> layer, x = nn.Linear(3, 1), torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    >>> with Examples(layer) as examples:
    ...     _ = layer(x)
    ...     _ = layer(x.flip(0))
    >>> a, b, c, d = examples.marks
    >>> a == d != b == c
    True
    """

    def __init__(self, module: nn.Module, then: Callable[[list[int]], None] | None = None) -> None:
        self._module, self._then = module, then
        self.marks: list[int] = []

    def __enter__(self) -> Examples:
        self._hook = self._module.register_forward_pre_hook(self._look, with_kwargs=True)
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._hook.remove()

    def done(self) -> None:
        """The step is done."""
        if self._then is not None:
            self._then(self.marks)

    def _look(self, _: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        if torch.compiler.is_compiling():  # the hook would become part of the compiled network
            return
        try:
            self.marks += marks_of([args, named])
        except (RuntimeError, TypeError):  # what a transform of torch.func has wrapped has no numbers
            self.marks.clear()


@torch.no_grad()
def marks_of(inputs: object) -> list[int]:
    """A number for each example, the same for the same example: a hash of its bytes, of all tensors that have as many
    rows as the first one. Integers alone, since a sum of floats depends on where in a batch an example stands."""
    tensors = [t.detach() for t in _tensors(inputs) if t.dim() > 0 and t.layout == torch.strided]
    if not tensors:
        return []
    marks = torch.zeros(len(tensors[0]), dtype=torch.int64, device=tensors[0].device)
    for t in tensors:
        if len(t) == len(marks):
            marks = _mixed(marks + _row_sums(t).to(marks.device))
    return marks.tolist()


def _tensors(inputs: object) -> Iterator[Tensor]:
    if type(inputs) is Tensor:
        yield inputs
    elif isinstance(inputs, Mapping):
        for value in inputs.values():
            yield from _tensors(value)
    elif isinstance(inputs, (tuple, list)):
        for value in inputs:
            yield from _tensors(value)


def _row_sums(t: Tensor) -> Tensor:
    """Of every row, a hash of each number and its place, summed modulo 2^64."""
    numbers = torch.view_as_real(t) if t.is_complex() else t
    rows = numbers.reshape(len(t), -1)
    rows = rows[:, :: -(-max(1, rows.shape[1]) // WIDEST)].contiguous()
    words = rows.view(WORDS[rows.element_size()]).long()
    return _mixed(words + _mixed(torch.arange(words.shape[1], device=words.device))).sum(1)


def _mixed(x: Tensor) -> Tensor:
    """Each number to one that looks random (the steps of SplitMix64)."""
    x = (x + 1) * -7046029254386353131
    x = (x ^ (x >> 30)) * -4658895280553007687
    x = (x ^ (x >> 27)) * -7723592293110705685
    return x ^ (x >> 31)
