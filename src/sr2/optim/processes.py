"""Several processes: which ones must decide alike, and the numbers on which they agree.

Under DistributedDataParallel each has all parameters and its own batch: what they agree on is the mean of the losses.
Where each has a part of the parameters (DTensors of `fully_shard` or of tensor parallelism, see `shards`), sums over
entries are sums over the processes too, and a number that several have is counted by the first of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ..numerics import is_part
from ..telling import tell


@dataclass(frozen=True)
class Processes:
    """Those that decide alike; without a group, this one alone."""

    groups: tuple[Any, ...] = ()
    """One, or one for each dimension of the mesh: a sum over all of them is one over each in turn."""
    mesh: Any = None
    """Over which the parameters are spread, where they are DTensors."""
    wrapped: tuple[Any, ...] = ()
    """The modules that `fully_shard` has wrapped."""
    knows_module: bool = True

    @staticmethod
    def of(module: nn.Module | None, parameters: Sequence[Tensor]) -> Processes:
        """Those of a DistributedDataParallel module, or those that have parts of these parameters."""
        together = parallel(module)
        meshes = list(dict.fromkeys(p.device_mesh for p in parameters if is_part(p)))  # type: ignore[attr-defined]
        if not meshes:
            return Processes() if together is None else Processes((together.process_group,))
        if len(meshes) > 1 or together is not None:
            others = "DistributedDataParallel" if together is not None else " and ".join(map(str, meshes[:2]))
            raise ValueError(
                f"all DTensor parameters must be on one mesh, and these are spread over {others}: give every layer the "
                "same mesh, for instance a two-dimensional one, whose first dimension fully_shard replicates over"
            )
        from torch.distributed.fsdp import FSDPModule

        groups = tuple(meshes[0].get_group(dim) for dim in range(meshes[0].ndim))
        wrapped = (m for m in module.modules() if isinstance(m, FSDPModule)) if module is not None else ()
        return Processes(groups, meshes[0], tuple(wrapped), module is not None)

    @property
    def several(self) -> bool:
        """Whether a decision is not this process's alone."""
        return bool(self.groups)

    def mean(self, values: Tensor) -> Tensor:
        """The mean of the processes' values: every one has its own batch, and all must decide alike."""
        if not self.groups:
            return values
        total = self._sum(values)
        for group in self.groups:
            total /= dist.get_world_size(group)
        return total.to(values.device)

    def sum(self, values: Tensor) -> Tensor:
        """The sum over the parts; the values themselves where every process has all."""
        return values if self.mesh is None else self._sum(values).to(values.device)

    def total(self, number: float) -> float:
        """The sum over the parts of a number that the host knows."""
        return float(self.sum(torch.tensor(number, dtype=torch.float64, device="cpu")))

    def each(self, sums: list[Tensor], *, counted: Sequence[bool]) -> list[Tensor]:
        """Sums over several tensors, each over all of its parts; `counted` says which of them are this process's."""
        if self.mesh is None:
            return sums
        mine = [s if counts else torch.zeros_like(s) for s, counts in zip(sums, counted, strict=True)]
        return list(self.sum(torch.stack(mine)).unbind())

    def all(self, flag: Tensor) -> Tensor:
        """Whether the flag is true for every part."""
        return self.sum((~flag).double()) == 0

    def _sum(self, values: Tensor) -> Tensor:
        # Parameters that are offloaded to the host are reduced where the mesh is.
        total = values.clone() if self.mesh is None else values.to(self.mesh.device_type, copy=True)
        for group in self.groups:
            dist.all_reduce(total, group=group)
        return total

    def counts(self, parameter: Tensor) -> bool:
        """Whether this process is the first of those that have this part of it, or all of it."""
        if self.mesh is None:
            return True
        places = parameter.placements if is_part(parameter) else [None] * self.mesh.ndim  # type: ignore[attr-defined]
        spread = [place is not None and not place.is_replicate() for place in places]
        return all(is_spread or at == 0 for is_spread, at in zip(spread, self.mesh.get_coordinate(), strict=True))

    def reshard(self) -> None:
        """Drop the whole weights that `fully_shard` has gathered, since x has moved."""
        for module in self.wrapped:
            module.reshard()

    def check_alike(self, parameters: Sequence[Tensor]) -> None:
        """Beside DTensors, the gradients of plain parameters must be the same on all, or x would part."""
        plain = [p.grad for p in parameters if not is_part(p) and p.grad is not None]
        if self.mesh is None or not plain:
            return
        mine = torch.stack([g.double().norm().cpu() for g in plain])
        mean = self.mean(mine)
        alike = ((mine - mean).abs() <= 1e-6 * mean) | ~mean.isfinite()
        if not self.all(alike.all()):
            raise ValueError(
                "a parameter that is no DTensor has another gradient on every process, and they would part: shard it "
                "too, or have its gradient averaged (register_post_accumulate_grad_hook with an all_reduce)"
            )


ALONE = Processes()


def parallel(module: nn.Module | None) -> DistributedDataParallel | None:
    """The DistributedDataParallel in a module, which torch.compile may have wrapped."""
    found = (m for m in module.modules() if isinstance(m, DistributedDataParallel)) if module is not None else ()
    return next(iter(found), None)


def check_not_flat(optimizer: str, module: nn.Module | None, parameters: Sequence[Tensor]) -> None:
    """FSDP's first version lays a layer's parameters end to end, and cuts them anywhere: no R knows them apart."""
    names = {type(m).__name__ for m in module.modules()} if module is not None else set()
    if "FullyShardedDataParallel" in names or any(getattr(p, "_is_flat_param", False) for p in parameters):
        raise ValueError(
            f"{optimizer} needs parameters with their own shapes, and FullyShardedDataParallel lays them end to end: "
            "use fully_shard (FSDP2)"
        )


def check_together(processes: Processes) -> None:
    """Say so where there are several processes and none of them knows of the others."""
    if not processes.knows_module:
        raise ValueError(
            "SR2 evaluates the network at two points, and with DTensor parameters it must know the network, whose "
            "whole copies of them it drops: give it the module itself, SR2(model, ...), or param_groups(model, rules)"
        )
    number = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    if number > 1 and not processes.several:
        tell(
            f"there are {number} processes, and each decides alone on its steps: give SR2 the "
            "DistributedDataParallel module itself, not its parameters"
        )
