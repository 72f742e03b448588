"""On a GPU: the prox is a legal body of a CUDA graph, and reads the step anew at every replay."""

from __future__ import annotations

import pytest
import torch

from sr2.regularizers.selection import largest, largest_of_each, largest_with_floors
from tests.cases import RegularizerCase
from tests.registry import REGULARIZERS

# A decomposition looks at its own success, which waits for the device.
CAPTURABLE = [c for c in REGULARIZERS if not c.decomposes]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("case", CAPTURABLE, ids=lambda case: case.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_prox_and_value_in_a_graph(case: RegularizerCase, dtype: torch.dtype) -> None:
    xs = [torch.randn(s, device="cuda").to(dtype) * 2 for s in ((8, 12, 3, 3), (20, 30), (7,))]
    xs[0] = xs[0].contiguous(memory_format=torch.channels_last)
    step = torch.ones((), dtype=torch.float64, device="cuda")
    regularizer = case.regularizer
    regularizer.prox_of(xs, [step] * 3)  # warm up
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        zs = regularizer.prox_of(xs, [step] * 3)
        decrease = regularizer.decrease(zs, zs)
    for value in (0.1, 5.0):
        step.fill_(value)
        graph.replay()
        for z, expected in zip(zs, regularizer.prox(xs, value), strict=True):
            torch.testing.assert_close(z, expected, rtol=1e-5 if dtype == torch.float32 else 1e-2, atol=1e-6)
            assert z.stride() == expected.stride()
        assert decrease == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("case", REGULARIZERS, ids=lambda case: case.name)
def test_the_same_on_both_devices(case: RegularizerCase) -> None:
    xs = [torch.randn(s, dtype=torch.float64) * 2 for s in ((8, 12, 3, 3), (20, 30), (7,), (), (0, 3))]
    on_gpu = [x.cuda() for x in xs]
    for step in (0.3, 6.0, torch.tensor(0.3)):
        for z, expected in zip(case.regularizer.prox(on_gpu, step), case.regularizer.prox(xs, step), strict=True):
            torch.testing.assert_close(z.cpu(), expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(case.regularizer.value(on_gpu).cpu(), case.regularizer.value(xs), rtol=1e-10, atol=0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_largest_of_many_are_those_of_the_host() -> None:
    """The compiled kernel of `selection.py`: ties, several vectors, k on the host and on the device."""
    generator = torch.Generator().manual_seed(0)
    vectors = [torch.randint(0, levels, (n,), generator=generator) / 7 for n, levels in ((3_000_001, 900), (5000, 3))]
    on_gpu = [v.cuda() for v in vectors]
    for k in (0, 1, 2500, 4999):
        assert torch.equal(largest_of_each(on_gpu, [k, k]).cpu(), largest_of_each(vectors, [k, k]))
        for v, on in zip(vectors, on_gpu, strict=True):
            assert torch.equal(largest(on, k).cpu(), largest(v, k))
            assert torch.equal(largest(on, torch.tensor(k, device="cuda")).cpu(), largest(v, k))
    for floors in ([0, 0], [100, 4000], [2_000_000, 3]):
        for k in (sum(floors), sum(floors) + 7, 2_500_000):
            expected = largest_with_floors(vectors, floors, k)
            assert torch.equal(largest_with_floors(on_gpu, floors, k).cpu(), expected)
            assert torch.equal(largest_with_floors(on_gpu, floors, torch.tensor(k, device="cuda")).cpu(), expected)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("case", CAPTURABLE, ids=lambda case: case.name)
def test_a_graph_follows_the_share(case: RegularizerCase) -> None:
    xs = [torch.randn(s, device="cuda") * 2 for s in ((8, 12, 3, 3), (20, 30), (7,))]
    steps = [torch.rand_like(x) + 0.1 if case.diagonal else torch.ones((), device="cuda") for x in xs]
    share = torch.zeros((), dtype=torch.float64, device="cuda")
    growing = case.regularizer.at_strength(share)
    growing.prox_of(xs, steps)  # warm up
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        zs = growing.prox_of(xs, steps)
    for value in (0.0, 0.3, 1.0):
        share.fill_(value)
        graph.replay()
        for z, expected in zip(zs, growing.prox(xs, steps), strict=True):
            assert torch.equal(z, expected)
