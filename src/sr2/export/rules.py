"""What each operation means for channels. `trace.run` asks, `channels` reads the answers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from .movements import Movements, axes_of
from .operations import (
    ASKING,
    ATTRIBUTES,
    CHANNELWISE_LAYERS,
    ELEMENTWISE,
    ELEMENTWISE_LAYERS,
    MIXING,
    MIXING_LAYERS,
    MOVING,
    PAIRWISE,
    SPATIAL,
    SPATIAL_LAYERS,
)
from .trace import UnknownOperationError, execute, leaves, mapped, name_of
from .values import Value


@dataclass
class Layer:
    """A linear map of channels: W, what comes in, what goes out."""

    name: str
    ins: Tensor
    outs: Tensor
    reads: Tensor
    """[outs, ins]: whether the entry of W is not zero and its input cannot be replaced by a bias."""
    constants: Tensor
    """The inputs that are numbers, else nan."""
    blocked: Tensor
    """[ins]: a constant that zero padding keeps from becoming a bias."""
    grouped: bool = False


@dataclass
class Cut:
    """A tensor that has channels on an axis."""

    tensor: str
    axis: int
    atoms: Tensor


class Rules(Movements):
    """Collects, over one run of the graph, the layers, the cuts and the sizes that channels decide."""

    def __init__(self, model: nn.Module, calls: Counter[str]) -> None:
        super().__init__()
        self.model, self.calls = model, calls
        self.layers: list[Layer] = []
        self.cuts: list[Cut] = []
        owners = Counter(id(p) for _, p in model.named_parameters(remove_duplicate=False))
        self._shared = {id_ for id_, count in owners.items() if count > 1}

    # ---- what trace.run asks

    def input(self, example: Tensor | None, node: fx.Node) -> Any:
        if example is None:
            return node.args[0] if node.args else None  # the default of an argument that the example leaves out
        return self._fixed(example.shape)

    def call_module(self, name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        x = args[0] if args else next(iter(kwargs.values()))
        if isinstance(module, ELEMENTWISE_LAYERS):
            return self._elementwise(x, module)
        if isinstance(module, SPATIAL_LAYERS):
            return self._spatial(x, module)
        if isinstance(module, CHANNELWISE_LAYERS):
            return self._channelwise(name, module, x)
        if isinstance(module, MIXING_LAYERS):
            return self._mixing(x, self._mixed_axes(module, x), module(x.constants), type(module).__name__)
        if isinstance(module, nn.Flatten):
            return self._moved(x.atoms.flatten(module.start_dim, module.end_dim), module(x.constants))
        if isinstance(module, nn.Linear):
            return self._linear(name, module, x)
        if isinstance(module, _ConvNd) and not isinstance(module, _ConvTransposeNd):
            return self._convolution(name, module, x)
        if isinstance(module, nn.Embedding):
            return self._embedding(name, module, x)
        if isinstance(module, nn.MultiheadAttention):
            for item in leaves((args, kwargs)):
                if isinstance(item, Value):
                    self.atoms.fix(item.atoms)
            return self._fixed(x.shape), None
        if isinstance(module, nn.TransformerEncoderLayer):
            return self._encoder_layer(name, module, x)
        if isinstance(module, nn.TransformerEncoder):
            for number, layer in enumerate(module.layers):
                x = self.call_module(f"{name}.layers.{number}", layer, (x,), {})
            return x
        raise UnknownOperationError(
            f"shrink does not know the layer {type(module).__name__} ({name}): nothing is changed"
        )

    def call(self, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = name_of(node)
        if name in ASKING and (name != "getattr" or args[1] in ATTRIBUTES):
            return execute(node, mapped(args, lambda x: x.constants), kwargs)
        if name == "getattr" and args[1] in ("T", "mT"):
            return self._moved(getattr(args[0].atoms, args[1]), getattr(args[0].constants, args[1]))
        if name in ELEMENTWISE or (name in PAIRWISE and self._one_tensor(args, kwargs)):
            x = next(item for item in leaves((args, kwargs)) if isinstance(item, Value))
            return self._elementwise(x, lambda given: execute(node, mapped(args, lambda _: given), kwargs))
        if name in PAIRWISE:
            return self._pairwise(node, args, kwargs)
        if name == "pad" and len(args[1]) > 2 * (len(args[0].shape) - 2):
            return self._pad_channels(node, args, kwargs)
        if name in SPATIAL and isinstance(args[0], Value):
            return self._spatial(args[0], lambda given: execute(node, (given, *args[1:]), kwargs))
        if name in MIXING and isinstance(args[0], Value):
            found = execute(node, mapped(args, lambda x: x.constants), kwargs)
            return self._mixing(args[0], axes_of(name, args, kwargs), found, name)
        if name in ("view", "reshape") and not kwargs:
            return self._view(node, args)
        if name == "chunk":
            return self._chunk(node, args, kwargs)
        if name == "getitem":
            return self._getitem(args[0], args[1]) if isinstance(args[0], Value) else execute(node, args, kwargs)
        if name in MOVING:
            return self._move(node, name, args, kwargs)
        if name in ("matmul", "bmm", "scaled_dot_product_attention"):
            return self._product(name, args, kwargs)
        raise UnknownOperationError(f"shrink does not know the operation {name} ({node.name}): nothing is changed")

    # ---- layers with weights

    def _linear(self, name: str, module: nn.Linear, x: Value) -> Value:
        axis = x.atoms.ndim - 1
        outs, constants = self._layer(name, module, self._channels(x, axis), self._constants(x, axis))
        shape = (*x.shape[:-1], len(outs))
        return Value(outs.expand(shape), constants.expand(shape))

    def _convolution(self, name: str, module: _ConvNd, x: Value) -> Value:
        axis = x.atoms.ndim - len(module.kernel_size) - 1
        outs, constants = self._layer(name, module, self._channels(x, axis), self._constants(x, axis))
        meta = torch.empty(x.shape, device="meta"), torch.empty(module.weight.shape, device="meta")
        shape = module._conv_forward(*meta, None).shape
        column = (-1, *[1] * len(module.kernel_size))
        return Value(outs.view(column).expand(shape), constants.view(column).expand(shape))

    def _layer(self, name: str, module: Any, ins: Tensor, constants: Tensor) -> tuple[Tensor, Tensor]:
        """Atoms and constants of a linear map's outputs: b + W c where W reads nothing but constants c."""
        groups = getattr(module, "groups", 1)
        weight = module.weight.detach().flatten(2).sum(2) if module.weight.ndim > 2 else module.weight.detach()
        nonzero = (module.weight != 0).flatten(2).any(2) if module.weight.ndim > 2 else module.weight != 0
        outs = self.atoms.fresh(len(weight))
        padded = any(getattr(module, "_reversed_padding_repeated_twice", ())) and module.padding_mode == "zeros"
        known = ~constants.isnan()
        blocked = known & (constants != 0) if padded else torch.zeros_like(known)
        usable = (known & ~blocked).view(groups, 1, -1).expand(groups, len(outs) // groups, -1).flatten(0, 1)
        c = constants.nan_to_num().view(groups, 1, -1).expand(groups, len(outs) // groups, -1).flatten(0, 1)
        reads = nonzero & ~usable
        bias = module.bias.detach() if module.bias is not None else torch.zeros(len(outs), dtype=weight.dtype)
        found = torch.where(reads.any(1), torch.nan, bias + torch.where(nonzero & usable, weight * c, 0).sum(1))
        if groups > 1:  # a group goes as a whole or not at all
            members = torch.cat([ins.view(groups, -1), outs.view(groups, -1)], 1)
            self.atoms.unite_along(members, [1])
        self.layers.append(Layer(name, ins, outs, reads, constants, blocked, groups > 1))
        if self._is_fixed(name, module):
            self.atoms.fix(torch.cat([ins, outs]))
        self.cuts.append(Cut(f"{name}.weight", 0, outs))
        if module.bias is not None:
            self.cuts.append(Cut(f"{name}.bias", 0, outs))
        if groups == 1:
            self.cuts.append(Cut(f"{name}.weight", 1, ins))
        return outs, found

    def _embedding(self, name: str, module: nn.Embedding, x: Value) -> Value:
        self.atoms.fix(x.atoms)
        outs = self.atoms.fresh(module.embedding_dim)
        if self._is_fixed(name, module) or module.max_norm is not None:
            self.atoms.fix(outs)
        self.cuts.append(Cut(f"{name}.weight", 1, outs))
        atoms = outs.expand(*x.shape, -1)
        return Value(atoms, torch.full(atoms.shape, torch.nan, dtype=torch.float64))

    def _channelwise(self, name: str, module: Any, x: Value) -> Value:
        channels = self._channels(x, 1)
        if self._is_fixed(name, module, "weight" if getattr(module, "affine", True) else None):
            self.atoms.fix(channels)
        for key in ("weight", "bias", "running_mean", "running_var"):
            tensor = getattr(module, key, None)
            if tensor is not None and (tensor.numel() > 1 or len(channels) == 1):
                self.cuts.append(Cut(f"{name}.{key}", 0, channels))
        if isinstance(module, _NormBase) and not [*module.parameters(), *module.buffers()]:
            self.sizes[f"{name}.num_features"] = channels  # which no tensor of it tells
        return Value(x.atoms, module(x.constants))

    def _encoder_layer(self, name: str, module: nn.TransformerEncoderLayer, x: Value) -> Value:
        """Torch's own block: its hidden units may go; attention needs width = heads x size, so its heads may not."""
        self.atoms.fix(x.atoms)
        hidden = self._linear(f"{name}.linear1", module.linear1, self._fixed(x.shape))
        active = self._elementwise(hidden, module.activation)
        self.atoms.fix(self._linear(f"{name}.linear2", module.linear2, active).atoms)
        return self._fixed(x.shape)

    def _is_fixed(self, name: str, module: nn.Module, key: str | None = "weight") -> bool:
        """A layer that is called twice, a tied weight, and a weight that is computed keep their channels."""
        weight = module._parameters.get(key) if key is not None else None
        return self.calls[name] > 1 or (key is not None and (weight is None or id(weight) in self._shared))
