"""The k largest, exactly, ties by order: against a stable sort, with k on the host and on the device."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sr2.regularizers import L0Ball, selection
from sr2.regularizers.selection import largest, largest_of_each
from tests.tools import HostReads


def by_sorting(scores: Tensor, k: int) -> Tensor:
    order = scores.sort(descending=True, stable=True).indices[:k]
    return torch.zeros_like(scores, dtype=torch.bool).index_fill_(0, order, True)


@settings(max_examples=200)
@given(
    n=st.integers(0, 60),
    k=st.integers(0, 70),
    levels=st.sampled_from([1, 2, 5, 1000]),
    exponent=st.sampled_from([-40, -3, 0, 30]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    seed=st.integers(0, 9999),
)
def test_equals_a_stable_sort(n: int, k: int, levels: int, exponent: int, dtype: torch.dtype, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(0, levels, (n,), generator=generator).to(dtype) * 10.0**exponent
    for number in (k, torch.tensor(k)):
        assert torch.equal(largest(scores, number), by_sorting(scores, k))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_special_numbers(dtype: torch.dtype) -> None:
    """Subnormal, largest, infinite; NaN before all; what is negative never."""
    tiny = torch.finfo(dtype).smallest_normal
    scores = torch.tensor([0.0, tiny / 4, tiny, torch.finfo(dtype).max, torch.inf, torch.nan, -1.0], dtype=dtype)
    for k in range(8):
        expected = [i in [5, 4, 3, 2, 1, 0][:k] for i in range(7)]
        assert largest(scores, torch.tensor(k)).tolist() == expected
        if k != 7:
            assert largest(scores, k).tolist() == expected


def test_k_on_the_device_is_not_looked_at() -> None:
    with HostReads() as reads:
        largest(torch.rand(100), torch.tensor(7))
    assert reads.seen == []


def test_many() -> None:
    scores = torch.rand(300_000, generator=torch.Generator().manual_seed(0)).mul(2000).round()
    for k in (1, 1000, 150_000, 299_999):
        assert torch.equal(largest(scores, torch.tensor(k)), by_sorting(scores, k))
        assert torch.equal(largest(scores, k), by_sorting(scores, k))


@settings(max_examples=100)
@given(sizes=st.lists(st.integers(1, 30), min_size=1, max_size=5), seed=st.integers(0, 9999), levels=st.integers(1, 9))
def test_of_each_vector(sizes: list[int], seed: int, levels: int) -> None:
    vectors, ks = several(sizes, seed, levels)
    expected = torch.cat([by_sorting(v, k) for v, k in zip(vectors, ks, strict=True)])
    assert torch.equal(largest_of_each(vectors, ks), expected)


def several(sizes: list[int], seed: int, levels: int) -> tuple[list[Tensor], list[int]]:
    generator = torch.Generator().manual_seed(seed)
    vectors = [torch.randint(0, levels, (n,), generator=generator).float() / 3 for n in sizes]
    return vectors, [int(torch.randint(0, n + 2, (), generator=generator)) for n in sizes]


@pytest.fixture
def in_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU, in Triton's interpreter; with one, `test_cuda_graph.py` asks the compiled kernel."""
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        pytest.skip("Triton compiles where there is a CUDA device")
    monkeypatch.setattr(selection, "RUN", 16)
    monkeypatch.setattr(selection, "in_kernel", lambda scores: scores[0].dtype == torch.float32)


@pytest.mark.usefixtures("in_the_kernel")
@pytest.mark.parametrize("seed", range(12))
def test_the_kernel_is_a_stable_sort(seed: int) -> None:
    sizes = [[1], [16], [5, 40, 17], [16, 32, 1, 3], [100]][seed % 5]
    for levels in (1, 3, 1000):
        vectors, ks = several(sizes, seed, levels)
        expected = torch.cat([by_sorting(v, k) for v, k in zip(vectors, ks, strict=True)])
        assert torch.equal(largest_of_each(vectors, ks), expected)
        for k in (0, 1, sizes[0] // 2, sizes[0], sizes[0] + 3):
            for number in (k, torch.tensor(k)):
                assert torch.equal(largest(vectors[0], number), by_sorting(vectors[0], k))


@pytest.mark.usefixtures("in_the_kernel")
def test_special_numbers_in_the_kernel() -> None:
    test_special_numbers(torch.float32)


@pytest.mark.usefixtures("in_the_kernel")
def test_a_budget_in_the_kernel() -> None:
    generator = torch.Generator().manual_seed(0)
    xs = [torch.randn(s, generator=generator) * c for s, c in (((8, 9), 1.0), ((5, 4), 0.01), ((30,), 1.0))]
    steps = [torch.rand(x.shape, generator=generator) + 0.1 for x in xs]
    share = torch.tensor(0.5, dtype=torch.float64)
    for R in (L0Ball(density=0.3), L0Ball(density=0.3, floor=1.0), L0Ball(density=0.3).at_strength(share)):
        ours = R.prox(xs, steps)
        theirs = R.prox([x.double() for x in xs], [s.double() for s in steps])  # not in the kernel
        assert all(torch.equal(a != 0, b != 0) for a, b in zip(ours, theirs, strict=True))
        assert R.value(ours) == 0
