"""Which parameters make a channel: the groups for training under a budget of channels that `shrink` can cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from .optim.groups import ParamGroups
from .regularizers.base import Regularizer, check_regularizer
from .regularizers.channels import Channels
from .regularizers.l0_ball import L0Ball
from .telling import tell

MOST = 0.9
"""Where a smaller share of the channels may go, a density is not what it seems, and that is told."""


def channel_groups(
    model: nn.Module,
    example: Tensor | Sequence[Tensor] | Mapping[str, Tensor],
    density: float,
    *,
    floor: float | None = None,
    rest: Regularizer | None = None,
) -> ParamGroups:
    """Parameter groups under which at most a share `density` of the network's channels is not zero.

    A channel is what `shrink` cuts as one: a filter with its bias and with the scale and shift of its batch norm, where
    channels meet in residual sums those of all branches, a hidden unit, a head. Its entries are zero together, and
    then the layers that follow do not see it. Inputs and outputs of the network are no channels, nor are those that a
    GroupNorm or LayerNorm reads together; where those are more than a tenth, a warning says how many.

    Which channels are kept is the choice of `L0Ball`: those with the largest sum x^2 / step, layers compared with one
    another. In Adam's metric a filter's step is the longer, the smaller its batch norm's scale, and the sum is about
    |scale| |filter|, what the channel does; without a metric a filter's norm counts, which batch norm undoes.

    >>> import torch
    >>> from sr2 import SR2
    >>> model = nn.Sequential(
    ...     nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10))
    >>> groups = channel_groups(model, torch.zeros(1, 3, 8, 8), density=0.5)
    >>> print(SR2(groups, steps=1000))  # doctest: +ELLIPSIS
    SR2(...
      group 0: 3 tensors, 232 parameters, L0Ball(density=0.5, groups=<8 channels of 1 layers>)...
      group 1: 2 tensors, 2,890 parameters, no regularizer...
    )

    Args:
        model: a network that torch.fx can follow; it is not changed.
        example: one input, or a tuple or dict of them, as for `shrink`.
        density: the share of the channels that may be nonzero.
        floor: the least density of a layer, as a share of `density`, as in `L0Ball`; 1 gives all layers the same.
        rest: the regularizer of parameters that belong to no channel.
    """
    from .export.channels import numbered  # here, since `import sr2` does not import the tools for export
    from .export.rebuild import plain

    check_regularizer(rest)
    numbers, sizes, (may_go, of), norms = numbered(network := plain(model), example)
    kind, shared = type(network).__name__, f"channels of {' and '.join(norms)} share statistics, and stay"
    if not sizes:
        why = f"{shared}: use BatchNorm instead" if norms else "its layers end at inputs and outputs"
        raise ValueError(f"{kind} has no channel that could go: {why}")
    if may_go < MOST * of:
        why = shared if norms else "the others are needed as they are, by outputs or by code that counts them, and stay"
        share = f"{may_go:,} of the {of:,} channels of {kind} ({100 * may_go / of:.0f} %)"
        ways = ", or a norm of each channel for itself, as BatchNorm" if norms else ""
        tell(f"density={density!r} is of {share}: {why}; to lose more, give a smaller density{ways}")
    named = list(network.named_parameters())
    channels = Channels(tuple(numbers[name] for name, _ in named if name in numbers), sizes)
    budget = L0Ball(density=density, groups=channels, floor=floor)
    groups: list[dict[str, Any]] = [
        {"params": [(name, p) for name, p in named if name in numbers], "regularizer": budget},
        {"params": [(name, p) for name, p in named if name not in numbers], "regularizer": rest},
    ]
    return ParamGroups([g for g in groups if g["params"]], model)
