"""Exact sums, working precision and memory layout: the arithmetic that regularizers and optimizers share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

RUN = 512
"""How many float32 entries, at most, are summed in float32 before float64 goes on, on the CPU."""
PART = 1 << 20
"""How many entries `in_parts` puts into one part."""


# ---- precision


def wide(x: Tensor) -> Tensor:
    """x in the precision of the arithmetic: bfloat16 holds 8 bits, so it is computed in float32 and rounded once."""
    return x.float() if x.dtype == torch.bfloat16 else x


def cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x in this dtype. That it is so already, torch takes a microsecond to say."""
    return x if x.dtype == dtype else x.to(dtype)


def like(z: Tensor, x: Tensor) -> Tensor:
    """z in x's dtype and, where x is dense, in x's strides."""
    if z.dtype == x.dtype and z.stride() == x.stride():
        return z
    out = torch.empty_like(x, memory_format=torch.preserve_format)
    return z if z.dtype == out.dtype and z.stride() == out.stride() else out.copy_(z)


class Rounding(NamedTuple):
    """How well the value f of a loss is known."""

    eps: float
    """Of the arithmetic that ends in the loss."""
    coarse: float
    """What rounding to bfloat16 on the way may hide of f: five deviations or more (benchmarks/rounding.py)."""

    @staticmethod
    def of(loss: torch.dtype, parameters: Iterable[torch.dtype], autocast: torch.dtype | None) -> Rounding:
        """eps of the loss's dtype, or float32's where a parameter is below float64; and the coarser one of autocast, or
        of layers whose parameters are bfloat16: the loss, which may be float32 again, shows neither."""
        dtypes = set(parameters)
        exact = torch.float64 if dtypes <= {torch.float64} else torch.float32
        rounds = torch.bfloat16 if autocast is None and torch.bfloat16 in dtypes else autocast
        coarse = 0.0 if rounds is None else 2 * torch.finfo(rounds).eps
        return Rounding(max(torch.finfo(loss).eps, torch.finfo(exact).eps), coarse)

    def slack(self, f: Number, f_trial: Number) -> Number:
        """What rounding may make of f(x) - f(x + s): 10 eps max(1, |f(x)|), or coarse |f| max(1, -log |f|) with
        f = f(x + s), where that is more.

        eps is of the loss, whose last operations have numbers of the size of 1; what is rounded before them, by
        autocast, changes the loss by a share of itself. A small cross-entropy f is e^-m of a margin m that is rounded
        to a share of m, hence the -log. Momentum shifts f(x), and f(x + s) is what was evaluated.
        """
        size = abs(f_trial)
        tiny = torch.finfo(size.dtype if isinstance(size, Tensor) else torch.float64).tiny
        return at_least(self.coarse * size * at_least(-by_torch(torch.log, at_least(size, tiny)), 1.0), self.fine(f))

    def fine(self, f: Number) -> Number:
        """10 eps max(1, |f(x)|)."""
        return 10 * self.eps * at_least(abs(f), 1.0)


# ---- the numbers of a decision

Number = Any
"""A 0-dim tensor, or a Python number where the host has read it: both are IEEE doubles, so the same lines give the same
bits. A network may be so small that operations on single numbers, as tensors, are a fifth of a step."""


class Plain:
    """What decides, and may do so on plain numbers."""

    plain: ClassVar[bool] = False
    """Whether its methods take plain numbers in place of 0-dim tensors: they then need the functions below, and no
    method of a tensor. Each class says it for itself, since a subclass may not."""

    def __init_subclass__(cls, **arguments: object) -> None:
        super().__init_subclass__(**arguments)
        cls.plain = cls.__dict__.get("plain", False)


def read(numbers: Sequence[Tensor]) -> list[float]:
    """0-dim tensors as plain numbers, in one read of a device."""
    if all(n.is_cpu for n in numbers):
        return [float(n.item()) for n in numbers]
    found: list[float] = stacked(numbers).cpu().tolist()
    return found


def where(flag: Number, this: Number, other: Number) -> Number:
    """`this` where the flag is true, else `other`."""
    return torch.where(flag, this, other) if isinstance(flag, Tensor) else this if flag else other


def finite(*numbers: Number) -> Number:
    """Whether each of them is."""
    if not isinstance(numbers[0], Tensor):
        return all(map(math.isfinite, numbers))
    return torch.stack(numbers).isfinite().all() if len(numbers) > 1 else numbers[0].isfinite()


def at_least(x: Number, least: Number) -> Number:
    """The larger one; NaN where x is."""
    return x.clamp_min(least) if isinstance(x, Tensor) else max(x, least)


def between(x: Number, low: float, high: float) -> Number:
    """The nearest number that is."""
    return x.clamp(low, high) if isinstance(x, Tensor) else min(max(x, low), high)


def as_tensor(x: Number) -> Tensor:
    """x as a tensor, on the host if it was none: in double precision, or an integer."""
    if isinstance(x, Tensor):
        return x
    return torch.tensor(x, dtype=torch.float64 if isinstance(x, float) else None, device="cpu")


def double(x: Number) -> Number:
    """x in double precision; it may be an integer."""
    return x.double() if isinstance(x, Tensor) else float(x)


def by_torch(function: Callable[[Tensor], Tensor], x: Number) -> Number:
    """`function` of x; Python's log and sqrt may round otherwise than torch's."""
    return function(x) if isinstance(x, Tensor) else float(function(vector([x])))


def vector(numbers: Sequence[Number], dtype: torch.dtype = torch.float64) -> Tensor:
    """All of them as one tensor, beside those that are tensors."""
    like = next((n for n in numbers if isinstance(n, Tensor)), None)
    if like is None:
        return torch.tensor(numbers, dtype=dtype, device="cpu")

    def tensor(n: Number) -> Tensor:  # no copy from the host, which a CUDA graph could not hold
        return n.to(dtype) if isinstance(n, Tensor) else torch.full((), n, dtype=dtype, device=like.device)

    return torch.stack([tensor(n) for n in numbers])


# ---- sums


def exact_sum(x: Tensor) -> Tensor:
    """The sum of all entries, accumulated in float64.

    On the CPU, runs of float32 entries are summed in float32 first, which loses no more than their own rounding:
    torch's sum into float64 takes twice as long.
    """
    single = x.dtype == torch.float32
    if x.is_cpu and in_runs(x) and (single or (x.dtype == torch.float64 and torch.compiler.is_compiling())):
        return x.sum(1).sum(dtype=torch.float64)
    large = x.numel() >= 128 * RUN  # below, the calls cost more
    if large and single and x.is_cpu and x.is_contiguous() and not torch.compiler.is_compiling():
        x = x.view(-1)
        whole = x.numel() - x.numel() % RUN
        return exact_sum(x[:whole].view(-1, RUN)) + x[whole:].sum(dtype=torch.float64)
    return x.sum(dtype=torch.float64)


def in_runs(x: Tensor) -> bool:
    """Whether each row of x is one such run."""
    return x.dim() == 2 and RUN // 2 < x.shape[1] <= RUN


def add(numbers: Sequence[Tensor]) -> Tensor:
    """The sum of 0-dim tensors, on the device of the first."""
    if len(numbers) == 1:
        return numbers[0]
    return stacked(numbers).sum()


def stacked(numbers: Sequence[Tensor]) -> Tensor:
    """0-dim tensors as one vector, on the device of the first."""
    device = numbers[0].device
    return torch.stack([n if n.device == device else n.to(device) for n in numbers])


def total(tensors: Sequence[Tensor]) -> Tensor:
    """The exact sum over all entries of several tensors, on the device of the first."""
    if not tensors:
        return torch.zeros((), dtype=torch.float64, device="cpu")
    return add([exact_sum(t) for t in tensors])


# ---- memory layout


def dense(x: Tensor) -> bool:
    """Whether the entries fill one stretch of memory, in any order of the dimensions."""
    expected = 1
    for size, stride in sorted(zip(x.shape, x.stride(), strict=True), key=lambda pair: pair[1]):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def in_order_of(t: Tensor, x: Tensor) -> bool:
    """Whether t lies in memory as x does. The stride of a dimension of one entry says nothing: 1 x 1 convolutions have
    two."""
    return all(a == b for a, b, size in zip(t.stride(), x.stride(), x.shape, strict=True) if size != 1)


def end_to_end(tensors: Sequence[Tensor]) -> Tensor:
    """All entries as one vector, which may be a view of a single tensor: a few launches then serve for any number."""
    flat: Tensor = _flatten_dense_tensors(tensors)  # type: ignore[no-untyped-call]
    return flat


def cut(flat: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    """The inverse of `end_to_end`: views of `flat` in the shapes of `tensors`."""
    return list(_unflatten_dense_tensors(flat, tensors))  # type: ignore[no-untyped-call]


def as_bytes(x: Tensor) -> Tensor:
    """Its memory as one vector, so that tensors of several dtypes share launches; x where that is not in one piece, and
    on the CPU, where there are none to share.

    Of a conjugate, which is a view with a flag, it is what the flag is on: torch copies no lists of them.
    """
    plain = not x.is_cpu and x.is_contiguous() and not x.is_complex() and not x.is_quantized
    return x.detach().view(-1).view(torch.uint8) if plain else x.conj() if x.is_conj() else x


def is_expanded(x: Tensor) -> bool:
    """Whether entries share their memory, so that nobody can write them in place; nor where there are no strides."""
    try:
        strides = x.stride()
    except RuntimeError:  # CSR and nested tensors
        return True
    return 0 in strides and any(stride == 0 and size > 1 for stride, size in zip(strides, x.shape, strict=True))


def in_parts(xs: Sequence[Tensor]) -> list[Tensor]:
    """Views of about a million entries, or of one row where that is longer."""
    return [part for x in xs for part in (x.chunk(max(1, -(-x.numel() // PART))) if x.dim() else (x,))]


# ---- tensors of which every process has a part (torch's DTensor)


def is_part(x: Tensor) -> bool:
    """Whether x is a DTensor; `torch.distributed.tensor` is not imported to ask."""
    return hasattr(x, "device_mesh")


def local(x: Tensor) -> Tensor:
    """What this process has of x, the same object at every call; x itself where that is all."""
    return x._local_tensor if is_part(x) else x  # type: ignore[attr-defined]


def whole(x: Tensor) -> Tensor:
    """All of x, asked of the other processes, which must ask too."""
    return x.full_tensor() if is_part(x) else x  # type: ignore[attr-defined]


def gradient_of(p: Tensor) -> Tensor | None:
    """What this process has of p's gradient, spread as p is: that of a p which all have may come as parts of a sum."""
    g = p.grad
    if g is not None and is_part(g) and g.placements != p.placements:  # type: ignore[attr-defined]
        g = g.redistribute(placements=p.placements)  # type: ignore[attr-defined]
    return None if g is None else local(g)


# ---- CUDA graphs


def capturing() -> bool:
    """Whether a CUDA graph is being captured."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def take_if(flag: Tensor, xs: Sequence[Tensor], points: Sequence[Tensor], *, looking: bool) -> None:
    """x <- the points where the flag is true, without looking at it unless one may; a choice, so that no NaN leaks."""
    if not looking:
        points = [torch.where(flag.to(x.device), point, x) for x, point in zip(xs, points, strict=True)]
    if not looking or flag:
        torch._foreach_copy_(list(xs), list(points))
