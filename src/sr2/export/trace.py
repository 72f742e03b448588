"""The network as a graph of operations, by torch.fx, run on what `shrink` knows instead of on numbers."""

from __future__ import annotations

import copy
import operator
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

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


class _Tracer(fx.Tracer):
    def __init__(self, is_layer: Callable[[nn.Module], bool]) -> None:
        super().__init__()
        self._is_layer = is_layer

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return self._is_layer(m) or super().is_leaf_module(m, module_qualified_name)


def trace(model: nn.Module, is_layer: Callable[[nn.Module], bool]) -> tuple[fx.Graph, nn.Module]:
    """The operations of `model.forward`, layers as one operation each, and a copy that has its constants too."""
    named = copy.deepcopy(model)
    for path, module in named.named_modules():
        if not is_layer(module):
            for key, value in vars(module).items():
                if type(value) is int:
                    module.__dict__[key] = Dimension.of(value, f"{path}.{key}" if path else key)
    try:
        return _Tracer(is_layer).trace(named), named
    except Exception as error:  # whatever the user's forward does to an fx proxy
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UnknownOperationError(
            f"{type(model).__name__} cannot be followed by torch.fx ({reason}): "
            "shrink needs a forward without decisions that depend on tensors"
        ) from error


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
