"""A certificate of stationarity: the right-hand side of the paper's fourth theorem, estimated at the current point.

    E[dist(0, subdifferential of F at x + s)^2]  <=  3 (L^2 + sigma^2) E[|s|^2]  +  3 E[|grad f(x) - g|^2]

The expectations are over batches that yield a success (a hat on xi in the paper). The theorem is stated with
sigma_max; its proof needs only the sigma at x, which is what is used here. L is estimated at x, on the first batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...regularizers.base import ZERO
from ..closure.twice import TwoEvaluations, untouched
from ..curvature import estimate_sigma0
from ..moves.base import proximal_point
from ..parts.rules import Evidence
from ..sr2 import SR2


@dataclass(frozen=True)
class Estimate:
    """A mean over batches, and half the width of its 95 % confidence interval."""

    mean: float
    half_width: float

    @staticmethod
    def of(draws: Sequence[float], factor: float = 1.0) -> Estimate:
        if not draws:
            return Estimate(math.nan, math.nan)
        mean = math.fsum(draws) / len(draws)
        if len(draws) == 1:
            return Estimate(factor * mean, math.nan)
        variance = math.fsum((d - mean) ** 2 for d in draws) / (len(draws) - 1)
        return Estimate(factor * mean, factor * 1.96 * math.sqrt(variance / len(draws)))

    def __str__(self) -> str:
        return f"{self.mean:.4g} ± {self.half_width:.2g}"


@dataclass(frozen=True)
class Certificate:
    """What can be said of the current point. Prints as a table."""

    step_term: Estimate
    """3 (L^2 + sigma^2) E[|s|^2] over the batches whose step is accepted."""
    variance_term: Estimate
    """3 E[|grad f - g|^2] over the same batches."""
    delta: float
    """max |s| over them: x is stationary up to a move of delta."""
    residual: float
    """sigma |x - prox_{R/sigma}(x - grad f / sigma)|, the proximal residual of the full problem."""
    residual_error: float
    """What the sampling of grad f may have added to it (for convex R): 1.96 sqrt(E[|grad f - g|^2] / batches)."""
    lipschitz: float
    """The estimate of L."""
    sigma: float
    batches: int
    accepted: int

    @property
    def bound(self) -> float:
        """The whole right-hand side: an upper bound, in expectation, of dist(0, dF(x + s))^2."""
        return self.step_term.mean + self.variance_term.mean

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {"bound": self.bound, **asdict(self)}

    def __str__(self) -> str:
        rows = [
            ("E dist(0, dF(x + s))^2 at most", f"{self.bound:.4g}"),
            ("  step term", str(self.step_term)),
            ("  variance term", str(self.variance_term)),
            ("delta, the longest step", f"{self.delta:.4g}"),
            ("proximal residual of the full problem", f"{self.residual:.4g} ± {self.residual_error:.2g}"),
            ("L, sigma", f"{self.lipschitz:.4g}, {self.sigma:.4g}"),
            ("batches, accepted", f"{self.batches}, {self.accepted}"),
        ]
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name.ljust(width)}  {value}" for name, value in rows)


@torch.no_grad()
def certificate(
    model: nn.Module,
    data: Iterable[tuple[Tensor, Tensor]],
    optimizer: SR2,
    loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy,
) -> Certificate:
    """Estimate the bound of theorem 4 at the current point, from two passes over `data`; nothing is moved by it.

    >>> from sr2 import SR2, L1, certificate
    >>> _ = torch.manual_seed(0)
    >>> model, x = nn.Linear(4, 1), torch.randn(32, 4)
    >>> optimizer = SR2(model, L1(0.01), sigma=5.0, **SR2.paper_defaults())
    >>> batches = [(x[i : i + 8], x[i : i + 8, :1]) for i in range(0, 32, 8)]
    >>> report = certificate(model, batches, optimizer, loss=F.mse_loss)
    >>> report.batches, report.accepted
    (4, 4)

    Args:
        model: as it is trained, in the mode in which it is trained.
        data: batches (inputs, targets), iterated twice: a list or a loader, drawn as in training. Its mean gradient
            stands for the gradient of f.
        optimizer: the SR2 whose regularizers and sigma the certificate is about.
        loss: of the model's output and the targets.
    """
    if not isinstance(optimizer, SR2):
        raise TypeError(f"certificate needs the SR2 that trains the model, and got a {type(optimizer).__name__}")
    parameters = optimizer._parameters()
    if optimizer.direction is not None or optimizer.metric is not None:
        raise ValueError(
            "the theorem is about plain gradients: certificate needs momentum=0 and metric=None, as "
            "SR2(model, R, **SR2.paper_defaults()) has them"
        )
    decays = {group["weight_decay"] for group in optimizer.param_groups} - {0, "auto"}  # without a metric, "auto" is 0
    if decays:
        raise ValueError(f"the theorem knows no weight decay, and weight_decay is {decays.pop()!r}: give Ridge instead")
    if optimizer._processes.mesh is not None:
        raise ValueError("certificate needs whole parameters, and these are DTensors: load them into a plain network")

    def closure_of(inputs: Tensor, targets: Tensor) -> Callable[[], Tensor]:
        return lambda: loss(model(inputs), targets)

    with untouched(model, parameters):
        batches = data if isinstance(data, (list, tuple)) else list(data)  # a loader that shuffles draws numbers
        if not batches:
            raise ValueError("certificate needs at least one batch, and data is empty")
        sigma = optimizer.sigma
        lipschitz = estimate_sigma0(closure_of(*batches[0]), model, parameters)
        if math.isnan(sigma):
            sigma = max(lipschitz, optimizer.sigma_min)
        full = [torch.zeros_like(p, dtype=torch.float64) for p in parameters]
        for batch in batches:
            TwoEvaluations(closure_of(*batch), model, parameters).at_x()
            for total, p in zip(full, parameters, strict=True):
                if p.grad is not None:
                    total.add_(p.grad.double(), alpha=1.0 / len(batches))
        squares, noises = [], []
        for batch in batches:
            accepted, ss, noise = _one_batch(optimizer, closure_of(*batch), model, parameters, full, sigma)
            if accepted:
                squares.append(ss)
                noises.append(noise)
        residual = _residual(optimizer, parameters, full, sigma)
    variance = Estimate.of(noises)
    return Certificate(
        step_term=Estimate.of(squares, 3 * (lipschitz**2 + sigma**2)),
        variance_term=Estimate.of(noises, 3.0),
        delta=math.sqrt(max(squares, default=math.nan)),
        residual=residual,
        residual_error=1.96 * math.sqrt(variance.mean / len(batches)) if noises else math.nan,
        lipschitz=lipschitz,
        sigma=sigma,
        batches=len(batches),
        accepted=len(squares),
    )


def _one_batch(
    optimizer: SR2,
    closure: Callable[[], Tensor],
    model: nn.Module,
    parameters: Sequence[Tensor],
    full: Sequence[Tensor],
    sigma: float,
) -> tuple[bool, float, float]:
    """Whether the batch's step would be accepted, its |s|^2, and |g - grad f|^2; x is put back."""
    evaluations = TwoEvaluations(closure, model, parameters)
    f = evaluations.at_x()
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    noise = sum(float((g.double() - m).square().sum()) for g, m in zip(gradients, full, strict=True))
    move = optimizer._moves(optimizer._proposals(sigma))
    try:
        model_of_step = move.to_trial()
        losses, rounding = (f, f, evaluations.at_trial()), optimizer._rounding(f)
        where = (optimizer._processes, optimizer._search.sigma.device)
        evidence = Evidence.gather(losses, model_of_step[:4], rounding, *where)
    finally:
        move.put_back()
    accepted = optimizer.rule.judge(evidence, optimizer._search).accepted | (evidence.ss == 0)
    return bool(accepted), float(evidence.ss), noise


def _residual(optimizer: SR2, parameters: Sequence[Tensor], full: Sequence[Tensor], sigma: float) -> float:
    gradient = dict(zip(map(id, parameters), full, strict=True))
    total = 0.0
    for group in optimizer.param_groups:
        xs = [p for p in group["params"] if p.requires_grad]
        if not xs:
            continue
        wide = [x.double() for x in xs]
        gs = [gradient[id(x)] for x in xs]
        regularizer = group["regularizer"] or ZERO
        zs = proximal_point(wide, gs, [1.0 / sigma] * len(xs), regularizer)
        total += sum(float((x - z).square().sum()) for x, z in zip(wide, zs, strict=True))
    return sigma * math.sqrt(total)
