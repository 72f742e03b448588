"""What of a state is saved, and how: as torch's own tools look for it.

torch.distributed.checkpoint reads `state_dict()` for the names and shapes of what it is to load, before a first step
too, and keeps of it what belongs to a parameter or to a group. So every trained parameter has all entries of its state,
DTensors where the parameter is one; and what belongs to no parameter is a line of JSON in the first group: one value,
whatever is in it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..numerics import cast, is_part, local, wide
from .parts.directions import Direction
from .parts.metrics import Metric
from .shards import as_part, part_of

Entry = dict[str, Any]
WIDE = ("average", "square", "curvature")
"""What is remembered in float32 of a bfloat16 parameter: slow means, of which small changes would be rounded away."""
AT_ONE_X = ("paused", "gradients", "signs")
"""What is kept while batches are asked at one x (`pause.py`)."""
SHAPED = frozenset({"momentum", "passed", "v", *AT_ONE_X, *WIDE})
"""What has the shape of its parameter."""
BEGUN = "begun"
"""Whether a parameter has taken part in a step."""


def saved_entry(p: Tensor, entry: Entry, *, begun: bool) -> Entry:
    """A parameter's state as plain data, and whether there is more to it than `first_entry`.

    On load torch casts tensors to the dtype of their parameter: the weights of averages, float64, go as numbers.
    """
    if is_part(p):  # torch.distributed.checkpoint asks for what is there at this step, and the next one lets go of it
        entry = {name: value for name, value in entry.items() if name not in AT_ONE_X}
    numbers = {name: float(value) for name, value in entry.items() if name.endswith("_weight")}
    tensors = {name: as_part(v, p) if isinstance(v, Tensor) else v for name, v in entry.items()}
    return {**tensors, **numbers, BEGUN: begun}


def loaded_entry(p: Tensor, entry: Entry, saved: Entry) -> Entry:
    """The inverse; a state that is written in place must be nobody else's. A whole tensor is cut as p is.

    entry, saved: as torch has cast it, to the dtype of p, and as it was: what is wider than p is taken again.
    """
    begun = entry.get(BEGUN, True)
    kept = {name: v for name, v in entry.items() if name != BEGUN and (begun or name in AT_ONE_X)}
    for name in SHAPED & saved.keys() & kept.keys():
        if (dtype := kept_dtype(name, p)) != p.dtype:
            kept[name] = saved[name].to(p.device, dtype)
    return {name: part_of(v, p).clone() if isinstance(v, Tensor) else v for name, v in kept.items()}


def kept_dtype(name: str, p: Tensor) -> torch.dtype:
    """In which an entry of p's state is kept."""
    return torch.float32 if p.dtype == torch.bfloat16 and name in WIDE else p.dtype


def in_its_dtype(p: Tensor, entry: Entry) -> None:
    """The state follows where `model.double()` or the like has changed the dtype of p since; else it stays as it is."""
    for name in SHAPED & entry.keys():
        entry[name] = cast(entry[name], kept_dtype(name, p))


@torch.no_grad()
def first_entry(p: Tensor, metric: Metric | None, direction: Direction | None, copies: Sequence[str]) -> Entry:
    """The state of a parameter before its first step, with every entry that it will have: averages of nothing, and
    under these names points, which are x."""
    x = local(p).detach()
    entry: Entry = {}
    if metric is not None:
        entry |= metric.update([x], [torch.zeros_like(x)], [{}])[1][0]
    if direction is not None:
        entry |= direction.update([torch.zeros_like(x)], [{}])[1][0]
    for name in copies:
        entry[name] = (wide(x) if name in WIDE else x).clone(memory_format=torch.preserve_format)
    return {name: 0.0 if name.endswith("_weight") else value for name, value in entry.items()}


def fits(p: Tensor, value: Tensor) -> bool:
    """Whether this can be an entry of p's state: of its shape, or of that of this process's part."""
    return value.shape in (p.shape, local(p).shape) if is_part(p) else value.shape == p.shape


def to_line(state: dict[str, Any]) -> str:
    """As one value.

    >>> to_line({"sigma": 0.1, "chosen": {}})
    '{"sigma": 0.1, "chosen": {}}'
    """
    return json.dumps(state)


def from_line(line: object) -> dict[str, Any]:
    """The inverse, to the bit."""
    read = json.loads(line) if isinstance(line, str) else line
    if not isinstance(read, dict):
        raise ValueError(f"a saved state must be a dict or a line of JSON with one, and is {line!r}")
    return read


def with_weights(state: dict[str, Any], convert: Callable[[Any], Any]) -> dict[str, Any]:
    """A parameter's state with the weights of its averages converted."""
    return {name: convert(value) if name.endswith("_weight") else value for name, value in state.items()}


def saved_search(search: Any) -> dict[str, Any]:
    """A `SearchState` as plain data."""
    return {
        "sigma": float(search.sigma),
        "sigma_known": search.sigma_known,
        "entered": search.entered,
        "chosen": dict(search.chosen),
        "batch": search.batch,
        "pace": dict(vars(search.pace)),
        "schedule": search.schedule,
        "heart": None if search.heart is None else search.heart.saved(),
        "agreement": None if search.agreement is None else dict(vars(search.agreement)),
        "memory": {name: float(value) for name, value in search.memory.items()},
        "moments": {name: float(n) for name, n in search.moments._asdict().items()},
        **{name: int(n) for name, n in search.counts._asdict().items()},
    }
