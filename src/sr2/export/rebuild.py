"""Put tensors of other sizes into a module, and let its layers say what size they are."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd
from torch.nn.utils import parametrize

Model = TypeVar("Model", bound=nn.Module)


def plain(model: Model) -> Model:
    """The network itself, where torch.compile has wrapped it: its own class, and the names that it has."""
    inner: Any = getattr(model, "_orig_mod", model)
    return inner  # type: ignore[no-any-return]


def copied(model: Model) -> Model:
    """A copy in evaluation mode."""
    try:
        return copy.deepcopy(model).eval()
    except RuntimeError as error:
        if "graph leaves" not in str(error):
            raise
        raise ValueError(
            f"{type(model).__name__} cannot be copied, since a weight is computed from others, as torch.nn.utils.prune "
            "and the older weight_norm do it: make it a parameter first, prune.remove(layer, 'weight')"
        ) from error


def apart(model: Model) -> Model:
    """The same parameters in modules of their own, where a forward may leave something behind, as a decoder's cache."""
    return copy.deepcopy(model, {id(p): p for p in model.parameters()})


def forgetting(model: nn.Module, inputs: tuple[Tensor, ...]) -> Callable[..., Any]:
    """The model to be called many times; where a call leaves something behind, the next one takes it away first."""
    before = {module: dict(vars(module)) for module in model.modules()}
    model(*inputs)
    left = [(vars(m), was) for m, was in before.items() if _by_identity(vars(m)) != _by_identity(was)]

    def call(*given: Tensor) -> Any:
        for now, was in left:
            now.clear()
            now.update(was)
        return model(*given)

    return call if left else model


def _by_identity(attributes: Mapping[str, Any]) -> dict[str, int]:
    return {name: id(value) for name, value in attributes.items()}


def computed(model: nn.Module) -> list[str]:
    """The names of the layers whose weights a parametrization computes, as spectral_norm does."""
    return [name for name, layer in model.named_modules() if parametrize.is_parametrized(layer)]


def settled(model: Model) -> Model:
    """The network itself, in which weights that were computed from others are parameters, with the values they have."""
    for name in computed(model):
        layer: Any = model.get_submodule(name)
        values = {key: getattr(layer, key).detach().clone() for key in layer.parametrizations}
        # Not `remove_parametrizations`: it edits the class, which a copy shares with the network that it is a copy of.
        layer.__class__ = parametrize.type_before_parametrizations(layer)
        del layer.parametrizations
        for key, value in values.items():
            setattr(layer, key, nn.Parameter(value))
    return model


def set_tensor(model: nn.Module, name: str, tensor: Tensor) -> None:
    """Replace a parameter or a buffer, or give a layer the bias that it did not have."""
    owner_name, _, key = name.rpartition(".")
    owner = model.get_submodule(owner_name)
    if key in owner._buffers:
        owner._buffers[key] = tensor
        return
    before = owner._parameters.get(key)
    grad = before.requires_grad if before is not None else True
    owner._parameters[key] = nn.Parameter(tensor, requires_grad=grad and tensor.is_floating_point())


def set_module(model: nn.Module, name: str, layer: nn.Module) -> None:
    """Replace the layer of that name."""
    owner, _, key = name.rpartition(".")
    setattr(model.get_submodule(owner), key, layer)


def refresh(model: nn.Module, sizes: Mapping[str, int] | None = None) -> None:
    """Every layer's own numbers (`in_channels`, `num_features`…) from its tensors; then the attributes in `sizes`."""
    for layer in model.modules():
        for key, value in _sizes(layer).items():
            setattr(layer, key, value)
    for name, size in (sizes or {}).items():
        owner, _, key = name.rpartition(".")
        setattr(model.get_submodule(owner), key, size)


def _sizes(layer: nn.Module) -> dict[str, Any]:
    weight = layer._parameters.get("weight")
    if isinstance(layer, nn.Linear) and weight is not None:
        return {"out_features": weight.shape[0], "in_features": weight.shape[1]}
    if isinstance(layer, _ConvNd) and weight is not None and not layer.transposed:
        # A group goes as a whole, and only the last one may lose filters: it is then a group no more.
        groups = max(1, weight.shape[0] // (layer.out_channels // layer.groups)) if layer.groups > 1 else 1
        return {"out_channels": weight.shape[0], "in_channels": groups * weight.shape[1], "groups": groups}
    if isinstance(layer, nn.Embedding) and weight is not None:
        return {"embedding_dim": weight.shape[1]}
    if isinstance(layer, nn.PReLU) and weight is not None:
        return {"num_parameters": weight.numel()}
    if isinstance(layer, _NormBase):
        tensor = weight if weight is not None else layer.running_mean
        return {} if tensor is None else {"num_features": tensor.numel()}
    return {}
