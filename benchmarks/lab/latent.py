"""A latent (dual) window for l1, as in xRDA: does it give exact zeros under noise without a cooldown?

    OMP_NUM_THREADS=1 python -m benchmarks.lab.latent

With step h (one per entry in Adam's metric) and a = 1 - 1/N:

    z <- a z + (1 - a) x - h v,    A <- a A + h,    x <- prox_{A R}(z).

On the support that is x - h (v + lambda sign x), a step of ProxGEN; a zero leaves only if the mean of about N gradients
exceeds lambda. N = 1 is ProxGEN itself. Digits, 600 steps of 64, a constant step of 0.01 or, cooled, along a line to
2 % from step 420 on; the score of the last iterate on 397 images that were held out.
"""

from __future__ import annotations

import statistics

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sr2.experiments.models import build
from sr2.export.measure import table

STEPS, RATE, BETA1, BETA2 = 600, 1e-2, 0.9, 0.999


def parts(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    x, y = torch.tensor(images, dtype=torch.float32)[order].view(-1, 1, 8, 8) / 16, torch.tensor(labels)[order]
    return x[:1400], y[:1400], x[1400:], y[1400:]


def network(name: str) -> nn.Module:
    if name == "cnn":
        return build("cnn", 10, (1, 8, 8))
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def trained(name: str, lam: float, window: int, cooled: bool, momentum: bool, seed: int) -> tuple[float, float]:
    """Zeros among the penalized weights and the score, both in percent, of the last iterate."""
    torch.manual_seed(seed)
    x, y, x_test, y_test = parts(seed)
    model = network(name)
    ps = list(model.parameters())
    zs, widths = [p.detach().clone() for p in ps], [torch.zeros_like(p) for p in ps]
    squares, means = [torch.zeros_like(p) for p in ps], [torch.zeros_like(p) for p in ps]
    a = 1 - 1 / window
    for t in range(1, STEPS + 1):
        b = torch.randint(len(x), (64,))
        gs = torch.autograd.grad(cross_entropy(model(x[b]), y[b]), ps)
        left = max(0.02, min(1.0, (STEPS - t) / (0.3 * STEPS))) if cooled else 1.0
        with torch.no_grad():
            for i, (p, g) in enumerate(zip(ps, gs, strict=True)):
                squares[i].lerp_(g * g, 1 - BETA2)
                means[i].lerp_(g, 1 - BETA1)
                v = means[i] / (1 - BETA1**t) if momentum else g
                h = RATE * left / ((squares[i] / (1 - BETA2**t)).sqrt() + 1e-8)
                zs[i] = a * zs[i] + (1 - a) * p - h * v
                widths[i] = a * widths[i] + h
                threshold = lam * widths[i] if p.dim() > 1 else torch.zeros(())
                p.copy_(zs[i].sign() * (zs[i].abs() - threshold).clamp_min(0.0))
    model.eval()
    with torch.no_grad():
        score = (model(x_test).argmax(1) == y_test).double().mean()
    weights = torch.cat([p.detach().flatten() for p in ps if p.dim() > 1])
    return 100 * float((weights == 0).double().mean()), 100 * float(score)


def main() -> None:
    torch.set_num_threads(1)
    ways = [
        ("l1", 1, False, True),
        ("l1, cooled", 1, True, True),
        ("window 20", 20, False, False),
        ("window 100", 100, False, False),
        ("window 100, momentum", 100, False, True),
        ("window 100, cooled", 100, True, False),
    ]
    rows = [["task, lambda", *(way[0] for way in ways)]]
    for name in ("mlp", "cnn"):
        for lam in (3e-4, 2e-3):
            cells = []
            for _, *way in ways:
                found = [trained(name, lam, *way, seed) for seed in (0, 1)]  # type: ignore[arg-type]
                zeros, score = (statistics.mean(column) for column in zip(*found, strict=True))
                cells.append(f"{score:.2f} at {zeros:.1f} %")
            rows.append([f"{name}, {lam:g}", *cells])
            print(rows[-1], flush=True)
    print(table(rows))


if __name__ == "__main__":
    main()
