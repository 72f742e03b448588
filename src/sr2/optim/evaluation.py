"""Asking the closure twice: at x and at the trial point, with buffers and randomness as after one forward.

SR2 compares two values of the same function, so both evaluations must see the same dropout masks, and the second one
must leave no trace: not in batch-norm's statistics, not in the random number generators, not in the gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

Closure = Callable[[], Any]
"""Returns the loss, or one loss for each part of the batch, whose mean counts. It may also zero and fill the gradients
itself, as the closures of LBFGS do; several losses must then be undetached, since (loss, accuracy) are not two."""


NO_SPARSE = (
    "sparse gradients are not supported, since R moves every entry at every step: "
    "use dense ones, as nn.Embedding(..., sparse=False) gives"
)


class Buffers:
    """A copy of every buffer of a module, to be put back: contents, and identity where a forward rebinds a buffer."""

    def __init__(self, module: nn.Module | None) -> None:
        owners = [] if module is None else [m._buffers for m in module.modules() if m._buffers]
        self._slots = [(owner, name, b) for owner in owners for name, b in owner.items()]
        kinds: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
        for _, _, b in self._slots:
            if b is not None and not _expanded(b):  # what is expanded nobody can write in place
                kinds.setdefault((b.dtype, b.device), []).append(b)
        # Laid end to end by kind: a few launches instead of one for each of a network's hundreds of small buffers.
        self._kinds = [(tensors, _end_to_end(tensors)) for tensors in kinds.values()]
        self._shapes = [[b.shape for b in tensors] for tensors in kinds.values()]

    def restore(self) -> None:
        for owner, name, tensor in self._slots:
            owner[name] = tensor
        for (tensors, copy), shapes in zip(self._kinds, self._shapes, strict=True):
            for b, shape in zip(tensors, shapes, strict=True):
                if b.shape != shape:  # observers of quantization resize theirs
                    b.resize_(shape)
            _cut_into(copy, tensors)

    def restore_either(self, mine: Tensor, other: Buffers) -> None:
        """`restore` this copy where the 0-dim tensor `mine` is true, else `other`, without looking at it."""
        if self._shapes != other._shapes:
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


def capturing() -> bool:
    """Whether a CUDA graph is being captured."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


class TwoEvaluations:
    """One step's evaluations: `first` (with gradients), then `again` (no trace), or `undo` if the step is called off.

    Args:
        module: whose buffers to protect; None protects none.
        parameters: those the closure's gradients are wanted for.
        twin: during a CUDA graph's capture, a generator registered with it that draws what the default one draws.
    """

    def __init__(
        self, module: nn.Module | None, parameters: Sequence[Tensor], twin: torch.Generator | None = None
    ) -> None:
        self._module = module
        self._parameters = parameters
        self._devices = {p.device for p in parameters}
        self._before = Buffers(module)
        self._fills_gradients = False
        self.drew = False
        # A captured graph cannot rewind a generator: its second evaluation draws from the twin.
        self.capturing = capturing()
        self._twin = twin if self.capturing else None
        if not self.capturing:
            self._randomness = Randomness(self._devices)

    def first(self, closure: Closure) -> Tensor:
        """The loss at x, detached; every parameter's gradient is in its `.grad`."""
        versions = [p._version for p in self._parameters]
        with _no_fast_path():
            loss, self._fills_gradients = loss_and_gradients(closure, self._parameters, self._module)
        self._after = Buffers(self._module)
        # A forward may read the buffers that it updates, as spectral norm does. One that sets parameters from its first
        # batch and notes so in a buffer must not do it again.
        self._start = self._before if [p._version for p in self._parameters] == versions else self._after
        if not self.capturing:
            self._randomness_after = Randomness(self._devices)
            self.drew = self._randomness_after != self._randomness
        return loss

    def again(self, closure: Closure, *, settle_later: bool = False) -> Tensor:
        """The loss where the parameters are now; buffers, generators and gradients stay as `first` left them.

        settle_later: leave the buffers to `settle`, which must follow.
        """
        # Inside a user's own autocast region the cast copies of the weights are cached, and are those of another x.
        torch.clear_autocast_cache()
        gradients = [p.grad for p in self._parameters]
        for p in self._parameters:  # so that a closure which zeroes in place cannot touch the kept gradients
            p.grad = None
        default = None
        if self._twin is not None:
            default = torch.cuda.default_generators[torch.cuda.current_device()]
            drawing = default.graphsafe_get_state()
            default.graphsafe_set_state(self._twin)
        elif not self.capturing:
            self._randomness.restore()
        self._start.restore()
        try:
            with torch.set_grad_enabled(self._fills_gradients), _no_fast_path():
                return as_loss(closure())
        finally:
            for p, g in zip(self._parameters, gradients, strict=True):
                p.grad = g
            if default is not None:
                default.graphsafe_set_state(drawing)
            elif not self.capturing:
                self._randomness_after.restore()
            if not settle_later:
                self._after.restore()
            torch.clear_autocast_cache()

    def undo(self) -> None:
        """Put the buffers and the generators back to where they were before `first`."""
        self._before.restore()
        if not self.capturing:
            self._randomness.restore()

    def settle(self, sound: Tensor) -> None:
        """Buffers as after `first` where the 0-dim tensor `sound` is true, else as before it, without looking at it."""
        self._after.restore_either(sound, self._before)


def loss_and_gradients(
    closure: Closure, parameters: Sequence[Tensor], module: nn.Module | None = None
) -> tuple[Tensor, bool]:
    """The closure's loss, detached, with gradients in `.grad`; and whether the closure filled them itself."""
    if not callable(closure):
        raise TypeError(f"step takes a closure that returns the loss, and got {_describe(closure)}")
    for p in parameters:
        p.grad = None
    with torch.enable_grad():
        result = closure()
        filled = any(p.grad is not None for p in parameters)
        losses = result if isinstance(result, (list, tuple)) else [result]
        if filled and len(losses) > 1 and not all(isinstance(p, Tensor) and p.requires_grad for p in losses):
            raise ValueError(
                f"a closure that fills the gradients itself must return the loss alone, and returned {len(losses)} "
                "things, not all of them losses: keep the others in variables of your own"
            )
        if len(losses) > 1 and parallel(module) is not None:  # which would reduce the first part's gradients alone
            raise ValueError(
                f"under DistributedDataParallel the closure must return one loss, and returned {len(losses)}: every "
                "process is a part of the batch already"
            )
        if not filled:
            _backward(losses)
    return as_loss(result), filled


def _backward(losses: Sequence[Any]) -> None:
    """Part by part: the same arithmetic, and their spread can be seen."""
    for loss in losses:
        _check_depends(loss)
        as_loss(loss)  # a vector is the user's mistake and is said before autograd says it
        try:
            (loss if len(losses) == 1 else loss / len(losses)).backward(torch.ones_like(loss))
        except RuntimeError as error:
            if "second time" not in str(error):
                raise
            raise RuntimeError(
                "the graph of the closure's loss is used up: call the network inside the closure and backward() "
                "nowhere, and add up the losses of several tasks (a list is one loss for each part of the batch)"
            ) from error


def parallel(module: nn.Module | None) -> DistributedDataParallel | None:
    """The DistributedDataParallel in a module, which torch.compile may have wrapped."""
    found = (m for m in module.modules() if isinstance(m, DistributedDataParallel)) if module is not None else ()
    return next(iter(found), None)


def mean_loss(result: object) -> Tensor:
    """The closure's loss with its graph; the mean over the parts where it returns several."""
    as_loss(result)
    losses: Sequence[Any] = result if isinstance(result, (list, tuple)) else [result]
    for loss in losses:
        _check_depends(loss)
    return torch.stack([loss.sum() for loss in losses]).mean()


def as_loss(result: object) -> Tensor:
    """A closure's result as a detached 0-dim tensor."""
    if isinstance(result, (list, tuple)) and result:
        return torch.stack([as_loss(part) for part in result]).mean()
    if isinstance(result, (int, float)) and not isinstance(result, bool):
        return torch.tensor(result, dtype=torch.float64, device="cpu")
    if not isinstance(result, Tensor) or result.numel() != 1 or not result.is_floating_point():
        raise ValueError(f"the closure must return the loss, one number, and returned {_describe(result)}")
    return result.detach().reshape(())


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


@contextmanager
def _no_fast_path() -> Iterator[None]:
    """Without gradients nn.TransformerEncoder takes a short cut, which with padding is another function."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)


def _check_depends(loss: object) -> None:
    if not isinstance(loss, Tensor) or not loss.requires_grad:
        raise ValueError(
            f"the closure returned {_describe(loss)} that does not depend on the parameters: return the loss tensor, "
            "undetached, or call backward() inside the closure"
        )


def _expanded(tensor: Tensor) -> bool:
    strides = tensor.stride()
    return 0 in strides and any(stride == 0 and size > 1 for stride, size in zip(strides, tensor.shape, strict=True))


def _end_to_end(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([t.detach().reshape(-1) for t in tensors])


def _cut_into(flat: Tensor, tensors: Sequence[Tensor]) -> None:
    pieces = torch.split(flat, [t.numel() for t in tensors])
    with torch.no_grad():
        torch._foreach_copy_(list(tensors), [piece.view(t.shape) for piece, t in zip(pieces, tensors, strict=True)])


def _describe(result: object) -> str:
    if isinstance(result, Tensor):
        return f"a {result.dtype} tensor of shape {tuple(result.shape)}"
    return repr(result)
