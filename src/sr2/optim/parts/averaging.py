"""The average of the iterates: what settles while x still moves, without a schedule and without a horizon to name."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ...checks import check_number
from ...numerics import Number, Plain, as_tensor, capturing, cast, double, is_expanded, local, wide
from ...telling import called_by_us, tell
from ..processes import ALONE, Processes
from .metrics import State

__all__ = ["Averaging", "Polynomial"]

NAME = "average"
"""Of the average in a parameter's state."""

Toward = Callable[[Sequence[Tensor], Sequence[Tensor], Number], None]


class Averaging(Plain, ABC):
    """How much the newest iterate counts."""

    @abstractmethod
    def weight(self, t: Number) -> Number:
        """The weight of x_t in the average of x_1, ..., x_t: a 0-dim tensor, without a host read."""

    def update(
        self,
        params: Sequence[Tensor],
        states: Mapping[Any, State],
        t: Number,
        toward: Toward,
        latest: Tensor | None = None,
    ) -> None:
        """x_bar <- x_bar + weight (x - x_bar), in place; one buffer per tensor, which is made by the first step.

        Of a bfloat16 x the average is float32: a change of less than 1/256 of it would be rounded away.

        Args:
            params, states: whose average it is, and where it is.
            t: how many steps were taken.
            toward: does it, given the averages, x and the weight, as `move_toward`.
            latest: the step at which x counted last, where not all do (`test_every`); x stands for those in between.
        """
        xs, mine = [local(p) for p in params], [states[p] for p in params]
        for x, state in zip(xs, mine, strict=True):
            if NAME not in state:
                if capturing():
                    raise RuntimeError("an average needs a step before a CUDA graph is captured")
                first = x.detach().clone(memory_format=torch.preserve_format)  # also where x joins late
                state[NAME] = wide(first)
        weight = self.weight(t if self.plain else as_tensor(t))
        if latest is not None:
            weight = 1 - (1 - weight) ** (t - latest)
            latest.fill_(t)
        toward([state[NAME] for state in mine], [wide(x) for x in xs], weight)


@dataclass(frozen=True)
class Polynomial(Averaging):
    """x_bar_t = x_bar_{t-1} + (k + 1) / (k + t) (x_t - x_bar_{t-1}): about the last 1 / (k + 1) of the steps count.

    The window grows with t, so that the average is as good at any t: nobody has to say when the run ends.

    >>> Polynomial(8.0).weight(torch.tensor([1.0, 10.0, 1000.0])).tolist()
    [1.0, 0.5, 0.008928571428571428]

    Args:
        k: the larger, the shorter the window; 0 is the plain mean.
    """

    k: float = 8.0
    plain = True

    def __post_init__(self) -> None:
        check_number(self, "k", self.k, 0)

    def weight(self, t: Number) -> Number:
        return (self.k + 1) * (1 / (self.k + double(t)))  # as torch rounds a number over a tensor


def move_toward(averages: Sequence[Tensor], xs: Sequence[Tensor], weight: Number, *, looking: bool) -> None:
    """Averages go this share of the way to x: in one pass where the host may look at the weight, else in three."""
    xs = [cast(x, average.dtype) for x, average in zip(xs, averages, strict=True)]
    if looking:
        torch._foreach_lerp_(list(averages), xs, float(weight))
        return
    change = torch._foreach_sub(xs, list(averages))
    for device in {x.device for x in xs}:
        here = [i for i, x in enumerate(xs) if x.device == device]
        torch._foreach_mul_([change[i] for i in here], weight.to(device))
    torch._foreach_add_(list(averages), change)


def averaged(
    optimizer: torch.optim.Optimizer, groups: Iterable[Mapping[str, Any]] | None = None
) -> AbstractContextManager[None]:
    """The average in place of x, zero where a penalized x is zero; afterwards x and all buffers again, to the bit.

    Args:
        optimizer: whose `averaging` is not None, and whose buffers are those of its module, if it was given one.
        groups: params and their regularizer, where the optimizer's own groups do not say it.
    """
    if getattr(optimizer, "averaging", None) is None:
        raise ValueError(f"there is no average: make the optimizer with {type(optimizer).__name__}(..., average=True)")
    if (reminder := getattr(optimizer, "_reminder", None)) is not None:
        reminder.done = True
    return _swapped(optimizer, optimizer.param_groups if groups is None else groups)


@contextmanager
def _swapped(optimizer: torch.optim.Optimizer, groups: Iterable[Mapping[str, Any]]) -> Iterator[None]:
    states = optimizer.state
    together: Processes = getattr(optimizer, "_processes", ALONE)
    module: nn.Module | None = getattr(optimizer, "_module", None)
    buffers = [] if module is None else [b for b in module.buffers() if not is_expanded(b)]
    swapped = [(buffer, buffer.clone()) for buffer in buffers]  # `recalibrate_` inside is for the average alone
    guards = optimizer.register_step_pre_hook(_no_step), optimizer.register_state_dict_pre_hook(_no_checkpoint)
    reminder: Reminder | None = getattr(optimizer, "_reminder", None)
    if reminder is not None:
        reminder.inside += 1
    try:
        with torch.no_grad():
            for group in groups:
                for p in group["params"]:
                    if NAME not in states.get(p, {}):
                        continue  # frozen, or before the first step
                    x = local(p)
                    swapped.append((x, x.clone(memory_format=torch.preserve_format)))
                    zero = (x == 0) & (group["regularizer"] is not None)
                    x.copy_(states[p][NAME].masked_fill(zero, 0.0))
        together.reshard()
        yield
    finally:
        if reminder is not None:
            reminder.inside -= 1
        for guard in guards:
            guard.remove()
        with torch.no_grad():
            for x, old in reversed(swapped):  # x before the buffers
                x.copy_(old)
        together.reshard()


def _no_step(*_: object) -> None:
    raise RuntimeError(
        "a step inside averaged() would be lost with the average: leave the with block before you train on"
    )


def _no_checkpoint(*_: object) -> None:
    tell(
        "the state of the optimizer is saved inside averaged(), where the module holds the average, and a run is "
        "resumed from the last iterate: save both after the with block to go on from them"
    )


class Reminder:
    """Who saves a network whose average they never looked at is told so, once; and who saves one to use, which is
    the average or what `sr2.export` makes of a network, before its budget is reached. To evaluate, or to save what a
    run goes on from, is neither.

    A hook of the module's `state_dict`. It knows its optimizer weakly and goes with it; a copy of the module, by
    `copy.deepcopy` or pickle, has a hook that does nothing, and that is found without this library.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = weakref.ref(optimizer)
        self.done = self.told_of_budget = False
        self.inside = 0
        """How many `averaged()` are open."""

    @staticmethod
    def of(optimizer: torch.optim.Optimizer, module: nn.Module | None) -> Reminder | None:
        """The reminder of an optimizer that has an average of a module, or a budget to reach; else None."""
        if module is None or all(getattr(optimizer, name, None) is None for name in ("averaging", "reach")):
            return None
        for wrapper in ("module", "_orig_mod", "module"):  # of DistributedDataParallel and torch.compile, in any order
            inner = getattr(module, wrapper, None)
            if isinstance(inner, nn.Module) and len(list(module.children())) == 1:
                module = inner
        for older in module._state_dict_hooks.values():
            if isinstance(older, Reminder):
                # Its optimizer was replaced, and may live on in a cycle of references.
                older.done = older.told_of_budget = True
        reminder = Reminder(optimizer)
        handle = module.register_state_dict_post_hook(reminder)  # type: ignore[no-untyped-call]
        weakref.finalize(optimizer, handle.remove).atexit = False
        return reminder

    def __call__(self, *_: object) -> None:
        """After `state_dict()`."""
        if not called_by_us():
            self._say("state_dict", used=self.inside > 0)

    def before_use(self) -> None:
        """`sr2.export` saves this network, or makes another one of it."""
        self._say("network", used=True)

    def _say(self, what: str, *, used: bool) -> None:
        optimizer = self._optimizer()
        if optimizer is None:
            return
        if used and not self.told_of_budget and (words := _short_of_budget(optimizer)):
            self.told_of_budget = True
            tell(words)
        if not self.done and any(NAME in state for state in optimizer.state.values()):
            self.done = True
            tell(
                f"this {what} holds the last iterate, and the average that the optimizer keeps is usually the better "
                "network: save that inside `with optimizer.averaged():`, after sr2.recalibrate_ where there is batch "
                "norm; a run is resumed from the last iterate"
            )

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (nullcontext(), "__exit__")  # takes anything and does nothing, wherever it is unpickled


def _short_of_budget(optimizer: Any) -> str | None:
    """What to say of a network that is put to use before its budget holds."""
    budget = next((R for g in optimizer.param_groups if (R := g["regularizer"]) is not None and R.strict), None)
    if not optimizer._reaching or budget is None:  # a network may have been within it from the start
        return None
    taken, last = int(optimizer._search.steps), optimizer.reach.last
    if not 0 < taken < last:
        return None
    return (
        f"this network is that of step {taken}, and {budget!r} holds from step {last} on: save a later one, or, if the "
        "run ends here, let steps=n be the number of its steps"
    )


def as_averaging(average: object) -> Averaging | None:
    """What `average=` stands for: True is `Polynomial()`.

    >>> as_averaging(True)
    Polynomial(k=8.0)
    """
    if average is True:
        return Polynomial()
    if average is None or average is False:
        return None
    if not isinstance(average, Averaging):
        raise TypeError(f"SR2: average must be True, False or an object of sr2.averaging, and is {average!r}")
    return average
