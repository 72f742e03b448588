"""The k largest, exactly, ties by order: against a stable sort, with k on the host and on the device."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from sr2.regularizers import L0Ball, selection
from sr2.regularizers.selection import Search, chosen_here, largest, largest_of_each, largest_with_floors
from tests.tools import HostReads


def unseen(scores: Tensor, k: int | Tensor) -> Tensor:
    """`largest` as where the numbers are a device's."""
    with mock.patch.object(selection, "may_look", return_value=False):
        return largest(scores, k)


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
        assert torch.equal(unseen(scores, number), by_sorting(scores, k))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_special_numbers(dtype: torch.dtype) -> None:
    """Subnormal, largest, infinite; NaN before all; what is negative never."""
    tiny = torch.finfo(dtype).smallest_normal
    scores = torch.tensor([0.0, tiny / 4, tiny, torch.finfo(dtype).max, torch.inf, torch.nan, -1.0], dtype=dtype)
    for k in range(8):
        expected = [i in [5, 4, 3, 2, 1, 0][:k] for i in range(7)]
        for number in (k, torch.tensor(k)):
            assert largest(scores, number).tolist() == expected
            assert unseen(scores, number).tolist() == expected


def test_k_on_the_device_is_not_looked_at() -> None:
    with HostReads() as reads:
        unseen(torch.rand(100), torch.tensor(7))
    assert reads.seen == []


def test_many() -> None:
    scores = torch.rand(300_000, generator=torch.Generator().manual_seed(0)).mul(2000).round()
    for k in (1, 1000, 150_000, 299_999):
        for number in (k, torch.tensor(k)):
            assert torch.equal(largest(scores, number), by_sorting(scores, k))
            assert torch.equal(unseen(scores, number), by_sorting(scores, k))


@settings(max_examples=100)
@given(sizes=st.lists(st.integers(1, 30), min_size=1, max_size=5), seed=st.integers(0, 9999), levels=st.integers(1, 9))
def test_of_each_vector(sizes: list[int], seed: int, levels: int) -> None:
    vectors, ks = several(sizes, seed, levels)
    expected = torch.cat([by_sorting(v, k) for v, k in zip(vectors, ks, strict=True)])
    assert torch.equal(largest_of_each(vectors, ks), expected)


def by_loop(vectors: list[Tensor], floors: list[int], k: int) -> list[bool]:
    """Entry by entry: those of the floors, and then the largest that are left."""
    entries = [(j, i, float(s)) for j, v in enumerate(vectors) for i, s in enumerate(v)]
    order = sorted((e for e in entries if not e[2] < 0), key=lambda e: (e[2] == e[2], -e[2]))  # stable; NaN first
    left, taken = list(floors), set()
    for j, i, _ in order:
        if left[j]:
            left[j] -= 1
            taken.add((j, i))
    taken |= set([(j, i) for j, i, _ in order if (j, i) not in taken][: k - sum(floors)])
    return [(j, i) in taken for j, i, _ in entries]


LEVELS = {
    "zeros": [0.0],
    "ones": [1.0],
    "few": [0.0, 1.0, 1.0 + 2.0**-23],
    "special": [0.0, 1e-45, 3e38, torch.inf, torch.nan],
    "negative": [-1.0, 0.0, 2.0],
    "many": [float(2.0 ** (i / 40 - 9)) for i in range(700)],
}


def with_floors(
    sizes: list[int], levels: str, floor: float, share: float, seed: int
) -> tuple[list[Tensor], list[int], int]:
    """Scores of these levels, floors that are a share of every vector, and k between their sum and everything."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.tensor(LEVELS[levels])
    vectors = [values[torch.randint(len(values), (n,), generator=generator)] for n in sizes]
    if levels == "many":  # so that some floors bind and others do not
        vectors = [v * 4.0**-j for j, v in enumerate(vectors)]
    if levels == "few":  # the first has no more than the last bit less
        vectors[0].clamp_max_(1.0)
    floors = [int(floor * n) for n in sizes]
    return vectors, floors, sum(floors) + round(share * (sum(sizes) - sum(floors)))


CASES = {
    "sizes": st.lists(st.sampled_from([1, 2, 15, 16, 17, 40]), min_size=1, max_size=5),
    "levels": st.sampled_from(list(LEVELS)),
    "floor": st.sampled_from([0.0, 0.2, 1.0]),
    "share": st.sampled_from([0.0, 0.01, 0.1, 0.5, 1.0]),
    "seed": st.integers(0, 9999),
}


@settings(max_examples=200)
@given(**CASES)
def test_with_floors(sizes: list[int], levels: str, floor: float, share: float, seed: int) -> None:
    vectors, floors, k = with_floors(sizes, levels, floor, share, seed)
    assert largest_with_floors(vectors, floors, torch.tensor(k)).tolist() == by_loop(vectors, floors, k)
    assert largest_with_floors(vectors, floors, k).tolist() == by_loop(vectors, floors, k)
    with mock.patch.object(selection, "may_look", return_value=False):
        assert largest_with_floors(vectors, floors, torch.tensor(k)).tolist() == by_loop(vectors, floors, k)


@settings(max_examples=200)
@given(**CASES)
def test_vectors_that_lie_otherwise_in_memory(
    sizes: list[int], levels: str, floor: float, share: float, seed: int
) -> None:
    """Backwards, and each of them backwards too: ties are in the order of the vectors and of their entries."""
    vectors, floors, k = with_floors(sizes, levels, floor, share, seed)
    bits = torch.cat(vectors[::-1]).view(torch.int32).numpy()
    ends = [sum(sizes[j:]) for j in range(len(sizes))]
    places = [slice(end - n, end) for n, end in zip(sizes, ends, strict=True)]
    taken = chosen_here(bits, places, floors, k)
    assert [bool(t) for place in places for t in taken[place]] == by_loop(vectors, floors, k)
    bits = torch.cat([v.flip(0) for v in vectors[::-1]]).view(torch.int32).numpy()
    backwards = [lambda at, n=n: n - 1 - at for n in sizes]
    flags = bits < 0
    assert chosen_here(bits, places, floors, k, flags, backwards) is flags
    assert [bool(t) for place in places for t in flags[place][::-1]] == by_loop(vectors, floors, k)


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
@pytest.mark.parametrize("sizes", [[1], [16], [5, 40, 17], [16, 32, 1, 3], [100]])
def test_the_kernel_is_a_stable_sort(sizes: list[int]) -> None:
    for seed, levels in enumerate((1, 3, 1000)):
        vectors, ks = several(sizes, seed, levels)
        expected = torch.cat([by_sorting(v, k) for v, k in zip(vectors, ks, strict=True)])
        assert torch.equal(largest_of_each(vectors, ks), expected)
        for k in (0, sizes[0] // 2, torch.tensor(1), torch.tensor(sizes[0]), torch.tensor(sizes[0] + 3)):
            assert torch.equal(largest(vectors[0], k), by_sorting(vectors[0], int(k)))


@pytest.mark.usefixtures("in_the_kernel")
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # numpy's, of the interpreter
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(**CASES)
def test_floors_in_the_kernel(sizes: list[int], levels: str, floor: float, share: float, seed: int) -> None:
    vectors, floors, k = with_floors(sizes, levels, floor, share, seed)
    assert largest_with_floors(vectors, floors, torch.tensor(k)).tolist() == by_loop(vectors, floors, k)


@pytest.mark.usefixtures("in_the_kernel")
@pytest.mark.parametrize("digits", [((20, 11), (10, 10), (0, 10)), ((26, 5), (20, 6), (14, 6), (8, 6), (2, 6), (0, 2))])
@pytest.mark.parametrize("levels", ["few", "many"])
def test_other_digits_and_smaller_pieces(
    digits: tuple[tuple[int, int], ...], levels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of every loop of the kernels more than one turn."""
    for name, value in (("DIGITS", digits), ("TABLE", 512), ("BLOCK", 2)):
        monkeypatch.setattr(selection, name, value)
    for floor, share in ((0.0, 0.3), (0.2, 0.1), (0.2, 0.6)):
        vectors, floors, k = with_floors([100, 3, 40, 16, 1, 90], levels, floor, share, seed=1)
        assert largest_with_floors(vectors, floors, torch.tensor(k)).tolist() == by_loop(vectors, floors, k)


@pytest.mark.usefixtures("in_the_kernel")
def test_one_search_for_several_groups() -> None:
    """Each has its own k, which may have changed when it is asked again."""
    given = [with_floors(sizes, "few", 0.2, 0.4, seed) for seed, sizes in enumerate(([40, 5], [17], [1, 33, 16]))]
    search = Search(
        [[len(v) for v in vectors] for vectors, _, _ in given], [f for _, f, _ in given], torch.device("cpu")
    )
    scores, ks = torch.full((search.length,), -1.0), torch.tensor([k for *_, k in given])
    starts, places = iter(search.starts), []
    for vectors, _, _ in given:
        places.append([slice(a, a + len(v)) for v in vectors for a in [next(starts)]])
        for v, place in zip(vectors, places[-1], strict=True):
            scores[place] = v
    for more in (0, 9, -1):
        search.find(scores, ks + more)
        taken = search.taken(scores)
        for (vectors, floors, k), parts in zip(given, places, strict=True):
            assert torch.cat([taken[place] for place in parts]).tolist() == by_loop(vectors, floors, k + more)
        assert not taken[scores < 0].any()


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
