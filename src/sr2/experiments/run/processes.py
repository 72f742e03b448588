"""One run in several processes, as torchrun starts them: whose part of a batch is whose, and what they agree on.

`torchrun --nproc-per-node 4 -m sr2 train …` is the run that `sr2 train …` is, to rounding: the same key, the same
folder, the same batches, each cut into equal parts. The first process writes. Batch norms take their statistics over
the whole batch. What draws random numbers in the network, as dropout does, cannot be equal, and is an error.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..errors import UserError
from .config import RunConfig
from .stop import StoppedError
from .whole_batch import Together

WAIT = timedelta(hours=2)
"""How long a process waits for the others: the first one fetches data and writes files while they do."""


@dataclass(frozen=True)
class Processes:
    """The processes of a run, seen from one of them.

    >>> ALONE.first, ALONE.part(256, 128), ALONE.any(False)
    (True, slice(256, 384, None), False)

    Attributes:
        rank: the number of this one, from 0.
        size: how many there are.
        hosts: their group for numbers of the host, which no device waits for.
    """

    rank: int = 0
    size: int = 1
    hosts: Any = None

    @property
    def first(self) -> bool:
        """Whether this is the one that writes."""
        return self.rank == 0

    def part(self, start: int, count: int) -> slice:
        """This one's part of the `count` examples from `start` on."""
        mine = count // self.size
        return slice(start + self.rank * mine, start + (self.rank + 1) * mine)

    def any(self, flag: bool) -> bool:
        """Whether one of them says so; all must ask."""
        if self.size == 1:
            return flag
        said = torch.tensor(int(flag))
        dist.all_reduce(said, group=self.hosts)
        return bool(said)

    def total(self, numbers: Tensor) -> Tensor:
        """The sum over the processes."""
        if self.size == 1:
            return numbers
        total = numbers.detach().cpu().clone()
        dist.all_reduce(total, group=self.hosts)
        return total.to(numbers.device)

    def from_first(self, data: bytes | None) -> bytes | None:
        """What the first one has, for all."""
        if self.size == 1:
            return data
        length = torch.tensor(-1 if data is None else len(data))
        dist.broadcast(length, 0, group=self.hosts)
        if length < 0:
            return None
        content = torch.frombuffer(bytearray(data or b""), dtype=torch.uint8) if self.first and data else None
        if content is None:
            content = torch.empty(int(length), dtype=torch.uint8)
        dist.broadcast(content, 0, group=self.hosts)
        return content.numpy().tobytes()

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model as all of them train it: gradients are means, and batch norms see the whole batch."""
        return model if self.size == 1 else Together(model)


ALONE = Processes()


def started() -> int:
    """How many processes torchrun has started for this command; 1 without it."""
    return int(os.environ["WORLD_SIZE"]) if dist.is_available() and dist.is_torchelastic_launched() else 1


def speaks() -> bool:
    """Whether this is the process that the user hears of: of those of torchrun, the first."""
    return started() == 1 or os.environ["RANK"] == "0"


def place(config: RunConfig) -> torch.device:
    """The device of this process: with several of them, each has its own."""
    device = torch.device(config.device)
    own = device.type == "cuda" and started() > 1
    return torch.device("cuda", int(os.environ["LOCAL_RANK"])) if own else device


@contextlib.contextmanager
def joined(config: RunConfig) -> Iterator[Processes]:
    """The processes that torchrun has started, for one run; without torchrun, this one alone."""
    size = started()
    if size == 1:
        yield ALONE
        return
    check(config, size)
    device = place(config)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    with _another_ended():
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=WAIT)
        hosts = dist.new_group(backend="gloo", timeout=WAIT)
        yield Processes(dist.get_rank(), size, hosts)
        dist.destroy_process_group()


def check(config: RunConfig, size: int) -> None:
    """A UserError for what several processes cannot do as one does."""
    local = int(os.environ.get("LOCAL_WORLD_SIZE", size))
    if config.batch % size:
        raise UserError(f"a batch of {config.batch} cannot be cut into {size} equal parts: choose another --batch")
    if config.option("batch_growth") is not None:
        raise UserError(f"batch_growth compares the halves of a batch, and {size} processes have {size} parts of it")
    if config.compile:
        raise UserError("--compile is for one process: leave it out, or leave out torchrun")
    if config.device.startswith("cuda"):
        if ":" in config.device:
            raise UserError(f"each process takes a device of its own: use --device cuda, not {config.device}")
        if local > torch.cuda.device_count():
            raise UserError(f"{local} processes need {local} devices, and {torch.cuda.device_count()} are here")


@contextlib.contextmanager
def _another_ended() -> Iterator[None]:
    """Where one process ends, the others cannot go on: they say so, and the next start goes on from the checkpoint."""
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and "gloo" not in str(error).lower():
            raise
        raise StoppedError("another process of this run ended: run the same command to go on") from error
