"""`shrink`: the same network without the channels that its zeros have made useless."""

from __future__ import annotations

import contextlib
import copy
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ..telling import put_to_use
from .channels import Plan, apply, plan
from .index_map import IndexMap
from .measure import Example, inputs_of, macs, milliseconds, parameters, table
from .rebuild import apart, computed, copied, forgetting, plain, set_tensor
from .trace import UnknownOperationError, leaves

Model = TypeVar("Model", bound=nn.Module)


@dataclass(frozen=True)
class Shrunk:
    """What `shrink` did; the attribute `shrunk` of the module that it returns. Pairs are (before, after)."""

    channels: tuple[int, int]
    parameters: tuple[int, int]
    macs: tuple[int, int]
    milliseconds: tuple[float, float]
    padded: int
    """Channels that are constants and had to stay, since behind zero padding a constant is no bias."""
    error: float
    """The largest difference of outputs on random inputs in float64, relative to the largest output."""

    @property
    def cut(self) -> bool:
        """Whether anything went."""
        return self.parameters[0] != self.parameters[1]

    def __str__(self) -> str:
        rows = [("", "before", "after", "ratio")]
        for name in ("channels", "parameters", "macs", "milliseconds"):
            before, after = getattr(self, name)
            form = "{:,.3f}" if name == "milliseconds" else "{:,}"
            rows.append((name, form.format(before), form.format(after), f"{before / after:.2f}" if after else "-"))
        told = [table(rows), f"outputs equal to {self.error:.1e}"]
        if self.padded:
            told.append(f"{self.padded} constant channels stay: behind zero padding a constant is no bias")
        return "\n".join(told)


def shrink(model: Model, example: Example, *, verbose: bool = True) -> Model:
    """The same function of its input with fewer channels: a copy in evaluation mode, of the same class.

    A channel goes if no weight other than zero leads from it to the output, or if it is a constant c (a filter of
    zeros behind batch norm) and every layer that reads it can take W c into its bias, which zero padding does not allow
    unless c = 0. This is decided for the whole network at once and repeated until nothing more goes. Channels that meet
    in a sum go together. What it did is in `.shrunk` of the result, and is printed unless `verbose=False`; `.index_map`
    says where its entries were, and `save` writes it along.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> _ = nn.init.zeros_(model[0].weight[:5])          # five units that see nothing: relu(bias), a constant
    >>> small = shrink(model, torch.zeros(1, 4), verbose=False)
    >>> small
    Sequential(
      (0): Linear(in_features=4, out_features=3, bias=True)
      (1): ReLU()
      (2): Linear(in_features=3, out_features=2, bias=True)
    )
    >>> x = torch.randn(10, 4)
    >>> bool(torch.allclose(small(x), model(x), atol=1e-6))
    True

    Args:
        model: a network that torch.fx can follow; it is not changed. Of one that torch.compile has wrapped it is the
            network inside.
        example: one input, or a tuple or dict of them; only shapes, and of integers the values, matter.
        verbose: print the table.

    Raises:
        UnknownOperationError: a ValueError that names an operation whose channels shrink does not know.
    """
    model = plain(model)
    inputs = inputs_of(example, model)
    put_to_use(model)
    exact = copied(model).cpu().double()
    small = copy.deepcopy(exact)
    with torch.device("cpu"):  # whatever torch.set_default_device says
        found = _cut(small, tuple(_exact(item) for item in inputs))
        error = _verify(exact, small, inputs)
    _cast_like(small, model)
    before = getattr(model, "index_map", None)  # of a network that was shrunk, trained on and shrunk again
    index = before.then(found.index) if isinstance(before, IndexMap) else found.index
    small.index_map = index  # type: ignore[assignment]
    small.shrunk = _report(model, small, inputs, found, error)  # type: ignore[assignment]
    if verbose:
        print(small.shrunk)
        if names := computed(model):
            way = "torch.nn.utils.parametrize.remove_parametrizations(layer, 'weight') first"
            print(f"the weights of {', '.join(names)} are computed from others, and stay: {way}")
    return small


def _cut(model: nn.Module, inputs: tuple[Tensor, ...]) -> Plan:
    """Plan and cut until nothing is left to cut: what was one of many groups may now be cut inside."""
    found = plan(model, inputs)
    apply(found, model)
    last = found
    while last.index.kept or last.added:
        last = plan(model, inputs)
        apply(last, model)
        found = Plan(found.index.then(last.index), {}, (found.channels[0], last.channels[1]), last.padded)
    return found


def _verify(exact: nn.Module, small: nn.Module, inputs: tuple[Tensor, ...]) -> float:
    """The relative error on random inputs like the example; one that is more than rounding is an error."""
    generator = torch.Generator().manual_seed(0)
    worst = 0.0
    for _ in range(2):
        with torch.no_grad():
            try:
                tried, before = probe(apart(exact), tuple(_exact(item) for item in inputs), generator)
                after = [item for item in leaves(apart(small)(*tried)) if isinstance(item, Tensor)]
            except Exception as error:  # whatever its forward does with other sizes
                reason = (str(error).splitlines() or [type(error).__name__])[0]
                raise UnknownOperationError(
                    f"the shrunk {type(small).__name__} does not run ({reason}): nothing is changed"
                ) from error
        for a, b in zip(before, after, strict=True):
            if a.isnan().any():
                raise ValueError(
                    f"outputs of {type(exact).__name__} are NaN, and cannot be compared: nothing is changed; look for "
                    "what is not finite in its weights"
                )
            worst = max(worst, _difference(a, b))
    if not worst <= 1e-9:
        raise UnknownOperationError(
            f"the shrunk {type(small).__name__} differs by {worst:.1e} from the whole one: nothing is changed; "
            "a layer's forward may do something else than its type says"
        )
    return worst


def _difference(a: Tensor, b: Tensor) -> float:
    """The largest one, relative to the largest finite entry of a; infinities, as of a mask, must be the same."""
    if a.shape != b.shape:
        return torch.inf
    scale = a[a.isfinite()].abs().max().item() if a.isfinite().any() else 0.0
    off = torch.where(a == b, 0.0, a - b).abs().max().item() if a.numel() else 0.0
    return torch.inf if off != off else off / max(1e-300, scale)


@torch.no_grad()
def probe(model: nn.Module, example: tuple[Tensor, ...], generator: torch.Generator) -> tuple[Any, list[Tensor]]:
    """Inputs to compare with, and the network's outputs: random numbers, and the example's integers in another order;
    the example itself where the network does not take those, since its numbers are indices, say, or under a root."""
    tried = tuple(_like(item, generator) for item in example)
    with contextlib.suppress(Exception):  # whatever its forward does with them
        found = [item for item in leaves(model(*tried)) if isinstance(item, Tensor)]
        if not any(item.isnan().any() for item in found):
            return tried, found
    return example, [item for item in leaves(model(*example)) if isinstance(item, Tensor)]


def _exact(item: Tensor) -> Tensor:
    return item.cpu().double() if item.is_floating_point() else item.cpu()


def _like(item: Tensor, generator: torch.Generator) -> Tensor:
    if item.is_floating_point():
        return torch.randn(item.shape, generator=generator, dtype=item.dtype)
    return item.flatten()[torch.randperm(item.numel(), generator=generator)].view(item.shape)


def _cast_like(small: nn.Module, model: nn.Module) -> None:
    """Back to the types, devices and memory formats of the original."""
    originals: dict[str, Any] = {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers())}
    named = [*small.named_parameters(remove_duplicate=False), *small.named_buffers()]
    done: dict[int, Any] = {}
    for name, tensor in named:
        like: Any = originals.get(name, originals.get(f"{name.rpartition('.')[0]}.weight"))
        if id(tensor) in done:  # tied: one tensor again
            owner, _, key = name.rpartition(".")
            small.get_submodule(owner)._parameters[key] = done[id(tensor)]
            continue
        last = like.ndim == 4 and not like.is_contiguous() and like.is_contiguous(memory_format=torch.channels_last)
        form = torch.channels_last if last else torch.contiguous_format
        set_tensor(small, name, tensor.detach().to(like.device, like.dtype).contiguous(memory_format=form))
        owner, _, key = name.rpartition(".")
        done[id(tensor)] = getattr(small.get_submodule(owner), key)


def _report(model: nn.Module, small: nn.Module, inputs: tuple[Tensor, ...], found: Plan, error: float) -> Shrunk:
    whole, small = copy.deepcopy(model).eval(), apart(small)  # the layers of the former may be of either mode
    with torch.no_grad():
        slow, fast = forgetting(whole, inputs), forgetting(small, inputs)
        before, after = milliseconds(lambda: slow(*inputs), lambda: fast(*inputs))
        work = macs(whole, inputs), macs(small, inputs)
    count = parameters(model), parameters(small)
    after = after if count[0] != count[1] else before  # the same network: another time would be noise
    return Shrunk(found.channels, count, work, (before, after), found.padded, error)
