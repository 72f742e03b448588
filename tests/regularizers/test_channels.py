"""Channels: groups that reach over several tensors, against every choice of channels that there is."""

from __future__ import annotations

import itertools
from math import inf

import pytest
import torch

from sr2.regularizers import Channels, GroupL0, L0Ball

TWO_LAYERS = Channels(((0, 1, 2), (0, 1, 2), (3, -1, 4, 5), (3, -1, 4, 5), (0, 1, 2)), (3, 3))
SHAPES = [(3, 2, 2), (3,), (4, 3), (4,), (3, 1)]


def tensors(seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in SHAPES]


def zeroed(xs: list[torch.Tensor], kept: tuple[int, ...]) -> list[torch.Tensor]:
    """The slow twin of the prox's last line: slice by slice."""
    zs = [x.clone() for x in xs]
    for z, slices in zip(zs, TWO_LAYERS.numbers, strict=True):
        for i, channel in enumerate(slices):
            if channel != -1 and channel not in kept:
                z[i] = 0
    return zs


def distance(xs: list[torch.Tensor], zs: list[torch.Tensor], steps: list[torch.Tensor]) -> float:
    return sum(float(((z - x) ** 2 / (2 * step)).sum()) for x, z, step in zip(xs, zs, steps, strict=True))


@pytest.mark.parametrize("floor", [0, 0.5, 1])
@pytest.mark.parametrize("k", [0, 1, 2, 3, 4, 6])
@pytest.mark.parametrize("metric", [False, True])
def test_the_prox_is_the_nearest_of_all_choices(k: int, floor: float, metric: bool) -> None:
    R = L0Ball(k=k, groups=TWO_LAYERS, floor=floor)
    xs = tensors(k)
    steps = [torch.rand_like(x) + 0.1 if metric else torch.tensor(0.3, dtype=torch.float64) for x in xs]
    zs = R.prox(xs, steps)
    choices = [zeroed(xs, c) for n in range(k + 1) for c in itertools.combinations(range(6), n)]
    inside = [c for c in choices if R.value(c) == 0]
    assert R.value(zs) == 0
    assert distance(xs, zs, steps) == pytest.approx(min(distance(xs, c, steps) for c in inside), rel=1e-12)


def test_a_floor_is_one_for_each_layer() -> None:
    xs = tensors(0)
    for x, slices in zip(xs, TWO_LAYERS.numbers, strict=True):  # the second layer is a thousand times smaller
        if 3 in slices:
            x.mul_(1e-3)
    for floor, expected in ((0, (2, 0)), (1, (1, 1))):
        zs = L0Ball(k=2, groups=TWO_LAYERS, floor=floor).prox(xs, 1.0)
        assert tuple(int(part.sum()) for part in TWO_LAYERS.nonzero(zs)) == expected


def test_value_and_slices_of_no_channel() -> None:
    xs = tensors(1)
    R = L0Ball(k=2, groups=TWO_LAYERS)
    assert R.value(xs) == inf
    zs = R.prox(xs, 1.0)
    assert torch.equal(zs[2][1], xs[2][1])
    assert torch.equal(zs[3][1], xs[3][1])
    zs = zeroed(xs, (1, 5))
    assert R.value(zs) == 0
    zs[1][0] = 1.0  # a scale alone makes its channel one that is used
    assert R.value(zs) == inf


def test_a_budget_of_channels_shrinks() -> None:
    share = torch.tensor(0.0, dtype=torch.float64)
    R, xs = L0Ball(k=1, groups=TWO_LAYERS).at_strength(share), tensors(2)
    left = []
    for value in (0.0, 0.5, 1.0):
        share.fill_(value)
        left.append(sum(int(part.sum()) for part in TWO_LAYERS.nonzero(R.prox(xs, 1.0))))
    assert left == [6, 2, 1]  # 1 + 5 (1 - share)^3


def test_low_precision_and_repr() -> None:
    xs = [x.to(torch.bfloat16) for x in tensors(3)]
    zs = L0Ball(density=0.5, groups=TWO_LAYERS).prox(xs, 1.0)
    assert all(z.dtype == torch.bfloat16 for z in zs)
    assert repr(L0Ball(density=0.5, groups=TWO_LAYERS)) == "L0Ball(density=0.5, groups=<6 channels of 2 layers>)"


def test_wrong_tensors_and_numbers_are_told() -> None:
    R = L0Ball(k=1, groups=TWO_LAYERS)
    with pytest.raises(ValueError, match=r"5 tensors of \[3, 3, 4, 4, 3\] slices, and it is given 4 of shapes"):
        R.prox(tensors(0)[:-1], 1.0)
    with pytest.raises(ValueError, match="numbers must be -1 to 1, one of 2 channels, and one is 2"):
        Channels(((0, 1, 2),), (2,))
    with pytest.raises(ValueError, match="GroupL0: groups must be one of"):
        GroupL0(0.1, TWO_LAYERS)  # type: ignore[arg-type]
