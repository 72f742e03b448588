"""What operations without weights mean for channels: sums, views, concatenations, pools, norms, products, attention."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn

from .trace import Dimension, UnknownOperationError, execute, leaves
from .values import FIXED, Atoms, Value


class Movements:
    """Follows channels through the operations between layers."""

    def __init__(self) -> None:
        self.atoms = Atoms()
        self.sizes: dict[str, Tensor] = {}
        """Integer attributes that count channels (heads), and which."""
        self.size_uses: Counter[str] = Counter()
        self.norms: Counter[str] = Counter()
        """How many norms of each kind have channels that share statistics, and must stay for it."""
        self.outputs: Tensor = torch.empty(0, dtype=torch.int64)
        """The channels that are outputs of the network, and must stay for that."""

    def _elementwise(self, x: Value, function: Callable[[Tensor], Tensor]) -> Value:
        """What is unknown stays unknown, whatever the function makes of nan."""
        found = function(x.constants.clone()).double()
        return Value(x.atoms, torch.where(x.constants.isnan(), torch.nan, found))

    def _spatial(self, x: Value, function: Callable[[Tensor], Tensor]) -> Value:
        """Whatever an unknown entry reaches is unknown."""
        found, reached = function(x.constants.nan_to_num()), function(x.constants.isnan().double())
        found = torch.where(reached != 0, torch.nan, found)
        column = (1, -1, *[1] * (found.ndim - 2))
        return Value(self._channels(x, 1).view(column).expand(found.shape), found)

    def _mixing(self, x: Value, axes: list[int] | None, found: Tensor, kind: str) -> Value:
        """Whatever is summed over must stay."""
        axes = list(range(len(x.shape))) if axes is None else [axis % len(x.shape) for axis in axes]
        if set(axes) & set(self.atoms.varying(x.atoms)):
            self.norms[kind] += "norm" in kind.lower()
            self.atoms.fix(x.atoms)
        atoms = x.atoms
        if found.shape != x.shape:
            atoms = atoms.amin(axes, keepdim=found.ndim == x.atoms.ndim)
        return Value(atoms, found)

    def _mixed_axes(self, module: nn.Module, x: Value) -> list[int]:
        if isinstance(module, (nn.LayerNorm, nn.RMSNorm)):
            return list(range(len(x.shape) - len(module.normalized_shape), len(x.shape)))
        if isinstance(module, nn.GroupNorm):
            return [1]
        dim = getattr(module, "dim", None)
        return [int(dim)] if dim is not None else list(range(len(x.shape)))

    def _one_tensor(self, args: Any, kwargs: Any) -> bool:
        return sum(isinstance(item, (Value, Tensor)) and item.shape != () for item in leaves((args, kwargs))) == 1

    def _pairwise(self, node: fx.Node, args: Any, kwargs: Any) -> Value:
        found = execute(node, _lifted(args, True), _lifted(kwargs, True)).double()
        for item in leaves((args, kwargs)):
            if isinstance(item, Value):
                found = torch.where(item.constants.isnan(), torch.nan, found)
        operands = [item for item in leaves((_lifted(args), _lifted(kwargs))) if isinstance(item, Tensor)]
        result: Tensor | None = None
        for atoms in operands:
            atoms = atoms.reshape([1] * (found.ndim - atoms.ndim) + list(atoms.shape))
            if result is None:
                result = atoms
                continue
            here, there = self.atoms.varying(result), self.atoms.varying(atoms)
            if not there and all(atoms.shape[axis] == 1 for axis in here):  # one number for every channel
                self.atoms.fix(atoms)
            elif not here and all(result.shape[axis] == 1 for axis in there):
                self.atoms.fix(result)
                result = atoms
            else:
                self.atoms.unite(result, atoms)
            shape = torch.broadcast_shapes(result.shape, atoms.shape)  # type: ignore[no-untyped-call]
            result = result.expand(shape)
        assert result is not None
        return self._moved(result.expand(found.shape), found)

    def _move(self, node: fx.Node, name: str, args: Any, kwargs: Any) -> Any:
        if isinstance(args[0], Value) and self._counts_channels(name, args, kwargs):
            self.atoms.fix(args[0].atoms)
        atoms = execute(node, _lifted(args), _lifted(kwargs))
        found = execute(node, _lifted(args, True), _lifted(kwargs, True))
        if isinstance(atoms, Tensor):
            prefer = None
            if name in ("cat", "concat"):
                axis = (args[1] if len(args) > 1 else kwargs.get("dim", kwargs.get("axis", 0))) % atoms.ndim
                varying = self.atoms.varying(atoms)
                prefer = next((other for other in varying if other != axis), None)
            return self._moved(atoms, found, prefer)
        return tuple(self._moved(a, f) for a, f in zip(atoms, found, strict=True))

    def _counts_channels(self, name: str, args: Any, kwargs: Any) -> bool:
        """Whether the code has a number in it that would not follow the channels."""
        varying = self.atoms.varying(args[0].atoms)
        if name == "unbind":
            return (args[1] if len(args) > 1 else kwargs.get("dim", 0)) % len(args[0].shape) in varying
        if name == "expand":
            sizes = args[1] if isinstance(args[1], (tuple, list)) else args[1:]
            return any(size != -1 for size in sizes[len(sizes) - len(args[0].shape) :]) and bool(varying)
        return name == "split" or (name == "squeeze" and len(args) + len(kwargs) == 1)

    def _pad_channels(self, node: fx.Node, args: Any, kwargs: Any) -> Value:
        """Zeros beside the channels, as in the shortcuts of the first ResNets: they stay."""
        if any(args[1][: 2 * (len(args[0].shape) - 2)]):
            self.atoms.fix(args[0].atoms)
        atoms = execute(node, (args[0].atoms, args[1]), {})
        return self._moved(atoms, execute(node, (args[0].constants, *args[1:]), kwargs))

    def _view(self, node: fx.Node, args: Any) -> Value:
        """Axes that are given as numbers keep their length; -1 and `self.heads` follow the channels."""
        atoms = execute(node, (args[0].atoms, *args[1:]), {})
        found = execute(node, (args[0].constants, *args[1:]), {})
        sizes: Any = node.args[1] if isinstance(node.args[1], (tuple, list)) else node.args[1:]
        varying = self.atoms.varying(atoms)
        named = [axis for axis in varying if isinstance(sizes[axis], Dimension)]
        free = (named or [axis for axis in varying if sizes[axis] == -1])[:1]
        if varying and not free:
            self.atoms.fix(atoms)
        self.atoms.unite_along(atoms, [axis for axis in varying if axis not in free])
        if named:
            self._size(sizes[named[0]].name, atoms, named[0])
        return self._moved(atoms, found)

    def _size(self, name: str, atoms: Tensor, axis: int) -> None:
        """The attribute `name` counts the channels of this axis, here and wherever it is used."""
        channels = atoms.movedim(axis, 0).flatten(1)[:, 0]
        if name in self.sizes:
            self.atoms.unite(self.sizes[name], channels)
        self.sizes[name] = channels
        self.size_uses[name] += 1

    def _chunk(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        pieces = self._move(node, "chunk", args, kwargs)
        for piece in pieces[1:]:  # equal parts stay equal
            if piece.shape == pieces[0].shape:
                self.atoms.unite(piece.atoms, pieces[0].atoms)
            else:
                self.atoms.fix(args[0].atoms)
        return pieces

    def _getitem(self, x: Value, index: Any) -> Value:
        items = list(index) if isinstance(index, tuple) else [index]
        if any(isinstance(item, (Tensor, Value)) for item in items):
            raise UnknownOperationError("shrink does not know an index that is a tensor: nothing is changed")
        places = [item for item in items if item is not None]
        if Ellipsis in places:
            at = places.index(Ellipsis)
            places[at : at + 1] = [slice(None)] * (len(x.shape) - len(places) + 1)
        chosen = [axis for axis, item in enumerate(places) if item != slice(None)]
        if set(chosen) & set(self.atoms.varying(x.atoms)):  # the numbers in the index would not follow the channels
            self.atoms.fix(x.atoms)
        return self._moved(x.atoms[index], x.constants[index])

    def _product(self, name: str, args: Any, kwargs: Any) -> Value:
        """Products of activations, attention among them: what the two last axes hold goes with its head."""
        factors = [item for item in args if isinstance(item, Value) and len(item.shape) > 1]
        masks = [item for item in leaves((args, kwargs)) if isinstance(item, Tensor)]
        if len(factors) != (3 if name == "scaled_dot_product_attention" else 2):
            raise UnknownOperationError(f"shrink does not know {name} of these arguments: nothing is changed")
        heads = [x.atoms[..., :1, :1] for x in factors]
        same = len({head.shape for head in heads}) == 1
        for x, head in zip(factors, heads, strict=True):
            self.atoms.unite_along(x.atoms, [len(x.shape) - 2, len(x.shape) - 1])
            if same:
                self.atoms.unite(head, heads[0])
            else:  # fewer keys than queries: which belong together is not worked out
                self.atoms.fix(head)
        first, last = factors[0], factors[-1]
        batch = torch.broadcast_shapes(*(x.shape[:-2] for x in factors))  # type: ignore[no-untyped-call]
        shape = (*batch, first.shape[-2], last.shape[-1])
        constants = torch.full(shape, torch.nan, dtype=torch.float64)
        if name == "scaled_dot_product_attention" and same and not masks:  # weights that sum to 1 keep a constant
            equal = (last.constants == last.constants[..., :1, :]).all(-2, keepdim=True)
            constants = torch.where(equal, last.constants[..., :1, :], torch.nan).expand(shape)
        return self._moved(heads[-1].expand(shape), constants)

    def _fixed(self, shape: Any) -> Value:
        atoms = torch.zeros((), dtype=torch.int64).expand(shape)
        return Value(atoms, torch.full((), torch.nan, dtype=torch.float64).expand(shape))

    def _moved(self, atoms: Tensor, constants: Tensor, prefer: int | None = None) -> Value:
        """Channels lie on one axis: were there two, removing some would not leave a rectangle."""
        varying = self.atoms.varying(atoms)
        if len(varying) > 1:
            keep = varying[-1] if prefer is None else prefer
            self.atoms.unite_along(atoms, [axis for axis in varying if axis != keep])
        return Value(atoms, constants)

    def _channels(self, x: Value, axis: int) -> Tensor:
        """One atom for each place on the axis."""
        self.atoms.unite_along(x.atoms, [other for other in range(len(x.shape)) if other != axis])
        return x.atoms.movedim(axis, 0).flatten(1)[:, 0]

    def _constants(self, x: Value, axis: int) -> Tensor:
        """The number of each channel that is one number everywhere, else nan."""
        rows = x.constants.movedim(axis, 0).flatten(1)
        return torch.where((rows == rows[:, :1]).all(1), rows[:, 0], torch.nan)


def _lifted(arguments: Any, constants: bool = False) -> Any:
    """Values as their atoms (or constants), and plain tensors as something that must stay."""
    if isinstance(arguments, Value):
        return arguments.constants.clone() if constants else arguments.atoms
    if isinstance(arguments, Tensor):
        return arguments if constants else torch.full_like(arguments, FIXED, dtype=torch.int64)
    if isinstance(arguments, (tuple, list)):
        return type(arguments)(_lifted(item, constants) for item in arguments)
    if isinstance(arguments, dict):
        return {key: _lifted(item, constants) for key, item in arguments.items()}
    return arguments


def axes_of(name: str, args: Any, kwargs: Any) -> list[int] | None:
    """The axes over which a function mixes; None for all."""
    if name in ("layer_norm", "rms_norm"):
        return list(range(-len(args[1] if len(args) > 1 else kwargs["normalized_shape"]), 0))
    if name == "group_norm":
        return [1]
    default = {"normalize": 1}.get(name)
    position = 2 if name == "normalize" else 1
    dim = args[position] if len(args) > position else kwargs.get("dim", kwargs.get("axis", default))
    return None if dim is None else list(dim) if isinstance(dim, (tuple, list)) else [dim]
