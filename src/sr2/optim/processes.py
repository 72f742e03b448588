"""Several processes: which ones must decide alike, and the numbers on which they agree."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ..telling import tell


def parallel(module: nn.Module | None) -> DistributedDataParallel | None:
    """The DistributedDataParallel in a module, which torch.compile may have wrapped."""
    found = (m for m in module.modules() if isinstance(m, DistributedDataParallel)) if module is not None else ()
    return next(iter(found), None)


def mean_over(group: Any, values: Tensor) -> Tensor:
    """The mean of the processes' values, in place: every process has its own batch, and all must decide alike."""
    dist.all_reduce(values, group=group)
    values /= dist.get_world_size(group)
    return values


def check_whole(optimizer: str, parameter: Tensor) -> None:
    """A parameter of which each process has a part needs sums over the parts, which are not written yet."""
    sharded = hasattr(parameter, "device_mesh") or getattr(parameter, "_is_flat_param", False)
    if sharded:
        raise ValueError(
            f"{optimizer} needs whole parameters, and one is a {type(parameter.data).__name__} of which every process "
            "has a part, as fully_shard and tensor parallelism make them: use DistributedDataParallel"
        )


def check_together(group: Any) -> None:
    """Say so where there are several processes and none of them knows of the others."""
    processes = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    if processes > 1 and group is None:
        tell(
            f"there are {processes} processes, and each decides alone on its steps: give SR2 the "
            "DistributedDataParallel module itself, not its parameters"
        )
