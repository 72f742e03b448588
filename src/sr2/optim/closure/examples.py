"""Which examples a network is given: marks by which they are known when they come again."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

WIDEST = 4096
"""So many numbers of an example are looked at, at most, evenly over it."""
MOST = 2**22
"""And so many of all examples of a call; of more, none, since a step would take too long."""
WORDS = {1: torch.uint8, 2: torch.int16}
"""Integers of as many bytes as a number has; of more, words of four are read."""


class Examples:
    """Around an evaluation: the marks of what `module` is called with in it; `then` is given them if the step is done.

    >>> layer, x = nn.Linear(3, 1), torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    >>> with Examples(layer) as examples:
    ...     _ = layer(x)
    >>> a, b = examples.marks
    >>> marks_of([x.flip(0)]) == [b, a], a == b
    (True, False)
    """

    def __init__(self, module: nn.Module | None = None, then: Callable[[list[int]], None] | None = None) -> None:
        self._module, self._then = module, then
        self._open = False
        self.marks: list[int] = []
        """Each once: a network may be given the same examples twice."""

    def __enter__(self) -> Examples:
        assert self._module is not None
        self._open = True
        self._hook = self._module.register_forward_pre_hook(self._look, with_kwargs=True)
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._hook.remove()
        self._open = False
        self.marks = list(dict.fromkeys(self.marks))

    def __reduce__(self) -> tuple[type[Examples], tuple[()]]:
        return Examples, ()  # the hook in a copy of the module that is made meanwhile sees nothing

    def done(self) -> None:
        """The step is done."""
        if self._then is not None:
            self._then(self.marks)

    def _look(self, _: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        # What traces would make the hook part of the network.
        if not self._open or torch.compiler.is_compiling() or torch._C._get_tracing_state():
            return
        try:
            self.marks += marks_of([args, named])
        except (RuntimeError, TypeError):  # what a transform of torch.func has wrapped has no numbers
            self.marks.clear()


@torch.no_grad()
def marks_of(inputs: object) -> list[int]:
    """A number for each example, the same for the same example: a hash of its bytes, of all tensors that have as many
    rows as the first one. Integers alone, since a sum of floats depends on where in a batch an example stands."""
    tensors = [t.detach() for t in _tensors(inputs) if t.dim() > 0]
    if sum(len(t) * min(math.prod(t.shape[1:]), WIDEST) for t in tensors) > MOST or not tensors:
        return []
    marks = _row_sums(tensors[0])
    for t in tensors[1:]:
        if len(t) == len(marks):
            marks = _mixed(marks) + _row_sums(t).to(marks.device)
    return marks.tolist()


def _tensors(inputs: object) -> Iterator[Tensor]:
    if type(inputs) is Tensor:
        if inputs.layout == torch.strided and not (inputs.is_quantized or inputs.is_nested):
            yield inputs
    elif isinstance(inputs, Mapping):
        for value in inputs.values():
            yield from _tensors(value)
    elif isinstance(inputs, (tuple, list)):
        for value in inputs:
            yield from _tensors(value)


def _row_sums(t: Tensor) -> Tensor:
    """Of every row, a hash of its words times a number for each place, summed modulo 2^64. The upper half of a word is
    in the lower one too: those of 0.0, 1.0 and -1.0 differ there alone, and would differ in few bits of the sum."""
    t = torch.view_as_real(t.resolve_conj()) if t.is_complex() else t.resolve_neg()
    words = _columns(t).contiguous()
    words = words.view(WORDS.get(words.element_size(), torch.int32))
    words = words ^ (words >> 4 * words.element_size())
    places = _mixed(torch.arange(words.shape[1], device=words.device))
    return _mixed((words * places).sum(1))


def _columns(t: Tensor) -> Tensor:
    """Of every row its numbers, or `WIDEST` of them; a large tensor is not copied for them."""
    n = math.prod(t.shape[1:])
    if n <= WIDEST:
        return t.reshape(len(t), n)
    chosen = torch.arange(0, n, -(-n // WIDEST), device=t.device)
    places: list[Any] = [slice(None), *torch.unravel_index(chosen, t.shape[1:])]
    return t[tuple(places)]


def _mixed(x: Tensor) -> Tensor:
    """Each number to one that looks random (the steps of SplitMix64)."""
    x = (x + 1) * -7046029254386353131
    x = (x ^ _right(x, 30)) * -4658895280553007687
    x = (x ^ _right(x, 27)) * -7723592293110705685
    return x ^ _right(x, 31)


def _right(x: Tensor, bits: int) -> Tensor:
    """Shifted by so many bits, with zeros from the left."""
    low: int = 2 ** (64 - bits) - 1
    return (x >> bits) & low
