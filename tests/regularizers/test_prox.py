"""The prox is the minimizer: against brute force, its optimality condition, nonexpansiveness, ties, kinds of steps."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sr2.regularizers import MCP, SCAD, L0Ball, Lp
from tests import oracles
from tests.cases import RegularizerCase, Tie
from tests.registry import REGULARIZERS

STEPS = (0.05, 0.5, 1.0, 3.0, 30.0)  # below, between and above every gamma, a - 1 and a + 1 of the registry

every = pytest.mark.parametrize("case", REGULARIZERS, ids=lambda case: case.name)
separable = pytest.mark.parametrize("case", [c for c in REGULARIZERS if c.separable], ids=lambda case: case.name)
coupled = pytest.mark.parametrize("case", [c for c in REGULARIZERS if not c.separable], ids=lambda case: case.name)
convex = pytest.mark.parametrize("case", [c for c in REGULARIZERS if c.convex], ids=lambda case: case.name)


def points(seed: int = 0) -> Tensor:
    """Entries of both signs, from tiny to large, and zeros."""
    generator = torch.Generator().manual_seed(seed)
    spread = torch.randn(12, generator=generator, dtype=torch.float64)
    return torch.cat([spread * 0.3, spread * 2, spread * 9, torch.zeros(2, dtype=torch.float64)])


def objective(case: RegularizerCase, zs: list[Tensor], xs: list[Tensor], step: float) -> float:
    quadratic = sum(float(((z - x) ** 2).sum()) for z, x in zip(zs, xs, strict=True)) / (2 * step)
    return case.value([z.numpy() for z in zs]) + quadratic


@separable
@pytest.mark.parametrize("step", STEPS)
def test_beats_every_candidate_on_a_grid(case: RegularizerCase, step: float) -> None:
    assert case.penalty is not None
    x = points()
    z = case.regularizer.prox(x, step)
    for xi, zi in zip(x.tolist(), z.tolist(), strict=True):
        near = zi + np.linspace(-1e-3, 1e-3, 41) * max(abs(zi), 1e-3)
        far = np.linspace(-1.2, 1.2, 4001) * max(abs(xi), 1.5)
        candidates = np.concatenate([near, far, [0.0, xi, *case.points]])
        ours = oracles.objective(case.penalty, np.array([zi]), xi, step)[0]
        best = oracles.objective(case.penalty, candidates, xi, step).min()
        assert ours <= best + 1e-13 * (1 + abs(best)), (xi, zi)


@separable
@pytest.mark.parametrize("step", STEPS)
def test_equals_the_searched_minimizer(case: RegularizerCase, step: float) -> None:
    x = points(1)[::3].clone()
    ours, theirs = case.regularizer.prox(x, step).numpy(), case.prox([x.numpy()], step)[0]
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)  # a search sees the minimizer to sqrt(eps)


@coupled
@pytest.mark.parametrize("step", [0.1, 1.0, 4.0])
def test_equals_the_slow_twin(case: RegularizerCase, step: float) -> None:
    generator = torch.Generator().manual_seed(2)
    xs = [torch.randn(s, generator=generator, dtype=torch.float64) * 2 for s in ((3, 5), (2,), (2, 2, 1, 1), ())]
    if case.regularizer.__class__.__name__ == "L0Ball":
        xs = [x[:1] if x.dim() > 1 else x for x in xs]  # every subset is tried
    for ours, theirs in zip(case.regularizer.prox(xs, step), case.prox([x.numpy() for x in xs], step), strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-12, atol=1e-12)


@coupled
@given(seed=st.integers(0, 999), step=st.floats(0.01, 20))
def test_no_other_point_is_better(case: RegularizerCase, seed: int, step: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    xs = [torch.randn(3, 5, generator=generator, dtype=torch.float64), torch.zeros(2, 2, 2, dtype=torch.float64)]
    zs = list(case.regularizer.prox(xs, step))
    ours = objective(case, zs, xs, step)
    others = [xs, [torch.zeros_like(x) for x in xs]]
    for scale in (1e-4, 1e-2, 0.3):
        noise = [z + scale * torch.randn(z.shape, generator=generator, dtype=torch.float64) for z in zs]
        others += [noise, [n * (z != 0) for n, z in zip(noise, zs, strict=True)], [z * (1 - scale) for z in zs]]
        others += [list(case.regularizer.prox(noise, step))]
    for other in others:
        assert ours <= objective(case, other, xs, step) * (1 + 1e-12) + 1e-12


@pytest.mark.parametrize("case", [c for c in REGULARIZERS if c.slope], ids=lambda case: case.name)
@pytest.mark.parametrize("step", STEPS)
def test_optimality_condition(case: RegularizerCase, step: float) -> None:
    """(x - z) / step = sign(z) r'(|z|) where z != 0; |x| / step <= r'(0+) where z = 0."""
    assert case.slope is not None
    x = points(3)
    z = case.regularizer.prox(x, step).numpy()
    gap, slope, zero = (x.numpy() - z) / step, case.slope(np.abs(z)), z == 0
    residual = np.concatenate(
        [np.maximum(np.abs(gap) - slope, 0)[zero], np.abs(gap - np.sign(z) * np.minimum(slope, 1e300))[~zero]]
    )
    assert residual.max() <= 1e-10 * max(1.0, np.abs(gap).max())


@convex
@given(seed=st.integers(0, 999), step=st.floats(0.01, 20))
def test_convex_optimality_and_nonexpansiveness(case: RegularizerCase, seed: int, step: float) -> None:
    """g = (x - z) / step is a subgradient at z, R(y) >= R(z) + g'(y - z); and |prox x - prox y| <= |x - y|."""
    generator = torch.Generator().manual_seed(seed)
    x, y = (torch.randn(4, 3, 2, generator=generator, dtype=torch.float64) * 3 for _ in range(2))
    zx, zy = case.regularizer.prox(x, step), case.regularizer.prox(y, step)
    g = (x - zx) / step
    for other in (zy, torch.zeros_like(x), zx * 0.9, zx * 1.1, zx + 1e-3 * y):
        lower = case.regularizer.value(zx) + (g * (other - zx)).sum()
        assert case.regularizer.value(other) >= lower - 1e-10 * (1 + lower.abs())
    assert (zx - zy).norm() <= (x - y).norm() * (1 + 1e-12)
    assert ((zx - zy) ** 2).sum() <= ((zx - zy) * (x - y)).sum() + 1e-10  # firmly so


@pytest.mark.parametrize("case", [c for c in REGULARIZERS if c.hard], ids=lambda case: case.name)
def test_hard_ones_keep_entries_to_the_bit(case: RegularizerCase) -> None:
    x = points(4).reshape(-1, 2)
    z = case.regularizer.prox(x, 1.0)
    assert torch.equal(z, torch.where(z == 0, 0.0, x))


@pytest.mark.parametrize("case", [c for c in REGULARIZERS if c.indicator], ids=lambda case: case.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_indicators_are_zero_after_the_prox_and_project_once(case: RegularizerCase, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(5)
    for shape in ((7, 9), (4, 6, 3, 3), (5,), (), (0, 3), (40, 300)):
        for scale in (1e-12, 0.1, 1e12):
            x = (torch.randn(shape, generator=generator, dtype=torch.float64) * scale).to(dtype)
            z = case.regularizer.prox(x, 1.0)
            assert case.regularizer.value(z) == 0
            torch.testing.assert_close(case.regularizer.prox(z, 0.1), z)


@pytest.mark.parametrize("case", [c for c in REGULARIZERS if c.hard and c.indicator], ids=lambda case: case.name)
@given(rows=st.integers(1, 3), columns=st.integers(1, 9), seed=st.integers(0, 999))
def test_budgets_are_zero_exactly_where_the_prox_keeps_x(
    case: RegularizerCase, rows: int, columns: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, columns, generator=generator) * (torch.rand(rows, columns, generator=generator) < 0.4)
    inside = torch.equal(case.regularizer.prox(x, 1.0), x)
    assert case.regularizer.value(x) == (0.0 if inside else inf) == case.value([x.double().numpy()])


TIES = [(c, tie) for c in REGULARIZERS for tie in c.ties]


@pytest.mark.parametrize(("case", "tie"), TIES, ids=[f"{c.name}-{t.step:g}" for c, t in TIES])
@pytest.mark.parametrize("tensor_step", [False, True])
def test_thresholds_hit_exactly(case: RegularizerCase, tie: Tie, tensor_step: bool) -> None:
    step = torch.tensor(tie.step, dtype=torch.float64) if tensor_step else tie.step
    x, z = (torch.tensor(v, dtype=torch.float64) for v in (tie.x, tie.z))
    assert torch.equal(case.regularizer.prox(x, step), z)
    for size in range(x.numel() if case.separable else 0):  # 0-dim tensors too
        assert torch.equal(case.regularizer.prox(x[size], step), z[size])


@every
def test_zeros_stay_zeros(case: RegularizerCase) -> None:
    zero = torch.zeros(3, 4)
    z = case.regularizer.prox(zero, 1.0)
    expected = zero.clamp(case.regularizer.lo, case.regularizer.hi) if hasattr(case.regularizer, "lo") else zero
    assert torch.equal(z, expected)


@separable
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("step_dtype", [torch.float32, torch.float64])
def test_steps_per_entry_are_scalar_steps_entry_by_entry(
    case: RegularizerCase, dtype: torch.dtype, step_dtype: torch.dtype
) -> None:
    x = points(6).to(dtype)
    steps = torch.logspace(-2, 2, x.numel(), dtype=step_dtype)
    z = case.regularizer.prox(x, steps)
    one_by_one = torch.stack([case.regularizer.prox(xi, float(s)) for xi, s in zip(x, steps, strict=True)])
    assert z.dtype == dtype
    loose = 1e-5 if torch.float32 in (dtype, step_dtype) else 1e-13
    torch.testing.assert_close(z, one_by_one, rtol=loose, atol=loose)
    [again] = case.regularizer.prox([x], [steps])
    assert torch.equal(again, z)


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_tensor_step_is_the_float_step(case: RegularizerCase, dtype: torch.dtype) -> None:
    x = points(7).reshape(-1, 2).to(dtype)
    for step in (0.1, 2.0, 7.3):
        by_float = case.regularizer.prox(x, step)
        by_tensor = case.regularizer.prox(x, torch.tensor(step, dtype=torch.float64))
        by_single = case.regularizer.prox(x, torch.tensor(step))
        torch.testing.assert_close(by_tensor, by_float, rtol=20 * torch.finfo(dtype).eps, atol=0)
        assert torch.equal(by_tensor == 0, by_float == 0)
        assert torch.equal(by_single, case.regularizer.prox(x, torch.tensor(step).double()))


@every
def test_lists(case: RegularizerCase) -> None:
    x = points(8).reshape(-1, 2)
    assert case.regularizer.prox([], 1.0) == []
    assert case.regularizer.value([]) == 0
    [z] = case.regularizer.prox([x], 1.0)
    assert torch.equal(z, case.regularizer.prox(x, 1.0))
    assert [z.shape for z in case.regularizer.prox((x, x[:, :1], x[:0]), 1.0)] == [x.shape, x[:, :1].shape, x[:0].shape]


def test_l0_ball_is_one_budget_over_the_group_with_ties_in_order() -> None:
    xs = [torch.tensor([1.0, 1.0]), torch.tensor([[2.0], [1.0]]), torch.tensor(1.0, dtype=torch.float64)]
    kept = [z.tolist() for z in L0Ball(k=3).prox(xs, 1.0)]
    assert kept == [[1.0, 1.0], [[2.0], [0.0]], 0.0]
    assert [z.dtype for z in L0Ball(k=3).prox(xs, 1.0)] == [x.dtype for x in xs]
    assert L0Ball(k=3).value(xs) == torch.inf
    assert L0Ball(density=0.5).budget(5) == 2  # round half to even
    assert L0Ball(density=0.5).budget(7) == 4
    many = torch.randint(1, 4, (1000,), generator=torch.Generator().manual_seed(0)).float()
    for k in (1, 333, 334, 700, 999):
        z = L0Ball(k=k).prox(many, 1.0)
        assert torch.count_nonzero(z) == k
        order = many.sort(descending=True, stable=True).indices
        assert torch.equal(z.nonzero().flatten(), order[:k].sort().values)


@pytest.mark.parametrize("p", [0.001, 0.01, 0.1, 0.3, 0.5, 0.6, 2 / 3, 0.75, 0.9, 0.97, 0.99, 0.999])
def test_lp_root_to_ten_digits(p: float) -> None:
    """Bisection of z - x + t p z^(p-1) = 0 above the point where the objective is least convex."""
    for t in (1e-9, 1.0, 1e9):
        threshold = (2 - p) / (2 * (1 - p)) * (2 * (1 - p) * t) ** (1 / (2 - p))
        above = np.concatenate([np.logspace(-12, -1, 60), np.logspace(-1, 8, 60)])
        x = threshold * (1 + above)
        low = np.full_like(x, (2 * (1 - p) * t) ** (1 / (2 - p)) * (1 - 1e-9))  # z at the threshold
        high = x.copy()
        for _ in range(200):
            middle = (low + high) / 2
            up = middle - x + t * p * middle ** (p - 1) > 0
            low, high = np.where(up, low, middle), np.where(up, middle, high)
        z = Lp(t, p).prox(torch.from_numpy(x), 1.0).numpy()
        np.testing.assert_allclose(z, (low + high) / 2, rtol=1e-10)
        below = torch.from_numpy(threshold * (1 - above[above < 1]))
        assert not Lp(t, p).prox(below, 1.0).any()


@pytest.mark.parametrize("regularizer", [MCP(1.0, 2.0), SCAD(1.0, 3.0)], ids=repr)
@pytest.mark.parametrize("shift", [-1e-3, -1e-6, -1e-9, -1e-12, 0.0, 1e-12, 1e-6])
def test_concave_ones_are_exact_as_the_step_passes_their_curvature(regularizer: MCP | SCAD, shift: float) -> None:
    """step = gamma = a - 1 = 2: the middle piece turns from convex to flat to concave."""
    case = next(c for c in REGULARIZERS if c.regularizer == regularizer)
    assert case.penalty is not None
    step = 2.0 + shift
    end = regularizer.gamma if isinstance(regularizer, MCP) else regularizer.a  # of the middle piece, in x
    x = torch.linspace(0, 4, 401, dtype=torch.float64)
    x = torch.cat([x, end - abs(shift) * torch.linspace(0, 1.5, 101, dtype=torch.float64)])
    assert (regularizer.prox(x.float(), step) <= x.float()).all()
    z = regularizer.prox(x, step)
    candidates = np.linspace(0, 4, 2001)
    for xi, zi in zip(x.tolist(), z.tolist(), strict=True):
        assert 0 <= zi <= xi
        best = oracles.objective(case.penalty, np.append(candidates, xi), xi, step).min()
        assert oracles.objective(case.penalty, np.array([zi]), xi, step)[0] <= best + 1e-12
