"""Thirteen small tasks of kinds that the panel lacks, on which no default was chosen. `benchmarks.unseen` runs them.

They were written down before the first run, with the first weights that torch or the kind of network is known for, and
were not changed afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.unseen_networks import GRU, VAE, DeepSets, Poisson, Ratings, ReZero, Sine, ViT, efficient, mlp
from sr2.experiments.data import base as data
from sr2.experiments.panel import text
from sr2.experiments.panel.tasks import Batch, Problem, datasets

Parts = tuple[Batch, Batch, Batch]


@dataclass(frozen=True, eq=False)
class Task(Problem):
    """A problem of the panel with an error of its own, of all outputs and targets of a part."""

    score: Callable[[Tensor, Tensor], Tensor] | None = None

    def error(self, part: Batch) -> float:
        if self.score is None:
            return super().error(part)
        with torch.no_grad():
            output = torch.cat([self.model(x) for x, _ in self._pieces(part)])
        return float(self.score(output, part[1]))


def parts_of(x: Tensor, y: Tensor, train: int, validation: int, seed: int) -> Parts:
    """Train, validation and the rest, drawn by the seed."""
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    cuts = order.tensor_split([train, train + validation])
    one, two, three = ((x[c], y[c]) for c in cuts)
    return one, two, three


# ---- texts and images


def gru(seed: int) -> Task:
    codes, size = text.codes("carroll-alice.txt")
    cuts = [int(len(codes) * share) for share in (0.9, 0.95)]
    train, validation, test = ((part[:, None], part[:, None]) for part in torch.tensor_split(codes, cuts))
    return Task(GRU(size), text.loss, train, validation, test, 400, 16, "text", seed)


@cache
def clothes() -> tuple[Tensor, Tensor]:
    """Fashion-MNIST's first 10,000 images, in [0, 1]."""
    whole = data.load("fashion_mnist")
    return whole.train_inputs[:10000].float().view(-1, 1, 28, 28) / 255, whole.train_targets[:10000]


def images(model: nn.Module, seed: int, steps: int, size: int = 28) -> Task:
    """4,000 images to train on, 3,000 to choose on."""
    x, y = clothes()
    x = F.adaptive_avg_pool2d((x - 0.286) / 0.353, size)
    return Task(model, F.cross_entropy, *parts_of(x, y, 4000, 3000, seed), steps, 64, "classes", seed)


def elbo(output: Tensor, y: Tensor) -> Tensor:
    """Its negative, in nats per image, with a Bernoulli for each pixel."""
    logits, mean, log_variance = output.split([196, 8, 8], 1)
    apart = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum()
    return (F.binary_cross_entropy_with_logits(logits, y, reduction="sum") + apart) / len(y)


def vae(seed: int) -> Task:
    x = F.adaptive_avg_pool2d(clothes()[0], 14)
    y = x.flatten(1)

    def score(output: Tensor, y: Tensor) -> Tensor:  # less what a perfect decoder has
        return elbo(output, y) - F.binary_cross_entropy(y, y, reduction="sum") / len(y)

    return Task(VAE(), elbo, *parts_of(x, y, 4000, 3000, seed), 1000, 64, "regression", seed, score=score)


def siren(seed: int) -> Task:
    """A grey photograph of 107 x 160 pixels as a function of the place: half of the pixels are to train on."""
    photo = torch.from_numpy(datasets().load_sample_image("china.jpg").astype(np.float32)).mean(2)[None, None]
    grey = F.adaptive_avg_pool2d(photo, (107, 160))[0, 0]
    rows, columns = (torch.linspace(-1, 1, n) for n in grey.shape)
    x, y = torch.cartesian_prod(rows, columns), ((grey - grey.mean()) / grey.std()).reshape(-1, 1)
    model = mlp(2, 64, 64, 64, 1, act=Sine)
    for i, layer in enumerate(m for m in model if isinstance(m, nn.Linear)):  # as Sitzmann et al. begin
        bound = 1 / 2 if i == 0 else math.sqrt(6 / 64) / 30
        nn.init.uniform_(layer.weight, -bound, bound)
    return Task(model, F.mse_loss, *parts_of(x, y, len(x) // 2, len(x) // 4, seed), 600, 512, "regression", seed)


# ---- tables, sets, ratings


def recommender(seed: int) -> Task:
    """600 users, 400 items of which few are frequent, 40,000 ratings of rank 4 with noise."""
    draw = np.random.default_rng(seed)
    popular = 1 / np.arange(1, 401) ** 0.7
    x = np.stack([draw.integers(0, 600, 40000), draw.choice(400, 40000, p=popular / popular.sum())], 1)
    u, v = draw.normal(size=(600, 4)), draw.normal(size=(400, 4))
    biases = draw.normal(size=600)[x[:, 0]] + draw.normal(size=400)[x[:, 1]]
    y = 0.5 * (u[x[:, 0]] * v[x[:, 1]]).sum(1) + 0.5 * biases + 0.5 * draw.normal(size=len(x))
    parts = parts_of(torch.from_numpy(x), torch.from_numpy(y).float()[:, None], 24000, 8000, seed)
    return Task(Ratings(600, 400), F.mse_loss, *parts, 1000, 256, "regression", seed)


def deep_sets(seed: int) -> Task:
    """The mutual information of two Gaussian numbers, from 64 pairs of them."""
    draw = torch.Generator().manual_seed(seed)
    rho = 1.8 * torch.rand(8000, 1, generator=draw) - 0.9
    z = torch.randn(8000, 64, 2, generator=draw)
    x = torch.stack([z[..., 0], rho * z[..., 0] + (1 - rho**2).sqrt() * z[..., 1]], 2)
    parts = parts_of(x, -0.5 * torch.log(1 - rho**2), 4000, 2000, seed)
    return Task(DeepSets(), F.mse_loss, *parts, 800, 64, "regression", seed)


def huber(seed: int) -> Task:
    """Twelve inputs of deviations 1e-3 to 1e3, not scaled, and noise of Student's t with 1.5 degrees of freedom."""
    draw = np.random.default_rng(seed)
    z = draw.normal(size=(10000, 12))
    y = (
        10 * np.sin(z[:, 0] * z[:, 11])
        + 10 * z[:, 5]
        + 5 * np.abs(z[:, 10])
        + 5 * z[:, 8]
        + draw.standard_t(1.5, 10000)
    )
    x, target = torch.from_numpy(z * np.logspace(-3, 3, 12)).float(), torch.from_numpy(y).float()[:, None]

    def score(output: Tensor, y: Tensor) -> Tensor:  # as a share of what the median has
        return F.huber_loss(output, y) / F.huber_loss(y.median().expand_as(y), y)

    parts = parts_of(x, target, 5000, 2500, seed)
    return Task(mlp(12, 64, 64, 1), F.huber_loss, *parts, 1000, 64, "regression", seed, score=score)


def long_tail(seed: int) -> Task:
    """20 classes, each with 0.75 times the examples of the one before; every class counts the same in the error."""
    shares = 0.75 ** np.arange(20)
    options = {"n_informative": 16, "n_redundant": 8, "n_classes": 20, "n_clusters_per_class": 1, "class_sep": 1.5}
    x, y = datasets().make_classification(16000, 32, weights=shares / shares.sum(), random_state=seed, **options)

    def score(output: Tensor, y: Tensor) -> Tensor:
        wrong = output.argmax(1) != y
        return torch.stack([wrong[y == k].double().mean() for k in y.unique()]).mean()

    parts = parts_of(torch.from_numpy(x).float(), torch.from_numpy(y), 8000, 4000, seed)
    return Task(mlp(32, 64, 64, 20), F.cross_entropy, *parts, 1000, 64, "classes", seed, score=score)


def two_tasks(seed: int) -> Task:
    """A number and a class of the same inputs; the sum of both losses, times 1e4."""
    z, y = datasets().make_friedman2(8000, noise=50.0, random_state=seed)
    x = torch.from_numpy((z - z.mean(0)) / z.std(0)).float()
    number = torch.from_numpy((y - y.mean()) / y.std()).float()
    kind = torch.from_numpy(np.digitize(np.arctan(z[:, 1] * z[:, 2] / z[:, 0]), (0.8, 1.2, 1.45))).float()

    def loss(output: Tensor, y: Tensor) -> Tensor:
        return 1e4 * (F.mse_loss(output[:, 0], y[:, 0]) + F.cross_entropy(output[:, 1:], y[:, 1].long()))

    def score(output: Tensor, y: Tensor) -> Tensor:  # the mean of 1 - R^2 and the share of wrong classes
        wrong = (output[:, 1:].argmax(1) != y[:, 1]).float().mean()
        return (F.mse_loss(output[:, 0], y[:, 0]) / y[:, 0].var() + wrong) / 2

    parts = parts_of(x, torch.stack([number, kind], 1), 4000, 2000, seed)
    return Task(mlp(4, 64, 64, 5), loss, *parts, 1000, 64, "regression", seed, score=score)


def poisson(seed: int) -> Task:
    """-(u_xx + u_yy) = f with u = sin(2 pi x) sin(pi y) + xy (1 - x^2)(1 - y^2): the error in u, as a share of u."""
    draw = torch.Generator().manual_seed(seed)
    points = 2 * torch.rand(8192, 2, generator=draw, dtype=torch.float64) - 1
    x, y = points.T
    wave, bubble = torch.sin(2 * torch.pi * x) * torch.sin(torch.pi * y), x * y * (1 - x**2) * (1 - y**2)
    f = 5 * torch.pi**2 * wave + 6 * x * y * (2 - x**2 - y**2)
    inputs, u, f = points.float(), (wave + bubble).float()[:, None], f.float()[:, None]
    (train, _), *rest = parts_of(inputs, u, 4096, 2048, seed)
    _, wanted = parts_of(inputs, f, 4096, 2048, seed)[0]

    def score(output: Tensor, y: Tensor) -> Tensor:
        return (output - y).norm() / y.norm()

    model = Poisson()
    return Task(model, F.mse_loss, (train, wanted), rest[0], rest[1], 600, 128, "regression", seed, score=score)


TASKS: dict[str, Callable[[int], Task]] = {
    "gru": gru,
    "vit": lambda seed: images(ViT(), seed, 400),
    "efficientnet": lambda seed: images(efficient(), seed, 300),
    "deep_tanh": lambda seed: images(nn.Sequential(nn.Flatten(), mlp(196, *[64] * 9, 10, act=nn.Tanh)), seed, 1000, 14),
    "vae": vae,
    "siren": siren,
    "recommender": recommender,
    "deep_sets": deep_sets,
    "poisson": poisson,
    "huber": huber,
    "long_tail": long_tail,
    "rezero": lambda seed: images(ReZero(196, 10), seed, 1000, 14),
    "two_tasks": two_tasks,
}


def make(name: str, seed: int) -> Task:
    """The task with its data, its batches and its first weights drawn by `seed`."""
    torch.manual_seed(seed)
    return TASKS[name](seed)
