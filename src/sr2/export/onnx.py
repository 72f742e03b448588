"""`to_onnx`: shrunk, batch norm folded, exported by torch's own exporter, and checked against onnxruntime."""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

from ..files import write_whole
from ..telling import put_to_use
from .channels import is_layer
from .measure import Example, inputs_of, layer_inputs, macs, parameters
from .rebuild import copied, plain, settled
from .shrink import probe, shrink
from .trace import UnknownOperationError, calls, trace


@dataclass(frozen=True)
class Exported:
    """What `to_onnx` wrote."""

    bytes: int
    error: float
    """The largest difference between onnxruntime and torch, relative to the largest output."""
    shrunk: bool
    """False if an operation is in the way of shrinking."""
    parameters: int
    macs: int


def to_onnx(model: nn.Module, example: Example, path: str | Path, *, verbose: bool = False) -> Exported:
    """Write a network for onnxruntime; smaller than the dense one where `shrink` finds something.

    Batch norms that follow a convolution or a linear layer become part of its weights. The first axis of every input is
    free, so any batch size runs. The file is compared with torch on random inputs in onnxruntime before it is put in
    its place, or on the example where the network does not take random ones; a difference of more than 1e-4 of the
    largest output is an error.

    >>> import tempfile
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> to_onnx(model, torch.zeros(1, 4), tempfile.mkdtemp() + "/model.onnx").error < 1e-4
    True

    Args:
        model: a network; it is not changed.
        example: one input, or a tuple or dict of them.
        path: of the .onnx file.
        verbose: print what `shrink` did.
    """
    runtime = _runtime()
    inputs = tuple(item.cpu() for item in inputs_of(example, model))
    put_to_use(model)
    whole = settled(copied(plain(model)).cpu())
    try:
        small, shrunk = shrink(whole, inputs, verbose=verbose), True
    except UnknownOperationError:
        small, shrunk = whole, False
    if shrunk:
        small = fold_batch_norm(small, inputs)
    data = _export(small, tuple(torch.cat([item, item]) for item in inputs))
    error = _compare(runtime, data, whole, inputs)
    write_whole(path, data)
    return Exported(len(data), error, shrunk, parameters(small), macs(small, inputs))


def fold_batch_norm(model: nn.Module, example: Example) -> nn.Module:
    """A copy in which batch norm right behind a convolution or a linear layer is part of that layer's weights.

    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8)).eval()
    >>> fold_batch_norm(model, torch.zeros(1, 3, 8, 8))
    Sequential(
      (0): Conv2d(3, 8, kernel_size=(3, 3), stride=(1, 1))
      (1): Identity()
    )
    """
    made = copy.deepcopy(model).eval()
    graph, _ = trace(made, is_layer, inputs_of(example, model))
    used = calls(graph)
    given = layer_inputs(made, {name: m for name, m in made.named_modules() if isinstance(m, _BatchNorm)}, example)
    for node in graph.nodes:
        pair = _foldable(made, node, used, given)
        if pair is None:
            continue
        name, norm = pair
        layer: Any = made.get_submodule(name)
        fused = fuse_conv_bn_eval(layer, norm) if isinstance(layer, nn.Conv2d) else fuse_linear_bn_eval(layer, norm)
        for key, module in ((name, fused), (str(node.target), nn.Identity())):
            owner, _, last = key.rpartition(".")
            setattr(made.get_submodule(owner), last, module)
    return made


def _foldable(model: nn.Module, node: fx.Node, used: Any, given: dict[str, Tensor]) -> tuple[str, Any] | None:
    """The layer in front of a batch norm, if nobody else reads it, and its outputs are what is normalized: of a linear
    layer on sequences it is their steps."""
    if node.op != "call_module" or not isinstance(node.args[0], fx.Node) or node.args[0].op != "call_module":
        return None
    before, norm = node.args[0], model.get_submodule(str(node.target))
    layer = model.get_submodule(str(before.target))
    kinds = type(layer) in (nn.Conv2d, nn.Linear) and isinstance(norm, _BatchNorm) and norm.running_var is not None
    alone = len(before.users) == 1 and used[str(before.target)] == used[str(node.target)] == 1
    if not (kinds and alone):
        return None
    fits = isinstance(layer, nn.Conv2d) or (norm.bias is not None and given[str(node.target)].ndim == 2)
    return (str(before.target), norm) if fits else None


def _export(model: nn.Module, inputs: tuple[Tensor, ...]) -> bytes:
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        logger.setLevel(logging.ERROR)  # that torchvision is not installed
        free = tuple({0: torch.export.Dim.DYNAMIC} for _ in inputs)
        try:
            program = torch.onnx.export(model, inputs, dynamo=True, dynamic_shapes=free, verbose=False)
        finally:
            logger.setLevel(level)
        assert program is not None
        proto = program.model_proto
        for node in proto.graph.node:  # a stack trace with the paths of this machine, more bytes than a small network
            del node.metadata_props[:]
        data: bytes = proto.SerializeToString()
        return data


def _compare(runtime: Any, data: bytes, model: nn.Module, inputs: tuple[Tensor, ...]) -> float:
    """The worst difference from torch, on inputs of the example's batch size and of another one."""
    with _told(model):
        session = runtime.InferenceSession(data, providers=["CPUExecutionProvider"])
    names = [item.name for item in session.get_inputs()]
    generator = torch.Generator("cpu").manual_seed(0)
    worst = 0.0
    for times in (1, 3):
        tried, right = probe(model, tuple(torch.cat([item] * times) for item in inputs), generator)
        with _told(model):
            found = session.run(None, {name: item.numpy() for name, item in zip(names, tried, strict=True)})
        for a, b in zip(right, found, strict=True):
            scale = max(a.abs().max().item(), 1e-30)
            worst = max(worst, (a - torch.from_numpy(b)).abs().max().item() / scale)
    if not worst <= 1e-4:
        raise ValueError(f"onnxruntime and torch differ by {worst:.1e} of the largest output: nothing is written")
    return worst


@contextlib.contextmanager
def _told(model: nn.Module) -> Iterator[None]:
    """What onnxruntime cannot do, in one sentence: many of its operations are there in float32 alone."""
    try:
        yield
    except Exception as error:  # it has a dozen classes of them
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        dtypes = " and ".join(sorted({str(p.dtype) for p in model.parameters()}))
        raise ValueError(
            f"onnxruntime does not run this network of {dtypes} ({reason}): nothing is written; try model.float()"
        ) from error


def _runtime() -> Any:
    try:
        import onnx  # noqa: F401
        import onnxruntime
        import onnxscript  # noqa: F401
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"to_onnx needs {error.name}: pip install 'sr2[onnx]'", name=error.name) from error
    return onnxruntime
