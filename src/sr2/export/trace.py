"""The network as a graph of operations, by torch.fx, run on what `shrink` knows instead of on numbers."""

from __future__ import annotations

import contextlib
import copy
import inspect
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, fx, nn

from .values import Value


class UnknownOperationError(ValueError):
    """The network does something of which `shrink` does not know what it means for channels."""


class Dimension(int):
    """An integer attribute of a module that remembers its name: `self.heads` reaches `view` as such a one."""

    name: str

    @classmethod
    def of(cls, value: int, name: str) -> Dimension:
        made = cls(value)
        made.name = name
        return made


_CALL, _GETATTR = nn.Module.__call__, nn.Module.__getattr__


@contextlib.contextmanager
def _not_tracing() -> Iterator[None]:
    """torch.fx replaces these two while it traces; here modules compute as they always do."""
    during = nn.Module.__call__, nn.Module.__getattr__
    nn.Module.__call__, nn.Module.__getattr__ = _CALL, _GETATTR  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.__call__, nn.Module.__getattr__ = during  # type: ignore[method-assign]


class _Tracer(fx.Tracer):
    """Layers are one operation each, and `if x.shape[1] > 4` is decided as for the example."""

    proxy_buffer_attributes = True  # `self.mask[:length]` is an operation too

    def __init__(self, is_layer: Callable[[nn.Module], bool], example: tuple[Tensor, ...]) -> None:
        super().__init__()
        self._is_layer, self._inputs = is_layer, iter(example)
        self._seen: dict[fx.Node, Any] = {}

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return self._is_layer(m) or super().is_leaf_module(m, module_qualified_name)

    def to_bool(self, obj: fx.Proxy) -> bool:
        with torch.no_grad(), _not_tracing():
            for node in list(obj.node.graph.nodes):
                if node not in self._seen:
                    self._seen[node] = self._compute(node)
        found = self._seen[obj.node]
        return bool(found) if isinstance(found, (bool, int)) else super().to_bool(obj)  # a tensor: it may differ

    def _compute(self, node: fx.Node) -> Any:
        if node.op == "placeholder":
            return next(self._inputs, node.args[0] if node.args else None)
        if node.op == "get_attr":
            return operator.attrgetter(str(node.target))(self.root)
        args: Any = fx.node.map_arg(node.args, self._seen.__getitem__)
        kwargs: Any = fx.node.map_arg(node.kwargs, self._seen.__getitem__)
        if node.op == "call_module":
            return self.root.get_submodule(str(node.target))(*args, **kwargs)
        if node.target in ("item", "tolist"):
            raise fx.proxy.TraceError("a decision depends on the numbers of a tensor")
        return execute(node, args, kwargs)


def trace(
    model: nn.Module, is_layer: Callable[[nn.Module], bool], example: tuple[Tensor, ...]
) -> tuple[fx.Graph, nn.Module]:
    """The operations of `model.forward`, and a copy of the model that also has the constants of the code."""
    named = copy.deepcopy(model)
    for path, module in named.named_modules():
        if not is_layer(module):
            for key, value in vars(module).items():
                if type(value) is int:
                    module.__dict__[key] = Dimension.of(value, f"{path}.{key}" if path else key)
    try:
        return _Tracer(is_layer, example).trace(named, _left_out(named, len(example))), named
    except Exception as error:  # whatever the user's forward does to an fx proxy
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UnknownOperationError(
            f"{type(model).__name__} cannot be followed by torch.fx ({reason}): "
            "shrink needs a forward without decisions that depend on the numbers in tensors"
        ) from error


def _left_out(model: nn.Module, given: int) -> dict[str, Any]:
    """The arguments that the example leaves out, by their defaults: torch.fx would take `mask=None` for a tensor."""
    arguments = list(inspect.signature(model.forward).parameters.values())[given:]
    plain = (type(None), bool, int, float, str)
    return {a.name: a.default for a in arguments if a.default is not a.empty and isinstance(a.default, plain)}


def run(graph: fx.Graph, model: nn.Module, example: tuple[Tensor, ...], rules: Any) -> Any:
    """Every operation once, in order; `rules.call` and `rules.call_module` say what each one gives.

    Operations that touch no activation (sizes, buffers, masks) are computed as they are. Returns the output.
    """
    known: dict[fx.Node, Any] = {}
    inputs = iter(example)

    def given(argument: Any) -> Any:
        return fx.node.map_arg(argument, lambda node: known[node])

    for node in graph.nodes:
        args, kwargs = given(node.args), given(node.kwargs)
        if node.op == "placeholder":
            known[node] = rules.input(next(inputs, None), node)
        elif node.op == "get_attr":
            known[node] = operator.attrgetter(node.target)(model)
        elif node.op == "output":
            return args[0]
        else:
            known[node] = _called(node, model, args, kwargs, rules)
        if _in_place(node, model):  # whoever reads the argument from now on reads the result
            known[node.args[0]] = known[node]
    raise AssertionError("a graph of torch.fx ends with its output")


def _called(node: fx.Node, model: nn.Module, args: Any, kwargs: Any, rules: Any) -> Any:
    module = model.get_submodule(str(node.target)) if node.op == "call_module" else None
    try:
        if not any(isinstance(item, Value) for item in leaves((args, kwargs))):
            return module(*args, **kwargs) if module is not None else execute(node, args, kwargs)
        if module is not None:
            return rules.call_module(str(node.target), module, args, kwargs)
        return rules.call(node, args, kwargs)
    except UnknownOperationError:
        raise
    except Exception as error:  # an operation it knows, used in a way it does not
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        what = node.target if module is not None else name_of(node)
        raise UnknownOperationError(
            f"shrink cannot follow {what} ({node.name}: {reason}): nothing is changed"
        ) from error


def calls(graph: fx.Graph) -> Counter[str]:
    """How often each module is called."""
    return Counter(str(node.target) for node in graph.nodes if node.op == "call_module")


def name_of(node: fx.Node) -> str:
    """`relu` of `torch.relu`, `F.relu` and `x.relu()` alike; the whole name of what is not torch's."""
    if node.op == "call_method":
        return str(node.target)
    function: Any = node.target
    home = getattr(function, "__module__", None) or ""
    name = str(getattr(function, "__name__", function))
    return name if home.partition(".")[0] in ("", "torch", "_operator", "builtins", "math") else f"{home}.{name}"


def leaves(arguments: Any) -> Iterable[Any]:
    """What is in nested tuples, lists and dicts."""
    if isinstance(arguments, (tuple, list)):
        for item in arguments:
            yield from leaves(item)
    elif isinstance(arguments, dict):
        yield from leaves(list(arguments.values()))
    elif isinstance(arguments, slice):
        yield from (arguments.start, arguments.stop, arguments.step)
    else:
        yield arguments


def mapped(arguments: Any, change: Callable[[Value], Tensor]) -> Any:
    """The arguments with every `Value` replaced by one of its tensors."""
    if isinstance(arguments, Value):
        return change(arguments)
    if isinstance(arguments, (tuple, list)):
        return type(arguments)(mapped(item, change) for item in arguments)
    if isinstance(arguments, dict):
        return {key: mapped(item, change) for key, item in arguments.items()}
    return arguments


def execute(node: fx.Node, args: Any, kwargs: Any) -> Any:
    """Call the node's function or method."""
    if node.op == "call_method":
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    assert callable(node.target)
    return node.target(*args, **kwargs)


def _in_place(node: fx.Node, model: nn.Module) -> bool:
    if not node.args or not isinstance(node.args[0], fx.Node):
        return False
    if node.op == "call_module":
        return getattr(model.get_submodule(str(node.target)), "inplace", False) is True
    name = name_of(node)
    python = name in ("iadd", "isub", "imul", "itruediv")
    return node.kwargs.get("inplace") is True or python or (name.endswith("_") and not name.endswith("__"))
