"""R and its decrease."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sr2.regularizers import L1, NM, Lp
from tests.registry import REGULARIZERS, RegularizerCase

every = pytest.mark.parametrize("case", REGULARIZERS, ids=lambda case: case.name)


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_value_is_the_slow_one(case: RegularizerCase, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = [(3, 5), (4, 2, 3, 3), (6,), (), (0,), (0, 3)]
    group = [(torch.randn(s, generator=generator) * 3).to(dtype) for s in shapes]
    sparse = [x * (torch.rand(x.shape, generator=generator) < 0.1) for x in group]
    inside = case.regularizer.prox(group, 0.5)
    for xs in (group, sparse, inside, [torch.zeros_like(x) for x in group]):
        if dtype is not torch.float64 and case.regularizer.__class__.__name__ in ("Rank", "Box"):
            continue  # judged in the dtype: test_indicators_are_zero_after_the_prox
        ours, theirs = case.regularizer.value(xs), case.value([x.double().numpy() for x in xs])
        assert ours.dtype == torch.float64
        assert ours.dim() == 0
        np.testing.assert_allclose(float(ours), theirs, rtol=1e-12)


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_decrease_is_the_difference(case: RegularizerCase, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    xs = [torch.randn(shape, generator=generator).to(dtype) for shape in ((3, 5), (4,))]
    xs = case.regularizer.prox(xs, 0.1)
    zs = case.regularizer.prox(xs, 0.5)
    difference = case.regularizer.value(xs) - case.regularizer.value(zs)
    torch.testing.assert_close(case.regularizer.decrease(xs, zs), difference, rtol=1e-10, atol=1e-12)
    assert case.regularizer.decrease(xs, xs) == 0


@every
def test_terms_are_one_per_entry_where_separable(case: RegularizerCase) -> None:
    for shape in ((), (0,), (3, 4)):
        x = torch.ones(shape)
        for terms in case.regularizer.terms_of([x]):
            assert terms.dtype == torch.float64
            assert terms.shape == x.shape or not case.separable


@every
def test_coefficients_say_what_r_is(case: RegularizerCase) -> None:
    if case.regularizer.coefficients is not None:
        a, b, c = case.regularizer.coefficients
        x = torch.tensor([0.0, -2.0, 3.0], dtype=torch.float64)
        torch.testing.assert_close(case.regularizer.value(x), torch.tensor(a * 5 + b * 2 + c * 13 / 2).double())


def test_decrease_keeps_its_digits_where_the_difference_of_sums_loses_them() -> None:
    x = torch.full((1_000_000,), 2.0**20, dtype=torch.float64)
    change = 2.0**-30  # about 1e-9, on entries of about 1e6
    z = x.clone()
    z[::2] -= change
    exact = 500_000 * change
    assert float(L1(1.0).decrease(x, z)) == pytest.approx(exact, rel=1e-12)
    one = x.clone()
    one[0] -= change
    assert float(L1(1.0).decrease(x, one)) == pytest.approx(change, rel=1e-12)
    assert float(L1(1.0).value(x) - L1(1.0).value(one)) != pytest.approx(change, rel=0.1)
    slope = 0.5 * 2.0**-10
    assert float(Lp(1.0, 0.5).decrease(x, z)) == pytest.approx(exact * slope, rel=0.2)  # |x|^p itself is rounded


def test_decrease_in_bfloat16_is_not_rounded_to_it() -> None:
    x, z = (torch.full((1000,), entry, dtype=torch.bfloat16) for entry in (1.5, 0.0035))
    assert L1(1.0).decrease(x, z) == pytest.approx(float(L1(1.0).value(x) - L1(1.0).value(z)), rel=1e-9)


def test_a_short_last_block_is_not_made_up_for_by_what_is_missing() -> None:
    assert NM(2, 4).value(torch.tensor([[1.0, 0, 0, 0, 1, 1, 1]])) == torch.inf
    assert NM(2, 4).value(torch.tensor([[1.0, 0, 0, 1, 1, 0, 1]])) == 0
