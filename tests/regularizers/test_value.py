"""R and its decrease."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal, getcontext

import numpy as np
import pytest
import torch
from torch import Tensor

from sr2.regularizers import L1, MCP, NM, SCAD, ElasticNet, GroupL2, Lp, Nuclear, Regularizer, Ridge
from tests.cases import RegularizerCase
from tests.registry import REGULARIZERS

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
    rtol = 1e-10 if dtype == torch.float64 else 1e-7  # |x| - |z| of l1 is float32's, and exact where z is near x
    torch.testing.assert_close(case.regularizer.decrease(xs, zs), difference, rtol=rtol, atol=1e-12)
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
    assert float(Lp(1.0, 0.5).decrease(x, z)) == pytest.approx(exact * slope, rel=1e-12)


def _scad(u: Decimal) -> Decimal:
    """SCAD(0.5, 4.0) of u >= 0."""
    lam, a, u = Decimal("0.5"), 4, min(u, Decimal(2))
    return lam * u if u <= lam else (2 * a * lam * u - u * u - lam * lam) / (2 * (a - 1))


@pytest.mark.parametrize(
    ("R", "value"),
    [
        (L1(0.5), lambda x: sum(map(abs, x)) / 2),
        (ElasticNet(0.5, 0.25), lambda x: sum(abs(v) / 2 + v * v / 8 for v in x)),
        (Ridge(0.25), lambda x: sum(v * v / 8 for v in x)),
        (Ridge(0.25, L1(0.5)), lambda x: sum(abs(v) / 2 + v * v / 8 for v in x)),
        (GroupL2(0.5, "columns"), lambda x: sum(v * v for v in x).sqrt() / 2),
        (GroupL2(0.5, lambda x: torch.zeros(x.shape, dtype=torch.int64)), lambda x: sum(v * v for v in x).sqrt() / 2),
        (Lp(0.5, 0.5), lambda x: sum(abs(v).sqrt() for v in x) / 2),
        # Both are constant from 2 on.
        (MCP(0.5, 4.0), lambda x: sum(u / 2 - u * u / 8 for u in (min(abs(v), Decimal(2)) for v in x))),
        (SCAD(0.5, 4.0), lambda x: sum(_scad(abs(v)) for v in x)),
    ],
    ids=lambda of: repr(of) if isinstance(of, Regularizer) else "",
)
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_decrease_has_its_digits_where_s_is_short(R: Regularizer, value: Callable[..., Decimal], scale: float) -> None:
    """Of terms of 1e6 each the difference has an error of 1e-10: more than the slack of rho, and sigma ran away."""
    getcontext().prec = 60
    x = torch.tensor([3.0, -1.25, 0.7, 1e-3, 0.0], dtype=torch.float64) * scale
    for length in (1e-3, 1e-8, 1e-13):
        z = x * (1 - length * torch.tensor([1.0, 0.4, -0.3, 2.0, 1.0], dtype=torch.float64))
        exact = value([Decimal(v) for v in x.tolist()]) - value([Decimal(v) for v in z.tolist()])
        assert float(R.decrease(x, z)) == pytest.approx(float(exact), rel=1e-12, abs=0)
    zero = torch.zeros_like(x)
    assert float(R.decrease(x, zero)) == -float(R.decrease(zero, x)) == pytest.approx(float(R.value(x)), rel=1e-14)
    assert R.decrease(zero, zero) == 0


def test_the_decrease_of_singular_values_is_known_to_the_square_of_a_short_step() -> None:
    """Their difference is known to eps of the largest, and what a step promises is of the order of |s|^2."""
    getcontext().prec = 60
    x = torch.tensor([[3.0, -1.25, 0.7, 1e-3]], dtype=torch.float64).T * 1e6  # its singular value is its norm
    for length in (1.0, 1e-3, 1e-6, 1e-9):
        z = x - length * torch.tensor([[0.3, -0.4, 0.7, 1.0]], dtype=torch.float64).T
        norms = [sum(Decimal(v) ** 2 for v in point.flatten().tolist()).sqrt() for point in (x, z)]
        error = abs(Decimal(float(Nuclear(1.0).decrease(x, z))) - (norms[0] - norms[1]))
        ss, rounding = float((x - z).square().sum()), 4 * torch.finfo(torch.float64).eps
        assert float(error) <= ss / float(norms[0]) + rounding * ss**0.5
    generator = torch.Generator().manual_seed(0)
    for shape in ((5, 3), (3, 5), (4, 4)):  # and where singular values vanish
        x, z = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
        x[:, 1], z[1] = x[:, 0], 0.0
        torch.testing.assert_close(Nuclear(0.5).decrease(x, z), Nuclear(0.5).value(x) - Nuclear(0.5).value(z))
        torch.testing.assert_close(Nuclear(0.5).decrease(x, 0 * x), Nuclear(0.5).value(x))


def test_a_subclass_with_terms_of_its_own_has_their_decrease() -> None:
    """That of its parent is of another R: rho compared two functions."""

    class Doubled(L1):
        def terms(self, x: Tensor) -> Tensor:
            return 2 * super().terms(x)

    x = torch.tensor([1.0, -3.0])
    assert Doubled(0.5).decrease(x, 0 * x) == Doubled(0.5).value(x) == 4.0


def test_decrease_in_bfloat16_is_not_rounded_to_it() -> None:
    x, z = (torch.full((1000,), entry, dtype=torch.bfloat16) for entry in (1.5, 0.0035))
    assert L1(1.0).decrease(x, z) == pytest.approx(float(L1(1.0).value(x) - L1(1.0).value(z)), rel=1e-9)


def test_a_short_last_block_is_not_made_up_for_by_what_is_missing() -> None:
    assert NM(2, 4).value(torch.tensor([[1.0, 0, 0, 0, 1, 1, 1]])) == torch.inf
    assert NM(2, 4).value(torch.tensor([[1.0, 0, 0, 1, 1, 0, 1]])) == 0
