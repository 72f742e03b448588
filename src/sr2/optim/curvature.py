"""sigma_0: the local Lipschitz constant of the gradient at x_0, from a few Hessian-vector products.

A step of length 1 / sigma with sigma = L is the longest that the theory of proximal gradient allows, and a good first
guess for a method that corrects itself. L is the largest algebraic eigenvalue of the Hessian of the batch's loss, by
Lanczos from a fixed random vector: the same batch and weights give the same number.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..numerics import gradient_of, in_parts, local
from ..regularizers.base import Regularizer
from ..telling import tell
from .closure.losses import NO_SPARSE, Closure, loss_and_gradients, mean_loss
from .closure.twice import untouched
from .processes import ALONE, Processes

ITERATIONS = 32
TOLERANCE = 0.02
LARGEST = 1e12

Vector = list[Tensor]
_log = logging.getLogger("sr2")


def estimate_sigma0(
    closure: Closure, module: nn.Module | None, parameters: Sequence[Tensor], together: Processes = ALONE
) -> float:
    """An estimate of L at the current point, positive and at most 1e12; buffers, generators and gradients stay.

    Of several processes under DistributedDataParallel it is that of the mean of their losses: every product with the
    Hessian is a mean, so that all take the same decisions. Falls back to a finite difference along the gradient where
    the loss cannot be differentiated twice, and says so; it is the way for DTensor parameters, since fully_shard gives
    the gradients of a whole layer at once.

    >>> from torch import nn
    >>> model, x = nn.Linear(3, 1, bias=False), torch.eye(3) * torch.tensor([1.0, 2.0, 5.0])
    >>> curvature = estimate_sigma0(lambda: 0.5 * model(x).square().sum(), None, list(model.parameters()))
    >>> round(curvature)
    25
    """
    with untouched(module, parameters), torch.enable_grad():
        for p in parameters:
            p.grad = None
        try:
            if together.mesh is not None:
                return _usable(_along_gradient(closure, parameters, together))
            result = closure()
            if any(p.grad is not None for p in parameters):
                _log.info("sigma_0 by finite differences along the gradient: the closure fills the gradients itself")
                estimate = _along_gradient(closure, parameters, together)
            else:
                estimate = _largest_eigenvalue(mean_loss(result), parameters, together.mean)
        except RuntimeError as error:
            if "sparse" in str(error).lower():
                raise ValueError(NO_SPARSE) from error
            if not _is_about_double_backward(error):
                raise
            tell(f"sigma_0 by finite differences: no second derivative ({_first_line(error)})")
            estimate = _along_gradient(closure, parameters, together)
    return _usable(estimate)


def _usable(estimate: float) -> float:
    return min(estimate, LARGEST) if math.isfinite(estimate) and estimate > 0 else 1.0


@torch.no_grad()
def leaves_half(
    penalized: Iterable[tuple[Regularizer | None, Sequence[Tensor]]], sigma: float, together: Processes = ALONE
) -> float:
    """The least of sigma, 2 sigma, 4 sigma, … with which the prox of x_0 leaves half of its nonzeros.

    The curvature knows nothing of R: with a large lambda, a first step of 1 / L can leave nothing to train. R that are
    not sums over entries, such as balls, take what they take whatever sigma is, and are not asked.

    >>> from sr2 import L0
    >>> leaves_half([(L0(1.0), [torch.tensor([0.1, 0.5, 0.7, 1.0])])], 1.0)  # the threshold is sqrt(2 / sigma)
    8.0
    """
    groups = [
        (r, [local(p) for p in params if together.counts(p)])
        for r, params in penalized
        if r is not None and r.separable
    ]
    parts = [(r, part) for r, xs in groups for part in in_parts(xs)]

    def count(xs: Iterable[Tensor]) -> float:
        return together.total(sum(int(x.count_nonzero()) for x in xs))

    def left() -> float:
        return count(r.prox([part], 1.0 / sigma)[0] for r, part in parts)

    nonzeros = count(part for _, part in parts)
    while sigma < LARGEST and 2 * left() < nonzeros:
        sigma *= 2
    return sigma


def _largest_eigenvalue(loss: Tensor, parameters: Sequence[Tensor], mean: Callable[[Tensor], Tensor]) -> float:
    if _once_only([loss]):
        raise RuntimeError("a reentrant checkpoint cannot be differentiated twice")
    gradient = torch.autograd.grad(loss, list(parameters), create_graph=True, materialize_grads=True)
    touched = [(g, p) for g, p in zip(gradient, parameters, strict=True) if g.requires_grad and p.numel()]
    if not touched:
        return 0.0  # linear in every parameter, or none has an entry
    gs, ps = [g for g, _ in touched], [p for _, p in touched]
    if _once_only(gs):
        raise RuntimeError("an operation marked once_differentiable cannot be differentiated twice")

    def product(v: Vector) -> Vector:
        own = torch.autograd.grad(gs, ps, grad_outputs=v, retain_graph=True, materialize_grads=True)
        return [mean(part) for part in own]

    generator = torch.Generator().manual_seed(0)
    start = [torch.randn(p.shape, generator=generator, dtype=p.dtype, device="cpu").to(p.device) for p in ps]
    return lanczos(product, start)


def lanczos(product: Callable[[Vector], Vector], start: Vector) -> float:
    """The largest algebraic eigenvalue of a symmetric operator; where that is not positive, the largest in modulus.

    It stops once the residual |H y - theta y| of the Ritz pair is below 2 % of theta. A change of theta that is small
    is no sign: it is small too where the start has little of the top eigenvector. No reorthogonalization: lost
    orthogonality repeats eigenvalues, which does not move the largest.
    """
    v, before = _scaled(start, 1.0 / _norm(start)), [torch.zeros_like(x) for x in start]
    alphas: list[float] = []
    betas: list[float] = []
    lowest = top = 0.0
    for _ in range(ITERATIONS):
        w = product(v)
        alphas.append(_dot(w, v))
        w = [a - alphas[-1] * b - (betas[-1] if betas else 0.0) * c for a, b, c in zip(w, v, before, strict=True)]
        beta = _norm(w)
        if not math.isfinite(alphas[-1]) or not math.isfinite(beta):
            return math.nan
        small = torch.diag(torch.tensor(alphas, dtype=torch.float64, device="cpu"))
        for i, b in enumerate(betas):
            small[i, i + 1] = small[i + 1, i] = b
        ritz, vectors = torch.linalg.eigh(small)
        lowest, top, residual = float(ritz[0]), float(ritz[-1]), beta * abs(float(vectors[-1, -1]))
        if beta <= 1e-6 * max(-lowest, top) or residual <= TOLERANCE * top:
            break
        betas.append(beta)
        before, v = v, _scaled(w, 1.0 / beta)
    return top if top > 0 else -lowest


@torch.no_grad()
def _along_gradient(closure: Closure, parameters: Sequence[Tensor], together: Processes) -> float:
    """|g(x + s) - g(x)| / |s| with s = h g / |g|, as it comes out in the parameters' dtype.

    Of one rounding h / |x| = sqrt(eps) would make the least; gradients carry more, and eps^0.4 is 0.14 in bfloat16,
    2e-3 in float32 and 5e-7 in float64.
    """
    xs = [local(p).detach() for p in parameters]
    kept = [x.clone() for x in xs]

    def gradient() -> Vector:
        loss_and_gradients(closure, parameters)
        gs = map(gradient_of, parameters)
        own = [torch.zeros_like(x) if g is None else g.clone() for x, g in zip(xs, gs, strict=True)]
        return own if together.mesh is not None else [together.mean(g) for g in own]

    def norm(vector: Vector) -> float:
        mine = [x for x, p in zip(vector, parameters, strict=True) if together.counts(p)]
        return math.sqrt(together.total(_dot(mine, mine)))

    g = gradient()
    size = norm(g)
    if not (math.isfinite(size) and size > 0):
        return math.nan
    eps = max(torch.finfo(x.dtype).eps for x in xs)
    h = eps**0.4 * max(1.0, norm(kept))
    try:
        for x, d in zip(xs, g, strict=True):
            x.add_(d, alpha=h / size)
        together.reshard()
        return norm(_minus(gradient(), g)) / norm(_minus(xs, kept))
    finally:
        for x, old in zip(xs, kept, strict=True):
            x.copy_(old)
        together.reshard()


def _once_only(gradient: Sequence[Tensor]) -> bool:
    """Whether an operation in the gradient's graph is marked once_differentiable.

    Its "Error" node leads to no parameter, so autograd.grad does not run into it: it would leave out that part of the
    Hessian without a word.
    """
    seen: set[Any] = set()
    nodes: list[Any] = [g.grad_fn for g in gradient]
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        if type(node).__name__ in ("Error", "CheckpointFunctionBackward"):  # torch's own, and reentrant checkpoints
            return True
        seen.add(node)
        nodes.extend(after for after, _ in node.next_functions)
    return False


def _is_about_double_backward(error: RuntimeError) -> bool:
    words = str(error)
    return any(
        clue in words
        for clue in (
            "not implemented",
            "double backward",
            "does not require grad",
            "create_graph",
            "differentiated twice",
        )
    )


def _first_line(error: RuntimeError) -> str:
    return str(error).splitlines()[0][:120]


def _dot(a: Vector, b: Vector) -> float:
    return float(sum((x.double() * y.double()).sum().cpu() for x, y in zip(a, b, strict=True)))


def _norm(a: Vector) -> float:
    return math.sqrt(_dot(a, a))


def _minus(a: Vector, b: Vector) -> Vector:
    return [x - y for x, y in zip(a, b, strict=True)]


def _scaled(a: Vector, factor: float) -> Vector:
    return [x * factor for x in a]
