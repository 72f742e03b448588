"""From x to x + s and back: what every way of moving shares.

    s = argmin_s  v's + s'Ds / 2 + R(x + s),        x + s = prox_{R/D}(x - v / D)

Decoupled weight decay is in v: it is the gradient of w x'Dx / 2 with the metric D, as in AdamW.

`steps` holds 1/D: one number for all entries, or one tensor of steps per tensor where R is diagonal. A way of moving
keeps x before it writes it, and notes that it has: an interrupt at any point can be undone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from ...numerics import add, capturing, cast, exact_sum, gradient_of, local, stacked, take_if, wide
from ...regularizers.base import ZERO, Regularizer, Step
from ..closure.losses import NO_SPARSE
from ..parts.averaging import move_toward
from ..parts.directions import Direction
from ..parts.metrics import Metric, State, one_number, steps_in
from ..processes import ALONE, Processes
from ..state import Outcome
from .pieces import Model, Piece, Way, Ways

RETURNS = 4.0
"""Under a budget SR2's metric is so many times as large where x is zero: an entry that was removed must be wanted four
times as much as the one that it puts out, or a step of noise would bring it back."""
NEEDS_A_STEP = "momentum and metrics need a step before a CUDA graph is captured"


def add_models(models: Sequence[Model]) -> Model:
    """Those of several pieces or groups, summed on the device of the first."""
    if len(models) == 1:
        return models[0]
    columns = stacked([number for column in zip(*models, strict=True) for number in column if number is not None])
    return Model(*columns.view(-1, len(models)).sum(1).unbind())


# ---- the arithmetic of one step


def proximal_point(
    xs: Sequence[Tensor], vs: Sequence[Tensor], steps: Sequence[Step], regularizer: Regularizer
) -> list[Tensor]:
    """prox_{step R}(x - step v), as new tensors in the dtype of x."""
    us = [forward(wide(x), wide(v), step) for x, v, step in zip(xs, vs, steps, strict=True)]
    return [cast(z, x.dtype) for z, x in zip(regularizer.prox_of(us, steps), xs, strict=True)]


def model_of(piece: Piece, zs: Sequence[Tensor], regularizer: Regularizer) -> Model:
    """v's, R(x) - R(z), |s|^2, s'Bs and the noise for s = z - x, summed in float64."""
    products, squares, scaled, noises = [], [], [], []
    for i, (x, v, z, step) in enumerate(zip(piece.olds, piece.vs, zs, piece.steps, strict=True)):
        # z - x of two neighbouring float32 is exact, or nearly so; bfloat16 would round it to 8 bits.
        s = wide(z) - wide(x)
        products.append(exact_sum(wide(v) * s))
        if piece.gs:  # (g - v - Cs / 2)'s
            t = wide(piece.gs[i]) - wide(v)
            if piece.decays:
                t -= cast(0.5 * piece.decays[i] * s, t.dtype)
            noises.append(exact_sum(t.mul_(s)))
        squares.append(exact_sum(s.square_()))
        own = isinstance(step, Tensor) and step.dim() > 0
        scaled.append(exact_sum(s.div_(step)) if own else squares[-1] / step)
    dR = regularizer.decrease_of(piece.olds, zs).to(products[0].device)
    return Model(add(products), dR, add(squares), add(scaled), add(noises) if noises else None)


def forward(x: Tensor, v: Tensor, step: Step) -> Tensor:
    """x - step v, rounded twice whatever computes it, with one temporary."""
    u = step * v
    return torch.sub(x, u, out=u) if not torch.compiler.is_compiling() and u.shape == x.shape else x - u


def _plus(v: Tensor, t: Tensor) -> Tensor:
    """v + t, where t can be written over: fresh memory costs more than the sum."""
    return t.add_(v) if t.dtype == v.dtype and t.shape == v.shape else v + t


def _more_where_zero(d: Tensor, x: Tensor, n: int, times: float) -> Tensor:
    """d, and so many times d where one of the first n entries of x is zero: a third of the time of a choice."""
    factor: Tensor = _first(n, torch.eq(x, 0, out=torch.empty_like(d)))
    return factor.mul_(times - 1).add_(1).mul_(d)


def _first(n: int, c: Any) -> Any:
    """c with zeros after its first n entries, in place; a number is as it is."""
    if isinstance(c, Tensor) and c.dim() > 0 and n < c.numel():
        c[n:].zero_()
    return c


# ---- one group, one step


@dataclass
class Proposal:
    """One group's tensors during a step: x, g, v, the step sizes, and the states to come.

    `turn` makes v and the steps; a fused move does both in its own kernel instead.
    """

    regularizer: Regularizer
    xs: list[Tensor]
    gs: list[Tensor]
    step: Step
    """1 / sigma, or a learning rate."""
    metric: Metric | None
    direction: Direction | None
    states: list[State]
    decay: Step = 0.0
    """w of w x'Dx / 2, D the metric without sigma."""
    decaying: Sequence[int] = ()
    """How many entries of each tensor it concerns: all, none, or the first ones of tensors laid end to end."""
    returns: float = 1.0
    """How many times as large the metric is, under a budget, where x is zero."""
    counted: list[bool] = field(default_factory=list)
    """Of which tensors this process counts the sums: all but those that another one has too. Not said, all."""
    together: Processes = ALONE
    budgeted: Sequence[int] = ()
    """How many entries of each tensor are under a budget, said as in `decaying`."""
    held: bool = False
    """Whether v and the steps are held where it is gone through twice; else they are made again."""
    news: list[State] = field(default_factory=list)
    """What momentum and metric will remember."""
    vs: list[Tensor] = field(default_factory=list)
    steps: Sequence[Step] = ()
    """1 / D: `step` over the metric's diagonal."""
    decays: Sequence[Step] = ()
    """w times the metric's diagonal, where there is a decay."""
    slopes: Sequence[Tensor] = ()
    """v without the decay's part."""

    def __post_init__(self) -> None:
        self.counted = self.counted or [True] * len(self.xs)
        self.decaying = self.decaying or [0] * len(self.xs)
        self.budgeted = self.budgeted or [x.numel() if self.regularizer.strict else 0 for x in self.xs]

    @property
    def decays_any(self) -> bool:
        """Whether a tensor decays; w itself may be a number that nobody looks at."""
        return any(self.decaying) and (isinstance(self.decay, Tensor) or self.decay != 0)

    @staticmethod
    def of(
        group: Mapping[str, Any],
        states: Mapping[Any, State],
        step: Step,
        metric: Metric | None,
        direction: Direction | None,
        together: Processes = ALONE,
        decay: Step = 0.0,
        least_dim: int = 0,
        returns: float = 1.0,
    ) -> Proposal | None:
        """What this process has of the tensors of one group that take part in this step; None if there are none.

        A parameter without a gradient is left alone, unless R couples it to the others: then its gradient is zero.

        least_dim: how many dimensions a tensor has at least that the decay concerns.
        """
        regularizer: Regularizer = group["regularizer"] or ZERO
        trained = [p for p in group["params"] if p.requires_grad]
        if all(p.grad is None for p in trained):
            return None
        chosen = trained if not regularizer.separable else [p for p in trained if p.grad is not None]
        xs = [local(p) for p in chosen]
        gs = [torch.zeros_like(x) if g is None else g for x, g in zip(xs, map(gradient_of, chosen), strict=True)]
        if any(g.layout != torch.strided for g in gs):
            raise ValueError(NO_SPARSE)
        counted = [together.mesh is None or together.counts(p) for p in chosen]
        mine = [states[p] for p in chosen]
        decays = (decay, [x.numel() if p.dim() >= least_dim else 0 for p, x in zip(chosen, xs, strict=True)])
        return Proposal(regularizer, xs, gs, step, metric, direction, mine, *decays, returns, counted, together)

    def turn(self, xs: Sequence[Tensor] | None = None) -> None:
        """v and the steps for these gradients, with the states to come; xs is where x is, if it has moved already."""
        xs = self.xs if xs is None else xs
        self.vs, self.steps, self.news = self.gs, [self.step] * len(self.xs), [{} for _ in self.xs]
        D: Sequence[Any] = [1.0] * len(self.xs)
        if self.metric is not None:
            D, self.news = self.metric.update(xs, self.gs, self.states)
            if not self.regularizer.diagonal:
                D = one_number(D, self.regularizer.by_tensor, partial(self.together.each, counted=self.counted))
            elif self.returns != 1:
                rows = zip(D, xs, self.budgeted, strict=True)
                D = [_more_where_zero(d, x, n, self.returns) if n else d for d, x, n in rows]
            self.steps = steps_in(D, self.step)
        if self.direction is not None:
            self.vs, remembered = self.direction.update(self.gs, self.states)
            self.news = [{**new, **more} for new, more in zip(self.news, remembered, strict=True)]
        self.slopes = self.vs
        if self.decays_any:
            self.decays = [_first(n, self.decay * d) if n else 0.0 for d, n in zip(D, self.decaying, strict=True)]
            pulls = zip(self.vs, self.decays, xs, self.decaying, strict=True)
            self.vs = [_plus(wide(v), c * wide(x)) if n else v for v, c, x, n in pulls]

    def commit(self, sound: Tensor | None) -> None:
        """The new momentum and metric replace the old; where `sound` is a tensor, only if it is true, in place and
        without looking at it, so that a graph's replay finds its state."""
        if sound is None:
            for state, new in zip(self.states, self.news, strict=True):
                state.update(new)
            return
        for x, state, new in zip(self.xs, self.states, self.news, strict=True):
            for name, value in new.items():
                if not isinstance(value, Tensor):
                    value = torch.full((), value, dtype=torch.float64, device=x.device)
                if name not in state:
                    if capturing():
                        raise RuntimeError(NEEDS_A_STEP)
                    state[name] = torch.zeros_like(value)
                state[name].copy_(torch.where(sound, value, state[name]))


class Move(Protocol):
    """One step of some groups: to the trial point, and back or on."""

    proposals: Sequence[Proposal]

    def use(self, proposals: Sequence[Proposal]) -> bool:
        """Take this step's tensors; False, and nothing is taken, where their states are not as this move left them."""

    def to_trial(self, *, tested: bool = True, of_batch: bool = True) -> Model:
        """x <- x + s; the scalars of the model, summed over the groups.

        tested: False allows not to keep x: it goes back to the last point that passed, if at all; there is no noise.
        of_batch: False where f is not the loss of the batch but an objective: of the noise the decay's change is left.
        """

    @property
    def kept(self) -> Sequence[Sequence[Tensor]]:
        """x as it was, group by group."""

    def put_back(self) -> None:
        """x + s -> x, exactly, as far as it has moved."""

    def settle(self, outcome: Outcome) -> None:
        """Keep x + s or put x back; momentum and metric learn from a sound batch."""

    def commit(self, sound: Tensor | None) -> None:
        """`Proposal.commit` of every group."""

    def toward(self, averages: Sequence[Tensor], xs: Sequence[Tensor], weight: Tensor) -> None:
        """averages <- averages + weight (x - averages), in place."""

    def take_if(self, flag: Tensor, xs: Sequence[Tensor], points: Sequence[Tensor]) -> None:
        """x <- the points, where the flag is true."""


class ByGroup:
    """Moves group by group, each in the ways that fit its tensors, and keeps x.

    Args:
        ways: of each group, the ways with the numbers of the tensors that go each of them.
        kept: of each group, where x is kept.
        capturable: settle on the device, without looking.
    """

    def __init__(
        self, ways: Sequence[Sequence[tuple[Way, Sequence[int]]]], kept: Sequence[list[Tensor]], capturable: bool
    ) -> None:
        self.proposals: Sequence[Proposal] = ()
        self._groups: Sequence[Proposal] = ()
        self._kept, self._ways, self._capturable = kept, ways, capturable
        self._moved: list[tuple[Sequence[Tensor], Sequence[Tensor]]] = []

    @property
    def kept(self) -> Sequence[Sequence[Tensor]]:
        return self._kept

    def use(self, proposals: Sequence[Proposal]) -> bool:
        self.proposals, self._groups, self._moved = proposals, proposals, []
        return True

    def to_trial(self, *, tested: bool = True, of_batch: bool = True) -> Model:
        noisy = tested and any(p.decays_any or (of_batch and p.direction is not None) for p in self._groups)
        first = [self._through(i, ways, noisy, of_batch) for i, ways in enumerate(self._ways)]
        again = [self._through(i, ways, noisy, of_batch, self._kept[i]) for i, ways in self._unfinished()]
        return add_models([model for model in (*first, *again) if model is not None])

    def _through(self, i: int, ways: Ways, noisy: bool, of_batch: bool, xs: list[Tensor] | None = None) -> Model | None:
        """Proposal i goes these ways; None where it must be gone through again, and xs is where x is then."""
        p, kept = self._groups[i], self._kept[i]
        if xs is None or not p.vs:
            p.turn(xs)
        judged = (p.gs if of_batch else p.slopes, p.decays) if noisy else ((), ())
        try:
            pieces = [(way, some(numbers, p.xs, kept, p.vs, p.steps, *judged)) for way, numbers in ways]
            models = [way(piece, p.regularizer, self._keep) for way, piece in pieces]
            done = [model for model in models if model is not None]
            model = add_models(done) if len(done) == len(models) else None
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]  # the SVD of what is not finite
            model = Model(*torch.full((4 + noisy,), math.nan, dtype=torch.float64, device=p.xs[0].device))
        if model is not None or not p.held:
            p.vs, p.slopes, p.steps, p.decays = [], (), (), ()  # room for the trial
            self._turned(i)
        return model

    def put_back(self) -> None:
        for xs, olds in self._moved:
            torch._foreach_copy_(list(xs), list(olds))

    def settle(self, outcome: Outcome) -> None:
        if not self._capturable:
            if outcome.learns:
                self.commit(None)
            if not outcome.accepted:
                self.put_back()
            return
        for p, kept in zip(self._groups, self._kept, strict=True):
            for x, old in zip(p.xs, kept, strict=True):
                x.copy_(torch.where(outcome.accepted, x, old))  # a choice, so that no NaN leaks
        self.commit(outcome.learns)

    def commit(self, sound: Tensor | None) -> None:
        for p in self._groups:
            p.commit(sound)

    def toward(self, averages: Sequence[Tensor], xs: Sequence[Tensor], weight: Tensor) -> None:
        move_toward(averages, xs, weight, looking=not self._capturable)

    def take_if(self, flag: Tensor, xs: Sequence[Tensor], points: Sequence[Tensor]) -> None:
        take_if(flag, xs, points, looking=not self._capturable)

    def _unfinished(self) -> Iterable[tuple[int, Ways]]:
        """The proposals that must be gone through again, and how, after all have been once."""
        return ()

    def _turned(self, number: int) -> None:
        """After proposal `number` has moved: what it will remember is known."""

    def _keep(self, piece: Piece) -> None:
        torch._foreach_copy_(list(piece.olds), list(piece.xs))
        self._moved.append((piece.xs, piece.olds))  # and no view of a gradient, which torch then could not swap


def some(numbers: Sequence[int], *rows: Sequence[Any]) -> Piece:
    """The piece of these tensors."""
    return Piece(
        *(rows if len(numbers) == len(rows[0]) else ([row[i] for i in numbers] if row else () for row in rows))
    )
