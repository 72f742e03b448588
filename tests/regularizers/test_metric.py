"""One step per entry: the prox is the minimizer of R(z) + sum((z - x)^2 / (2 step)), against brute force."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq, minimize
from torch import Tensor

from sr2.regularizers import NM, GroupL0, GroupL2, Heads, L0Ball, Nuclear, Rank
from sr2.regularizers.grouping import grouping
from tests.cases import RegularizerCase, each_entry, pairs_of_entries
from tests.registry import REGULARIZERS
from tests.tools import laid_out

METRIC = [c for c in REGULARIZERS if c.metric_prox is not None]
in_metric = pytest.mark.parametrize("case", METRIC, ids=lambda case: case.name)
SHAPES = ((1, 5), (2, 2), (3,), (), (0, 3), (2, 2, 1, 1), (4, 1), (2, 4))


def drawn(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator, decades: float) -> list[Tensor]:
    """x with zeros and ties, and steps over so many decades."""
    x = torch.randint(-4, 5, shape, generator=generator) / 2 + (
        torch.randn(shape, generator=generator) * (torch.rand(shape, generator=generator) < 0.5)
    )
    step = 10 ** (decades * (torch.rand(shape, generator=generator, dtype=torch.float64) - 0.5))
    return [x.to(dtype), torch.where(torch.rand(shape, generator=generator) < 0.3, 1.0, step).to(dtype)]


def objective(case: RegularizerCase, zs: list[Tensor], xs: list[Tensor], steps: list[Tensor]) -> float:
    """In float64; `steps` as the prox has them."""
    parts = [(z.double(), x.double(), s.double()) for z, x, s in zip(zs, xs, steps, strict=True)]
    return case.value([z.numpy() for z, _, _ in parts]) + sum(
        float(((z - x) ** 2 / (2 * s)).sum()) for z, x, s in parts
    )


@in_metric
@given(
    seed=st.integers(0, 9999),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
    layout=st.sampled_from(["contiguous", "channels_last", "transposed", "sliced"]),
    decades=st.sampled_from([0.0, 1.0, 6.0]),
    shapes=st.lists(st.sampled_from(SHAPES), min_size=1, max_size=3).filter(lambda s: sum(map(math.prod, s)) <= 14),
)
def test_equals_brute_force(
    case: RegularizerCase, seed: int, dtype: torch.dtype, layout: str, decades: float, shapes: list[tuple[int, ...]]
) -> None:
    assert case.metric_prox is not None
    generator = torch.Generator().manual_seed(seed)
    xs, steps = zip(*(drawn(shape, dtype, generator, decades) for shape in shapes), strict=True)
    xs = [laid_out(x, layout) for x in xs]
    zs = case.regularizer.prox(xs, list(steps))
    best = case.metric_prox([x.double().numpy() for x in xs], [s.double().numpy() for s in steps])
    assert [(z.shape, z.dtype, z.stride()) for z in zs] == [(x.shape, dtype, torch.empty_like(x).stride()) for x in xs]
    assert case.regularizer.value(zs) < torch.inf
    reached = objective(case, zs, xs, list(steps))
    least = objective(case, [torch.from_numpy(z) for z in best], xs, list(steps))
    loose = {torch.float64: 1e-13, torch.float32: 1e-6, torch.bfloat16: 2e-2}[dtype]
    assert reached <= least + loose * (abs(least) + 1e-9)
    if dtype == torch.float64:
        for z, expected in zip(zs, best, strict=True):
            np.testing.assert_allclose(z.numpy(), expected, rtol=1e-9, atol=1e-12)


@in_metric
def test_one_step_in_every_entry_is_that_step(case: RegularizerCase) -> None:
    generator = torch.Generator().manual_seed(0)
    xs = [torch.randn(s, generator=generator, dtype=torch.float64) * 2 for s in ((4, 5), (3,), (), (2, 4, 3, 3))]
    for step in (0.25, 1.0, 4.0):
        own = case.regularizer.prox(xs, [torch.full_like(x, step) for x in xs])
        for z, expected in zip(own, case.regularizer.prox(xs, step), strict=True):
            torch.testing.assert_close(z, expected, rtol=1e-13, atol=1e-13)


def test_budgets_keep_the_largest_x_squared_over_step() -> None:
    x, step = torch.tensor([[1.0, 2.0, 3.0, 4.0]]), torch.tensor([[0.01, 1.0, 9.0, 4.0]])  # 100, 4, 1, 4
    assert L0Ball(k=2).prox(x, step).tolist() == [[1.0, 2.0, 0.0, 0.0]]  # the first of equals
    assert NM(2, 4).prox(x, step).tolist() == [[1.0, 2.0, 0.0, 0.0]]
    assert L0Ball(k=1, groups="columns").prox(x, step).tolist() == [[1.0, 0.0, 0.0, 0.0]]
    rows = x.view(2, 2), step.view(2, 2)
    assert L0Ball(k=1, groups="rows").prox(*rows).tolist() == [[1.0, 2.0], [0.0, 0.0]]
    assert GroupL0(2.5, "rows").prox(*rows).tolist() == [[1.0, 2.0], [0.0, 0.0]]  # 52, and 2.5 exactly: 0
    assert GroupL0(2.4, "rows").prox(*rows).tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_tensors_may_have_steps_of_their_own() -> None:
    xs, steps = [torch.tensor([3.0, 1.0]), torch.tensor([2.0])], [torch.tensor(9.0), torch.tensor(1.0)]
    assert [z.tolist() for z in L0Ball(k=1).prox(xs, steps)] == [[0.0, 0.0], [2.0]]
    assert [z.tolist() for z in L0Ball(k=1).prox_of(xs, [9.0, 1.0])] == [[0.0, 0.0], [2.0]]
    assert [z.tolist() for z in L0Ball(k=1).prox(xs, 9.0)] == [[3.0, 0.0], [0.0]]
    eye = torch.eye(2)
    for regularizer in (Nuclear(1.0), Rank(1)):
        one, two = regularizer.prox([3 * eye, 3 * eye], steps)
        assert torch.equal(one, regularizer.prox(3 * eye, 9.0))
        assert torch.equal(two, regularizer.prox(3 * eye, 1.0))


@pytest.mark.parametrize("groups", ["rows", each_entry, pairs_of_entries], ids=lambda g: getattr(g, "__name__", g))
@pytest.mark.parametrize("scale", [1e-290, 1e-150, 1e-30, 1.0, 1e25, 1e150, 1e290])
def test_group_l2_at_every_scale(groups: object, scale: float) -> None:
    """x and t = lam step grow together, so that z does: no norm over- or underflows."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    step = 10 ** torch.randn(6, 4, generator=generator, dtype=torch.float64)
    one = GroupL2(1.0, groups).prox(x, step)  # type: ignore[arg-type]
    assert one.any()
    torch.testing.assert_close(GroupL2(scale, groups).prox(scale * x, step) / scale, one, rtol=1e-12, atol=0)  # type: ignore[arg-type]


def root(x: np.ndarray, t: np.ndarray) -> float:
    norm = lambda r: float(np.linalg.norm(x / (r + t)))  # noqa: E731
    return brentq(lambda r: norm(r) - 1, 0.0, float(np.linalg.norm(x)), xtol=1e-300, rtol=1e-15, maxiter=2000)


def test_group_l2_where_steps_differ_by_a_factor_of_1e12() -> None:
    """Also where tangents alone would creep: small entries with small steps decide over large ones with large."""
    sizes, steps = (1e-12, 1e-6, 1e-3, 1.0), (1e-12, 1e-6, 1.0 + 1e-7, 1.0 - 1e-7, 3.0)
    pairs = np.array(list(product(sizes, steps)))
    generator = np.random.default_rng(0)
    for _ in range(300):
        x, t = pairs[generator.integers(0, len(pairs), generator.integers(1, 12))].T
        z = GroupL2(1.0, "columns").prox(torch.from_numpy(x.copy()), torch.from_numpy(t.copy())).numpy()
        if np.linalg.norm(x / t) <= 1:
            assert not z.any()
            continue
        r = root(x, t)
        # Where a threshold is almost met, r itself is only known to eps times the steps.
        np.testing.assert_allclose(z, x * (r / (r + t)), rtol=0, atol=1e-15 * x.max())


def test_group_l2_at_its_threshold() -> None:
    x = torch.tensor([[3.0, 4.0], [3.0, 4.0], [0.0, 0.0]], dtype=torch.float64)
    step = torch.tensor([[5.0, 5.0], [5.0, 4.999999], [1e-12, 1.0]], dtype=torch.float64)
    z = GroupL2(1.0, "rows").prox(x, step)
    assert z[0].tolist() == [0.0, 0.0]  # |x / t| = 1
    assert 0 < z[1].norm() < 1e-5
    assert z[2].tolist() == [0.0, 0.0]
    assert torch.equal(GroupL2(0.0, "rows").prox(x, step), x)


def test_group_l2_against_a_general_minimizer() -> None:
    """That knows nothing of the root: scipy's Nelder-Mead on the objective itself."""
    x, step = np.array([1.0, -2.0, 0.5]), np.array([0.1, 2.0, 0.7])
    f = lambda z: 0.8 * np.linalg.norm(z) + ((z - x) ** 2 / (2 * step)).sum()  # noqa: E731
    found = minimize(f, x, method="Nelder-Mead", options={"xatol": 1e-10, "fatol": 1e-14, "maxiter": 5000})
    z = GroupL2(0.8, "columns").prox(torch.from_numpy(x), torch.from_numpy(step)).numpy()
    assert f(z) <= found.fun * (1 + 1e-15)
    np.testing.assert_allclose(z, found.x, atol=1e-6)


def test_heads_are_blocks_of_rows() -> None:
    x = torch.tensor([[1.0, 1.0], [1.0, 1.0], [3.0, 0.0], [0.0, 0.0]])
    assert L0Ball(k=1, groups=Heads(2)).prox(x, 1.0).tolist() == [[0, 0], [0, 0], [3, 0], [0, 0]]
    assert L0Ball(density=0.25, groups=Heads(4)).value(x) == torch.inf
    for regularizer in (GroupL2, GroupL0):
        by_name, by_callable = (regularizer(0.7, groups) for groups in (Heads(2), lambda x: Heads(2)(x)))
        torch.testing.assert_close(by_name.prox(x, 1.0), by_callable.prox(x, 1.0))
        torch.testing.assert_close(by_name.prox(x, 1 + x), by_callable.prox(x, 1 + x))
        assert by_name.value(x) == by_callable.value(x)


def test_a_floor_keeps_every_tensor_alive() -> None:
    generator = torch.Generator().manual_seed(0)
    large, small = torch.randn(40, 50, generator=generator) + 10, torch.randn(30, 50, generator=generator) / 100
    plain = L0Ball(density=0.1, floor=0.0).prox([large, small], 1.0)
    assert [int(z.count_nonzero()) for z in plain] == [350, 0]
    zs = L0Ball(density=0.1).prox([large, small], 1.0)
    assert [int(z.count_nonzero()) for z in zs] == [335, 15]  # a tenth of the density: 0.01 of 1500
    assert torch.equal(zs[1].flatten().nonzero(), L0Ball(k=15).prox(small, 1.0).flatten().nonzero())
    assert [int(z.count_nonzero()) for z in L0Ball(density=0.1, floor=1).prox([large, small], 1.0)] == [200, 150]
    assert L0Ball(density=0.1).value(plain) == torch.inf  # what is kept for the small one is not the large one's
    assert L0Ball(density=0.1).floors([2000, 1500]) == [20, 15]
    assert L0Ball(k=350).floors([2000, 1500]) == [0, 0]  # taken at its word
    assert L0Ball(k=350, floor=0.1).floors([2000, 1500]) == [20, 15]
    assert L0Ball(density=0.1).floors([10, 10, 10]) == [0, 0, 0]  # too few to share out
    assert L0Ball(density=0.25).floors([10, 10, 12]) == [1, 1, 1]
    assert L0Ball(density=0.5, groups="rows").floors([40, 20]) == [2, 1]
    assert L0Ball(density=0.2).floors([385, 50]) == [8, 1]  # 0.1 * 87 * 50 / 435 is 1, and a bit more in float64
    assert L0Ball(k=7, floor=0.3).floors([50, 10, 10]) == [1, 0, 0]  # 1.5, 0.3 and 0.3, rounded down


def test_a_budget_of_all_groups_keeps_what_is_too_small_for_a_norm() -> None:
    xs = [torch.zeros(4, dtype=torch.float64), torch.full((2,), 1e-200, dtype=torch.float64)]
    for z, x in zip(L0Ball(k=3, groups=pairs_of_entries).prox(xs, 1.0), xs, strict=True):
        assert torch.equal(z, x)


def test_numbered_groups_are_the_slices_that_they_number() -> None:
    x = torch.tensor([[-3.0, -1.0], [-2.0, 5.0], [0.0, -4.0]], dtype=torch.float64)
    rows, numbered = (
        grouping(None, groups, x) for groups in ("rows", lambda x: torch.tensor([[7], [0], [3]]).expand(3, 2))
    )
    for of_groups in ("sum", "largest", "norm", "nonzero"):
        one, other = (of_x.spread(getattr(of_x, of_groups)(x)) for of_x in (rows, numbered))
        assert torch.equal(one, other), of_groups
