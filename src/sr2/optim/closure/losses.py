"""What a closure returns, as a loss with its gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...numerics import whole
from ..processes import parallel

Closure = Callable[[], Any]
"""Returns the loss, or one loss for each part of the batch, whose mean counts. It may also zero and fill the gradients
itself, as the closures of LBFGS do; where it then returns several, none is detached: (loss, accuracy) are not two."""

NO_SPARSE = (
    "sparse gradients are not supported, since R moves every entry at every step: "
    "use dense ones, as nn.Embedding(..., sparse=False) gives"
)
NEEDS_GRADIENTS = (
    "at x + s the closure is called without gradients, and it takes a derivative itself: put its body under "
    "`with torch.enable_grad():`"
)


def loss_and_gradients(
    closure: Closure, parameters: Sequence[Tensor], module: nn.Module | None = None
) -> tuple[Tensor, bool]:
    """The closure's loss, detached, with gradients in `.grad`; and whether the closure filled them itself."""
    if not callable(closure):
        raise TypeError(f"step takes a closure that returns the loss, and got {_describe(closure)}")
    for p in parameters:
        p.grad = None
    with torch.enable_grad():
        return gradients_of(closure(), parameters, module)


def gradients_of(result: object, parameters: Sequence[Tensor], module: nn.Module | None = None) -> tuple[Tensor, bool]:
    """The same for what the closure has returned, its graph being there still."""
    with torch.enable_grad():
        filled = any(p.grad is not None for p in parameters)
        losses: Sequence[Any] = result if isinstance(result, (list, tuple)) else [result]
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
    # With gradient_as_bucket_view they are views of DistributedDataParallel's buckets, which the next backward of this
    # closure, at x + s, fills anew.
    for p in parameters if filled else ():
        if p.grad is not None and p.grad._is_view():
            p.grad = p.grad.clone()
    return as_loss(result), filled


def as_loss(result: object) -> Tensor:
    """A closure's result as a detached 0-dim tensor."""
    if isinstance(result, (list, tuple)) and result:
        return torch.stack([as_loss(part) for part in result]).mean()
    if isinstance(result, (int, float)) and not isinstance(result, bool):
        return torch.tensor(result, dtype=torch.float64, device="cpu")
    if not isinstance(result, Tensor) or result.numel() != 1 or not result.is_floating_point():
        raise ValueError(
            f"the closure must return the loss, one number, and returned {_describe(result)}: return the loss alone, "
            "and its mean where it is a vector"
        )
    return whole(result.detach()).reshape(())


def mean_loss(result: object) -> Tensor:
    """The closure's loss with its graph; the mean over the parts where it returns several."""
    as_loss(result)
    losses: Sequence[Any] = result if isinstance(result, (list, tuple)) else [result]
    for loss in losses:
        _check_depends(loss)
    return torch.stack([loss.sum() for loss in losses]).mean()


def _backward(losses: Sequence[Any]) -> None:
    """Part by part: the same arithmetic, and their spread can be seen."""
    for loss in losses:
        _check_depends(loss)
        as_loss(loss)  # a vector is the user's mistake and is said before autograd says it
        try:
            (loss if len(losses) == 1 else loss / len(losses)).backward(torch.ones_like(loss))
        except RuntimeError as error:
            raise explained(error) from error


def explained(error: RuntimeError) -> RuntimeError:
    """An error of backward(), in words of this library where it is a known mistake."""
    if "second time" not in str(error):
        return error
    return RuntimeError(
        "the graph of the closure's loss is used up: call the network inside the closure and backward() nowhere, and "
        "add up the losses of several tasks (a list is one loss for each part of the batch)"
    )


def _check_depends(loss: object) -> None:
    if not isinstance(loss, (Tensor, int, float)):  # the number may be a loss that was detached by .item()
        raise ValueError(
            f"the closure must return the loss, a tensor, and returned {_describe(loss)}: end it with `return loss`, "
            "and keep what else you want of it in variables of your own"
        )
    if not isinstance(loss, Tensor) or not loss.requires_grad:
        raise ValueError(
            f"the closure returned {_describe(loss)}, which does not depend on the parameters: return the loss tensor, "
            "undetached, or call backward() inside the closure, and see that some parameter has requires_grad"
        )


def _describe(result: object) -> str:
    if isinstance(result, Tensor):
        return f"a {result.dtype} tensor of shape {tuple(result.shape)}"
    if result is None or isinstance(result, (int, float, str)):
        return repr(result)
    return f"an object of type {type(result).__name__}"  # a dict of outputs would print all of its tensors
