"""Why a penalty on filters kills none of them behind batch norm: norms, thresholds and angles during a run on digits.

    OMP_NUM_THREADS=1 python -m benchmarks.lab.filters

Batch norm makes the loss the same for w and c w, so that w'g = 0 for every filter w, and g(c w) = g(w) / c. The penalty
pulls w along itself, and every step of the loss is across it: |w|^2 grows by |step g|^2 as fast as the penalty takes it
away, and the faster, the smaller w is. The table shows it: cos(w, g), the norms at the start and at the end, and how
many times the smallest norm of the network is above what the prox sets to zero.

    OMP_NUM_THREADS=1 python -m benchmarks.lab.filters --budgets

is the way out: half of the filters, with and without their batch norms, 600 steps of 64; accuracy of the last iterate
on 360 images that were held out, and what `shrink` leaves.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from sr2 import SR2, GroupL0, GroupL2, L0Ball, channel_groups, param_groups
from sr2.experiments.data import load
from sr2.experiments.models import build
from sr2.export import shrink
from sr2.export.measure import table
from sr2.regularizers import Regularizer
from sr2.rules import Tolerant

ADAM: dict[str, Any] = {"metric": "adam", "momentum": 0.9, "rule": Tolerant()}
PLAIN: dict[str, Any] = {**SR2.paper_defaults(), "metric": None, "momentum": 0.9, "eta2": 0.9}


def norms(convolutions: list[nn.Conv2d]) -> torch.Tensor:
    return torch.cat([c.weight.detach().flatten(1).norm(dim=1) for c in convolutions])


def row(R: Regularizer, options: dict[str, Any], steps: int = 300) -> list[str]:
    torch.manual_seed(0)
    digits, model = load("digits"), build("cnn", 10, (1, 8, 8))
    x, y = digits.train_inputs.float() / 16, digits.train_targets
    convolutions = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    names = "|".join(n for n, m in model.named_modules() if isinstance(m, nn.Conv2d))
    optimizer = SR2(param_groups(model, [(re.compile(rf"^({names})\.weight"), R), ("*", None)]), **options)
    first, cosines = norms(convolutions), []
    for step in range(steps):
        b = torch.randint(len(x), (64,))
        optimizer.step(lambda b=b: cross_entropy(model(x[b]), y[b]))  # type: ignore[misc]
        if step % 20 == 0:
            pairs = [(c.weight.detach().flatten(1), c.weight.grad.flatten(1)) for c in convolutions]  # type: ignore[union-attr]
            cosines += [torch.cosine_similarity(w, g).abs().nan_to_num() for w, g in pairs]
    last = norms(convolutions)
    least = smallest_kept(R, optimizer, convolutions)
    model.eval()
    with torch.no_grad():
        right = (model(digits.test_inputs.float() / 16).argmax(1) == digits.test_targets).double().mean()
    above = (last / least)[last > 0]
    return [
        repr(R).replace("lam=", "").replace(", groups='filters'", ""),
        "adam" if options["metric"] else "none",
        f"{int((last > 0).sum())} of {len(last)}",
        f"{float(right):.3f}",
        f"{float(torch.cat(cosines).median()):.1e}",
        f"{float(first.median()):.3f}",
        f"{float(last.median()):.3f}",
        f"{float(above.min()):.3g}" if len(above) else "-",
    ]


def smallest_kept(R: Regularizer, optimizer: SR2, convolutions: list[nn.Conv2d]) -> torch.Tensor:
    """The norm below which the prox would set a filter to zero, by bisection on its direction."""
    made = []
    for c in convolutions:
        state, step = optimizer.state[c.weight], torch.tensor(1 / optimizer.sigma)
        if "square" in state:
            step = step / ((state["square"] / state["square_weight"]).sqrt() + 1e-8)
        w = c.weight.detach()
        unit = w / w.flatten(1).norm(dim=1).clamp_min(1e-30).view(-1, 1, 1, 1)
        low, high = torch.full((len(w),), 1e-12), torch.full((len(w),), 1e6)
        for _ in range(60):
            middle = (low * high).sqrt()
            kept = R.prox([unit * middle.view(-1, 1, 1, 1)], [step])[0].flatten(1).norm(dim=1) > 0
            low, high = torch.where(kept, low, middle), torch.where(kept, middle, high)
        made.append(high)
    return torch.cat(made)


def budgets() -> None:
    """Half of the filters, five ways."""
    conv = re.compile(r"^(0|3|6)\.weight")
    x = torch.zeros(1, 1, 8, 8)
    ways: dict[str, tuple[Callable[[nn.Module], Any], dict[str, Any]]] = {
        "dense": (lambda m: param_groups(m, [("*", None)]), {}),
        "channels": (lambda m: channel_groups(m, x, 0.5), {}),
        "channels, floor=1": (lambda m: channel_groups(m, x, 0.5, floor=1), {}),
        "channels, no metric": (lambda m: channel_groups(m, x, 0.5), {"metric": None}),
        "filters alone": (
            lambda m: param_groups(m, [(conv, L0Ball(density=0.5, groups="filters")), ("*", None)]),
            {},
        ),
    }
    print(table([["", "seed", "accuracy", "filters left", "parameters", "constants behind padding"]]))
    for seed in (0, 1):
        for name, (groups, given) in ways.items():
            print(name, seed, *half(groups, given, seed), flush=True)


def half(groups: Callable[[nn.Module], Any], given: dict[str, Any], seed: int, steps: int = 600) -> list[object]:
    """Accuracy, filters by layer, parameters, and constants that stay."""
    torch.manual_seed(seed)
    digits, model = load("digits"), build("cnn", 10, (1, 8, 8))
    x, y = digits.train_inputs.float() / 16, digits.train_targets
    optimizer = SR2(groups(model), average=False, steps=steps, **given)
    for _ in range(steps):
        b = torch.randint(len(x), (64,))
        optimizer.step(lambda b=b: cross_entropy(model(x[b]), y[b]))  # type: ignore[misc]
    small = shrink(model, x[:1], verbose=False)
    with torch.no_grad():
        right = (small(digits.test_inputs.float() / 16).argmax(1) == digits.test_targets).double().mean()
    left = [m.out_channels for m in small.modules() if isinstance(m, nn.Conv2d)]
    return [f"{float(right):.4f}", left, small.shrunk.parameters[1], small.shrunk.padded]


def main() -> None:
    torch.set_num_threads(1)
    if "--budgets" in sys.argv:
        budgets()
        return
    head = [
        "R",
        "metric",
        "filters left",
        "accuracy",
        "|cos(w, g)|",
        "|w| at first",
        "at last",
        "least |w| / threshold",
    ]
    rows = [head]
    for kind in (GroupL2, GroupL0):
        for lam in (1e-3, 1e-2, 1e-1):
            for options in (ADAM, PLAIN):
                rows.append(row(kind(lam, "filters"), options))
                print(rows[-1], flush=True)
    print(table(rows))


if __name__ == "__main__":
    main()
