"""A throw-away SR2 in which many rules can be tried: every parameter in one flat vector, every decision a 0-dim tensor.

    model      phi(s) = v's + sigma/2 s'D s + R(x + s)        v: average of gradients, D: identity or Adam's
    trial      z = argmin, coordinate by coordinate
    judged     f(z) + (v - g)'z against f(x) + (v - g)'x, on the batch of g
    rho        1 - C / (2 sigma) where R is 0, with C = 2 (f(z) - f(x) - g's) / s'Ds, the curvature along s

Nothing here reads the host after the first step, so that a whole step can be captured as a CUDA graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

Closure = Callable[[], Tensor]


class Flat:
    """The trainable parameters of a module as views of one vector, and their gradients as views of another."""

    def __init__(self, model: nn.Module) -> None:
        params = [p for p in model.parameters() if p.requires_grad]
        n = sum(p.numel() for p in params)
        self.x = torch.empty(n, dtype=params[0].dtype, device=params[0].device)
        self.g = torch.zeros_like(self.x)
        self.weights = torch.empty(n, dtype=torch.bool, device=self.x.device)
        start = 0
        for p in params:
            stop = start + p.numel()
            x, g = (_like(flat[start:stop], p) for flat in (self.x, self.g))
            x.copy_(p.detach())
            p.data, p.grad = x, g
            self.weights[start:stop] = p.dim() > 1  # what is penalized: not biases, not norms
            start = stop


def _like(flat: Tensor, p: Tensor) -> Tensor:
    """A view of `flat` with the shape of p, in p's memory format."""
    if p.dim() == 4 and p.is_contiguous(memory_format=torch.channels_last) and not p.is_contiguous():
        o, i, h, w = p.shape
        return flat.view(o, h, w, i).permute(0, 3, 1, 2)
    return flat.view(p.shape)


@dataclass(frozen=True)
class Rule:
    """log sigma moves by a function of rho. `kind` and its constants; `early` multiplies the moves of the first steps.

    ratio     up where rho < eta1 (rejected), -down where rho >= eta2
    zones     the same, and +soft where eta1 <= rho < mid
    quantile  rate (1[rho < aim] - share): the `share` quantile of rho goes to aim
    mean      rate clip(gain (aim - rho), -1, 1)
    fixed     sigma stays, and nothing is rejected: ProxGEN with lr = 1 / sigma
    follow    towards sigma = C_mean / (2 (1 - aim)), by at most rate; C_mean a running mean of the curvature along s
    """

    kind: str = "ratio"
    eta1: float = 1e-3
    eta2: float = 0.8
    mid: float = 0.0
    up: float = 0.405
    soft: float = 0.0
    down: float = 0.02
    aim: float = 0.8
    share: float = 0.5
    rate: float = 0.02
    gain: float = 2.0
    decay: float = 0.95
    early: float = 0.0
    early_steps: float = 50.0
    cool: float = 0.0  # follow: sigma's target grows as (1 + t / 100)^cool

    def move(self, rho: Tensor, bad: Tensor, sigma: Tensor, curvature: Tensor, t: Tensor) -> Tensor:
        zero = torch.zeros_like(rho)
        if self.kind in ("ratio", "zones"):
            move = torch.where(rho >= self.eta2, zero - self.down, zero)
            if self.kind == "zones":
                move = torch.where(rho < self.mid, zero + self.soft, move)
        elif self.kind == "quantile":
            move = self.rate * ((rho < self.aim).to(rho.dtype) - self.share)
        elif self.kind == "mean":
            move = self.rate * (self.gain * (self.aim - rho)).clamp(-1, 1)
        elif self.kind == "fixed":
            move = zero
        elif self.kind == "follow":
            target = curvature.clamp_min(1e-30) / (2 * (1 - self.aim)) * (1 + t / 100) ** self.cool
            move = (target / sigma).log().clamp(-self.rate, self.rate)
        else:
            raise ValueError(self.kind)
        boost = 1 + self.early * (1 - t / self.early_steps).clamp_min(0)
        return torch.where(bad, zero + self.up, move * boost)


@dataclass(frozen=True)
class Setting:
    """One variant: metric, averages, rule, decay, first step."""

    metric: str = "adam"
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    sigma0: float = 100.0
    rule: Rule = field(default_factory=Rule)
    decay: float = 0.0
    decay_kind: str = "l2"  # l2: decay/2 |x|^2.  metric: decay/2 x'Dx, which is AdamW's decoupled one
    l1: float = 0.0
    l0: float = 0.0
    slack: float = 1e-6  # times max(1, |f|): a decrease below it is no evidence
    coarse: float = 0.0  # times |f| max(1, -log |f|): what bfloat16 autocast may hide, 2 eps
    outlier: float = 0.0  # a gradient this many times longer than the running root mean square is not believed
    rise: float = 0.0  # the batch's F may not rise by more than this many mean changes
    first: str = "none"  # search: the first batch is tried until rho is between 0.5 and 0.9
    windows: tuple[int, ...] = (8,)
    sigma_min: float = 1e-8
    sigma_max: float = 1e12


class SR2:
    """The optimizer of one `Setting` on one module."""

    def __init__(
        self,
        model: nn.Module,
        setting: Setting,
        flat: Flat | None = None,
        chained: bool = False,
        compiled: bool = False,
    ) -> None:
        self.setting, self.flat, self.chained = setting, flat or Flat(model), chained
        x = self.flat.x
        self.x, self.m = x.clone(), torch.zeros_like(x)
        self.m_new = torch.zeros_like(x)
        adam = setting.metric == "adam"
        self.q = torch.zeros_like(x) if adam else x.new_zeros(1)
        self.q_new = torch.zeros_like(self.q)
        self.averages = [x.clone() for _ in setting.windows]
        self.buffers = [b for b in model.buffers() if b.numel() > 0]

        def scalar(value: float) -> Tensor:
            return torch.tensor(value, dtype=torch.float64, device=x.device)

        self.sigma, self.t, self.steps = scalar(setting.sigma0), scalar(0), scalar(0)
        self.rho, self.rejected, self.evaluations = scalar(1), scalar(0), scalar(0)
        self.curvature, self.rho_mean = scalar(0), scalar(0)
        self.energy, self.change = scalar(0), scalar(0)
        self.safe_t = scalar(0)
        # The last point that passed: the trial may be asked every few steps only.
        self.safe = [x.clone(), self.m.clone(), self.q.clone()] if chained else []
        self.constants = [
            scalar(v) for v in (setting.beta1, setting.beta2, setting.eps, setting.decay, setting.l1, setting.l0)
        ]
        self._work = torch.compile(_work) if compiled else _work
        self._mix = torch.compile(_mix) if compiled else _mix
        self.started = setting.first == "none"

    def tensors(self) -> list[Tensor]:
        """The state, to be put back after a capture."""
        found = [value for value in vars(self).values() if isinstance(value, Tensor)]
        return [*found, *self.averages, *self.safe]

    # One step -----------------------------------------------------------------------------------------------------

    def step(self, closure: Closure, test: bool = True) -> Tensor:
        """Algorithm 1 on one batch. With `test=False` the trial is kept unseen and sigma stays."""
        self.prepare(closure)
        f = self._gradient(closure)
        with torch.no_grad():
            numbers = self._propose()
            trial = self._trial(closure) if test else f
            self._settle(f, trial, *numbers, test)
        return f

    def _gradient(self, closure: Closure) -> Tensor:
        self.flat.g.zero_()
        with torch.enable_grad():
            loss = closure()
            loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach().double()

    def _trial(self, closure: Closure) -> Tensor:
        saved = [b.clone() for b in self.buffers]
        f = closure().detach().double()
        for b, old in zip(self.buffers, saved, strict=True):
            b.copy_(old)
        return f

    def _propose(self) -> tuple[Tensor, ...]:
        c, flat = self.setting, self.flat
        vectors = (flat.x, self.x, flat.g, self.m, self.m_new, self.q, self.q_new, flat.weights)
        kinds = (c.metric == "adam", c.decay_kind if c.decay else "", bool(c.l1), bool(c.l0))
        numbers: tuple[Tensor, ...] = self._work(*vectors, self.t + 1, self.sigma, self.constants, *kinds)
        return numbers

    def _settle(
        self, f: Tensor, trial: Tensor, vs: Tensor, gs: Tensor, sds: Tensor, drop: Tensor, gg: Tensor, test: bool
    ) -> None:
        """Accept or reject; the next sigma; the averages."""
        c = self.setting
        t = self.t + 1
        finite = torch.isfinite(f) & torch.isfinite(vs) & torch.isfinite(gg)
        accept = believed = finite
        if c.outlier:
            accept = believed = finite & ((self.energy <= 0) | (gg <= c.outlier**2 * self.energy))
        if test:
            accept = self._judge(f, trial, vs, gs, sds, drop, t, finite & torch.isfinite(trial), believed)
            self.evaluations.add_(1)
        grown = torch.where(believed, torch.where(self.energy > 0, 0.9 * self.energy + 0.1 * gg, gg), 4 * self.energy)
        self.energy.copy_(torch.where(torch.isfinite(gg), grown, self.energy))
        self.rejected.add_(~accept)
        self.steps.add_(1)
        old = self.safe if self.chained and test else [self.x, self.m, self.q]
        old_t = self.safe_t if self.chained and test else self.t
        self.t.copy_(torch.where(accept, t, old_t))
        self._mix(accept, [self.flat.x, self.m, self.q], [self.flat.x, self.m_new, self.q_new], old)
        if self.chained and test:
            self.safe_t.copy_(self.t)
            for safe, now in zip(self.safe, (self.flat.x, self.m, self.q), strict=True):
                safe.copy_(now)
        for average, k in zip(self.averages, c.windows, strict=True):
            average.lerp_(self.flat.x, ((k + 1) / (k + self.steps)).to(average.dtype))

    def _judge(
        self, f: Tensor, trial: Tensor, vs: Tensor, gs: Tensor, sds: Tensor, drop: Tensor, t: Tensor, finite: Tensor,
        believed: Tensor,
    ) -> Tensor:  # fmt: skip
        c, rule = self.setting, self.setting.rule
        slack = self._slack(f, trial)
        predicted = drop - vs
        actual = f - trial - (vs - gs) + drop
        rho = torch.where(finite, (actual + slack) / (predicted + slack), torch.full_like(f, -1.0))
        curvature = 2 * (trial - f - gs) / sds.clamp_min(1e-300)
        curvature = torch.minimum(torch.maximum(curvature, -self.sigma), 4 * self.sigma)  # one batch has one vote
        decay = torch.minimum(torch.full_like(t, rule.decay), (t - 1) / t)
        mean = torch.where(finite, self.curvature * decay + curvature * (1 - decay), self.curvature)
        bad = rho < (-math.inf if rule.kind == "fixed" else rule.eta1)
        change = trial - f - drop
        if c.rise:
            bad = bad | ((self.change > 0) & (change > c.rise * self.change + slack))
        told = predicted > 2 * slack  # else rho is rounding: sigma stays
        move = rule.move(rho, bad, self.sigma, mean, t)
        factor = torch.where(believed & (told | bad), move, torch.zeros_like(move)).exp()
        accept = believed & ~bad
        self.curvature.copy_(torch.where(believed, mean, self.curvature))
        self.rho_mean.copy_(0.98 * self.rho_mean + 0.02 * rho.clamp(-2, 2))
        self.rho.copy_(rho)
        self.sigma.copy_((self.sigma * factor).clamp(c.sigma_min, c.sigma_max))
        kept = torch.where(self.change > 0, 0.9 * self.change + 0.1 * change.abs(), change.abs())
        self.change.copy_(torch.where(accept, kept, torch.where(finite, 2 * self.change, self.change)))
        return accept

    def _slack(self, f: Tensor, trial: Tensor) -> Tensor:
        size = trial.abs()
        margin = -size.clamp_min(1e-300).log()
        return torch.maximum(
            self.setting.slack * f.abs().clamp_min(1), self.setting.coarse * size * margin.clamp_min(1)
        )

    # The first step -------------------------------------------------------------------------------------------------

    def prepare(self, closure: Closure) -> None:
        """sigma_0: the first batch is tried, forwards only, until C / (2 sigma) lies between 0.1 and 0.5; then 0.3."""
        if self.started:
            return
        self.started = True
        f = self._gradient(closure)
        factor, last = 8.0, 0
        with torch.no_grad():
            for _ in range(24):
                _, gs, sds, _, _ = self._propose()
                trial = self._trial(closure)
                self.flat.x.copy_(self.x)
                self.evaluations.add_(1)
                lost = float((trial - f - gs - self._slack(f, trial)) / (self.sigma * sds))  # 1 - rho where R is 0
                if 0.1 <= lost <= 0.5:
                    self.sigma.mul_(lost / 0.3)
                    return
                direction = -1 if lost < 0.1 else 1  # what is not finite is too long a step
                if last and direction != last:
                    factor = factor**0.5
                if factor < 1.2:
                    return
                last = direction
                self.sigma.mul_(factor**direction).clamp_(self.setting.sigma_min, self.setting.sigma_max)

    def use(self, vector: Tensor) -> None:
        """Put another point into the module (an average, say)."""
        self.flat.x.copy_(vector)


# Vector arithmetic, apart so that it can be compiled once for all settings: constants are tensors ---------------------


def _work(
    x: Tensor, x_old: Tensor, g: Tensor, m: Tensor, m_new: Tensor, q: Tensor, q_new: Tensor, weights: Tensor,
    t: Tensor, sigma: Tensor, constants: list[Tensor], adam: bool, decay_kind: str, l1: bool, l0: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """x -> trial, in place; v's, g's, s'Ds, R(x) - R(z), |g|^2."""
    beta1, beta2, eps, decay, lam, lam0 = constants
    m_next = m + (1 - beta1) * (g - m)
    v = m_next / (1 - beta1**t)
    D = torch.ones_like(x)
    if adam:
        q_next = q + (1 - beta2) * (g * g - q)
        D = (q_next / (1 - beta2**t)).sqrt() + eps
        q_new.copy_(q_next)
    step = 1 / (sigma * D)
    z = x - v * step
    if l1:
        z = torch.where(weights, z.sign() * (z.abs() - lam * step).clamp_min(0), z)
    if decay_kind:
        z = torch.where(weights, z / (1 + decay * (step if decay_kind == "l2" else 1 / sigma)), z)
    if l0:
        z = torch.where(weights & (z * z < 2 * lam0 * step), torch.zeros_like(z), z)
    s = z - x
    drop = torch.zeros((), dtype=torch.float64, device=x.device)
    if l1:
        drop = drop + lam * _sum((x.abs() - z.abs()) * weights)
    if l0:
        drop = drop + lam0 * (_sum(((x != 0) & weights).to(x.dtype)) - _sum(((z != 0) & weights).to(x.dtype)))
    if decay_kind:
        drop = drop + decay / 2 * _sum((x * x - z * z) * (1 if decay_kind == "l2" else D) * weights)
    numbers = _sum(v * s), _sum(g * s), _sum(D * s * s), drop, _sum(g * g)
    x_old.copy_(x)
    m_new.copy_(m_next)
    x.copy_(z)
    return numbers


def _sum(x: Tensor) -> Tensor:
    return x.sum(dtype=torch.float64)


def _mix(accept: Tensor, kept: list[Tensor], new: list[Tensor], old: list[Tensor]) -> None:
    for a, b, c in zip(kept, new, old, strict=True):
        a.copy_(torch.where(accept, b, c))
