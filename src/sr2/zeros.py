"""Count zeros, make them, and keep them: what a trained network really has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from .checks import check_number
from .numerics import local, whole

Tensors = nn.Module | Mapping[str, Tensor] | Iterable[tuple[str, Tensor]] | Iterable[Tensor]
"""A model, or its tensors: a state dict, named ones, or bare ones."""


@dataclass(frozen=True)
class TensorZeros:
    """One tensor's count."""

    name: str
    shape: tuple[int, ...]
    zeros: int
    total: int

    @property
    def fraction(self) -> float:
        """Share of zeros; 0 for a tensor without entries."""
        return self.zeros / self.total if self.total else 0.0


@dataclass(frozen=True)
class Sparsity:
    """How many entries are zero (or at most `threshold` in magnitude): in all, and tensor by tensor."""

    threshold: float
    tensors: tuple[TensorZeros, ...]

    @property
    def zeros(self) -> int:
        return sum(t.zeros for t in self.tensors)

    @property
    def total(self) -> int:
        return sum(t.total for t in self.tensors)

    @property
    def fraction(self) -> float:
        """Share of zeros over all entries."""
        return self.zeros / self.total if self.total else 0.0

    def __str__(self) -> str:
        what = "zero" if self.threshold == 0 else f"|w| <= {self.threshold:g}"
        rows = [(t.name, "x".join(map(str, t.shape)) or "scalar", t) for t in self.tensors]
        rows.append(("total", "", TensorZeros("total", (), self.zeros, self.total)))
        cells = [(n, s, f"{t.zeros:,}", f"{t.total:,}", f"{100 * t.fraction:.2f} %") for n, s, t in rows]
        cells.insert(0, ("parameter", "shape", what, "of", "share"))
        widths = [max(len(row[i]) for row in cells) for i in range(5)]
        return "\n".join(
            "  ".join(c.ljust(w) if i < 2 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
            for row in cells
        )


def sparsity(model: Tensors, threshold: float = 0.0) -> Sparsity:
    """Count |w| <= threshold over every parameter of a model, each counted once. Prints as a table.

    Of a layer that `sparse_layers` has made, what it does not store is zero.

    >>> layer = nn.Linear(4, 2)
    >>> _ = nn.init.zeros_(layer.bias)
    >>> sparsity(layer).zeros, sparsity(layer).total
    (2, 10)
    """
    check_number("sparsity", "threshold", threshold, 0)
    named = list(_shaped(model))
    with torch.no_grad():
        counts = [whole(_at_most(p, threshold).sum()) for _, p, _ in named]
        found = torch.stack([c.cpu() for c in counts]).tolist() if counts else []
    totals = [prod(shape) for _, _, shape in named]
    rows = zip(named, found, totals, strict=True)
    zeros = (TensorZeros(name, shape, n + total - p.numel(), total) for (name, p, shape), n, total in rows)
    return Sparsity(float(threshold), tuple(zeros))


def prune_(model: Tensors, alpha: float) -> Sparsity:
    """Set every parameter entry with |w| <= alpha to zero, in place, without retraining; returns the new `sparsity`.

    >>> layer = nn.Linear(4, 2)
    >>> prune_(layer, 10.0).fraction
    1.0
    """
    check_number("prune_", "alpha", alpha, 0)
    entries = model if isinstance(model, nn.Module) else list(_named(model))  # which may be an iterator
    with torch.no_grad():
        for _, p, _ in _shaped(entries):
            p.masked_fill_(_at_most(p, alpha), 0.0)
    return sparsity(entries)


def keep_zeros(model: Tensors, optimizer: torch.optim.Optimizer) -> RemovableHandle:
    """What is zero now stays zero under any torch optimizer: after each of its steps it is zero again.

    For fine-tuning a pruned network. Momentum and weight decay go on as they are, and never bring an entry back, nor
    into the average that SR2 keeps.
    `KeepZeros` does the same as a regularizer, where a step is judged with its zeros.

    Args:
        model: a model or its tensors; those without a zero cost nothing.
        optimizer: what steps.

    Returns:
        a handle; its `remove()` ends it.

    >>> layer = nn.Linear(4, 2)
    >>> _ = nn.init.zeros_(layer.weight)
    >>> optimizer = torch.optim.AdamW(layer.parameters(), 0.1)
    >>> handle = keep_zeros(layer, optimizer)
    >>> layer(torch.ones(3, 4)).square().mean().backward()
    >>> optimizer.step()
    >>> sparsity(layer).zeros
    8
    """
    tensors = [p for _, p in _named(model)]
    stepped = {place for group in optimizer.param_groups for p in group["params"] for place in _places(p)}
    if not any(place in stepped for p in tensors for place in _places(p)):
        raise ValueError(
            f"keep_zeros: this {type(optimizer).__name__} steps none of the {len(tensors)} tensors of "
            f"{type(model).__name__}: give the optimizer of this model"
        )
    with torch.no_grad():
        masks = [(p, zero) for p, zero in ((p, p == 0) for p in tensors) if bool(zero.any())]

    @torch.no_grad()
    def put_back(*_: object) -> None:
        for p, zero in masks:
            p.masked_fill_(zero.to(p.device), 0.0)
            average = optimizer.state.get(p, {}).get("average")  # of SR2, which has taken in x as the step left it
            if average is not None:
                average.masked_fill_(local(zero).to(average.device), 0.0)

    return optimizer.register_step_post_hook(put_back)


def _places(p: Tensor) -> tuple[int, ...]:
    """What tells that two tensors are one: themselves, or their memory, as of a state dict's."""
    memory = local(p).untyped_storage().data_ptr()
    return (id(p), memory) if memory else (id(p),)


def _at_most(p: Tensor, bound: float) -> Tensor:
    """Where |w| <= bound; a mask, as a state dict may hold one, has no magnitude but its own."""
    return (p if p.dtype == torch.bool else p.abs()) <= bound


def _shaped(model: Tensors) -> Iterator[tuple[str, Tensor, tuple[int, ...]]]:
    """Names, entries and shapes; of a layer for inference the entries that it stores, in the shape that they are of."""
    layers = dict(model.named_modules()) if isinstance(model, nn.Module) else {}
    stored = {name: layer.stored_entries() for name, layer in layers.items() if hasattr(layer, "stored_entries")}
    entries = [(n, p.values() if p.layout == torch.sparse_csr else p, tuple(p.shape)) for n, p in _named(model)]
    entries += [(f"{name}.{key}".lstrip("."), *entry) for name, keys in stored.items() for key, entry in keys.items()]
    if stored:  # in the order of the layers
        order = {name: number for number, name in enumerate(layers)}
        entries.sort(key=lambda entry: order.get(entry[0].rpartition(".")[0], len(order)))
    yield from entries


def _named(model: Tensors) -> Iterator[tuple[str, Tensor]]:
    if isinstance(model, nn.Module):
        yield from model.named_parameters()
        return
    if not isinstance(model, Iterable):
        raise TypeError(f"give a model, or its tensors, and not a {type(model).__name__}")
    entries: Iterable[Any] = model.items() if isinstance(model, Mapping) else model
    for number, entry in enumerate(entries):
        yield (str(number), entry) if isinstance(entry, Tensor) else entry
