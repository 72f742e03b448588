"""Milliseconds, multiply-adds and bytes of a network, measured on this machine."""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

Example = Tensor | Sequence[Tensor] | Mapping[str, Tensor]
"""The input of a network, or all of its inputs: in order, or by the names that its forward gives them."""


def inputs_of(example: Example, model: nn.Module) -> tuple[Tensor, ...]:
    """The inputs in order; anything else is an error of one sentence.

    Args:
        example: what a user gives.
        model: the network, whose forward has the names.

    >>> given = {"input2": torch.zeros(1, 2), "input1": torch.zeros(1, 3)}
    >>> [x.shape[1] for x in inputs_of(given, nn.Bilinear(3, 2, 1))]
    [3, 2]
    """
    if isinstance(example, Mapping):
        example = _in_order(example, getattr(model, "_orig_mod", model))  # what torch.compile has wrapped has the names
    made = tuple(example) if isinstance(example, Sequence) else (example,)
    kinds = [type(item).__name__ for item in made]
    if not all(isinstance(item, Tensor) for item in made):
        given = (
            f"a {type(example).__name__} of {', '.join(kinds)}" if isinstance(example, Sequence) else f"a {kinds[0]}"
        )
        raise TypeError(
            f"example must be a tensor, or a tuple or dict of tensors as the model takes them, and is {given}: give "
            "one input, as torch.zeros(1, 3, 32, 32)"
        )
    return made


def _in_order(example: Mapping[str, Tensor], model: nn.Module) -> tuple[Tensor, ...]:
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    arguments = inspect.signature(model.forward).parameters.values()
    names = [argument.name for argument in arguments if argument.kind in positional]
    if set(example) != set(names[: len(example)]):
        raise ValueError(
            f"the example has {', '.join(map(str, example))}, and the forward of {type(model).__name__} takes "
            f"{', '.join(names)}: give the first of these, without a gap"
        )
    return tuple(example[name] for name in names[: len(example)])


REPEATS = 9
"""Timings of each thing; the fastest counts."""
LEAST_SECONDS = 0.002
"""What takes less is called several times per timing; shorter than a scheduler's slice, so that some meet nobody."""


def milliseconds(*bodies: Callable[[], object]) -> list[float]:
    """The shortest time of each: what else the machine does only adds to it.

    They are interleaved, and every other time in the opposite order. Beside a process that takes every second slice of
    the core, the second of two was always the one that waited.
    """
    counts = []
    for body in bodies:
        body()
        start = time.perf_counter()
        body()
        _wait()
        counts.append(min(200, max(1, math.ceil(LEAST_SECONDS / max(time.perf_counter() - start, 1e-7)))))
    seconds: list[list[float]] = [[] for _ in bodies]
    for number in range(REPEATS):
        turns = list(zip(bodies, counts, seconds, strict=True))
        for body, count, found in reversed(turns) if number % 2 else turns:
            start = time.perf_counter()
            for _ in range(count):
                body()
            _wait()
            found.append((time.perf_counter() - start) / count)
    return [1e3 * min(found) for found in seconds]


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def layer_inputs(model: nn.Module, layers: Mapping[str, nn.Module], example: Example) -> dict[str, Tensor]:
    """What each layer is given in `model(example)`, in the order of the calls."""
    given: dict[str, Tensor] = {}

    def remember(name: str) -> Callable[..., None]:
        def hook(_: nn.Module, args: tuple[Any, ...]) -> None:
            given[name] = args[0].detach().clone()

        return hook

    hooks = [layer.register_forward_pre_hook(remember(name)) for name, layer in layers.items()]
    try:
        with torch.no_grad():
            model(*inputs_of(example, model))
    finally:
        for handle in hooks:
            handle.remove()
    return given


def macs(model: nn.Module, example: Example) -> int:
    """Multiply-adds of the linear, convolution and recurrent layers and of attention's projections, for these inputs.

    >>> macs(nn.Conv2d(3, 8, 3, padding=1), torch.zeros(1, 3, 10, 10))
    21600
    """
    total = 0

    def count(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        nonlocal total
        given = [*args, *kwargs.values()]
        if isinstance(module, nn.MultiheadAttention):  # whose own layers are never called
            total += module.embed_dim * sum(x.numel() for x in (*given[:3], output[0]))
        elif isinstance(module, nn.RNNBase):  # one may be given packed sequences, which have their entries in `data`
            total += (
                given[0].data.numel() // module.input_size * sum(p.numel() for p in module.parameters() if p.ndim > 1)
            )
        else:
            each = given[0] if isinstance(module, _ConvTransposeNd) else output
            total += each.numel() * module.weight[0].numel()

    kinds = (nn.Linear, _ConvNd, nn.MultiheadAttention, nn.RNNBase)
    hooks = [m.register_forward_hook(count, with_kwargs=True) for m in model.modules() if isinstance(m, kinds)]
    try:
        with torch.no_grad():
            model(*inputs_of(example, model))
    finally:
        for hook in hooks:
            hook.remove()
    return total


def parameters(model: nn.Module) -> int:
    """Entries of all parameters, each once."""
    return sum(p.numel() for p in model.parameters())


def table(rows: Sequence[Sequence[str]]) -> str:
    """Columns in line, the first to the left and the others to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = (
        "  ".join(c.rjust(w) if i else c.ljust(w) for i, (c, w) in enumerate(zip(r, widths, strict=True))) for r in rows
    )
    return "\n".join(line.rstrip() for line in lines)
