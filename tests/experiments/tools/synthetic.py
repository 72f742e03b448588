"""Run folders as `sr2 train` leaves them, with made-up numbers: for the tests of what only reads them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from sr2.experiments.run.config import RunConfig
from sr2.experiments.run.store import RunRecord, read_run

LAYERS = (("conv1", (16, 1, 3, 3)), ("conv2", (32, 16, 3, 3)), ("fc1", (64, 512)), ("norm", (64,)), ("fc2", (10, 64)))


def make_run(root: Path, config: RunConfig, *, stop: int | None = None, env: dict[str, Any] | None = None) -> RunRecord:
    """Write a run folder and read it; with `stop`, one that ended after so many epochs without a result."""
    rng = np.random.default_rng([config.seed, len(config.optimizer), round(-1000 * math.log10(config.lam))])
    folder = root / config.key
    folder.mkdir(parents=True)
    is_sr2 = config.optimizer == "sr2"
    strength = 6 + math.log10(config.lam)
    zeros = 0.0 if config.optimizer == "proxsgd" else 100 * (1 - 0.55**strength) * (0.9 if is_sr2 else 0.5)
    accuracy = 99 - strength**2 + 2 * is_sr2 + rng.normal()
    metrics = []
    for epoch in range(1, (stop or config.epochs) + 1):
        part = 1 - math.exp(-3 * epoch / config.epochs)
        loss, penalty = 2.3 * (1 - 0.95 * part), 5 * (1 - 0.8 * part) + 0.01 * rng.random()
        metrics.append(
            {
                "epoch": epoch,
                "steps": 12 * epoch,
                "loss": loss,
                "R": penalty,
                "objective": loss + penalty,
                "train_accuracy": min(100, accuracy * part + 2),
                "test_loss": loss * 1.1,
                "test_accuracy": accuracy * part,
                "zero_pct": zeros * part,
                "small_pct": min(100, zeros * part + 5),
                "sigma": 41 * 0.8 ** (4 * part) if is_sr2 else None,
                "rho": 0.3 + 0.1 * rng.random() if is_sr2 else None,
                "accepted": 11 if is_sr2 else None,
                "rejected": epoch % 2 if is_sr2 else None,
                "null": 0 if is_sr2 else None,
                "seconds": 1.5 * epoch,
            }
        )
    known = {"commit": "0123abc", "python": "3.11.7", "torch": "2.13.0", "device": "a made-up CPU", "cpus": 2}
    _write(folder / "config.json", config.to_dict())
    _write(folder / "env.json", {**known, **(env or {})})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in metrics))
    if stop is None:
        _write(folder / "result.json", _result(config, metrics[-1], zeros, rng))
        _write(folder / "prune.json", _sweep(metrics[-1], zeros))
    return read_run(folder)


def demo_grid(root: Path, epochs: int = 8) -> list[RunRecord]:
    """The grid of the demo: three optimizers x l1, l0 x three lambdas (ProxSGD takes no l0), two seeds of SR2."""
    runs = []
    for optimizer, regularizer in (
        ("sr2", "l1"), ("proxgen", "l1"), ("proxsgd", "l1"), ("sr2", "l0"), ("proxgen", "l0"),
    ):  # fmt: skip
        for lam in (1e-4, 1e-3, 1e-2):
            for seed in (0, 1) if optimizer == "sr2" else (0,):
                config = RunConfig.of(optimizer=optimizer, regularizer=regularizer, lam=lam, epochs=epochs, seed=seed)
                runs.append(make_run(root, config))
    return runs


def seeds(root: Path, config: RunConfig, count: int) -> list[RunRecord]:
    """Runs of one configuration under `count` seeds."""
    return [make_run(root, config.having(seed=seed)) for seed in range(count)]


def _result(config: RunConfig, last: dict[str, Any], zeros: float, rng: np.random.Generator) -> dict[str, Any]:
    layers = []
    for name, shape in LAYERS:
        total = math.prod(shape)
        count = round(total * zeros / 100 * rng.uniform(0.7, 1.0)) if len(shape) > 1 else 0
        layers.append({"name": f"{name}.weight", "shape": list(shape), "zeros": count, "small": count, "total": total})
    edges = np.arange(-9, 1.01, 0.25)
    weights = rng.normal(-2, 0.6, 20_000)
    exact = sum(layer["zeros"] for layer in layers)
    return {
        "config": config.to_dict(),
        "accuracy": last["test_accuracy"],
        "best_accuracy": last["test_accuracy"] + 0.1,
        "zero_pct": last["zero_pct"],
        "small_pct": last["small_pct"],
        "loss": last["loss"],
        "objective": last["objective"],
        "parameters": sum(layer["total"] for layer in layers),
        "epochs": config.epochs,
        "stopped": "epochs",
        "seconds": last["seconds"],
        "layers": layers,
        "histogram": {
            "log10_edges": edges.tolist(),
            "counts": np.histogram(weights, edges)[0].tolist(),
            "zeros": exact,
        },
    }


def _sweep(last: dict[str, Any], zeros: float) -> dict[str, Any]:
    rows = []
    for k in range(1, 9):
        kept = 10 + (last["test_accuracy"] - 10) / (1 + math.exp(4 * (1.7 - k)))
        sparsity = 100 - (100 - zeros) / (1 + math.exp(3 * (2 - k)))
        rows.append(
            {
                "alpha": 10.0**-k,
                "k": k,
                "sparsity_pct": sparsity,
                "accuracy": kept,
                "accuracy_recalibrated": min(100, kept * 1.05),
            }
        )
    return {"rows": rows, "unpruned": {"accuracy": last["test_accuracy"], "sparsity_pct": zeros}}


def _write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value))
