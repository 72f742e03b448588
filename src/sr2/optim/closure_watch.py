"""What a step asks of the closure, watched: that it is a function of x, and that it knows of x + s.

SR2 compares two of its values. One that draws its own batch, or that returns what was computed before it was called,
trains nothing, and no number would say so.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from .evaluation import Closure, TwoEvaluations

ASKED = 3
"""Refusals at which the closure is asked a third time."""
UNMOVED = 3
"""Steps after which a loss that does not change is told. One may be a reflection at the minimum of a quadratic."""


class ClosureWatch:
    """What was seen of the closure so far. It is no state: a resumed run looks again."""

    def __init__(self) -> None:
        self._draws, self._impure = False, False
        self._asked, self._unmoved = 0, 0

    def first(self, evaluations: TwoEvaluations, twin: torch.Generator | None) -> None:
        """After the evaluation at x: a CUDA graph cannot rewind a generator, and needs a twin of it."""
        self._draws |= evaluations.drew
        if evaluations.capturing and self._draws and twin is None:
            raise RuntimeError(
                "the closure draws random numbers, and a CUDA graph would draw others at the trial point: "
                "capture with sr2.optim.CapturedStep, which makes both evaluations draw the same"
            )

    def refused(self, evaluations: TwoEvaluations, closure: Closure, loss: Tensor, slack: Tensor) -> None:
        """After a refusal, x being back: does the closure still give the loss that it gave there?"""
        if self._asked == ASKED:
            return
        self._asked += 1  # on every process alike, whatever this one finds
        loss_again = evaluations.again(closure)
        if bool((loss_again - loss).abs() > 10 * slack) and not self._impure:
            self._impure = True
            warnings.warn(
                f"the closure gave {float(loss):g} and then {float(loss_again):g} at the same x, and SR2 compares its "
                "values: draw the batch outside it, and random numbers from torch's default generators, which are "
                "rewound",
                stacklevel=5,  # past step and torch's two wrappers around it: the user's line
            )

    def tried(self, loss: Tensor, f_trial: Tensor, vs: Tensor, slack: Callable[[], Tensor]) -> None:
        """After the evaluation at x + s: the loss must have changed where the model says so, -v's."""
        same = bool(f_trial == loss) and bool(-vs > 10 * slack())
        self._unmoved = self._unmoved + 1 if same else 0
        if self._unmoved == UNMOVED:
            warnings.warn(
                f"for three steps the loss at the trial point has been that at x to the bit, now {float(loss):g}, "
                f"where a change of {float(vs):g} was promised: is the network called inside the closure?",
                stacklevel=7,
            )
