"""Which channels stay: those that reach the output through weights that are not zero. The rest is cut out."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn

from .index_map import IndexMap
from .measure import Example, inputs_of
from .operations import LAYERS
from .rebuild import copied, refresh, set_tensor
from .rules import Layer, Rules
from .trace import Dimension, UnknownOperationError, calls, leaves, run, trace
from .values import FIXED, Value


@dataclass
class Plan:
    """What to cut, before anything is changed."""

    index: IndexMap = field(default_factory=IndexMap)
    added: dict[str, Tensor] = field(default_factory=dict)
    """What constant channels that go leave behind, bias by bias."""
    channels: tuple[int, int] = (0, 0)
    """Channels that layers put out, before and after."""
    padded: int = 0
    """Channels that are constants and stay: behind zero padding a constant is no bias."""


def is_layer(module: nn.Module) -> bool:
    return isinstance(module, LAYERS)


def followed(model: nn.Module, example: tuple[Tensor, ...]) -> Rules:
    """What every operation of the network means for its channels; arguments as for `plan`."""
    try:
        graph, traced = trace(model, is_layer, example)
        rules = Rules(traced, calls(graph))
        with torch.no_grad():
            found = [item.atoms for item in leaves(run(graph, traced, example, rules)) if isinstance(item, Value)]
            rules.outputs = _with_united(found, rules)
            for atoms in found:
                rules.atoms.fix(atoms)
    except UnknownOperationError as error:
        raise UnknownOperationError(f"{error}{_of_example(model, example)}") from error
    _fix_sizes(graph, rules)
    return rules


def _with_united(outputs: list[Tensor], rules: Rules) -> Tensor:
    """These atoms and those that go with them, but for what must stay for another reason."""
    everything = torch.arange(len(rules.atoms.parent))
    own = torch.zeros_like(everything, dtype=torch.bool)
    for atoms in outputs:
        own[atoms.flatten()] = True
    classes = rules.atoms.classes(everything)
    return everything[own | (torch.isin(classes, classes[own]) & (classes != FIXED))]


def _of_example(model: nn.Module, example: tuple[Tensor, ...]) -> str:
    """What to say where the network itself does not take the example: the more likely mistake."""
    try:
        with torch.no_grad():
            model(*example)
    except Exception as error:
        shapes = ", ".join(str(tuple(item.shape)) for item in example)
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        return f"; {type(model).__name__} itself fails with the example of shape {shapes} ({reason}): give it another"
    return ""


class Numbered(NamedTuple):
    """The channels that may go, and what is known of those that may not."""

    numbers: dict[str, tuple[int, ...]]
    """For each parameter the channel of each slice along dimension 0, -1 for none."""
    sizes: tuple[int, ...]
    """How many each layer has."""
    governed: tuple[int, int]
    """How many channels of linear layers and convolutions may go, and of how many that are no outputs."""
    norms: tuple[str, ...]
    """The kinds of norm for which others must stay, since their channels share statistics."""


def numbered(model: nn.Module, example: Example) -> Numbered:
    """Which channels may go. Those that go together have one number, layer by layer, as the network computes them.

    >>> model = nn.Sequential(nn.Linear(4, 2), nn.ReLU(), nn.Linear(2, 3))
    >>> numbered(model, torch.zeros(1, 4))
    Numbered(numbers={'0.weight': (0, 1), '0.bias': (0, 1)}, sizes=(2,), governed=(2, 2), norms=())
    """
    if is_layer(model):
        return Numbered({}, (), (0, 0), ())
    inputs = (item.cpu() for item in inputs_of(example, model))
    exact = tuple(item.double() if item.is_floating_point() else item for item in inputs)
    with torch.device("cpu"):  # whatever torch.set_default_device says
        return _numbered(model, followed(copied(model).cpu().double(), exact))


def _numbered(model: nn.Module, rules: Rules) -> Numbered:
    parameters = dict(model.named_parameters())
    cuts = [cut for cut in rules.cuts if cut.tensor in parameters]
    for cut in cuts:
        if isinstance(model.get_submodule(cut.tensor.rpartition(".")[0]), nn.Embedding):  # its channels are columns
            rules.atoms.fix(cut.atoms)
    number, numbers, sizes = {FIXED: -1}, {}, []
    for cut in cuts:
        if cut.axis == 0:  # the others are weights that read a channel
            before = len(number)
            classes = rules.atoms.classes(cut.atoms).tolist()
            numbers[cut.tensor] = tuple(number.setdefault(c, len(number) - 1) for c in classes)
            sizes.append(len(number) - before)
    outs = [layer.outs[~torch.isin(layer.outs, rules.outputs)] for layer in rules.layers]
    governed = sum(int((rules.atoms.classes(atoms) != FIXED).sum()) for atoms in outs)
    return Numbered(
        {name: slices for name, slices in numbers.items() if max(slices) >= 0},
        tuple(n for n in sizes if n),
        (governed, sum(len(atoms) for atoms in outs)),
        tuple(kind for kind, count in rules.norms.items() if count),
    )


def plan(model: nn.Module, example: tuple[Tensor, ...]) -> Plan:
    """Liveness from the output backwards: the least set of channels that the output depends on, so a fixed point.

    Args:
        model: in evaluation mode and float64, on the CPU; only read.
        example: inputs in float64, for their shapes.
    """
    if is_layer(model):  # its channels are its input and its output
        return Plan()
    rules = followed(model, example)
    needed = _needed(rules)

    def stays(atoms: Tensor) -> Tensor:
        return needed[rules.atoms.classes(atoms)]

    made = Plan()
    kept: dict[str, dict[int, Tensor]] = {}
    for layer in rules.layers:
        module: Any = model.get_submodule(layer.name)
        left = _left_behind(layer, ~stays(layer.ins), module.weight)
        if left.any():
            made.added[f"{layer.name}.bias"] = left
            if module.bias is None and not stays(layer.outs).all():
                kept[f"{layer.name}.bias"] = {0: stays(layer.outs)}
    for cut in rules.cuts:
        if not stays(cut.atoms).all():
            kept.setdefault(cut.tensor, {})[cut.axis] = stays(cut.atoms)
    sizes = {name: int(stays(atoms).sum()) for name, atoms in rules.sizes.items() if not stays(atoms).all()}
    new = tuple(name for name in made.added if dict(model.named_parameters()).get(name) is None)
    made.index = IndexMap(kept, sizes, new)
    before = sum(len(layer.outs) for layer in rules.layers)
    made.channels = (before, sum(int(stays(layer.outs).sum()) for layer in rules.layers))
    single = [layer for layer in rules.layers if not layer.grouped]
    waiting = [layer.ins[layer.blocked & layer.reads[stays(layer.outs)].any(0)] for layer in single]
    made.padded = len(set(rules.atoms.classes(torch.cat(waiting)).tolist())) if waiting else 0
    return made


def _needed(rules: Rules) -> Tensor:
    """For every class whether it stays; every layer keeps one channel at least, since torch has no empty layers."""
    needed = torch.zeros(len(rules.atoms.parent), dtype=torch.bool)
    needed[FIXED] = True
    layers = [(rules.atoms.classes(x.ins), rules.atoms.classes(x.outs), x) for x in reversed(rules.layers)]
    before = -1
    while before != (before := int(needed.sum())):
        for ins, outs, layer in layers:
            if not needed[outs].any():
                needed[outs[0]] = True
            if not layer.grouped:
                needed[ins[layer.reads[needed[outs]].any(0)]] = True
            if not needed[ins].any():
                needed[ins[0]] = True
    return needed


def _left_behind(layer: Layer, gone: Tensor, weight: Tensor) -> Tensor:
    """W c of the inputs that go and are a number c; groups go whole, with their outputs."""
    if layer.grouped:
        return torch.zeros(0)
    weight = weight.detach()
    weight = weight.flatten(2).sum(2) if weight.ndim > 2 else weight
    return weight[:, gone] @ layer.constants[gone].nan_to_num()  # of those alone: 0 times an infinite weight is NaN


def _fix_sizes(graph: fx.Graph, rules: Rules) -> None:
    """An attribute that is also used for something else than the size of that axis cannot change."""
    used = Counter(item.name for node in graph.nodes for item in leaves((node.args, node.kwargs)) if _is_size(item))
    for name, atoms in rules.sizes.items():
        if used[name] != rules.size_uses[name]:
            rules.atoms.fix(atoms)


def _is_size(item: object) -> bool:
    return isinstance(item, Dimension)


def apply(made: Plan, model: nn.Module) -> None:
    """Cut, in place."""
    for name, left in made.added.items():
        bias = model.get_submodule(name.removesuffix(".bias")).bias
        set_tensor(model, name, left if bias is None else bias.detach() + left)  # type: ignore[operator]
    for name, axes in made.index.kept.items():
        owner, _, key = name.rpartition(".")
        tensor = getattr(model.get_submodule(owner), key).detach()
        for axis, kept in axes.items():
            tensor = tensor.index_select(axis, kept.nonzero()[:, 0])
        set_tensor(model, name, tensor)
    refresh(model, made.index.sizes)
