"""What a step asks of the closure, watched: that it is a function of x, and that it knows of x + s.

SR2 compares two of its values. One that draws its own batch, or that returns what was computed before it was called,
trains nothing, and no number would say so.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from ...telling import tell

ASKED = 3
"""Rejections at which the closure is asked a third time."""
UNMOVED = 3
"""Steps after which a loss that does not change is told. One may be a reflection at the minimum of a quadratic."""


class ClosureWatch:
    """What was seen of the closure so far. It is no state: a resumed run looks again.

    Args:
        slack: what rounding may make of a loss.
    """

    def __init__(self, slack: Callable[[Tensor], Tensor]) -> None:
        self._slack = slack
        self._draws, self._impure = False, False
        self._asked, self.unmoved_steps = 0, 0

    def at_x(self, *, drew: bool, captured_alone: bool) -> None:
        """After the evaluation at x: a CUDA graph cannot rewind a generator, and needs a twin of it."""
        self._draws |= drew
        if captured_alone and self._draws:
            raise RuntimeError(
                "the closure draws random numbers, and a CUDA graph would draw others at the trial point: "
                "capture with sr2.optim.CapturedStep, which makes both evaluations draw the same"
            )

    def unmoved(self, loss: Tensor, vs: Tensor) -> None:
        """The loss at x + s was that at x to the bit: it must have changed where the model promises so, -v's."""
        self.unmoved_steps = self.unmoved_steps + 1 if bool(-vs > 10 * self._slack(loss)) else 0
        if self.unmoved_steps == UNMOVED:
            tell(
                f"for three steps the loss at the trial point has been that at x to the bit, now {float(loss):g}, "
                f"where a change of {float(vs):g} was promised: is the network called inside the closure?"
            )

    def rejected(self, loss: Tensor, again: Callable[[], Tensor]) -> None:
        """After a rejection, x being back: does the closure still give the loss that it gave there?"""
        if self._asked == ASKED:
            return
        self._asked += 1  # on every process alike, whatever this one finds
        loss_again = again()
        if bool((loss_again - loss).abs() > 10 * self._slack(loss)) and not self._impure:
            self._impure = True
            tell(
                f"the closure gave {float(loss):g} and then {float(loss_again):g} at the same x, and SR2 compares its "
                "values: draw the batch outside it, and random numbers from torch's default generators, which are "
                "rewound"
            )
