"""In few passes, for a separable R, which cannot tell tensors apart.

On an accelerator, tensors are laid end to end: a handful of launches, whatever their number. On the CPU, small ones
are laid end to end, since there calls cost more than the arithmetic, and large ones are cut into chunks that stay in
the cache while a dozen operations pass. `loop` is the oracle.

Where metric and direction go entry by entry too, on the CPU, they go through the same strips (`laid.py`).
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ...numerics import RUN, cut, dense, end_to_end, exact_sum, in_runs, wide
from ...regularizers.base import ZERO, Regularizer
from .base import add_models, model_of, proximal_point
from .pieces import Keep, Model, Piece

ROWS = 1024
"""The runs of a chunk: 2 MB of float32 per tensor. Fewer, and Python is what takes the time."""


def joined(group: Piece, regularizer: Regularizer, keep: Keep) -> Model:
    """`loop` with all tensors laid end to end; they must have one dtype and device."""
    keep(group)
    x, v = end_to_end(group.olds), end_to_end(group.vs)
    step = group.steps[0]
    own = [s for s, x in zip(group.steps, group.xs, strict=True) if isinstance(s, Tensor) and s.shape == x.shape]
    if len(own) == len(group.xs):  # a step per entry, also of a parameter that is one number
        step = end_to_end(own)
    (z,) = proximal_point([x], [v], [step], regularizer)
    torch._foreach_copy_(list(group.xs), cut(z, group.xs))
    gs = [end_to_end(group.gs)] if group.gs else ()
    return model_of(Piece((), [x], [v], [step], gs, _joined_decays(group)), [z], regularizer)


def _joined_decays(group: Piece) -> list[Tensor]:
    """Of each entry its own, since some tensors may have none."""
    if not group.gs or not group.decays:
        return []
    like: dict[str, Any] = {"dtype": wide(group.vs[0]).dtype, "device": group.xs[0].device}
    own = (c.to(**like) if isinstance(c, Tensor) else torch.full((), c, **like) for c in group.decays)
    return [end_to_end([c.expand_as(x) for c, x in zip(own, group.xs, strict=True)])]


def chunked(group: Piece, regularizer: Regularizer, keep: Keep) -> Model:
    """`loop` chunk by chunk."""
    return add_models([chunk(piece, regularizer, keep) for piece in pieces(group, ROWS * RUN)])


def chunk(piece: Piece, regularizer: Regularizer, keep: Keep) -> Model:
    """`loop` for one tensor; for l1 and l0 on the CPU without a new one, since fresh memory costs the most there."""
    keep(piece)
    if _known(piece, regularizer):
        return _in_place(piece, regularizer)
    zs = proximal_point(piece.olds, piece.vs, piece.steps, regularizer)
    piece.xs[0].copy_(zs[0])
    return model_of(piece, zs, regularizer)


def pieces(group: Piece, size: int | None) -> Iterator[Piece]:
    """Every tensor's memory as matrices with one run per row, of so many entries at most, and what is left of it.

    A tensor that is not dense, or whose v or steps lie otherwise, is one piece.
    """
    for own in zip(*(row for row in group if row), strict=True):
        x = own[0]
        apart = [isinstance(t, Tensor) and (t.dim() > 0 or t.shape == x.shape) for t in own]
        if any(cuts and t.stride() != x.stride() for t, cuts in zip(own, apart, strict=True)) or not dense(x):
            yield _piece(group, own)
            continue
        own = (x.detach(), *own[1:])  # whose views, which a move keeps, are none of x: torch could not swap that
        parts = [
            runs_of(t.as_strided((t.numel(),), (1,)), size) if cuts else [] for t, cuts in zip(own, apart, strict=True)
        ]
        for k in range(len(parts[0])):
            yield _piece(group, [of_t[k] if of_t else t for t, of_t in zip(own, parts, strict=True)])


def _piece(group: Piece, tensors: Sequence[Any]) -> Piece:
    """One tensor of each row that the group has."""
    left = iter(tensors)
    return Piece(*([next(left)] if row else () for row in group))


def runs_of(flat: Tensor, size: int | None) -> Sequence[Tensor]:
    """A vector as matrices with one run per row, of so many entries at most and of about one size; and the rest."""
    n, run = flat.numel(), _run(flat.numel())
    rows = n // run
    if not rows:
        return [flat]
    many = -(-rows // (size // run)) if size else 1
    chunks = torch.split(flat[: rows * run].view(-1, run), -(-rows // many))
    return chunks if rows * run == n else [*chunks, flat[rows * run :]]


@functools.cache
def _run(size: int) -> int:
    """The longest run of whole vectors that leaves no rest; the longest of all where each leaves one."""
    return next((run for run in range(RUN, RUN // 2, -16) if size % run == 0), RUN)


def _known(piece: Piece, regularizer: Regularizer) -> bool:
    """Whether `_in_place` can do it: l1, l0 or nothing, on the CPU in float32 or float64, with steps of that kind."""
    (x,), _, (v,), (step,), *_ = piece
    a, b, c = regularizer.coefficients or (0.0, 0.0, 1.0)
    if c or (a and b) or not in_runs(x) or x.numel() > ROWS * RUN:
        return False
    like_x = step.shape == x.shape and step.dtype == x.dtype if isinstance(step, Tensor) else isinstance(step, float)
    return like_x and x.is_cpu and x.dtype == v.dtype != torch.bfloat16


def _in_place(piece: Piece, regularizer: Regularizer) -> Model:
    """x <- x + s of one chunk, and the scalars of the model, as `loop` has them; sums as `exact_sum` takes them."""
    (x,), (old,), (v,), (step,), *_ = piece
    a, b, _ = regularizer.coefficients or (0.0, 0.0, 0.0)
    s, t = _scratch_for(x)
    torch.sub(old, torch.mul(v, step, out=t), out=x)
    if isinstance(step, Tensor):
        if a:
            torch.mul(step, a, out=t)
            x.sub_(torch.clamp(x, torch.neg(t, out=s), t, out=t))
        elif b:
            x.masked_fill_(torch.abs(x, out=s) <= torch.mul(step, 2 * b, out=t).pow_(0.5), 0.0)
    elif a:
        torch.ops.aten.softshrink.out(x, min(a * step, torch.finfo(x.dtype).max), out=x)
    elif b:
        torch.ops.aten.hardshrink.out(x, min((2 * b * step) ** 0.5, torch.finfo(x.dtype).max), out=x)
    model = _sums(piece)
    if a:
        torch.sub(torch.abs(old, out=t), torch.abs(x, out=s), out=t)
    elif b:
        torch.sub(torch.ne(old, 0, out=t), torch.ne(x, 0, out=s), out=t)
    return model._replace(dR=(a or b) * exact_sum(t)) if a or b else model


def sums(piece: Piece) -> Model:
    """The scalars of the model of one tensor that has moved, but R's."""
    return _sums(piece) if _known(piece, ZERO) else model_of(piece, piece.xs, ZERO)


def _sums(piece: Piece) -> Model:
    (x,), (old,), (v,), (step,), gs, decays = piece
    s, t = _scratch_for(x)
    torch.sub(x, old, out=s)
    vs, noise = exact_sum(torch.mul(v, s, out=t)), None
    if gs:
        torch.sub(gs[0], v, out=t)
        c = decays[0] if decays else 0.0
        if isinstance(c, Tensor):
            t.addcmul_(c, s, value=-0.5)
        elif c:
            t.sub_(s, alpha=0.5 * c)
        noise = exact_sum(t.mul_(s))
    if isinstance(step, Tensor):
        ss, sBs = exact_sum(s.square_()), exact_sum(s.div_(step))
    else:
        ss = torch.linalg.vector_norm(s, 2, 1).double().square_().sum()  # in one pass, not two
        sBs = ss / step
    return Model(vs, torch.zeros_like(vs), ss, sBs, noise)


def _scratch_for(x: Tensor) -> tuple[Tensor, Tensor]:
    s, t = _scratch.buffers(x.dtype, ROWS * RUN)
    return s[: x.numel()].view(x.shape), t[: x.numel()].view(x.shape)


class _Scratch(threading.local):
    """Each thread's own: optimizers that step in two threads would write over each other's. They go with the thread."""

    def __init__(self) -> None:
        self.buffers = functools.cache(_two_buffers)


def _two_buffers(dtype: torch.dtype, size: int) -> tuple[Tensor, Tensor]:
    return torch.empty(size, dtype=dtype, device="cpu"), torch.empty(size, dtype=dtype, device="cpu")


_scratch = _Scratch()
