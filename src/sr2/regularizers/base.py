"""Regularizer: WHAT is penalized. R, and its exact proximal operator.

A regularizer is a frozen dataclass that holds its constants (lambda and so on); the step size is an argument.
Its domain is one whole parameter group, all tensors together, so that a budget over a whole network needs no
special branch anywhere else.

A new regularizer writes two methods, one tensor at a time: `terms` (the summands of R) and `prox_tensor`.
Those that couple several tensors, as `L0Ball` does, write `terms_of` and `prox_of` instead.

Two more methods have a default that most keep: `at_strength`, R on its way to full strength, and `start`, for what R
takes from the first point.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence
from numbers import Real
from typing import Any, ClassVar, TypeGuard, overload

import torch
from torch import Tensor

from ..checks import shown
from ..numerics import add, in_parts, like, total, wide

Step = float | Tensor
"""A step size: a float, a 0-dim tensor, or a tensor with one step per entry."""


class Regularizer:
    """A nonsmooth function R of one parameter group, and its proximal operator.

    prox_{step R}(x) = argmin_z  R(z) + sum((z - x)**2 / (2 * step))

    Attributes:
        separable: R is a sum over entries, the same function of each: tensors may be cut and joined at will.
        diagonal: `prox` takes one step per entry (diagonal metrics need it). What is separable is diagonal.
        convex: R is convex (ProxSGD needs it).
        rowwise: R is a sum over the slices of dimension 0 of each tensor, with one of `terms_of` per tensor: a tensor
            may be cut between them. It concerns processes that have parts of a tensor; others are shown all of it.
        strict: R is 0 within a budget and infinite outside; a run that knows its length comes to it gradually.
        penalizes: R pulls at the weights, as no constraint does: SR2 has no weight decay beside it unless asked.
    """

    separable: ClassVar[bool] = False
    diagonal: ClassVar[bool] = False
    convex: ClassVar[bool] = False
    rowwise: ClassVar[bool] = False
    strict: ClassVar[bool] = False
    penalizes: ClassVar[bool] = True

    def __init_subclass__(cls, **arguments: object) -> None:
        super().__init_subclass__(**arguments)
        cls.diagonal = cls.diagonal or cls.separable
        # A subclass that writes its own R or prox is not what its parent says of them, unless it says so itself.
        written = {"terms", "prox_tensor", "terms_of", "prox_of"} & cls.__dict__.keys()
        plain = {"coefficients": property(lambda self: None), "rowwise": False, "decrease_of": Regularizer.decrease_of}
        for name in plain.keys() - cls.__dict__.keys() if written else ():
            setattr(cls, name, plain[name])

    @property
    def by_tensor(self) -> bool:
        """Whether R is a sum over tensors: what is written one tensor at a time is."""
        return type(self).prox_of is Regularizer.prox_of

    @property
    def coefficients(self) -> tuple[float, float, float] | None:
        """(a, b, c) if R(x) = a |x|_1 + b |x|_0 + c |x|^2 / 2: one fused kernel of the optimizers serves them all."""
        return None

    @property
    def chooses(self) -> tuple[Any, float] | None:
        """(budget, c) if R is a budget of entries and c |x|^2 / 2: the same kernel serves, once the entries are chosen.

        The budget has `budget(n)`, `floors(counts)` and `shrinks`, as `L0Ball` has.
        """
        return None

    # ---- what a regularizer writes: one tensor at a time, or a whole group

    def terms(self, x: Tensor) -> Tensor:
        """The summands of R for one tensor, in float64; their sum is R. One per entry where `separable`."""
        raise NotImplementedError(f"{type(self).__name__} must define terms(x) or terms_of(xs)")

    def prox_tensor(self, x: Tensor, step: Step) -> Tensor:
        """The prox of one tensor (float32 or float64), as a new tensor."""
        raise NotImplementedError(f"{type(self).__name__} must define prox_tensor(x, step) or prox_of(xs, steps)")

    def terms_of(self, xs: Sequence[Tensor]) -> list[Tensor]:
        """The summands of R for a whole group, in float64."""
        return [self.terms(x) for x in xs]

    def prox_of(self, xs: Sequence[Tensor], steps: Sequence[Step]) -> list[Tensor]:
        """The prox of a whole group, steps[i] for xs[i]. Unchecked: what an optimizer calls every step."""
        return [like(self.prox_tensor(wide(x), working_step(step, x)), x) for x, step in zip(xs, steps, strict=True)]

    def decrease_of(self, xs: Sequence[Tensor], zs: Sequence[Tensor]) -> Tensor:
        """`decrease`, unchecked: what an optimizer calls every step. Worth writing where fewer passes give it."""
        return total([a - b for a, b in zip(self.terms_of(xs), self.terms_of(zs), strict=True)])

    # ---- what changes during a run

    def at_strength(self, share: Tensor) -> Regularizer:
        """R on its way to full strength: share * R here, and a larger budget where R is one.

        Args:
            share: a 0-dim tensor between 0 and 1 on the device of the tensors. It is read by every call and never
                looked at by the host: fill it in place, and steps that were captured follow.

        >>> from sr2 import L1
        >>> share = torch.tensor(0.5, dtype=torch.float64)
        >>> growing = L1(1.0).at_strength(share)
        >>> growing.prox(torch.tensor([-2.0, 0.25, 1.0]), 1.0)
        tensor([-1.5000,  0.0000,  0.5000])
        >>> _ = share.fill_(1.0)
        >>> growing.prox(torch.tensor([-2.0, 0.25, 1.0]), 1.0)
        tensor([-1.,  0.,  0.])
        """
        return Scaled(self, check_share(share))

    def start(self, xs: Sequence[Tensor]) -> Regularizer:
        """The regularizer of a run that starts at xs: itself, unless it takes something from there (`KeepZeros`)."""
        return self

    # ---- what everybody calls

    def value(self, xs: Tensor | Sequence[Tensor]) -> Tensor:
        """R(xs): a 0-dim float64 tensor on the tensors' device."""
        return total(self.terms_of(_checked_tensors(self, xs)))

    def decrease(self, xs: Tensor | Sequence[Tensor], zs: Tensor | Sequence[Tensor]) -> Tensor:
        """R(xs) - R(zs), summed term by term: the difference of two large sums would lose its digits."""
        xs, zs = _checked_tensors(self, xs), _checked_tensors(self, zs)
        if [x.shape for x in xs] != [z.shape for z in zs]:
            raise ValueError(f"{type(self).__name__}: decrease(xs, zs) needs tensors of the same shapes in both")
        return self.decrease_of(xs, zs)

    @overload
    def prox(self, xs: Tensor, step: Step) -> Tensor: ...
    @overload
    def prox(self, xs: Sequence[Tensor], step: Step | Sequence[Tensor]) -> list[Tensor]: ...
    def prox(self, xs: Tensor | Sequence[Tensor], step: Step | Sequence[Tensor]) -> Tensor | list[Tensor]:
        """argmin_z R(z) + sum((z - x)**2 / (2 * step)): new tensors, in the structure of xs.

        Args:
            xs: a tensor or a sequence of tensors (float32, float64 or bfloat16).
            step: a float, a 0-dim tensor, or one tensor of steps per tensor of xs: 0-dim, or, where `diagonal`,
                with one step per entry. Steps on an accelerator are not checked for their sign, since looking would
                wait for the device.
        """
        tensors = _checked_tensors(self, xs)
        zs = self.prox_of(tensors, _checked_steps(self, tensors, step))
        return zs[0] if isinstance(xs, Tensor) else zs


class _Zero(Regularizer):
    """R = 0: what a parameter group without a regularizer has."""

    separable = True
    convex = True
    coefficients = (0.0, 0.0, 0.0)

    def prox_of(self, xs: Sequence[Tensor], steps: Sequence[Step]) -> list[Tensor]:
        return list(xs)

    def terms_of(self, xs: Sequence[Tensor]) -> list[Tensor]:
        return [torch.zeros((), dtype=torch.float64, device=x.device) for x in xs[:1]]

    def decrease_of(self, xs: Sequence[Tensor], zs: Sequence[Tensor]) -> Tensor:
        return torch.zeros((), dtype=torch.float64, device=xs[0].device)


ZERO = _Zero()
"""R = 0."""


class Scaled(Regularizer):
    """share * R, for a share in [0, 1] that lives on the device. Its prox is that of R with steps share * step."""

    def __init__(self, regularizer: Regularizer, share: Tensor) -> None:
        self.regularizer, self.share = regularizer, share
        for name in ("separable", "diagonal", "convex", "rowwise", "penalizes"):
            object.__setattr__(self, name, getattr(regularizer, name))

    def terms_of(self, xs: Sequence[Tensor]) -> list[Tensor]:
        return [torch.where(terms.isinf(), terms, self.share * terms) for terms in self.regularizer.terms_of(xs)]

    def decrease_of(self, xs: Sequence[Tensor], zs: Sequence[Tensor]) -> Tensor:
        decrease = self.regularizer.decrease_of(xs, zs)
        return torch.where(decrease.isinf(), decrease, self.share * decrease)  # a constraint holds at any share

    def prox_of(self, xs: Sequence[Tensor], steps: Sequence[Step]) -> list[Tensor]:
        return self.regularizer.prox_of(xs, [self.share * step for step in steps])

    def start(self, xs: Sequence[Tensor]) -> Regularizer:
        return Scaled(self.regularizer.start(xs), self.share)

    @property
    def by_tensor(self) -> bool:
        return self.regularizer.by_tensor

    def __repr__(self) -> str:
        return repr(self.regularizer)  # a share is where a run is, not what it minimizes


class Blocks(Regularizer):
    """Several separable R's, each on so many entries of one tensor, as tensors lie end to end. The prox is in place."""

    diagonal = True

    def __init__(self, blocks: Sequence[tuple[Regularizer, int]]) -> None:
        self._blocks: list[tuple[Regularizer, slice]] = []
        end = 0
        for R, of_x in itertools.groupby(blocks, key=operator.itemgetter(0)):
            start, end = end, end + sum(n for _, n in of_x)
            self._blocks += [] if R is ZERO else [(R, slice(start, end))]

    def prox_of(self, xs: Sequence[Tensor], steps: Sequence[Step]) -> list[Tensor]:
        (x,), (step,) = xs, steps
        for R, at in self._blocks:
            own = step[at] if isinstance(step, Tensor) and step.dim() > 0 else step
            x[at] = R.prox_of([x[at]], [own])[0]
        return [x]

    def decrease_of(self, xs: Sequence[Tensor], zs: Sequence[Tensor]) -> Tensor:
        (x,), (z,) = xs, zs
        return add([R.decrease_of([x[at]], [z[at]]) for R, at in self._blocks])


# ---- checks: one sentence that names the value and the way out


def check_regularizer(regularizer: object) -> None:
    """A Regularizer object or None; a class, a string or a number is a mistake worth naming."""
    if regularizer is not None and not isinstance(regularizer, Regularizer):
        raise TypeError(
            f"regularizer must be a Regularizer or None, and is {shown(regularizer)}: give an object, as sr2.L1(1e-4), "
            "sr2.L0Ball(density=0.05), or one of a subclass of sr2.regularizers.Regularizer"
        )


def check_convex(owner: str, regularizer: Regularizer | None, instead: str) -> None:
    """Say that this pair does not fit, why, and what to use instead."""
    if regularizer is not None and not regularizer.convex:
        raise ValueError(f"{regularizer!r} is not convex, which {owner} needs: {instead}")


def check_share(share: object) -> Tensor:
    """A 0-dim tensor; its value is not looked at."""
    if not isinstance(share, Tensor) or share.dim() > 0:
        raise TypeError(f"at_strength: share must be a 0-dim tensor between 0 and 1, and is {share!r}")
    return share


def _checked_tensors(regularizer: Regularizer, xs: Tensor | Sequence[Tensor]) -> list[Tensor]:
    tensors = [xs] if isinstance(xs, Tensor) else list(xs)
    for x in tensors:
        if not isinstance(x, Tensor):
            raise TypeError(f"{type(regularizer).__name__}: expected tensors and got a {type(x).__name__}")
        if x.dtype not in (torch.float32, torch.float64, torch.bfloat16):
            raise ValueError(
                f"{type(regularizer).__name__}: tensors must be float32, float64 or bfloat16, not {x.dtype}"
            )
    return tensors


def _checked_steps(regularizer: Regularizer, xs: list[Tensor], step: object) -> list[Step]:
    name = type(regularizer).__name__
    if isinstance(step, Tensor) and step.dim() > 0:
        step = [step]
    if not isinstance(step, bool) and isinstance(step, Real):
        step = float(step)
    if isinstance(step, (Tensor, float)):
        _check_positive(name, step)
        if isinstance(step, Tensor) and step.device.type == "cpu":  # a number already here goes to any device
            return [step if x.device.type == "cpu" else step.item() for x in xs]
        return [step] * len(xs)
    if not isinstance(step, Sequence):
        raise ValueError(f"{name}: the step must be a number, a tensor or one tensor of steps per tensor, not {step!r}")
    steps: list[Step] = list(step)
    if len(steps) != len(xs):
        raise ValueError(f"{name}: {len(xs)} tensors need {len(xs)} tensors of steps, and got {len(steps)}")
    for x, s in zip(xs, steps, strict=True):
        if not isinstance(s, Tensor) or (s.dim() > 0 and s.shape != x.shape):
            shape = tuple(s.shape) if isinstance(s, Tensor) else s
            raise ValueError(f"{name}: a tensor of shape {tuple(x.shape)} needs steps of that shape, not {shape}")
        if one_per_entry(s) and not regularizer.diagonal:
            raise ValueError(
                f"{name} couples the entries of a tensor: its step is one number per tensor, not per entry"
            )
        _check_positive(name, s)
    return steps


def _check_positive(name: str, step: Step) -> None:
    if isinstance(step, Tensor):
        if step.device.type != "cpu":  # looking would wait for the device
            return
        ok = bool(((step > 0) & step.isfinite()).all())
    else:
        ok = 0 < step < math.inf
    if not ok:
        raise ValueError(f"{name}: the step must be positive and finite, and is {step}")


# ---- precision and layout


def working_step(step: Step, x: Tensor) -> Step:
    """One step for all entries has float64's digits, as a Python float has: they are free. One per entry: x's."""
    if not isinstance(step, Tensor):
        return step
    has_digits = step.dim() == 0 or torch.float64 in (step.dtype, x.dtype)
    return step.double() if has_digits else step.float()


def one_per_entry(step: Step) -> TypeGuard[Tensor]:
    """Whether the step is a tensor of steps; a 0-dim one is a number, also for a tensor of one entry."""
    return isinstance(step, Tensor) and step.dim() > 0


def as_matrix(x: Tensor) -> Tensor:
    """x as the matrix (shape[0], -1): a filter a row. A vector is n x 1, a number 1 x 1."""
    return x.flatten(1) if x.dim() >= 2 else x.reshape(-1, 1)


def as_tensor(step: Step, x: Tensor) -> Tensor:
    """The step as a tensor on x's device, filled there: no copy from the host, so legal in a CUDA graph."""
    return step if isinstance(step, Tensor) else torch.full((), step, dtype=torch.float64, device=x.device)


@torch.no_grad()
def value_in_parts(regularizer: Regularizer, xs: Sequence[Tensor]) -> Tensor:
    """R(x) with temporaries of about a million entries, where R is a sum over entries; else as it is.

    >>> from sr2 import L1
    >>> float(value_in_parts(L1(0.5), [torch.ones(3, 4)]))
    6.0
    """
    if not regularizer.separable or not xs:
        return regularizer.value(xs)
    return add([regularizer.value([part]) for part in in_parts(xs)])
