"""`sparse_layers`: layers as compressed sparse rows, where a measurement says that they are faster."""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..telling import put_to_use
from .measure import Example, inputs_of, layer_inputs, milliseconds, table
from .rebuild import apart, copied, forgetting, set_module, settled

Model = TypeVar("Model", bound=nn.Module)

LEAST_ZEROS = 0.5
"""Layers with fewer zeros are not even measured."""
GAIN = 0.9
"""A layer is swapped if it then takes at most this share of its time: more than the noise of a measurement."""
CHUNK = 2**20
"""Entries of the matrix that a convolution multiplies at once; more images are done one part after another."""


def sparse_layers(model: Model, example: Example, *, break_even: bool = False, verbose: bool = True) -> Model:
    """A copy for inference on this CPU in which layers with many zeros skip them, where that was measured to be faster.

    Linear layers and convolutions become y = W x with W in torch's CSR format. A convolution copies only those shifts
    of its input channels that a nonzero weight reads. Each layer is timed against its dense self on the input that it
    has in `model(example)`, on as many threads as torch now uses, and is swapped only if it wins by a tenth; if the
    whole network does not win, nothing is swapped. Weights that a parametrization computes are parameters of the copy.
    What was measured is in `.sparse_layers` of the result, and is
    printed unless `verbose=False`.

    >>> model = nn.Sequential(nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10))
    >>> _ = nn.init.sparse_(model[0].weight, 0.99)
    >>> fast = sparse_layers(model, torch.randn(1, 2048), verbose=False)
    >>> fast[0]
    SparseLinear(in_features=2048, out_features=2048, zeros=99.02 %)
    >>> x = torch.randn(3, 2048)
    >>> bool(torch.allclose(fast(x), model(x), atol=1e-5))
    True

    Args:
        model: a network on the CPU in float32 or float64; it is not changed.
        example: one input, or a tuple or dict of them, as large as those to come.
        break_even: also measure from which share of zeros CSR is faster, layer by layer.
        verbose: print the table.
    """
    inputs = inputs_of(example, model)
    for name, tensor in model.named_parameters():
        if tensor.device.type != "cpu":
            raise ValueError(f"sparse_layers is for the CPU, and {name} is on {tensor.device}: use model.cpu()")
    put_to_use(model)
    dense = settled(copied(model))
    made = copy.deepcopy(dense)
    rows = measure_layers(apart(dense), inputs, break_even=break_even)
    for row in rows:
        if row.swapped:
            set_module(made, row.name, _sparse(made.get_submodule(row.name)))
    with torch.no_grad():
        slow, fast = (forgetting(apart(network), inputs) for network in (dense, made))
        before, after = milliseconds(lambda: slow(*inputs), lambda: fast(*inputs))
    if after > before or not any(row.swapped for row in rows):
        rows, made, after = [row.stays() for row in rows], dense, before
    made.sparse_layers = SparseLayers(tuple(rows), (before, after))  # type: ignore[assignment]
    if verbose:
        print(made.sparse_layers)
    return made


@dataclass(frozen=True)
class LayerTime:
    """One layer, dense and as CSR, in milliseconds on its own input."""

    name: str
    shape: tuple[int, ...]
    zeros: float
    dense: float
    sparse: float
    break_even: float | None = None
    """The share of zeros above which CSR is faster here, if it was asked for."""
    swapped: bool = False

    def stays(self) -> LayerTime:
        """The same, not swapped."""
        return LayerTime(self.name, self.shape, self.zeros, self.dense, self.sparse, self.break_even)


@dataclass(frozen=True)
class SparseLayers:
    """What `sparse_layers` measured."""

    layers: tuple[LayerTime, ...]
    milliseconds: tuple[float, float]
    """Of the whole network, before and after."""

    def __str__(self) -> str:
        before, after = self.milliseconds
        even = any(row.break_even is not None for row in self.layers)
        rows = [
            ("layer", "shape", "zeros", "dense ms", "csr ms", "ratio", *(["break-even"] if even else []), "swapped")
        ]
        for row in self.layers:
            shape = "x".join(map(str, row.shape))
            times = (f"{row.dense:.3f}", f"{row.sparse:.3f}", f"{row.dense / row.sparse:.2f}")
            edge = ["never" if row.break_even in (None, 1.0) else f"{row.break_even:.1%}"] if even else []
            rows.append((row.name, shape, f"{row.zeros:.1%}", *times, *edge, "yes" if row.swapped else "no"))
        blank = [""] * (len(rows[0]) - 6)
        rows.append(("network", "", "", f"{before:.3f}", f"{after:.3f}", f"{before / after:.2f}", *blank))
        return table(rows)


def measure_layers(model: nn.Module, example: Example, *, break_even: bool = False) -> list[LayerTime]:
    """Every layer with at least half zeros: its time as it is and as CSR, on the input that it has in the network.

    Args:
        model: in evaluation mode on the CPU.
        example: the network's inputs.
        break_even: also time each layer with other shares of zeros, to say from which one CSR is faster.
    """
    # Torch's own encoder layer hands their weights to one function, which takes none of them as CSR.
    inside = {id(child) for m in model.modules() if isinstance(m, nn.TransformerEncoderLayer) for child in m.children()}
    named = {name: m for name, m in model.named_modules() if _can_be_sparse(m) and id(m) not in inside}
    given = layer_inputs(model, named, example)
    rows = []
    for name, x in given.items():
        layer: Any = named[name]
        zeros = _zeros(layer.weight)
        if zeros < LEAST_ZEROS and not break_even:
            continue
        dense, sparse = _times(layer, x, _sparse(layer))
        edge = _break_even(layer, x) if break_even else None
        rows.append(LayerTime(name, tuple(layer.weight.shape), zeros, dense, sparse, edge, sparse <= GAIN * dense))
    return rows


def _times(layer: nn.Module, x: Tensor, sparse: nn.Module) -> list[float]:
    with torch.no_grad():
        return milliseconds(lambda: layer(x), lambda: sparse(x))


def _break_even(layer: Any, x: Tensor) -> float:
    """CSR's time is close to a line in the share of nonzeros: two random patterns give it."""
    shares, times, dense = (0.02, 0.2), [], []
    for share in shares:
        like = copy.deepcopy(layer)
        generator = torch.Generator("cpu").manual_seed(0)
        like.weight.data.mul_(torch.rand(like.weight.shape, generator=generator, device="cpu") < share)
        slow, fast = _times(layer, x, _sparse(like))
        times.append(fast)
        dense.append(slow)
    slope = max((times[1] - times[0]) / (shares[1] - shares[0]), 1e-9)
    return min(1.0, max(0.0, 1 - (shares[0] + (sum(dense) / 2 - times[0]) / slope)))


def _can_be_sparse(module: nn.Module) -> bool:
    kinds = (torch.float32, torch.float64)
    if type(module) is nn.Conv2d:
        return module.groups == 1 and module.weight.dtype in kinds
    return type(module) is nn.Linear and module.weight.dtype in kinds


def _zeros(weight: Tensor) -> float:
    return int((weight == 0).sum()) / max(1, weight.numel())


def _sparse(module: nn.Module) -> nn.Module:
    return SparseConv2d(module) if isinstance(module, nn.Conv2d) else SparseLinear(module)  # type: ignore[arg-type]


def _csr(matrix: Tensor) -> Tensor:
    with warnings.catch_warnings():  # that torch calls its CSR a beta
        warnings.filterwarnings("ignore", "Sparse CSR tensor support", UserWarning)
        found = matrix.to_sparse_csr()
        rows, columns = found.crow_indices().int(), found.col_indices().int()  # half the indices to read
        given: Any = {"device": matrix.device, "check_invariants": False}  # whatever torch.set_default_device says
        return torch.sparse_csr_tensor(rows, columns, found.values(), found.shape, **given)


class _Sparse(nn.Module):
    weight: Tensor
    bias: Tensor | None

    def stored_entries(self) -> dict[str, tuple[Tensor, tuple[int, ...]]]:
        """Of each tensor of the dense layer what is stored, and its shape: the rest is zero. `sparsity` asks for it."""
        stored = {"weight": (self.weight.values(), self.dense_shape)}
        return stored if self.bias is None else {**stored, "bias": (self.bias.flatten(), (self.bias.numel(),))}

    @property
    def dense_shape(self) -> tuple[int, ...]:
        """Of the weight."""
        return tuple(self.weight.shape)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        made = memo[id(self)] = type(self).__new__(type(self))
        memo[id(self.weight)] = self.weight.clone()  # torch has no copy.deepcopy of a CSR tensor
        made.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return made


class SparseLinear(_Sparse):
    """A linear layer y = W x + b with W as compressed sparse rows; for inference."""

    def __init__(self, dense: nn.Linear) -> None:
        super().__init__()
        self.register_buffer("weight", _csr(dense.weight.detach()))
        self.register_buffer("bias", None if dense.bias is None else dense.bias.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        y = (self.weight @ x.reshape(-1, x.shape[-1]).T).T
        y = y if self.bias is None else y + self.bias
        return y.reshape(*x.shape[:-1], y.shape[-1])

    def extra_repr(self) -> str:
        out, inputs = self.weight.shape
        zeros = 100 * (1 - len(self.weight.values()) / (out * inputs))
        return f"in_features={inputs}, out_features={out}, zeros={zeros:.2f} %"


class SparseConv2d(_Sparse):
    """A convolution as W B, W its nonzeros as compressed sparse rows; for inference.

    In the padded image, flattened, the input of one tap (channel, row, column of the kernel) for all places of the
    output is one contiguous stretch that begins at the tap: places that run over the edge of a row are computed and
    dropped. B is a copy of those stretches that some nonzero reads. With a stride the image is first split into its
    phases.
    """

    taps: Tensor

    def __init__(self, dense: nn.Conv2d) -> None:
        super().__init__()
        matrix = dense.weight.detach().flatten(1)
        used = (matrix != 0).any(0).nonzero()[:, 0]
        self.register_buffer("weight", _csr(matrix[:, used]))
        self.register_buffer("bias", None if dense.bias is None else dense.bias.detach().clone()[:, None])
        self.register_buffer("taps", used)
        self.kernel_size, self.stride, self.dilation = dense.kernel_size, dense.stride, dense.dilation
        self.shape = tuple(dense.weight.shape)  # of `weight`, taps that no filter reads are left out
        self.padding = tuple(dense._reversed_padding_repeated_twice)
        self.padding_mode = "constant" if dense.padding_mode == "zeros" else dense.padding_mode
        self._starts: dict[tuple[int, ...], Tensor] = {}

    @property
    def dense_shape(self) -> tuple[int, ...]:
        return self.shape

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim == 3:
            return self.forward(x[None])[0]
        at_once = max(1, CHUNK // max(1, len(self.taps) * x.shape[2] * x.shape[3]))
        if len(x) > at_once:
            return torch.cat([self._convolve(part) for part in x.split(at_once)])  # type: ignore[no-untyped-call]
        return self._convolve(x)

    def _convolve(self, x: Tensor) -> Tensor:
        (kh, kw), (sh, sw), (dh, dw) = self.kernel_size, self.stride, self.dilation
        left, right, top, bottom = self.padding
        high, wide = x.shape[2] + top + bottom, x.shape[3] + left + right
        out_high, out_wide = (high - dh * (kh - 1) - 1) // sh + 1, (wide - dw * (kw - 1) - 1) // sw + 1
        if self.padding_mode != "constant" and any(self.padding):
            x, (left, right, top, bottom) = F.pad(x, self.padding, self.padding_mode), (0, 0, 0, 0)
        x = F.pad(x, (left, right + -wide % sw, top, bottom + -high % sh))
        rows, columns = x.shape[2] // sh, x.shape[3] // sw  # of one phase
        phases = x.view(len(x), self.shape[1], rows, sh, columns, sw).permute(1, 3, 5, 0, 2, 4).reshape(-1)
        plane = len(x) * rows * columns
        length = plane - (dh * (kh - 1) // sh * columns + dw * (kw - 1) // sw)
        starts = self._find_starts(plane, columns)
        stretches = phases.as_strided((len(phases) - length + 1, length), (1, 1)).index_select(0, starts)
        y = self.weight @ stretches
        if self.bias is not None:
            y += self.bias
        y = y.as_strided((len(x), len(y), out_high, out_wide), (rows * columns, length, columns, 1))
        return y.contiguous()

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """As the dense layer that it was: `save` writes a network that its own class loads."""
        dense = self.weight.values().new_zeros(self.shape).flatten(1)
        dense[:, self.taps] = self.weight.to_dense()
        destination[f"{prefix}weight"] = dense.view(self.shape)
        if self.bias is not None:
            destination[f"{prefix}bias"] = self.bias[:, 0]

    def _find_starts(self, plane: int, columns: int) -> Tensor:
        """Where the stretch of each tap begins."""
        key = (plane, columns)
        if key not in self._starts:
            (kh, kw), (sh, sw), (dh, dw) = self.kernel_size, self.stride, self.dilation
            channel, row, column = self.taps // (kh * kw), self.taps // kw % kh * dh, self.taps % kw * dw
            phase = (channel * sh + row % sh) * sw + column % sw
            self._starts = {key: phase * plane + row // sh * columns + column // sw}
        return self._starts[key]

    def extra_repr(self) -> str:
        total = self.shape[0] * self.shape[1] * self.shape[2] * self.shape[3]
        zeros = f"{100 * (1 - len(self.weight.values()) / total):.2f} %"
        return f"{self.shape[1]}, {self.shape[0]}, kernel_size={self.kernel_size}, stride={self.stride}, zeros={zeros}"
