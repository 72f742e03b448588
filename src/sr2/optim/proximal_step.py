"""The one step that all three methods share: (x, v, D) -> the trial point x + s and the parts of the model.

    s = argmin_s  v's + s'Ds / 2 + R(x + s),        x + s = prox_{R/D}(x - v / D)

`steps` holds 1/D: one number for all entries, or one tensor of steps a tensor where R is separable.

Two paths compute the same thing. The loop takes a group's tensors as they are and is the one to read. The flat path
uses that a separable R cannot tell tensors apart. On an accelerator it lays them end to end: a handful of launches,
whatever their number. On the CPU it cuts them into chunks that stay in the cache while a dozen operations pass, and
lays only small ones end to end.

Every path keeps x before it moves it, and notes that it has: x is read where it is kept, and only written where it is.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..regularizers.base import RUN, Regularizer, Step, exact_sum, in_runs

ROWS = 1024
"""The runs of a chunk: 2 MB of float32 a tensor. Fewer, and Python is what takes the time."""
SMALL = 32 * RUN
"""A tensor of so many entries or fewer is laid end to end with others of its kind, on the CPU too."""
JOINED = 256 * RUN
"""And so many at most together, which stay in the cache."""


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
    olds: Sequence[Tensor]  # where x is kept
    vs: Sequence[Tensor]
    steps: Sequence[Step]


_Row = tuple[Tensor, Tensor, Tensor, Step]  # of one tensor


def proximal_point(
    xs: Sequence[Tensor], vs: Sequence[Tensor], steps: Sequence[Step], regularizer: Regularizer
) -> list[Tensor]:
    """prox_{step R}(x - step v), as new tensors in the dtype of x."""
    us = [_forward(wide(x), wide(v), step) for x, v, step in zip(xs, vs, steps, strict=True)]
    return [z.to(x.dtype) for z, x in zip(regularizer.prox_of(us, steps), xs, strict=True)]


def _forward(x: Tensor, v: Tensor, step: Step) -> Tensor:
    """x - step v, rounded twice whatever computes it, with one temporary."""
    u = step * v
    return torch.sub(x, u, out=u) if not torch.compiler.is_compiling() and u.shape == x.shape else x - u


def move_to_trial(
    group: Piece, regularizer: Regularizer, moved: list[Piece], *, flat: bool, compiled: bool = False
) -> Parts:
    """x <- x + s, in place; returns the parts of the model. What has moved, or may have, is in `moved`."""
    work: Callable[[Piece, Regularizer], Parts] = _move
    pieces = iter([group])
    if compiled and regularizer.separable:
        work, pieces = _compiled_move, _pieces(group, None)
    elif flat and regularizer.separable and _one_kind_on_cuda(group.xs):
        work = _move_end_to_end
    elif flat and regularizer.separable:
        return _move_on_cpu(group, regularizer, moved)
    return add_parts([work(piece, regularizer) for piece in _kept(pieces, moved)])


def _move_on_cpu(group: Piece, regularizer: Regularizer, moved: list[Piece]) -> Parts:
    small, large = _apart(group)
    parts = [_move_end_to_end(piece, regularizer) for piece in _kept(iter(small), moved)]
    pieces = _kept(_pieces(large, ROWS), moved)
    if large.xs and _known(large, regularizer):
        parts.append(_move_in_place(pieces, regularizer))
    else:
        parts += [_move(piece, regularizer) for piece in pieces]
    return add_parts(parts)


def _apart(group: Piece) -> tuple[list[Piece], Piece]:
    """The small tensors, if there are several, and the rest. Of small ones, calls cost more than the arithmetic."""
    kind = (group.xs[0].dtype, group.xs[0].device)
    small: list[_Row] = []
    large: list[_Row] = []
    for x, old, v, step in zip(*group, strict=True):
        joins = x.numel() <= SMALL and (x.dtype, x.device) == kind == (v.dtype, v.device)
        (small if joins else large).append((x, old, v, step))
    if len(small) < 2:
        return [], group
    pieces: list[list[_Row]] = []
    room = 0
    for row in small:
        room -= row[0].numel()
        if not pieces or room < 0:
            pieces.append([])
            room = JOINED - row[0].numel()
        pieces[-1].append(row)
    return [_piece(rows) for rows in pieces], _piece(large)


def _piece(rows: Sequence[_Row]) -> Piece:
    return Piece([x for x, *_ in rows], [old for _, old, *_ in rows], [v for *_, v, _ in rows], [s for *_, s in rows])


def _kept(pieces: Iterator[Piece], moved: list[Piece]) -> Iterator[Piece]:
    """Each piece, to be moved before the next is asked for: x is kept, then noted as kept, and only then moved."""
    for piece in pieces:
        torch._foreach_copy_(list(piece.olds), list(piece.xs))
        moved.append(piece)
        yield piece


def put_back(moved: Sequence[Piece]) -> None:
    """x + s -> x, exactly."""
    for piece in moved:
        torch._foreach_copy_(list(piece.xs), list(piece.olds))


def add_parts(parts: Sequence[Parts]) -> Parts:
    """The parts of several pieces or groups, on the device of the first."""
    if len(parts) == 1:
        return parts[0]
    columns = zip(*parts, strict=True)
    return Parts(*(torch.stack([t.to(column[0].device) for t in column]).sum() for column in columns))


def _move(piece: Piece, regularizer: Regularizer) -> Parts:
    xs, olds, vs, steps = piece
    zs = proximal_point(olds, vs, steps, regularizer)
    for x, z in zip(xs, zs, strict=True):
        x.copy_(z)
    return _parts(olds, vs, zs, regularizer)


def _parts(xs: Sequence[Tensor], vs: Sequence[Tensor], zs: Sequence[Tensor], regularizer: Regularizer) -> Parts:
    vs_sum, ss_sum = [], []
    for x, v, z in zip(xs, vs, zs, strict=True):
        # z - x of two neighbouring float32 is exact, or nearly so; bfloat16 would round it to 8 bits.
        s = wide(z) - wide(x)
        product = wide(v) * s
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
    own = [s for s, x in zip(group.steps, group.xs, strict=True) if isinstance(s, Tensor) and s.shape == x.shape]
    if len(own) == len(group.xs):  # a step an entry, also of a parameter that is one number
        step = _end_to_end(own)
    (z,) = proximal_point([x], [v], [step], regularizer)
    torch._foreach_copy_(list(group.xs), _cut(z, group.xs))
    return _parts([x], [v], [z], regularizer)


def _one_kind_on_cuda(xs: Sequence[Tensor]) -> bool:
    return all(x.is_cuda for x in xs) and len({(x.dtype, x.device) for x in xs}) == 1


def _pieces(group: Piece, rows: int | None) -> Iterator[Piece]:
    """Every tensor's memory as matrices with a run a row, of so many rows at most, and what is left of it.

    One that is not dense, or whose v or steps lie otherwise, is one piece.
    """
    for x, old, v, step in zip(*group, strict=True):
        together = [x, old, v, *([step] if isinstance(step, Tensor) and step.dim() > 0 else [])]
        if any(t.stride() != x.stride() for t in together) or not _dense(x):
            yield Piece([x], [old], [v], [step])
            continue
        for part in zip(*(_in_runs(t.as_strided((t.numel(),), (1,)), rows) for t in together), strict=True):
            yield Piece([part[0]], [part[1]], [part[2]], [part[3] if len(part) > 3 else step])


def _in_runs(flat: Tensor, rows: int | None) -> list[Tensor]:
    run = _run(flat.numel())
    whole = flat.numel() // run
    matrix, rest = flat[: whole * run].view(-1, run), flat[whole * run :]
    chunks = torch.split(matrix, rows * RUN // run if rows else whole) if whole else ()
    return [*chunks, rest] if rest.numel() or not whole else list(chunks)


@functools.cache
def _run(size: int) -> int:
    """The longest run of whole vectors that leaves no rest; the longest of all where each leaves one."""
    return next((run for run in range(RUN, RUN // 2, -16) if size % run == 0), RUN)


def _known(group: Piece, regularizer: Regularizer) -> bool:
    """Whether `_move_in_place` can do it: l1 or l0, one number for a step, on the CPU in float32 or float64."""
    a, b, c = regularizer.coefficients or (0.0, 0.0, 1.0)
    return (
        c == 0
        and not (a and b)
        and isinstance(group.steps[0], float)
        and all(x.is_cpu and x.dtype == v.dtype != torch.bfloat16 for x, v in zip(group.xs, group.vs, strict=True))
    )


def _move_in_place(pieces: Iterator[Piece], regularizer: Regularizer) -> Parts:
    """`_move` for l1 and l0 without a new tensor: on the CPU, fresh memory costs more than the arithmetic."""
    a, b, _ = regularizer.coefficients or (0.0, 0.0, 0.0)
    sums, parts = [], []
    s = t = torch.empty(0, device="cpu")
    for piece in pieces:
        (x,), (old,), (v,), (step,) = piece
        size = x.numel()
        if not in_runs(x) or size > ROWS * RUN or not isinstance(step, float):
            parts.append(_move(piece, regularizer))
            continue
        if s.shape != x.shape or s.dtype != x.dtype:
            s, t = (buffer[:size].view(x.shape) for buffer in _scratch.buffers(x.dtype, ROWS * RUN))
        torch.sub(old, torch.mul(v, step, out=t), out=t)
        largest = torch.finfo(x.dtype).max
        if a:
            torch.ops.aten.softshrink.out(t, min(a * step, largest), out=x)
        elif b:
            torch.ops.aten.hardshrink.out(t, min((2 * b * step) ** 0.5, largest), out=x)
        else:
            x.copy_(t)
        torch.sub(x, old, out=s)
        vs, norms = torch.mul(v, s, out=t).sum(1), torch.linalg.vector_norm(s, 2, 1)
        if a:
            torch.sub(torch.abs(old, out=t), torch.abs(x, out=s), out=t)
        else:
            torch.sub(torch.ne(old, 0, out=t), torch.ne(x, 0, out=s), out=t)
        sums.append((vs, t.sum(1), norms))
    if sums:  # of runs, as `exact_sum` takes them; the squares of s in one pass instead of two
        vs, dR, norms = (torch.cat(column).double() for column in zip(*sums, strict=True))
        parts.append(Parts(vs.sum(), (a or b) * dR.sum(), norms.square_().sum()))
    return add_parts(parts)


class _Scratch(threading.local):
    """Each thread's own: optimizers that step in two threads would write over each other's. They go with the thread."""

    def __init__(self) -> None:
        self.buffers = functools.cache(_two_buffers)


def _two_buffers(dtype: torch.dtype, size: int) -> tuple[Tensor, Tensor]:
    return torch.empty(size, dtype=dtype, device="cpu"), torch.empty(size, dtype=dtype, device="cpu")


_scratch = _Scratch()


def _compiled_move(piece: Piece, regularizer: Regularizer) -> Parts:
    """`_move` of one tensor, compiled. The step goes as a tensor: a number would be compiled in."""
    (x,), (old,), (v,), (step,) = piece
    if x.dim() < 2:  # what is left beside whole runs
        return _move(piece, regularizer)
    step = step if isinstance(step, Tensor) else torch.tensor(step, dtype=torch.float64, device="cpu")
    return Parts(*_compiler()(x, old, v, step, x.new_ones(x.shape[-1:]), regularizer))


@functools.cache
def _compiler() -> Callable[..., Any]:
    def move(x: Tensor, old: Tensor, v: Tensor, step: Tensor, ones: Tensor, regularizer: Regularizer) -> Parts:
        (z,) = proximal_point([old], [v], [step], regularizer)
        z = z * ones
        x.copy_(z)
        return _parts([old], [v], [z], regularizer)

    # For one loop over memory, two things: z, which reads more than two tensors, is stored before it is summed; and
    # its loop must stay a loop over rows, as the sums' are, which an operand of one row sees to.
    return torch.compile(move, dynamic=True, options={"realize_reads_threshold": 2, "emulate_precision_casts": True})


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


def wide(x: Tensor) -> Tensor:
    """bfloat16 holds 8 bits: the step is computed in float32 and rounded once."""
    return x.float() if x.dtype == torch.bfloat16 else x
