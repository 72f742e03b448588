"""The k largest, exactly, ties by order: against a stable sort, with k on the host and on the device."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sr2.regularizers.selection import largest
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
