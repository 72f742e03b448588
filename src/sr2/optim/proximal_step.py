"""The one step that all three methods share: (x, v, D) -> the trial point x + s and the parts of the model.

    s = argmin_s  v's + s'Ds / 2 + R(x + s),        x + s = prox_{R/D}(x - v / D)

`steps` holds 1/D: one number for all entries, or one tensor of steps a tensor where R is separable.

Two paths compute the same thing. The loop takes a group's tensors as they are and is the one to read. The flat path
uses that a separable R cannot tell tensors apart. On an accelerator it lays them end to end: a handful of launches,
whatever their number. On the CPU it cuts them into chunks that stay in the cache while a dozen operations pass.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..regularizers.base import Regularizer, Step, exact_sum

CHUNK = 1 << 19


class Zero(Regularizer):
    """R = 0: what a group without a regularizer has."""

    separable = True
    convex = True
    coefficients = (0.0, 0.0, 0.0)

    def prox_of(self, xs: Sequence[Tensor], steps: Sequence[Step]) -> list[Tensor]:
        return list(xs)

    def terms_of(self, xs: Sequence[Tensor]) -> list[Tensor]:
        return [torch.zeros((), dtype=torch.float64, device=x.device) for x in xs[:1]]


class Parts(NamedTuple):
    """The scalars of the model, float64, on the device."""

    vs: Tensor  # v's
    dR: Tensor  # R(x) - R(x + s)
    ss: Tensor  # |s|^2


class Piece(NamedTuple):
    """What is worked on at a time: all tensors of a group, or one part of them."""

    xs: Sequence[Tensor]
    vs: Sequence[Tensor]
    steps: Sequence[Step]


def proximal_point(
    xs: Sequence[Tensor], vs: Sequence[Tensor], steps: Sequence[Step], regularizer: Regularizer
) -> list[Tensor]:
    """prox_{step R}(x - step v), as new tensors in the dtype of x."""
    us = [_forward(_wide(x), _wide(v), step) for x, v, step in zip(xs, vs, steps, strict=True)]
    return [z.to(x.dtype) for z, x in zip(regularizer.prox_of(us, steps), xs, strict=True)]


def _forward(x: Tensor, v: Tensor, step: Step) -> Tensor:
    """x - step v, rounded twice whatever computes it, with one temporary."""
    u = step * v
    return torch.sub(x, u, out=u) if not torch.compiler.is_compiling() and u.shape == x.shape else x - u


def move_to_trial(group: Piece, regularizer: Regularizer, *, flat: bool, compiled: bool = False) -> Parts:
    """x <- x + s, in place; returns the parts of the model."""
    work = _compiled_move if compiled else _move_in_place if _known(group, regularizer) else _move
    if not (flat or compiled) or not regularizer.separable:
        return _move(group, regularizer)
    if not compiled and all(x.is_cuda for x in group.xs) and len({(x.dtype, x.device) for x in group.xs}) == 1:
        return _move_end_to_end(group, regularizer)
    return add_parts([work(piece, regularizer) for piece in _chunks(group, None if compiled else CHUNK)])


def add_parts(parts: Sequence[Parts]) -> Parts:
    """The parts of several pieces or groups, on the device of the first."""
    columns = zip(*parts, strict=True)
    return Parts(*(torch.stack([t.to(column[0].device) for t in column]).sum() for column in columns))


def _move(piece: Piece, regularizer: Regularizer) -> Parts:
    xs, vs, steps = piece
    zs = proximal_point(xs, vs, steps, regularizer)
    parts = _parts(xs, vs, zs, regularizer)
    for x, z in zip(xs, zs, strict=True):
        x.copy_(z)
    return parts


def _parts(xs: Sequence[Tensor], vs: Sequence[Tensor], zs: Sequence[Tensor], regularizer: Regularizer) -> Parts:
    vs_sum, ss_sum = [], []
    for x, v, z in zip(xs, vs, zs, strict=True):
        # z - x of two neighbouring float32 is exact, or nearly so; bfloat16 would round it to 8 bits.
        s = _wide(z) - _wide(x)
        product = _wide(v) * s
        vs_sum.append(exact_sum(product))
        ss_sum.append(exact_sum(s.square_()))
    device = vs_sum[0].device
    dR = regularizer.decrease_of(xs, zs).to(device)
    return Parts(_sum(vs_sum, device), dR, _sum(ss_sum, device))


def _sum(scalars: Sequence[Tensor], device: torch.device) -> Tensor:
    return scalars[0] if len(scalars) == 1 else torch.stack([s.to(device) for s in scalars]).sum()


def _move_end_to_end(group: Piece, regularizer: Regularizer) -> Parts:
    x, v = _end_to_end(group.xs), _end_to_end(group.vs)
    step = group.steps[0]
    if isinstance(step, Tensor) and step.dim() > 0:
        step = _end_to_end([s for s in group.steps if isinstance(s, Tensor)])
    (z,) = proximal_point([x], [v], [step], regularizer)
    torch._foreach_copy_(list(group.xs), _cut(z, group.xs))
    return _parts([x], [v], [z], regularizer)


def _chunks(group: Piece, size: int | None) -> Iterator[Piece]:
    """Every tensor in pieces of its memory; one that is not dense, or whose v or steps lie otherwise, is one piece."""
    for x, v, step in zip(*group, strict=True):
        together = [x, v, *([step] if isinstance(step, Tensor) and step.dim() > 0 else [])]
        if any(t.stride() != x.stride() for t in together) or not _dense(x):
            yield Piece([x], [v], [step])
            continue
        flat = [t.as_strided((t.numel(),), (1,)) for t in together]
        for start in range(0, max(1, x.numel()), size or max(1, x.numel())):
            part = [t[start : start + size] if size else t for t in flat]
            yield Piece([part[0]], [part[1]], [part[2] if len(part) > 2 else step])


def _known(group: Piece, regularizer: Regularizer) -> bool:
    """Whether `_move_in_place` can do it: l1 or l0, one number for a step, on the CPU in float32 or float64."""
    a, b, c = regularizer.coefficients or (0.0, 0.0, 1.0)
    return (
        c == 0
        and not (a and b)
        and isinstance(group.steps[0], float)
        and all(x.is_cpu and x.dtype == v.dtype != torch.bfloat16 for x, v in zip(group.xs, group.vs, strict=True))
    )


def _move_in_place(piece: Piece, regularizer: Regularizer) -> Parts:
    """`_move` for l1 and l0 without a new tensor: on the CPU, fresh memory costs more than the arithmetic."""
    (x,), (v,), (step,) = piece
    a, b, _ = regularizer.coefficients or (0.0, 0.0, 0.0)
    size = x.numel()
    if x.dim() != 1 or size > CHUNK or not isinstance(step, float):
        return _move(piece, regularizer)
    z, s, t = (buffer[:size] for buffer in _buffers(x.dtype, CHUNK))
    torch.sub(x, torch.mul(v, step, out=z), out=z)
    largest = torch.finfo(x.dtype).max
    if a:
        torch.ops.aten.softshrink.out(z, min(a * step, largest), out=z)
    if b:
        torch.ops.aten.hardshrink.out(z, min((2 * b * step) ** 0.5, largest), out=z)
    torch.sub(z, x, out=s)
    vs = exact_sum(torch.mul(v, s, out=t))
    ss = exact_sum(torch.mul(s, s, out=t))
    dR = torch.zeros((), dtype=torch.float64)
    if a:
        dR = a * exact_sum(torch.sub(torch.abs(x, out=t), torch.abs(z, out=s), out=t))
    if b:
        dR = b * (torch.count_nonzero(x) - torch.count_nonzero(z)).double()
    x.copy_(z)
    return Parts(vs, dR, ss)


@functools.cache
def _buffers(dtype: torch.dtype, size: int) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty(size, dtype=dtype), torch.empty(size, dtype=dtype), torch.empty(size, dtype=dtype)


def _compiled_move(piece: Piece, regularizer: Regularizer) -> Parts:
    """`_move` of one tensor, compiled. The step goes as a tensor: a number would be compiled in."""
    (x,), (v,), (step,) = piece
    step = torch.as_tensor(step, dtype=torch.float64) if not isinstance(step, Tensor) else step
    return Parts(*_compiler()(x, v, step, regularizer))


@functools.cache
def _compiler() -> Callable[..., Any]:
    def move(x: Tensor, v: Tensor, step: Tensor, regularizer: Regularizer) -> Parts:
        return _move(Piece([x], [v], [step]), regularizer)

    return torch.compile(move, dynamic=True)


def _dense(x: Tensor) -> bool:
    """Whether the entries fill their stretch of memory, in any order of dimensions."""
    expected = 1
    for size, stride in sorted(zip(x.shape, x.stride(), strict=True), key=lambda pair: pair[1]):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _end_to_end(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([t.reshape(-1) for t in tensors])


def _cut(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    pieces = torch.split(flat, [t.numel() for t in like])
    return [piece.view(t.shape) for piece, t in zip(pieces, like, strict=True)]


def _wide(x: Tensor) -> Tensor:
    """bfloat16 holds 8 bits: the step is computed in float32 and rounded once."""
    return x.float() if x.dtype == torch.bfloat16 else x
