"""ResNet-18 on CIFAR-10: many settings, one after the other, in one process; every step a CUDA graph.

    python3 -m benchmarks.lab.resnet18_device --data FOLDER --out FOLDER/resnet18.jsonl --epochs 40

FOLDER holds the official binary batches (`data_batch_1.bin` ... `test_batch.bin`: a label byte, then 3072 bytes), as
`.bin` or `.bin.gz`/`.bin.xz`, or one `.npz` with train_images, train_labels, test_images, test_labels. 5,000 training
images are held out and judged; `--final` trains on all 50,000 and judges on the test images. A line per setting is
printed and appended to `--out`; settings that are there are skipped. `--list` names the settings in their order.
`--budget` stops before a setting that would not end in that many seconds.
"""

from __future__ import annotations

import argparse
import fnmatch
import gzip
import json
import lzma
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .search import SR2, Flat, Rule, Setting

WINDOWS = (4, 8, 16, 32)


@dataclass(frozen=True)
class Sgd:
    """The usual recipe: Nesterov 0.9, decay 5e-4, half a cosine to 0."""

    lr: float
    momentum: float = 0.9
    decay: float = 5e-4


@dataclass(frozen=True)
class Run:
    """A setting and how often its trial is asked; 0: never, and the rate follows half a cosine to 0."""

    what: Setting | Sgd
    test_every: int = 1


def adamw(rate: float, decay: float) -> Run:
    """AdamW as the lab writes it: sigma = 1 / rate, nothing is tested."""
    return Run(Setting(rule=Rule("fixed"), sigma0=1 / rate, decay=decay, decay_kind="metric"), 0)


# Data ---------------------------------------------------------------------------------------------------------------


def read(folder: Path) -> dict[str, np.ndarray]:
    """train_images, train_labels, test_images, test_labels as uint8."""
    packed = sorted(folder.glob("*.npz"))
    if packed:
        with np.load(packed[0]) as stored:
            return {f"{a}_{b}": stored[f"{a}_{b}"] for a in ("train", "test") for b in ("images", "labels")}
    found = {}
    for part, names in (("train", [f"data_batch_{i}" for i in range(1, 6)]), ("test", ["test_batch"])):
        rows = np.concatenate([_rows(folder, name) for name in names])
        found[f"{part}_images"], found[f"{part}_labels"] = rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0]
    return found


def _rows(folder: Path, name: str) -> np.ndarray:
    for suffix, opened in (("", open), (".gz", gzip.open), (".xz", lzma.open)):
        path = folder / f"{name}.bin{suffix}"
        if path.exists():
            with opened(path, "rb") as file:
                return np.frombuffer(file.read(), np.uint8).reshape(-1, 3073)
    raise SystemExit(f"{folder} holds neither an .npz nor {name}.bin")


def synthetic(n: int) -> dict[str, np.ndarray]:
    """Images that only a rehearsal needs: a class is a colour."""
    draw = np.random.default_rng(0)
    labels = draw.integers(0, 10, 2 * n).astype(np.uint8)
    images = draw.integers(0, 128, (2 * n, 3, 32, 32)).astype(np.uint8)
    images[:, 0] += (labels * 12)[:, None, None]
    return {
        "train_images": images[:n],
        "train_labels": labels[:n],
        "test_images": images[n:],
        "test_labels": labels[n:],
    }


class Images:
    """Training images on the device, augmented an epoch at a time, and the images that are judged."""

    def __init__(self, arrays: dict[str, np.ndarray], device: str, batch: int, final: bool) -> None:
        train_x, train_y = arrays["train_images"], arrays["train_labels"].astype(np.int64)
        if final:
            held_x, held_y = arrays["test_images"], arrays["test_labels"].astype(np.int64)
        else:
            order = np.random.default_rng(0).permutation(len(train_x))
            cut = min(5000, len(train_x) // 5)
            held, kept = order[:cut], order[cut:]
            held_x, held_y, train_x, train_y = train_x[held], train_y[held], train_x[kept], train_y[kept]
        self.mean = torch.tensor(train_x.mean((0, 2, 3)), dtype=torch.float32, device=device).view(1, 3, 1, 1)
        self.std = torch.tensor(train_x.std((0, 2, 3)), dtype=torch.float32, device=device).view(1, 3, 1, 1)
        self.x = F.pad(torch.from_numpy(np.ascontiguousarray(train_x)).to(device), (4, 4, 4, 4))
        self.y = torch.from_numpy(train_y).to(device)
        self.held_x = torch.from_numpy(np.ascontiguousarray(held_x)).to(device)
        self.held_y = torch.from_numpy(held_y).to(device)
        self.batch, self.per_epoch = batch, len(self.x) // batch

    def epoch(self, draw: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        """One pass: shuffled, a window cut out of the padded image, mirrored half of the time."""
        n, device = self.per_epoch * self.batch, self.x.device
        order = torch.randperm(len(self.x), generator=draw, device=device)[:n]
        top, left, mirrored = (torch.randint(0, m, (n,), generator=draw, device=device) for m in (9, 9, 2))
        grid = torch.arange(32, device=device)
        rows = top[:, None] + grid
        columns = left[:, None] + torch.where(mirrored[:, None] == 1, 31 - grid, grid)
        for i in range(0, n, 50 * self.batch):
            j = slice(i, i + 50 * self.batch)
            piece = self.x[order[j, None, None], :, rows[j, :, None], columns[j, None, :]].permute(0, 3, 1, 2)
            yield from zip(piece.split(self.batch), self.y[order[j]].split(self.batch), strict=True)

    def scaled(self, x: Tensor) -> Tensor:
        return (x.float() - self.mean) / self.std


# Network ------------------------------------------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        same = stride == 1 and inputs == outputs
        shortcut = (nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        self.shortcut = nn.Identity() if same else nn.Sequential(*shortcut)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(out)) + self.shortcut(x))


class ResNet18(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        blocks: list[nn.Module] = []
        inputs = width
        for stage in range(4):
            for i in range(2):
                blocks.append(Block(inputs, width << stage, 2 if stage and i == 0 else 1))
                inputs = width << stage
        self.blocks, self.fc = nn.Sequential(*blocks), nn.Linear(inputs, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(F.relu(self.bn(self.conv(x))))
        out: Tensor = self.fc(x.mean((2, 3)))
        return out


class DenseLayer(nn.Module):
    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(inputs), nn.Conv2d(inputs, 4 * growth, 1, bias=False)
        self.bn2, self.conv2 = nn.BatchNorm2d(4 * growth), nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        new = self.conv2(F.relu(self.bn2(self.conv1(F.relu(self.bn1(x))))))
        return torch.cat([x, new], 1)


class DenseNet121(nn.Module):
    """With the ImageNet stem, as the paper has it: 6, 12, 24, 16 layers of growth 32."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
        layers.append(nn.MaxPool2d(3, 2, 1))
        width = 64
        for stage, depth in enumerate((6, 12, 24, 16)):
            layers += [DenseLayer(width + 32 * i, 32) for i in range(depth)]
            width += 32 * depth
            layers += [nn.BatchNorm2d(width), nn.ReLU()]
            if stage < 3:
                layers += [nn.Conv2d(width, width // 2, 1, bias=False), nn.AvgPool2d(2)]
                width //= 2
        self.layers, self.fc = nn.Sequential(*layers), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc(self.layers(x).mean((2, 3)))
        return out


# One setting --------------------------------------------------------------------------------------------------------


class SgdFlat:
    """Nesterov on the flat vector; the learning rate is a 0-dim tensor that the schedule fills."""

    def __init__(self, flat: Flat, setting: Sgd) -> None:
        self.flat, self.setting = flat, setting
        self.buffer = torch.zeros_like(flat.x)
        self.lr = torch.zeros((), device=flat.x.device)
        self.t = torch.zeros((), dtype=torch.float64, device=flat.x.device)
        self.averages = [flat.x.clone() for _ in WINDOWS]

    def tensors(self) -> list[Tensor]:
        return [self.buffer, self.t, *self.averages]

    def step(self, closure: Callable[[], Tensor], test: bool = True) -> Tensor:
        x, g, c = self.flat.x, self.flat.g, self.setting
        g.zero_()
        loss = closure()
        loss.backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            g.add_(x, alpha=c.decay)
            self.buffer.mul_(c.momentum).add_(g)
            x.sub_(self.lr * (g + c.momentum * self.buffer))
            self.t.add_(1)
            for average, k in zip(self.averages, WINDOWS, strict=True):
                average.lerp_(x, ((k + 1) / (k + self.t)).to(x.dtype))
        return loss.detach().double()


def _kinds(run: Run) -> set[bool]:
    """Which steps a run has: with a trial, without."""
    return {0: {False}, 1: {True}}.get(run.test_every, {True, False})


class Bench:
    """The network, its flat parameters and its compiled forward pass, built once for all settings."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.device = args, args.device
        self.cuda = args.device == "cuda"
        self.images, self.x, self.y = self._data()
        torch.manual_seed(0)
        self.model = self._fresh().to(args.device, memory_format=torch.channels_last)
        self.flat = Flat(self.model)
        self.forward: Callable[[Tensor], Tensor] = self.model
        self.loss_sum = torch.zeros((), dtype=torch.float64, device=args.device)
        if args.compile:
            self._compile()

    def _data(self) -> tuple[Any, Tensor, Tensor]:
        """What gives batches, and the two buffers that hold one."""
        args = self.args
        arrays = synthetic(args.synthetic) if args.synthetic else read(args.data)
        x = torch.zeros((args.batch, 3, 32, 32), dtype=torch.uint8, device=args.device)
        y = torch.zeros(args.batch, dtype=torch.int64, device=args.device)
        return Images(arrays, args.device, args.batch, args.final), x.to(memory_format=torch.channels_last), y

    def _fresh(self) -> nn.Module:
        """A new network, on the host."""
        if self.args.model == "densenet121":
            return DenseNet121()
        return ResNet18(self.args.width)

    def _compile(self) -> None:
        start = time.perf_counter()
        try:
            self.forward = torch.compile(self.model)
            self.closure().backward()  # type: ignore[no-untyped-call]
            with torch.no_grad():
                self.closure()
            print(f"compiled in {time.perf_counter() - start:.0f} s", flush=True)
        except Exception as error:  # a machine without a compiler still trains
            print(f"not compiled: {type(error).__name__}: {str(error)[:300]}", flush=True)
            self.forward, self.args.compile = self.model, False

    def closure(self) -> Tensor:
        with torch.autocast(self.device, torch.bfloat16, enabled=self.cuda):
            output = self.forward(self.images.scaled(self.x))
        return F.cross_entropy(output.float(), self.y)

    def reset(self, seed: int) -> None:
        torch.manual_seed(seed)
        fresh = self._fresh()
        with torch.no_grad():
            for p, q in zip(self.model.parameters(), fresh.parameters(), strict=True):
                p.copy_(q)
        self.model.train()

    def train(self, run: Run, seed: int) -> dict[str, Any]:
        """All epochs of one setting; sigma, mean rho and training loss per epoch."""
        args = self.args
        self.reset(seed)
        draw = torch.Generator(self.device).manual_seed(seed)
        self._load(next(self.images.epoch(draw)))
        optimizer = self._optimizer(run)
        steps = {test: self._captured(optimizer, test) for test in _kinds(run)}
        total, k, path = args.epochs * self.images.per_epoch, 0, []
        self._wait()
        start = time.perf_counter()
        for epoch in range(args.epochs):
            self.loss_sum.zero_()
            for batch in self.images.epoch(draw):
                self._load(batch)
                cosine = 0.5 * (1 + math.cos(math.pi * k / total))
                if isinstance(run.what, Sgd):
                    optimizer.lr.fill_(run.what.lr * cosine)
                elif run.test_every == 0:
                    optimizer.sigma.fill_(run.what.sigma0 / cosine)
                steps[run.test_every > 0 and (k < args.warm or k % run.test_every == 0)]()
                k += 1
            loss = float(self.loss_sum) / self.images.per_epoch
            sigma = (float(optimizer.sigma), float(optimizer.rho_mean)) if isinstance(optimizer, SR2) else (0.0, 0.0)
            path.append([round(loss, 4), *(float(f"{v:.3g}") for v in sigma)])
            if not math.isfinite(loss) or (epoch >= 5 and loss > 2.25):
                break
        self._wait()
        seconds = time.perf_counter() - start
        numbers = {"path": path, "seconds": round(seconds, 1), "ms": round(1e3 * seconds / k, 3)}
        if isinstance(optimizer, SR2):
            numbers |= {"rejected": float(optimizer.rejected), "evaluations": float(optimizer.evaluations)}
        points = {"last": self.flat.x.clone()} | dict(
            zip((f"average{w}" for w in WINDOWS), optimizer.averages, strict=True)
        )
        return numbers | {name: self._judged(point) for name, point in points.items()}

    def _optimizer(self, run: Run) -> Any:
        if isinstance(run.what, Sgd):
            return SgdFlat(self.flat, run.what)
        setting = replace(run.what, coarse=2 * 2.0**-7 if self.cuda else 0.0, windows=WINDOWS)
        optimizer = SR2(self.model, setting, self.flat, run.test_every > 1, self.args.compile)
        optimizer.buffers = []  # batch norm is estimated anew before every judgement
        optimizer.prepare(self.closure)
        return optimizer

    def _captured(self, optimizer: Any, test: bool) -> Callable[[], None]:
        """A step as a graph; the state is as it was afterwards."""

        def step() -> None:
            self.loss_sum.add_(optimizer.step(self.closure, test))

        if not self.cuda or not self.args.graph:
            return step
        state = [self.flat.x, *optimizer.tensors()]
        before = [s.clone() for s in state]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(side)
        replay: Callable[[], None] = step
        try:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                step()
            replay = graph.replay
        except Exception as error:  # slower without, and still worth its time
            print(f"not captured: {type(error).__name__}: {str(error)[:500]}", flush=True)
            self.args.graph = False
        for s, old in zip(state, before, strict=True):
            s.copy_(old)
        return replay

    def _load(self, batch: tuple[Tensor, Tensor]) -> None:
        self.x.copy_(batch[0])
        self.y.copy_(batch[1])

    def _wait(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()

    def _judged(self, point: Tensor) -> float:
        """Accuracy in per cent on what is held out, batch norm estimated over 100 augmented batches."""
        with torch.no_grad(), torch.autocast(self.device, torch.bfloat16, enabled=self.cuda):
            self.flat.x.copy_(point)
            norms = [m for m in self.model.modules() if isinstance(m, nn.BatchNorm2d)]
            for m in norms:
                m.reset_running_stats()
                m.momentum = None
            self.model.train()
            for k, (x, _) in enumerate(self.images.epoch(torch.Generator(self.device).manual_seed(99))):
                if k == 100:
                    break
                self.model(self.images.scaled(x).to(memory_format=torch.channels_last))
            self.model.eval()
            held = self.images.held_x.split(1000)
            guesses = torch.cat([self.model(self.images.scaled(x)).argmax(1) for x in held])
            for m in norms:
                m.momentum = 0.1
            self.model.train()
            return round(100 * float((guesses == self.images.held_y).double().mean()), 2)


# The settings, the most important ones first ------------------------------------------------------------------------


def settings() -> dict[str, Run]:
    """By name: metric, rule, its aim or eta2, decay (m: decoupled, in the metric; l2: in R), how often it is tested."""
    wide, follow = Rule(eta1=-1.0, eta2=0.9), Rule("follow", aim=0.7, rate=0.05)

    def adam(rule: Rule, decay: float, kind: str = "metric") -> Setting:
        return Setting(first="search", rule=rule, decay=decay, decay_kind=kind)

    identity = Setting(metric="identity", first="search", sigma0=10.0, decay=5e-4)
    plain = replace(identity, beta1=0.0)
    return {
        "sgd_0.1": Run(Sgd(0.1)),
        "adam_wide_0.9_m0.1": Run(adam(wide, 0.1)),
        "adam_follow_0.7_m0.1": Run(adam(follow, 0.1)),
        "identity_wide_0.9": Run(replace(identity, rule=wide)),
        "adam_wide_0.9_m0.5": Run(adam(wide, 0.5)),
        "sgd_0.2": Run(Sgd(0.2)),
        "adam_wide_0.9_m0": Run(adam(wide, 0.0)),
        "plain_ratio_0.5": Run(replace(plain, first="none", sigma0=41.0, rule=Rule(eta2=0.5))),
        "adam_wide_0.9_m0.1_every16": Run(adam(wide, 0.1), 16),
        "identity_follow_0.7": Run(replace(identity, rule=follow)),
        "adam_follow_0.8_m0.1": Run(adam(replace(follow, aim=0.8), 0.1)),
        "sgd_0.05": Run(Sgd(0.05)),
        "adam_wide_0.8_m0.1": Run(adam(replace(wide, eta2=0.8), 0.1)),
        "adam_wide_0.9_l2": Run(adam(wide, 5e-5, "l2")),
        "adam_follow_0.9_m0.1": Run(adam(replace(follow, aim=0.9), 0.1)),
        "plain_follow_0.3": Run(replace(plain, rule=replace(follow, aim=0.3))),
        "sgd_0.4": Run(Sgd(0.4)),
        "sgd_0.03": Run(Sgd(0.03)),
        "adam_wide_0.9_m0.1_every4": Run(adam(wide, 0.1), 4),
        "plain_follow_0.2": Run(replace(plain, rule=replace(follow, aim=0.2))),
        "identity_wide_0.5": Run(replace(identity, rule=replace(wide, eta2=0.5))),
        "adamw_0.001_m0.1": adamw(0.001, 0.1),
        "adamw_0.003_m0.1": adamw(0.003, 0.1),
    }


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", nargs="*", default=["*"], help="patterns of settings")
    parser.add_argument("--seeds", nargs="*", type=int, default=[0])
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--warm", type=int, default=200, help="first steps, which are all tested")
    parser.add_argument("--model", choices=("resnet18", "densenet121"), default="resnet18")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--synthetic", type=int, default=0, help="rehearse on this many made-up images")
    parser.add_argument("--budget", type=float, default=math.inf, help="seconds")
    parser.add_argument("--final", action="store_true", help="train on all training images, judge on the test images")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--graph", action=argparse.BooleanOptionalAction, default=True)
    return parser


def main(
    args: argparse.Namespace, settings: dict[str, Run], make: Callable[[argparse.Namespace], Bench] = Bench
) -> None:
    runs = {n: r for n, r in settings.items() if any(fnmatch.fnmatch(n, p) for p in args.only)}
    if args.list:
        print(*runs, sep="\n")
        return
    start, longest = time.perf_counter(), 0.0
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    bench = make(args)
    done = {json.loads(line)["key"] for line in args.out.read_text().splitlines()} if args.out.exists() else set()
    for seed in args.seeds:
        for name, run in runs.items():
            key = f"{args.model}_{name}_s{seed}_e{args.epochs}{'_final' if args.final else ''}"
            if key in done:
                continue
            begun = time.perf_counter()
            if begun - start + longest > args.budget:
                print(f"stopped before {key}: the budget of {args.budget:.0f} s", flush=True)
                return
            try:
                record = {"key": key, "name": name, "seed": seed, **bench.train(run, seed)}
            except Exception as error:  # the next settings are still worth their time
                record = {"key": key, "failed": f"{type(error).__name__}: {str(error)[:500]}"}
            record |= {"test_every": run.test_every, "setting": asdict(run.what), "final": args.final}
            with args.out.open("a") as file:
                file.write(json.dumps(record) + "\n")
            longest = max(longest, time.perf_counter() - begun)
            shown = {
                k: v for k, v in record.items() if k not in ("path", "setting", "name", "seed", "final", "test_every")
            }
            print(
                f"{time.perf_counter() - start:5.0f} s",
                shown,
                "path",
                record.get("path", [])[:: max(1, args.epochs // 8)],
                flush=True,
            )


if __name__ == "__main__":
    main(parser().parse_args(), settings())
