"""`python -m benchmarks.fine_tuning`: a character transformer that knows three novels learns a poem; minutes of a core.

It is trained on novels of Austen (AdamW 3e-3, cosine, 2,000 steps), then on the first 100,000 characters of Milton's
Paradise Lost; losses per character on 5 % of the poem that it does not see.
"""

from __future__ import annotations

import argparse
import copy
import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sr2 import NM, SR2, L0Ball
from sr2.experiments.panel import text
from sr2.rules import Tolerant

NOVELS = ("austen-emma.txt", "austen-persuasion.txt", "austen-sense.txt")
POEM = "milton-paradise.txt"
BATCH = 32
RATES = (1e-4, 3e-4, 1e-3, 3e-3)
BUDGETS = (None, NM(2, 4), L0Ball(density=0.2), L0Ball(density=0.05))


def codes(name: str) -> Tensor:
    return torch.tensor(list(text.read(name).encode("latin-1", "replace")))


def parts(name: str) -> tuple[Tensor, Tensor]:
    """What is trained on, and what is looked at."""
    whole = codes(name)
    return whole[: int(0.9 * len(whole))], whole[int(0.9 * len(whole)) : int(0.95 * len(whole))]


def loss_of(model: nn.Module, held: Tensor) -> float:
    starts = np.linspace(0, len(held) - text.LENGTH - 1, 256).astype(np.int64)
    model.eval()
    with torch.no_grad():
        found = [float(text.loss(model(x), y)) for x, y in (text.windows(held, s) for s in np.split(starts, 4))]
    model.train()
    return sum(found) / 4


def adamw(model: nn.Module, train: Tensor, steps: int, rate: float, seed: int) -> nn.Module:
    optimizer, draw = torch.optim.AdamW(model.parameters(), rate), np.random.default_rng(seed)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        x, y = text.windows(train, draw.integers(0, len(train) - text.LENGTH - 1, BATCH))
        optimizer.zero_grad()
        text.loss(model(x), y).backward()
        optimizer.step()
        cosine.step()
    return model


def sr2(model: nn.Module, train: Tensor, held: Tensor, steps: int, seed: int, *given: Any, **options: Any) -> str:
    optimizer, draw = SR2(model, *given, steps=steps, **options), np.random.default_rng(seed)
    for _ in range(steps):
        x, y = text.windows(train, draw.integers(0, len(train) - text.LENGTH - 1, BATCH))
        optimizer.step(lambda x=x, y=y: text.loss(model(x), y))
    last = loss_of(model, held)
    with optimizer.averaged():
        return f"average {loss_of(model, held):.4f}  last iterate {last:.4f}  {optimizer.rule}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300, help="on the poem")
    parser.add_argument("--before", type=int, default=2000, help="on the novels")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    novels = [parts(name) for name in NOVELS]
    trained = adamw(text.Transformer(256, 96, 2, 4), torch.cat([a for a, _ in novels]), args.before, 3e-3, 0)
    train, held = parts(POEM)
    train = train[:100_000]
    print(
        f"trained on the novels: {loss_of(trained, novels[0][1]):.4f} there, {loss_of(trained, held):.4f} on the poem"
    )
    for rate in RATES:
        model = adamw(copy.deepcopy(trained), train, args.steps, rate, args.seed)
        print(f"AdamW {rate:g}, cosine: {loss_of(model, held):.4f}", flush=True)
    usual = 10 / float(
        torch.cat([p.detach().flatten() for p in trained.parameters() if p.dim() > 1]).square().mean().sqrt()
    )
    for R in BUDGETS:
        for rule in (Tolerant(), Tolerant(usual=usual)):
            found = sr2(copy.deepcopy(trained), train, held, args.steps, args.seed, R, rule=rule)
            print(f"SR2 {R}: {found}", flush=True)


if __name__ == "__main__":
    main()
