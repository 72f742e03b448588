"""Shapes, dtypes, layouts and scales: never a NaN, and dtype, shape and strides as they came."""

from __future__ import annotations

from decimal import Decimal, getcontext

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sr2.regularizers import Box, GroupL0, GroupL2, Lp, Nuclear
from sr2.regularizers.grouping import Groups
from tests.cases import RegularizerCase, each_entry
from tests.registry import REGULARIZERS
from tests.tools import laid_out

every = pytest.mark.parametrize("case", REGULARIZERS, ids=lambda case: case.name)
dtypes = st.sampled_from([torch.float32, torch.float64, torch.bfloat16])
scales = st.integers(-12, 12).map(lambda e: 10.0**e)
shapes = st.one_of(
    st.just(()),
    st.lists(st.integers(0, 5), min_size=1, max_size=4).map(tuple),
    st.sampled_from([(3, 8), (4, 6, 3, 3), (0,), (0, 4), (4, 0), (1, 1), (2, 0, 3, 3)]),
)


@every
@given(
    data=st.data(),
    shape=shapes,
    dtype=dtypes,
    layout=st.sampled_from(["contiguous", "channels_last", "transposed", "sliced", "expanded"]),
    x_scale=scales,
    step=scales,
    lam_scale=scales,
    seed=st.integers(0, 99),
)
def test_any_shape_dtype_layout_and_scale(
    case: RegularizerCase,
    data: st.DataObject,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    layout: str,
    x_scale: float,
    step: float,
    lam_scale: float,
    seed: int,
) -> None:
    regularizer = case.scaled(lam_scale) if case.scaled else case.regularizer
    generator = torch.Generator().manual_seed(seed)
    x = (torch.randn(shape, generator=generator, dtype=torch.float64) * x_scale).to(dtype)
    x = laid_out(torch.where(torch.rand(shape, generator=generator) < 0.2, 0.0, x), layout)
    before = x.clone()

    kinds = ["float", "tensor"] + ["entries"] * case.diagonal
    kind = data.draw(st.sampled_from(kinds))
    given_step: float | Tensor = step
    if kind == "tensor":
        given_step = torch.tensor(step, dtype=torch.float64)
    elif kind == "entries":
        given_step = step * (0.5 + torch.rand(shape, generator=generator))
    z = regularizer.prox(x, given_step)

    assert z.isfinite().all()
    assert z.dtype == dtype
    assert z.shape == x.shape
    assert z.stride() == torch.empty_like(x).stride()
    assert z.data_ptr() != x.data_ptr() or x.numel() == 0
    assert torch.equal(x, before)
    value = regularizer.value(z)
    assert value.dtype == torch.float64
    assert value.dim() == 0
    assert value.isfinite()
    if not isinstance(regularizer, Box):  # which may push outwards
        assert (z.norm(dtype=torch.float64) <= x.norm(dtype=torch.float64) * (1 + 1e-2)).all()


@every
@given(shape=shapes, seed=st.integers(0, 99), step=st.sampled_from([0.3, 4.0]))
def test_layout_does_not_change_the_result(
    case: RegularizerCase, shape: tuple[int, ...], seed: int, step: float
) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    z = case.regularizer.prox(x, step)
    for layout in ("channels_last", "transposed", "sliced"):
        other = laid_out(x, layout)
        torch.testing.assert_close(case.regularizer.prox(other, step), z, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(case.regularizer.value(other), case.regularizer.value(x))


@every
def test_constants_beyond_the_range_of_float32(case: RegularizerCase) -> None:
    x = torch.tensor([[1.0, -2.0], [0.0, 3e38]])
    for scale in (1e-300, 1e300):
        regularizer = case.scaled(scale) if case.scaled else case.regularizer
        for step in (1e-12, 1e12, torch.tensor(1e12), torch.tensor(1e12, dtype=torch.float64)):
            z = regularizer.prox(x, step)
            assert z.isfinite().all()


def test_box_bounds_beyond_the_range_of_float32() -> None:
    x = torch.tensor([-3e38, 0.0, 3e38])
    assert torch.equal(Box(-1e300, 1e300).prox(x, 1.0), x)
    assert Box(-1e300, 1e300).value(x) == 0
    assert Box(0.1, 0.1).value(Box(0.1, 0.1).prox(x.bfloat16(), 1.0)) == 0
    for dtype in (torch.float32, torch.bfloat16):
        number = torch.tensor(-1.0, dtype=dtype)  # 0-dim tensors promote where others do not
        assert Box(0.1, 0.3).value(Box(0.1, 0.3).prox(number, 1.0)) == 0
        assert Box(0.1, 0.3).value(Box(0.1, 0.3).prox(-number, 1.0)) == 0
    assert Box(0.1, 0.2).value(torch.tensor(0.25)) == torch.inf


@pytest.mark.parametrize("size", [1e-30, 1e25])
def test_group_norms_neither_under_nor_overflow_in_float32(size: float) -> None:
    x = torch.tensor([[3.0, 4.0]]) * size
    torch.testing.assert_close(GroupL2(1.0).prox(x, 2.5 * size), x / 2)
    assert not GroupL2(1.0).prox(x, 5.01 * size).any()
    assert GroupL0(1.0).value(x) == 1
    torch.testing.assert_close(float(GroupL2(1.0).value(x)) / size, 5.0, rtol=1e-6, atol=0)


@pytest.mark.parametrize("groups", ["rows", each_entry], ids=lambda g: getattr(g, "__name__", g))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_group_far_above_its_threshold_is_rounded_to_the_nearest(groups: Groups, dtype: torch.dtype) -> None:
    """x (1 - t / |x|) with a rounded factor moved x by its last place where t is a third of that: worse than z = x."""
    generator = torch.Generator().manual_seed(0)
    x = (1 + torch.rand(400, 1, generator=generator, dtype=torch.float64)).to(dtype)  # last places of eps
    t = 0.3 * torch.finfo(dtype).eps
    assert torch.equal(GroupL2(1e-3, groups).prox(x, t / 1e-3), x)
    assert torch.equal(GroupL2(1e-3, groups).prox(-x, torch.tensor(t / 1e-3)), -x)


@pytest.mark.parametrize("in_a_metric", [False, True])
@pytest.mark.parametrize(
    ("x", "lam", "step"),
    [
        ([2.48941382229664e16, 2.205766826469539e16, 1.1303958527877796e16], 1e-3, 2078.913999562389),
        ([1.3359982539661215, 1.1141384235833516, 1.1183838305286316, 1.4588554472094395], 1.0, 1.69964511762973e-16),
    ],
)
def test_a_large_group_is_not_worse_than_where_it_was(
    x: list[float], lam: float, step: float, in_a_metric: bool
) -> None:
    """Found by fuzzing: in exact arithmetic the objective at z was above that at x."""
    steps = torch.full((len(x),), step, dtype=torch.float64) if in_a_metric else step
    z = GroupL2(lam, "columns").prox(torch.tensor(x, dtype=torch.float64), steps)

    def exactly(z: list[float]) -> Decimal:
        getcontext().prec = 60
        norm = sum(Decimal(v) ** 2 for v in z).sqrt()
        shift = sum((Decimal(a) - Decimal(b)) ** 2 for a, b in zip(z, x, strict=True))
        return Decimal(lam) * norm + shift / (2 * Decimal(step))

    assert exactly(z.tolist()) <= exactly(x)


def test_a_group_norm_that_overflows_float64_keeps_its_group() -> None:
    """The square of 1e200 does: inf / inf would be NaN."""
    x = torch.tensor([[3e200, 4e200], [3.0, 4.0]], dtype=torch.float64)
    assert torch.equal(GroupL2(1.0).prox(x, 1e-200), x)


@pytest.mark.parametrize("p", [0.1, 0.9, 1 - 1e-6, 1 - 1e-9, 1 - 1e-15])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_root_of_lp_at_its_threshold(p: float, dtype: torch.dtype) -> None:
    """Next to p = 1 the first of Newton's steps is all rounding, and was beyond 0."""
    least = 2 * (1 - p) / (2 - p)
    root = Lp(1.0, p)._root(torch.ones(1, dtype=dtype))
    assert float(root) == pytest.approx(least, abs=100 * torch.finfo(dtype).eps)


def test_nuclear_is_rounded_once() -> None:
    x = torch.randn(20, 30, generator=torch.Generator().manual_seed(0))
    assert torch.equal(Nuclear(1.0).prox(x, 0.5), Nuclear(1.0).prox(x.double(), 0.5).float())


@every
def test_bfloat16_is_rounded_once(case: RegularizerCase) -> None:
    """After the prox, which works in float32. A ridge beside another R rounded before that one's prox too."""
    if not case.separable:
        return
    x = (torch.randn(4000, generator=torch.Generator().manual_seed(0)) * 2).bfloat16()
    for step in (0.3, 4.0, torch.tensor(0.9), torch.rand(4000, generator=torch.Generator().manual_seed(1)) + 0.1):
        assert torch.equal(case.regularizer.prox(x, step), case.regularizer.prox(x.float(), step).bfloat16())


@every
def test_nan_is_not_swallowed(case: RegularizerCase) -> None:
    """A NaN that became 0 would hide a broken step. (Decompositions reject it; budgets keep it as the largest.)"""
    if case.decomposes or getattr(case.regularizer, "k", None) == 0:
        return
    x = torch.tensor([[float("nan"), 1.0], [2.0, 3.0]])
    for step in (1.0, torch.tensor(1.0), *([torch.ones(2, 2), torch.full((2, 2), 50.0)] if case.diagonal else [])):
        assert case.regularizer.prox(x, step).isnan().any()
