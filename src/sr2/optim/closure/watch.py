"""What a step asks of the closure, watched: that it is a function of x, and that it knows of x + s.

SR2 compares two of its values. One that draws its own batch, or that returns what was computed before it was called,
trains nothing, and no number would say so.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ...numerics import Number, as_tensor
from ...telling import tell
from ..parts.rules import Rule
from .signs import LOW, Gradients, Signs, accumulated_by_accelerate, in_forwards, in_graph, is_average, scaled

ASKED = 3
"""Rejections at which the closure is asked a third time."""
UNMOVED = 3
"""Steps after which a loss that does not change is told. One may be a reflection at the minimum of a quadratic."""
STILL = 50
"""Tests in a row that leave sigma where it is, after which the rule is asked whether that is usual; or whose loss is
not finite, after which that is told. Long first steps overflow too, but not at every sigma."""
LOOKS = 3
"""First steps that are looked at closely, for what every step would repeat."""


class ClosureWatch:
    """What was seen of the closure so far. It is no state: a resumed run looks again.

    Args:
        slack: what rounding may make of a loss.
        parameters: those of the optimizer.
        module: the network, where it is known, whose buffers are as after one evaluation.
    """

    autocast: torch.dtype | None = None
    """The dtype below float32 that the closure was seen to compute in, where the parameters are not of it."""
    compiled = False
    """torch.compile was seen to have made some of it."""

    def __init__(
        self, slack: Callable[[Tensor], Tensor], parameters: Sequence[Tensor], module: nn.Module | None
    ) -> None:
        self._slack = slack
        self._draws, self._impure = False, False
        self._asked, self.unmoved_steps, self.not_finite = 0, 0, 0
        self.sigma, self.rhos = math.nan, list[float]()
        self._device, self._protected = parameters[0].device, module is not None
        self._exact = not any(p.dtype in LOW for p in parameters if p.requires_grad)
        self._gradients, self._told = Gradients(parameters), set[str]()
        self.looks, self.blind = LOOKS, False

    # ---- the first steps

    def begins(self, parameters: Sequence[Tensor]) -> None:
        """Before a step: gradients that it did not leave are dropped, and may be those of other batches."""
        steps = accumulated_by_accelerate()
        if steps > 1:
            self._once(
                "skipped",
                f"Accelerate skips {steps - 1} of {steps} calls of step, and the batches of those are not trained on: "
                f"make Accelerator(gradient_accumulation_steps=1), and one closure that returns the list of {steps} "
                "losses",
            )
        elif self._gradients.others(parameters):
            self._once(
                "dropped",
                "there were gradients before this step, and SR2 drops them: call no backward() before it, since step "
                "differentiates the closure's loss itself; to accumulate, let one closure return the list of its "
                "parts' losses; where another loss left them, as a GAN's, call optimizer.zero_grad() first",
            )

    def call(self, closure: Callable[[], object], parameters: Sequence[Tensor]) -> object:
        """The closure's first call in a step."""
        with scaled(parameters) as factors:
            result = closure()
        signs = in_graph(result)
        self.blind = signs is None
        if signs is not None:
            self._take([signs])
        if factors and not is_average(factors[0]):
            self._once(
                "clipping",
                f"the closure multiplies its gradients by {factors[0]:.3g}, as clipping does, and rho compares them "
                "with the loss, whose they no longer are: leave it out, since steps that are too long are rejected",
            )
        return result

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Around its second call, where the first one has shown nothing."""
        with in_forwards(self._device) as found:
            yield
        self._take(found)

    def leaves(self, parameters: Sequence[Tensor]) -> None:
        """After a step, or one that has failed: its gradients stay."""
        self._gradients.note(parameters)
        self.blind = False

    def _take(self, found: Sequence[Signs]) -> None:
        if self._exact and self.autocast is None:
            self.autocast = next((signs.autocast for signs in found if signs.autocast in LOW), None)
        self.compiled |= any(signs.compiled for signs in found)
        if not self._protected and any(signs.statistics for signs in found):
            self._once(
                "batch norm",
                "batch norm's running statistics move twice at every step, since SR2 was given parameters and does not "
                "know the network: SR2(model, ...) protects them, and so do the groups of param_groups(model, rules)",
            )

    def _once(self, what: str, message: str) -> None:
        if what not in self._told:
            self._told.add(what)
            tell(message)

    # ---- every step

    def at_x(self, *, drew: bool, captured_alone: bool) -> None:
        """After the evaluation at x: a CUDA graph cannot rewind a generator, and needs a twin of it."""
        self._draws |= drew
        if captured_alone and self._draws:
            raise RuntimeError(
                "the closure draws random numbers, and a CUDA graph would draw others at the trial point: "
                "capture with sr2.optim.CapturedStep, which makes both evaluations draw the same"
            )

    def unmoved(self, loss: Number, gs: Number) -> None:
        """The loss at x + s was that at x to the bit: it must have changed where the batch's own gradient says so."""
        loss = as_tensor(loss)
        self.unmoved_steps = self.unmoved_steps + 1 if bool(-gs > 10 * self._slack(loss)) else 0
        if self.unmoved_steps == UNMOVED:
            tell(
                f"for three steps the loss at the trial point has been that at x to the bit, now {float(loss):g}, "
                f"where a change of {float(gs):g} was promised: is the network called inside the closure?"
            )

    def no_loss(self, f: Number) -> None:
        """f is not finite at x + s. A network with no finite loss anywhere near x moves no more, whatever sigma is."""
        self.not_finite += 1
        if self.not_finite == STILL:
            self._once(
                "not finite",
                f"for {STILL} steps in a row the loss at the trial point was {float(f)}, and x stays where it is: "
                "does the network divide by weights that R sets to zero, as weight_norm does by the norm of a filter? "
                "torch.nn.utils.parametrize.remove_parametrizations(layer, 'weight') makes it a plain layer first",
            )

    def still(self, rule: Rule) -> None:
        """After STILL tests in a row: that sigma stands still at a rho far from the rule's aim is told once."""
        mean, self.rhos = statistics.fmean(self.rhos), []
        if way_out := rule.way_out(mean):
            stays = f"sigma has stayed at {self.sigma:.3g} for {STILL} tests in a row"
            self._once("still", f"{stays}, with a mean rho of {mean:.2g}: {way_out}")

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
