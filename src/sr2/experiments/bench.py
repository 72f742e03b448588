"""`sr2 bench`: what a step costs, as ratios measured in one process, interleaved and repeated.

Two questions. What does a training step of SR2, ProxGEN and ProxSGD cost against torch's SGD, on the same network,
batch and precision? And what does the optimizer's own work cost, without the closures, against a copy of the weights?
"""

from __future__ import annotations

import json
import platform
import re
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..optim import SR2, CapturedStep, ProxGEN, ProximalOptimizer, ProxSGD
from ..optim.capture import run_beside
from ..regularizers import L0, L1, Regularizer
from .errors import UserError
from .host_reads import HostReads
from .models import build
from .run.build import check_arithmetic, find_device
from .run.files import named_errors, write_file
from .run.network import AUTOCAST, Network, set_float32_arithmetic

Body = Callable[[], object]
MANY = 2**31
"""Of anything, too many: torch itself fails in other ways from here on."""


@dataclass(frozen=True)
class BenchConfig:
    """Time a training step against torch's SGD, and the optimizer's own work against a copy."""

    device: str = "cpu"
    """cpu, cuda, cuda:0, or auto."""
    model: str = "cnn"
    """The network."""
    size: int = 8
    """Images are size x size; three channels, or one for 8 x 8 and 28 x 28."""
    batch: int = 128
    """Images per step."""
    precision: str = "fp32"
    """fp32, tf32 or bf16 (autocast)."""
    compile: bool = False
    """Compile the network with torch.compile."""
    capture: bool = True
    """Whether whole steps are replayed as CUDA graphs, on CUDA (SGD's too); --no-capture turns it off."""
    steps: int = 10
    """Steps per timing."""
    repeats: int = 9
    """Timings of each, interleaved; the median counts."""
    parameters: tuple[int, ...] = (10**6, 10**7)
    """Sizes at which the optimizer's own work is timed."""
    out: Path | None = None
    """Where to write the figures as JSON."""


@dataclass
class Timing:
    """Seconds of one thing, once per repeat."""

    name: str
    seconds: list[float] = field(default_factory=list)
    peak_bytes: int | None = None
    host_reads: int | None = None

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def run(config: BenchConfig) -> dict[str, Any]:
    """All figures of one configuration, as plain data."""
    device = find_device(config.device)
    check_arithmetic(config.precision, device)
    for name in ("size", "batch", "steps", "repeats"):
        if not 1 <= getattr(config, name) < MANY:
            raise UserError(f"{name} must be from 1 to {MANY - 1}, and is {getattr(config, name)}")
    if wrong := [n for n in config.parameters if not 1 <= n < MANY]:
        raise UserError(f"parameters must be from 1 to {MANY - 1}, and are {wrong[0]}")
    if config.out is not None:  # before minutes of timings
        if config.out.is_dir():
            raise UserError(f"{config.out} is a folder: name a file, as {config.out / 'bench.json'}")
        with named_errors(config.out):
            config.out.parent.mkdir(parents=True, exist_ok=True)
    with _within_memory():
        figures = _figures(config, device)
    if config.out is not None:
        write_file(config.out, (json.dumps(figures, indent=1) + "\n").encode())
    return figures


@contextmanager
def _within_memory() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # torch's, of a device too; it has no class of its own for the host
        if not re.search("alloc|out of memory|overflow", str(error)):
            raise
        what = str(error).splitlines()[0]  # its C++ frames follow
        way = "use a smaller --size, --batch, --model or --parameters"
        raise UserError(f"this does not fit into memory ({what}): {way}") from error


def _figures(config: BenchConfig, device: torch.device) -> dict[str, Any]:
    figures: dict[str, Any] = {
        "config": {**asdict(config), "out": None},
        "versions": {"torch": torch.__version__, "python": platform.python_version()},
        "device": torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else f"CPU, {torch.get_num_threads()} threads",
        "training": _rows(time_training(config, device), "sgd"),
        "own_work": [],
    }
    for n in config.parameters:
        timings = time_own_work(n, device, config.repeats)
        figures["own_work"].append({"parameters": n, "rows": _rows(timings, "sgd")})
    return figures


def _rows(timings: Sequence[Timing], base: str) -> list[dict[str, Any]]:
    reference = next(t for t in timings if t.name == base)
    rows = []
    for t in timings:
        ratios = [a / b for a, b in zip(t.seconds, reference.seconds, strict=True)]
        rows.append(
            {
                "name": t.name,
                "milliseconds": 1e3 * t.median,
                "ratio": statistics.median(ratios),
                "ratio_low": min(ratios),
                "ratio_high": max(ratios),
                "peak_bytes": t.peak_bytes,
                "host_reads": t.host_reads,
            }
        )
    return rows


# ---- a training step


def time_training(config: BenchConfig, device: torch.device) -> list[Timing]:
    """A whole step on random images: SGD, SR2 with l1 and l0, ProxGEN, ProxSGD."""
    on_cuda = device.type == "cuda"
    autocast = AUTOCAST.get(config.precision)
    options: dict[str, Any] = {"sigma": 1e3, "capturable": _captures(config, device), "autocast": autocast}
    makers: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
        "sgd": lambda m: torch.optim.SGD(m.parameters(), lr=1e-3, fused=on_cuda, foreach=not on_cuda),
        "sr2 l1": lambda m: SR2(m, L1(1e-4), **options),
        "sr2 l0": lambda m: SR2(m, L0(1e-6), **options),
        "proxgen l1": lambda m: ProxGEN(m, L1(1e-4), 1e-3, capturable=_captures(config, device)),
        "proxsgd l1": lambda m: ProxSGD(m, L1(1e-4), rho=None, metric=None, capturable=_captures(config, device)),
    }
    bodies, timings = [], []
    for name, make in makers.items():
        body, peak = _made_and_peak(partial(_training_body, config, device, make), device)
        timing = Timing(name, peak_bytes=peak)
        timing.host_reads = host_reads(body) if device.type == "cuda" else None
        bodies.append(body)
        timings.append(timing)
    interleave(bodies, timings, config, device)
    return timings


def _captures(config: BenchConfig, device: torch.device) -> bool:
    return config.capture and device.type == "cuda"


def _training_body(
    config: BenchConfig, device: torch.device, make: Callable[[nn.Module], torch.optim.Optimizer]
) -> Body:
    channels = 1 if config.size in (8, 28) else 3
    torch.manual_seed(0)
    model = build(config.model, 10, (channels, config.size, config.size)).to(device)
    x = torch.randn(config.batch, channels, config.size, config.size, device=device)
    y = torch.randint(0, 10, (config.batch,), device=device)
    if device.type == "cuda":
        torch.backends.cudnn.benchmark = True
        set_float32_arithmetic(config.precision)
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        x = x.to(memory_format=torch.channels_last)
    network = Network(model, device, config.precision, compiled=config.compile)
    optimizer = make(model)

    def loss() -> Tensor:
        return network.loss(x, y)[0]

    def step() -> Tensor:
        if isinstance(optimizer, ProximalOptimizer):
            return optimizer.step(loss)  # type: ignore[return-value, arg-type]
        optimizer.zero_grad()
        value = loss()
        value.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return value

    if not _captures(config, device):
        return step
    if isinstance(optimizer, ProximalOptimizer):
        return CapturedStep(optimizer, step)
    return _graph(step)


def _graph(step: Body) -> Body:
    """The step as a CUDA graph, without an optimizer of ours."""
    run_beside(lambda: [step() for _ in range(3)])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()

    def replay(_kept: Body = step) -> None:  # the graph reads the step's tensors, so they must live as long
        graph.replay()

    return replay


# ---- the optimizer's own work


def time_own_work(n: int, device: torch.device, repeats: int) -> list[Timing]:
    """A step whose closure costs nothing, on n float32 parameters in one tensor, and a copy of them."""
    x = nn.Parameter(0.01 * torch.randn(n, device=device))
    v = 1e-3 * torch.randn(n, device=device)
    target = torch.empty_like(x)
    on_cuda = device.type == "cuda"
    loss = torch.ones((), device=device)

    def closure() -> Tensor:
        x.grad = v
        return loss

    def torchs(optimizer: torch.optim.Optimizer) -> Body:
        def step() -> None:
            x.grad = v
            optimizer.step()

        return _graph(step) if on_cuda else step

    adamw = partial(torch.optim.AdamW, [x], lr=1e-6, capturable=on_cuda)

    def sr2(regularizer: Regularizer | None, **options: Any) -> Body:
        # So short a step that the constant loss accepts it: within the rounding slack, as at convergence.
        optimizer = SR2([x], regularizer, sigma=1e9, capturable=on_cuda, **options)

        def step() -> Tensor:
            x.grad = None  # another optimizer's, which trains the same x
            return optimizer.step(closure)

        return CapturedStep(optimizer, step) if on_cuda else step

    with torch.no_grad():
        makers: dict[str, Callable[[], Body]] = {
            "copy": lambda: lambda: target.copy_(x.detach()),
            "sgd": lambda: torchs(torch.optim.SGD([x], lr=1e-6, foreach=True)),
            "adamw": lambda: torchs(adamw(foreach=True)),
            "adamw, fused": lambda: torchs(adamw(fused=True)),
            "sr2": lambda: sr2(None),
            "sr2 l1": lambda: sr2(L1(1e-4)),
            "sr2 l0": lambda: sr2(L0(1e-12)),
        }
        if on_cuda and n < 2e8:  # its temporaries would not fit
            makers["sr2 l1, no kernel"] = lambda: sr2(L1(1e-4), foreach=True)
        if not on_cuda and shutil.which("g++"):  # what torch.compile needs
            makers["sr2 l1, compiled"] = lambda: sr2(L1(1e-4), compile=True)
            makers["sr2 l0, compiled"] = lambda: sr2(L0(1e-12), compile=True)
        bodies, timings = {}, []
        for name, make in makers.items():
            bodies[name], peak = _made_and_peak(make, device)
            timings.append(Timing(name, peak_bytes=peak))
        few = BenchConfig(device=str(device), steps=3, repeats=repeats)
        interleave(list(bodies.values()), timings, few, device)
    return timings


# ---- measuring


def interleave(bodies: Sequence[Body], timings: Sequence[Timing], config: BenchConfig, device: torch.device) -> None:
    """Time each in turn, again and again: what else the machine does then falls on all alike."""
    for body in bodies:
        body()
    for _ in range(config.repeats):
        for body, timing in zip(bodies, timings, strict=True):
            _wait(device)
            started = time.perf_counter()
            for _ in range(config.steps):
                body()
            _wait(device)
            timing.seconds.append((time.perf_counter() - started) / config.steps)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _made_and_peak(make: Callable[[], Body], device: torch.device) -> tuple[Body, int | None]:
    """What `make` makes, and the most device memory that making it and its steps took beyond what was there."""
    if device.type != "cuda":
        return make(), None
    _wait(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    body = make()
    body()
    _wait(device)
    return body, torch.cuda.max_memory_allocated(device) - before


def host_reads(body: Body) -> int:
    """How often one step makes the host wait for the device."""
    with HostReads() as reads:
        body()
    return len(reads.seen)
