"""The registry of networks, and `build`.

A new network is one file with a function `name(classes, in_shape)`, and one line in `_MODULES`.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import re
from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import UserError
from ..names import call, check_known, import_callable

Shape = tuple[int, ...]
"""Of an input; of an image: channels, height and width."""

_MODULES = {
    "cnn": ".cnn",
    "mlp": ".mlp",
    "resnet18": ".resnet",
    "resnet34": ".resnet",
    "densenet121": ".densenet",
    "densenet201": ".densenet",
    "transformer": ".transformer",
}


def known() -> list[str]:
    """The built-in names."""
    return list(_MODULES)


def build(name: str, classes: int, in_shape: Shape) -> nn.Module:
    """A network by its name, or by `module:callable`, with fresh weights.

    The weights come from torch's global generator: `torch.manual_seed` before the call decides them. Of
    `num_classes`, `classes`, `outputs` (all three are the same) and `in_shape`, a callable is given those that its
    signature has (`num_classes` also where it takes any keyword, as torchvision's networks do).

    Args:
        name: "resnet34", … or "module:callable".
        classes: how many outputs.
        in_shape: the shape of an input; of an image, channels, height and width.
    """
    if ":" in name:
        return _build_own(name, classes, in_shape)
    check_known("network", name, _MODULES)
    builder: Callable[[int, Shape], nn.Module] = getattr(importlib.import_module(_MODULES[name], __package__), name)
    return builder(classes, in_shape)


def _build_own(name: str, classes: int, in_shape: Shape) -> nn.Module:
    builder = import_callable("network", name)
    given = {"num_classes": classes, "classes": classes, "outputs": classes, "in_shape": in_shape}
    try:
        parameters = inspect.signature(builder).parameters
    except ValueError:  # a builtin has no signature to read
        parameters = {}  # type: ignore[assignment]
    names = set(parameters)
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        names.add("num_classes")
    made = call("network", name, builder, **{key: value for key, value in given.items() if key in names})
    if not isinstance(made, nn.Module):
        raise UserError(f"network {name!r} returned a {type(made).__name__}, and must return a torch.nn.Module")
    return made


def fingerprint(model: nn.Module) -> str:
    """Tells a network from another one: a hash of what it prints and of its parameters' shapes.

    What only `forward` says is not in it.

    >>> layers = [nn.Sequential(nn.Linear(2, 2), act) for act in (nn.ReLU(), nn.ReLU(), nn.Tanh())]
    >>> [fingerprint(model) == fingerprint(layers[0]) for model in layers]
    [True, True, False]
    """
    # <function relu at 0x7f…>, elsewhere in every process, and a ParameterList's device
    text = re.sub(r" at 0x[0-9a-fA-F]+| \(cuda:\d+\)", "", repr(model))
    shapes = [(name, tuple(p.shape)) for name, p in model.named_parameters()]
    return hashlib.sha256(f"{text} {shapes}".encode()).hexdigest()[:10]


class BatchNorm(nn.BatchNorm2d):
    """torch's batch norm with its names, except that `num_batches_tracked` stays 0.

    A running average with a fixed momentum never reads that count, and on a GPU to advance it is one launch per layer:
    121 of them in every forward pass of DenseNet-121.
    """

    def forward(self, x: Tensor) -> Tensor:
        if self.momentum is None:  # a plain mean counts its batches: `recalibrate_`
            return super().forward(x)
        statistics = (self.running_mean, self.running_var)
        return F.batch_norm(x, *statistics, self.weight, self.bias, self.training, self.momentum, self.eps)


def check_size(name: str, in_shape: Shape, least: int) -> None:
    """Raise a UserError for images that the network would shrink to nothing, and for what is no image."""
    size = " x ".join(map(str, in_shape[1:] if len(in_shape) == 3 else in_shape))
    if len(in_shape) != 3 or min(in_shape[1:]) < least:
        raise UserError(f"{name} needs images of at least {least} x {least}, and they are {size}: use cnn or mlp")
