"""`semi_structured`: layers with two nonzeros in every four, on the sparse tensor cores of NVIDIA GPUs."""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..telling import put_to_use
from .measure import Example, layer_inputs, milliseconds, table
from .rebuild import copied, set_module

Model = TypeVar("Model", bound=nn.Module)

KINDS = (torch.bfloat16, torch.float16)
ROWS, COLUMNS = 32, 64
"""A weight must have multiples of these: the stricter of torch's two backends."""


@dataclass(frozen=True)
class LayerConversion:
    """One layer: converted, or why not; milliseconds on its own input if an example was given."""

    name: str
    shape: tuple[int, ...]
    reason: str | None = None
    dense: float | None = None
    sparse: float | None = None

    @property
    def converted(self) -> bool:
        return self.reason is None


@dataclass(frozen=True)
class SemiStructured:
    """What `semi_structured` did."""

    layers: tuple[LayerConversion, ...]

    def __str__(self) -> str:
        rows = [("layer", "shape", "dense ms", "2:4 ms", "ratio", "converted")]
        for row in self.layers:
            times = ("", "", "")
            if row.dense is not None and row.sparse is not None:
                times = (f"{row.dense:.4f}", f"{row.sparse:.4f}", f"{row.dense / row.sparse:.2f}")
            rows.append((row.name, "x".join(map(str, row.shape)), *times, row.reason or "yes"))
        return table(rows)


def semi_structured(model: Model, example: Example | None = None, *, verbose: bool = True) -> Model:
    """A copy for inference whose 2:4 linear layers and 1 x 1 convolutions use the GPU's sparse matrix products.

    A weight is 2:4 if of every four neighbours in a row at most two are not zero: `NM(2, 4)` trains such ones. Every
    block of every layer is checked; layers that are not 2:4 or have another shape than the hardware takes stay dense.
    With an example each layer is measured on the input that it has in the network, and those that are not faster stay
    dense too. What was done is in `.semi_structured` of the result, and is printed.

    >>> semi_structured(nn.Linear(64, 64))
    Traceback (most recent call last):
    ValueError: 2:4 needs a CUDA device, and weight is on cpu: use model.cuda() on a machine with an NVIDIA GPU

    Args:
        model: in bfloat16 or float16 on a CUDA device; it is not changed.
        example: one input, or a tuple or dict of them, to measure with; None converts every layer that can be.
        verbose: print the table.
    """
    _check_device(model)
    layers = {name: module for name, module in model.named_modules() if _matrix(module) is not None}
    reasons = {name: why_not(module) for name, module in layers.items()}
    if all(reason is not None for reason in reasons.values()):
        what = next((f"{name}: {reason}" for name, reason in reasons.items()), "it has no linear layer")
        raise ValueError(f"no layer of {type(model).__name__} can be 2:4 ({what})")
    put_to_use(model)
    dense = copied(model)
    made = copy.deepcopy(dense)
    inputs = {}
    if example is not None:
        inputs = layer_inputs(dense, {name: dense.get_submodule(name) for name in layers}, example)
    rows = []
    for name, reason in reasons.items():
        layer: Any = dense.get_submodule(name)
        row = LayerConversion(name, tuple(layer.weight.shape), reason)
        if reason is None:
            sparse = converted(layer)
            if name in inputs:
                row = _measured(row, layer, sparse, inputs[name])
            if row.converted:
                set_module(made, name, sparse)
        rows.append(row)
    made.semi_structured = SemiStructured(tuple(rows))  # type: ignore[assignment]
    if verbose:
        print(made.semi_structured)
    return made


def _check_device(model: nn.Module) -> None:
    for name, tensor in model.named_parameters():
        if tensor.device.type != "cuda":
            where = f"2:4 needs a CUDA device, and {name} is on {tensor.device}"
            raise ValueError(f"{where}: use model.cuda() on a machine with an NVIDIA GPU")


def why_not(module: nn.Module) -> str | None:
    """Why a layer cannot be 2:4, or None if it can: type, shape, and every block of four.

    >>> why_not(nn.Linear(64, 32))
    'float32: use model.bfloat16()'
    >>> why_not(nn.Linear(64, 32).bfloat16())
    'not 2:4: row 0 has 4 nonzeros in columns 0 to 3'
    >>> why_not(nn.Linear(60, 32).bfloat16())
    '32 x 60: rows must be a multiple of 32 and columns of 64'
    """
    matrix = _matrix(module)
    if matrix is None:
        return "not a linear layer or a 1 x 1 convolution"
    if matrix.dtype not in KINDS:
        return f"{str(matrix.dtype).removeprefix('torch.')}: use model.bfloat16()"
    rows, columns = matrix.shape
    if rows % ROWS or columns % COLUMNS:
        return f"{rows} x {columns}: rows must be a multiple of {ROWS} and columns of {COLUMNS}"
    counts = (matrix != 0).view(rows, -1, 4).sum(2)
    worst = (counts > 2).nonzero()
    if len(worst):
        row, block = worst[0].tolist()
        return f"not 2:4: row {row} has {counts[row, block]} nonzeros in columns {4 * block} to {4 * block + 3}"
    return None


def converted(module: nn.Module) -> nn.Module:
    """The layer with torch's semi-structured weight."""
    matrix = _matrix(module)
    assert matrix is not None
    with warnings.catch_warnings():  # that torch calls it a prototype
        warnings.filterwarnings("ignore", category=UserWarning)
        try:
            weight = torch.sparse.to_sparse_semi_structured(matrix.detach().contiguous())
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise ValueError(
                f"this GPU or this torch has no 2:4 matrix product ({reason}): keep the dense model"
            ) from error
    if isinstance(module, nn.Conv2d):
        return PointwiseConv2d(module, weight)
    made = copy.deepcopy(module)
    made.weight = nn.Parameter(weight, requires_grad=False)
    return made


class PointwiseConv2d(nn.Module):
    """A 1 x 1 convolution as a product of its matrix with the pixels; the matrix may be semi-structured."""

    def __init__(self, dense: nn.Conv2d, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = None if dense.bias is None else nn.Parameter(dense.bias.detach(), requires_grad=False)
        self.stride = dense.stride

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, :, :: self.stride[0], :: self.stride[1]].permute(0, 2, 3, 1).contiguous()
        return F.linear(x, self.weight, self.bias).permute(0, 3, 1, 2)


def _matrix(module: nn.Module) -> Tensor | None:
    """The weight as a matrix, for layers that are one."""
    if type(module) is nn.Linear:
        return module.weight.detach()
    if type(module) is nn.Conv2d and module.kernel_size == (1, 1) and module.groups == 1:
        return module.weight.detach().flatten(1) if not any(module._reversed_padding_repeated_twice) else None
    return None


def _measured(row: LayerConversion, layer: nn.Module, sparse: nn.Module, x: Tensor) -> LayerConversion:
    with torch.no_grad():
        before, after = milliseconds(lambda: layer(x), lambda: sparse(x))
    return LayerConversion(row.name, row.shape, None if after < before else "slower", before, after)
