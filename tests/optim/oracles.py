"""NumPy twins of the optimizers, in float64: slow and obviously right. They import nothing of sr2."""

import numpy as np


def sr2_twin(x, batches, f, grad, R, prox, *, sigma, eta1, eta2, gamma1, gamma2, gamma3, sigma_min):
    """Algorithm 1 with the sampled objective. Yields (x, sigma, accepted) after every step."""
    for batch in batches:
        loss, g = f(x, batch), grad(x, batch)
        z = prox(x - g / sigma, 1 / sigma)
        s = z - x
        if not s.any():
            yield x, sigma, None
            continue
        slack = 10 * np.finfo(float).eps * max(1.0, abs(loss))
        actual = loss + R(x) - f(z, batch) - R(z) + slack
        predicted = R(x) - g @ s - R(z) + slack
        if not (np.isfinite(actual) and np.isfinite(predicted)):
            sigma *= gamma2
            yield x, sigma, False
            continue
        rho = actual / predicted
        if rho >= eta1:
            x = z
        if rho >= eta2:
            sigma = max(sigma_min, gamma3 * sigma)
        elif rho < eta1:
            sigma *= gamma1
        yield x, sigma, bool(rho >= eta1)


def soft(x, t):
    return np.sign(x) * np.maximum(np.abs(x) - t, 0)


def hard(x, t):
    return np.where(np.abs(x) > np.sqrt(2 * t), x, 0.0)


def proxsgd_twin(x, gradients, lam, *, eps, a, rho, b, beta, metric):
    """ProxSGD under lam |x|_1; `gradients` are functions of x, one a step. rho None: v = g. Metric False: tau = 1."""
    v, r = np.zeros_like(x), np.zeros_like(x)
    for t, gradient in enumerate(gradients, start=1):
        g = gradient(x)
        if rho is None:
            v = g
        else:
            rho_t = rho / (t + 4) ** b
            v = (1 - rho_t) * v + rho_t * g
        r = beta * r + (1 - beta) * g**2
        tau = np.sqrt(r / (1 - beta**t)) + 1e-8 if metric else np.ones_like(x)
        x_hat = soft(x - v / tau, lam / tau)
        x = x + eps / (t + 4) ** a * (x_hat - x)
        yield x


def andrei_twin(xs, gs):
    """B_t for each point of a trajectory, before the floor: lessons.md's formula, term by term."""
    B = np.ones_like(xs[0])
    yield B
    for x0, x1, g0, g1 in zip(xs, xs[1:], gs, gs[1:], strict=False):
        s, y = x1 - x0, g1 - g0
        if s.any():
            B = B + (s @ y + s @ s - s @ (B * s)) / np.sum(s**4) * s**2 - 1
        yield B
