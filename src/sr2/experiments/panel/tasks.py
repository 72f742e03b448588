"""The tasks. Each is data, a network, a loss, and a number of steps of one batch size; a seed draws all of them.

`Problem.validation` is what choices are made on; `Problem.test` is only for the numbers that are reported.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..data.base import default_root
from ..tasks import Classification
from . import text

Batch = tuple[Tensor, Tensor]
Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Problem:
    """One task with one seed."""

    model: nn.Module
    loss: Loss
    train: Batch
    validation: Batch
    test: Batch
    steps: int
    batch_size: int
    kind: str  # "classes", "regression" or "text"
    seed: int
    l1: float = 0.0  # the task's own penalty on the weights, for everyone
    optimum: float = math.nan  # F there, where it is known
    moved: bool = False  # images of a batch are shifted by up to two pixels and mirrored half of the time

    @property
    def steps_per_epoch(self) -> int:
        """How many batches the training part has; windows of a text are drawn anywhere."""
        one = self.batch_size * (text.LENGTH if self.kind == "text" else 1)
        return len(self.train[0]) // one

    def batches(self) -> Iterator[Batch]:
        """The same batches for every optimizer: whole random passes over the training part."""
        draw = np.random.default_rng(1000 + self.seed)
        x, y = self.train
        if self.kind == "text":
            for _ in range(self.steps):
                yield text.windows(x[:, 0], draw.integers(0, len(x) - text.LENGTH - 1, self.batch_size))
            return
        order = np.empty(0, dtype=np.int64)
        for _ in range(self.steps):
            if len(order) < self.batch_size:
                order = draw.permutation(len(x))
            chosen, order = torch.from_numpy(order[: self.batch_size]), order[self.batch_size :]
            yield (_moved(x[chosen], draw) if self.moved else x[chosen]), y[chosen]

    def penalized(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """The loss of a batch with the task's own l1 term, for optimizers that know no prox."""
        value = self.loss(model(x), y)
        if self.l1:
            value = value + self.l1 * sum(p.abs().sum() for p in model.parameters() if p.dim() > 1)
        return value

    def objective(self, part: Batch) -> float:
        """The mean loss over a part, without gradients."""
        total, count = 0.0, 0
        with torch.no_grad():
            for x, y in self._pieces(part):
                total += float(self.loss(self.model(x), y)) * len(x)
                count += len(x)
        return total / count

    def error(self, part: Batch) -> float:
        """What is small where the network is good: share of wrong classes, 1 - R^2, or the loss of a text."""
        if self.kind == "text":
            return self.objective(part)
        with torch.no_grad():
            output = torch.cat([self.model(x) for x, _ in self._pieces(part)])
        y = part[1]
        if self.kind == "classes":
            return float((output.argmax(1) != y).double().mean())
        return float(((output - y) ** 2).sum() / ((y - y.mean()) ** 2).sum())

    def _pieces(self, part: Batch) -> Iterator[Batch]:
        x, y = part
        if self.kind == "text":
            starts = np.linspace(0, len(x) - text.LENGTH - 1, 256).astype(np.int64)
            for i in range(0, 256, 64):
                yield text.windows(x[:, 0], starts[i : i + 64])
        else:
            yield from zip(torch.split(x, 1024), torch.split(y, 1024), strict=True)


def datasets() -> Any:
    """scikit-learn's, imported where they are needed: `gpt` runs on machines that do not have it."""
    import sklearn.datasets

    return sklearn.datasets


def _moved(x: Tensor, draw: np.random.Generator) -> Tensor:
    x = torch.where(torch.from_numpy(draw.integers(0, 2, (len(x), 1, 1, 1)) == 1), x.flip(3), x)
    shifts = draw.integers(-2, 3, (4, 2)).tolist()
    pieces = zip(x.tensor_split(4), shifts, strict=True)
    return torch.cat([piece.roll(shift, (2, 3)) for piece, shift in pieces])


def _split(x: np.ndarray, y: np.ndarray, sizes: tuple[int, int], seed: int, kind: str) -> tuple[Batch, Batch, Batch]:
    """Train, validation and the rest, drawn by the seed; inputs scaled by what the training part says."""
    order = np.random.default_rng(seed).permutation(len(x))
    cuts = np.split(order, np.cumsum(sizes))
    x = np.asarray(x, np.float64)
    if x.ndim == 2:
        x = (x - x[cuts[0]].mean(0)) / (x[cuts[0]].std(0) + 1e-12)
    if kind == "regression":
        y = ((y - y[cuts[0]].mean()) / y[cuts[0]].std())[:, None]
    xs = torch.tensor(x, dtype=torch.float32)
    ys = torch.tensor(y, dtype=torch.float32 if kind == "regression" else torch.int64)
    train, validation, test = ((xs[c], ys[c]) for c in cuts)
    return train, validation, test


def _mlp(inputs: int, outputs: int, width: int = 64) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, outputs)
    )


class _ImageNorm(nn.GroupNorm):
    """LayerNorm over a whole image."""

    def __init__(self, channels: int) -> None:
        super().__init__(1, channels)


def _cnn(norm: Callable[[int], nn.Module]) -> nn.Module:
    widths = (1, 16, 32, 64)
    layers: list[nn.Module] = []
    for i, (a, b) in enumerate(itertools.pairwise(widths)):
        layers += [nn.Conv2d(a, b, 3, stride=1 if i == 0 else 2, padding=1, bias=False), norm(b), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def _digits(seed: int, model: Callable[[], nn.Module]) -> Problem:
    images, labels = datasets().load_digits(return_X_y=True)
    parts = _split(images.reshape(-1, 1, 8, 8) / 16 - 0.3, labels, (500, 600), seed, "classes")
    return Problem(model(), Classification().loss, *parts, 300, 64, "classes", seed)


def _cifar_small(seed: int) -> Problem:
    """CIFAR-10 at 16 x 16: for the lab, where the data set is already there."""
    with np.load(default_root() / "cifar10" / "verified.npz") as stored:
        images, labels = stored["train_images"][:30000], stored["train_labels"][:30000]
    images = images.reshape(-1, 3, 16, 2, 16, 2).mean((3, 5)) / 64 - 2
    parts = _split(images, labels, (20000, 5000), seed, "classes")
    widths = (3, 24, 48, 96)
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(widths):
        layers += [nn.Conv2d(a, b, 3, 1 if a == 3 else 2, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(96, 10))
    return Problem(model, Classification().loss, *parts, 1200, 64, "classes", seed, moved=True)


def _breast_cancer(seed: int) -> Problem:
    x, y = datasets().load_breast_cancer(return_X_y=True)
    parts = _split(x, y, (285, 142), seed, "classes")
    return Problem(_mlp(30, 2), Classification().loss, *parts, 150, 32, "classes", seed)


def _friedman(seed: int) -> Problem:
    x, y = datasets().make_friedman1(10000, noise=1.0, random_state=seed)
    return Problem(
        _mlp(10, 1), F.mse_loss, *_split(x, y, (4000, 3000), seed, "regression"), 1000, 64, "regression", seed
    )


def _classes4(seed: int) -> Problem:
    x, y = datasets().make_classification(10000, 20, n_informative=10, n_redundant=5, n_classes=4, random_state=seed)
    return Problem(
        _mlp(20, 4), Classification().loss, *_split(x, y, (4000, 3000), seed, "classes"), 1000, 64, "classes", seed
    )


def _diabetes(seed: int) -> Problem:
    x, y = datasets().load_diabetes(return_X_y=True)
    parts = _split(x, y, (221, 110), seed, "regression")
    return Problem(_mlp(10, 1, 32), F.mse_loss, *parts, 120, 32, "regression", seed)


def _characters(seed: int, width: int = 96, depth: int = 2, steps: int = 600, batch: int = 32) -> Problem:
    codes, size = text.codes("austen-emma.txt")
    cut = [int(len(codes) * share) for share in (0.9, 0.95)]
    train, validation, test = ((part[:, None], part[:, None]) for part in torch.tensor_split(codes, cut))
    model = text.Transformer(size, width, depth, 4)
    return Problem(model, text.loss, train, validation, test, steps, batch, "text", seed)


def _logistic(seed: int) -> Problem:
    """min mean log-loss + l1 |w|_1 over a linear model: scikit-learn knows the optimum."""
    from sklearn.linear_model import LogisticRegression

    x, y = datasets().make_classification(3000, 50, n_informative=10, n_redundant=10, flip_y=0.1, random_state=seed)
    parts = _split(x, y, (1000, 1000), seed, "classes")
    model, l1 = nn.Linear(50, 2), 0.005
    inputs, labels = (a.double().numpy() if a.is_floating_point() else a.numpy() for a in parts[0])
    # Two outputs w0, w1 under |w0| + |w1| are one output w1 - w0 under its own |.|: the same optimum.
    fit = LogisticRegression(l1_ratio=1.0, C=1 / (l1 * len(inputs)), solver="saga", tol=1e-10, max_iter=100000)
    fit.fit(inputs, labels)
    margin = (2 * labels - 1) * (inputs @ fit.coef_[0] + fit.intercept_[0])
    optimum = float(np.logaddexp(0, -margin).mean() + l1 * np.abs(fit.coef_).sum())
    return Problem(model, Classification().loss, *parts, 1000, 64, "classes", seed, l1, optimum)


TASKS: dict[str, Callable[[int], Problem]] = {
    "digits_cnn": lambda seed: _digits(seed, lambda: _cnn(nn.BatchNorm2d)),
    "digits_mlp": lambda seed: _digits(seed, lambda: _mlp(64, 10)),
    "digits_layernorm": lambda seed: _digits(seed, lambda: _cnn(_ImageNorm)),
    "breast_cancer": _breast_cancer,
    "friedman1": _friedman,
    "classes4": _classes4,
    "diabetes": _diabetes,
    "characters": _characters,
    "logistic_l1": _logistic,
    "cifar_small": _cifar_small,
    "characters_mini": lambda seed: _characters(seed, 48, 1, 400, 8),
    "characters_mid": lambda seed: _characters(seed, 64, 2, 300, 32),
}


LAB = ("cifar_small", "characters_mini", "characters_mid")
"""Tasks on which rules were tried, and which the panel does not report."""
PANEL = [name for name in TASKS if name not in LAB]


def make(name: str, seed: int) -> Problem:
    """The task `name` with its data, its batches and its first weights drawn by `seed`."""
    torch.manual_seed(seed)
    return TASKS[name](seed)
