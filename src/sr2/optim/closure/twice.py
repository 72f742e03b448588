"""Asking the closure twice: at x and at the trial point, with buffers and randomness as after one forward.

SR2 compares two values of the same function, so both evaluations must see the same dropout masks, and the second one
must leave no trace: not in batch-norm's statistics, not in the random number generators, not in the gradients.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol, TypeGuard

import torch
from torch import Tensor, nn

from ...numerics import as_bytes, capturing, cut, is_expanded, local, whole
from ..parts.rules import Rule
from ..processes import ALONE, Processes
from ..state import Outcome
from .examples import Examples
from .losses import NEEDS_GRADIENTS, Closure, as_loss, explained, gradients_of
from .watch import STILL, ClosureWatch


class Settled(Protocol):
    """What moves x, as far as it is needed here."""

    def put_back(self) -> None: ...

    def settle(self, outcome: Outcome) -> None: ...


class TwoEvaluations:
    """One step's evaluations of a closure: `at_x` (with gradients), `at_trial` (no trace), then `settle`.

    Args:
        closure: the batch's loss.
        module: whose buffers to protect; None protects none.
        parameters: those the closure's gradients are wanted for.
        tested: False evaluates at x alone.
        objective: evaluated at both points instead of the closure's loss, which then gives the gradient only.
        around: entered around the evaluation at x, to observe its backward passes.
        watch: what is known of this closure so far.
        together: the processes that evaluate, each its own batch.
        capturable: choose the buffers without looking, on the device.
        twin: during a CUDA graph's capture, a generator registered with it that draws what the default one draws.
    """

    loss: Tensor
    """The closure's loss at x."""
    f: Tensor
    """The loss at x or the objective there, which is compared with:"""
    f_trial: Tensor
    move: Settled | None = None
    """How x moves to the trial point and back, once it is known."""

    def __init__(
        self,
        closure: Closure,
        module: nn.Module | None,
        parameters: Sequence[Tensor],
        tested: bool = True,
        *,
        objective: Closure | None = None,
        around: AbstractContextManager[object] | None = None,
        watch: ClosureWatch | None = None,
        together: Processes = ALONE,
        capturable: bool = False,
        twin: torch.Generator | None = None,
    ) -> None:
        self._closure, self.objective, self.tested = closure, objective if tested else None, tested
        self.of_batch = objective is None  # f is the loss of a batch, also at a step that is not tested
        self._module, self._parameters = module, parameters
        self.around = around or nullcontext()
        self._watch, self._together, self._capturable = watch, together, capturable
        self._devices = {p.device for p in parameters}
        self._before = Buffers(module)
        self._fills_gradients = self._settled = False
        # A captured graph cannot rewind a generator: its second evaluation draws from the twin.
        self._capturing = capturing()
        self._twin = twin if self._capturing else None
        if not self._capturing:
            self._randomness = Randomness(self._devices)

    def __enter__(self) -> TwoEvaluations:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """An error or an interrupt leaves x, buffers and generators as before the step, until it is settled."""
        if kind is not None and not self._settled:
            if self.move is not None:
                self.move.put_back()
                self._drop_copies()
            self._before.restore()
            if not self._capturing:
                self._randomness.restore()
            if self._watch is not None:
                self._watch.leaves(self._parameters)
        if self._settled and kind is None and isinstance(self.around, Examples):  # no search for sigma_0
            self.around.done()

    def at_x(self) -> Tensor:
        """The loss at x, detached; every parameter's gradient is in its `.grad`."""
        self._drop_copies()
        versions = [p._version for p in self._parameters]
        with _no_fast_path(), self.around:
            self.loss, self._fills_gradients = self._loss_and_gradients()
        if self._watch is not None and self._watch.looks > 0:
            self._together.check_alike(self._parameters)
        if self.tested or self._capturable:  # else nobody comes back to them
            self._after = Buffers(self._module)
            # A forward may read the buffers that it updates, as spectral norm does. One that sets parameters from its
            # first batch and notes so in a buffer must not do it again.
            self._start = self._before if [p._version for p in self._parameters] == versions else self._after
        if not self._capturing:
            self._randomness_after = Randomness(self._devices)
        if self._watch is not None and self._capturable:  # a step that may be captured later
            drew = not self._capturing and self._randomness_after != self._randomness
            self._watch.at_x(drew=drew, captured_alone=self._capturing and self._twin is None)
        self.f = self.loss if self.objective is None else self._evaluate(self.objective)
        return self.loss

    def at_trial(self) -> Tensor:
        """f where the parameters are now, unless the step is not tested; generators and gradients stay as `at_x` left
        them, and so do the buffers, unless `settle` is to choose them."""
        if not self.tested:
            self.f_trial = self.f
            return self.f_trial
        with self._watch.looking() if self._watch is not None and self._watch.blind else nullcontext():
            self.f_trial = self._evaluate(self.objective or self._closure, restore=not self._capturable)
        return self.f_trial

    def losses(self, noise: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """The loss, f(x) and f(x + s). A step along v is judged on f(., xi) + (v - g)'x, so f(x) is f + (g - v)'s here.

        That function has f's curvature, and v is its gradient: what theorem 1 says of sigma holds with momentum too.
        An objective is tested as it is; a decay stands beside it as beside f.
        """
        if noise is None:
            return self.loss, self.f, self.f_trial
        if self._together.mesh is not None:
            noise = self._together.sum(noise)
        # Where the noise is not finite, s is not, and rejects the step itself.
        return self.loss, self.f + noise.nan_to_num(0.0, 0.0, 0.0), self.f_trial

    def again(self) -> Tensor:
        """The closure's loss where the parameters are now, without a trace."""
        return self._evaluate(self._closure)

    def settle(self, outcome: Outcome) -> None:
        """Keep x + s or put x back; the buffers as after `at_x`, or as before it where the batch was broken."""
        if self.move is not None:
            self.move.settle(outcome)
        if self._capturable:
            self._after.restore_either(outcome.sound, self._before)
        elif not (outcome.sound or outcome.null):
            self._before.restore()
        self._settled = True  # momentum has moved on, and an interrupt no longer undoes the step

    def leave(self) -> None:
        """These gradients are those of a step, and the next one finds them."""
        if self._watch is not None and self._watch.looks > 0 and not self._capturing:
            self._watch.leaves(self._parameters)
            self._watch.looks -= 1

    def look(self, outcome: Outcome, rule: Rule, *, asks: bool) -> None:
        """Whether the closure is a function of x that knows of x + s, and sigma is not stuck; where the host decides.

        asks: a rejection has put x back to where `at_x` found it, so that the closure may be asked there again.
        """
        evidence = outcome.evidence
        self.leave()
        if self._capturable or self._watch is None or evidence is None or not (outcome.sound and self.tested):
            return
        if math.isfinite(evidence.f_trial):
            self._watch.not_finite = 0
        else:
            self._watch.no_loss(evidence.f_trial)
        if evidence.f_trial == evidence.loss:
            self._watch.unmoved(evidence.loss, evidence.vs + evidence.noise)  # g's
        else:
            self._watch.unmoved_steps = 0
        if (sigma := float(outcome.sigma)) != self._watch.sigma:
            self._watch.sigma, self._watch.rhos = sigma, []
        elif math.isfinite(rho := float(outcome.rho)):  # no null step
            self._watch.rhos.append(rho)
            if len(self._watch.rhos) == STILL:
                self._watch.still(rule)
        if asks and not (outcome.accepted or outcome.null):
            self._watch.rejected(self.loss, self.again)

    def _loss_and_gradients(self) -> tuple[Tensor, bool]:
        """The usual closure returns one number with its graph; `loss_and_gradients` knows all others."""
        looks = self._watch if self._watch is not None and self._watch.looks > 0 and not self._capturing else None
        if looks and not self._capturable:
            looks.begins(self._parameters)
        for p in self._parameters:
            p.grad = None
        with torch.enable_grad():
            result: Any = looks.call(self._closure, self._parameters) if looks else self._closure()
            if not (_is_number(result) and result.requires_grad) or any(p.grad is not None for p in self._parameters):
                return gradients_of(result, self._parameters, self._module)
            try:
                result.backward()  # type: ignore[no-untyped-call]
            except RuntimeError as error:
                raise explained(error) from error
        return whole(result.detach()), False

    def _evaluate(self, function: Closure, *, restore: bool = True) -> Tensor:
        self._drop_copies()
        gradients = [p.grad for p in self._parameters]
        for p in self._parameters:  # so that a closure which zeroes in place cannot touch the kept gradients
            p.grad = None
        default = None
        if self._twin is not None:
            default = torch.cuda.default_generators[torch.cuda.current_device()]
            drawing = default.graphsafe_get_state()
            default.graphsafe_set_state(self._twin)
        elif not self._capturing:
            self._randomness.restore()
        self._start.restore()
        try:
            with torch.set_grad_enabled(self._fills_gradients), _no_fast_path():
                result = function()
                return whole(result.detach()) if _is_number(result) else as_loss(result)
        except RuntimeError as error:
            if "does not require grad" in str(error):
                raise RuntimeError(NEEDS_GRADIENTS) from error
            raise
        finally:
            for p, g in zip(self._parameters, gradients, strict=True):
                p.grad = g
            if default is not None:
                default.graphsafe_set_state(drawing)
            elif not self._capturing:
                self._randomness_after.restore()
            if restore:
                self._after.restore()
            self._drop_copies()

    def _drop_copies(self) -> None:
        """Of the weights at another x: casts that a user's own autocast region has cached, and whole ones that
        fully_shard has gathered for its outermost layer and keeps until a backward pass."""
        torch.clear_autocast_cache()
        for module in self._together.wrapped:
            module.reshard()


class Buffers:
    """A copy of every buffer of a module, to be put back: contents, and identity where a forward rebinds a buffer."""

    def __init__(self, module: nn.Module | None) -> None:
        owners = [] if module is None else [m._buffers for m in _modules(module) if m._buffers]
        self._slots = [(owner, name, b) for owner in owners for name, b in owner.items()]
        kinds: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
        for b in (local(b) for _, _, b in self._slots if b is not None):
            if not is_expanded(b):  # what is expanded nobody can write in place
                kinds.setdefault((as_bytes(b).dtype, b.device), []).append(b)
        # Laid end to end: a few launches instead of one for each of a network's hundreds of small buffers.
        self._kinds = [(tensors, torch.cat([as_bytes(b).reshape(-1) for b in tensors])) for tensors in kinds.values()]
        self._forms = [[(b.shape, b.dtype) for b in tensors] for tensors in kinds.values()]

    def restore(self) -> None:
        for owner, name, tensor in self._slots:
            owner[name] = tensor
        for (tensors, copy), forms in zip(self._kinds, self._forms, strict=True):
            for b, (shape, _) in zip(tensors, forms, strict=True):
                if b.shape != shape:  # observers of quantization resize theirs
                    b.resize_(shape)
            _cut_into(copy, tensors)

    def restore_either(self, mine: Tensor, other: Buffers) -> None:
        """`restore` this copy where the 0-dim tensor `mine` is true, else `other`, without looking at it."""
        if self._forms != other._forms:
            self.restore()  # the forward has made a buffer, or another one, and there is nothing to choose from
            return
        for owner, name, tensor in self._slots:
            owner[name] = tensor
        for (tensors, copy), (_, others) in zip(self._kinds, other._kinds, strict=True):
            _cut_into(torch.where(mine, copy, others), tensors)


class Randomness:
    """The states of torch's generators on the CPU and on the devices in use."""

    def __init__(self, devices: Iterable[torch.device]) -> None:
        self._cpu = torch.get_rng_state()
        self._cuda = {d: torch.cuda.get_rng_state(d) for d in devices if d.type == "cuda"}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Randomness) and all(
            torch.equal(a, b)
            for a, b in zip([self._cpu, *self._cuda.values()], [other._cpu, *other._cuda.values()], strict=True)
        )

    def restore(self) -> None:
        torch.set_rng_state(self._cpu)
        for device, state in self._cuda.items():
            torch.cuda.set_rng_state(state, device)


@contextmanager
def untouched(module: nn.Module | None, parameters: Sequence[Tensor]) -> Iterator[None]:
    """Leave no trace: buffers, generators and gradients are afterwards as before."""
    buffers, randomness = Buffers(module), Randomness({p.device for p in parameters})
    gradients = [p.grad for p in parameters]
    try:
        yield
    finally:
        for p, g in zip(parameters, gradients, strict=True):
            p.grad = g
        buffers.restore()
        randomness.restore()
        torch.clear_autocast_cache()


def _modules(module: nn.Module) -> list[nn.Module]:
    """Each once, as `modules()` has them, which makes their names on the way."""
    found, known = [module], {module}
    for m in found:
        for child in m._modules.values():
            if child is not None and child not in known:
                known.add(child)
                found.append(child)
    return found


@torch.no_grad()
def _cut_into(flat: Tensor, tensors: Sequence[Tensor]) -> None:
    memory = [as_bytes(b) for b in tensors]
    torch._foreach_copy_(memory, cut(flat, memory))


def _is_number(result: object) -> TypeGuard[Tensor]:
    return isinstance(result, Tensor) and result.dim() == 0 and result.is_floating_point()


@contextmanager
def _no_fast_path() -> Iterator[None]:
    """Without gradients nn.TransformerEncoder takes a short cut, which with padding is another function."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)
