"""Steps that live on the device are never looked at: fake tensors have no data to look at, and say so."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.cases import RegularizerCase
from tests.registry import ONE_OF_EACH, REGULARIZERS

every = pytest.mark.parametrize("case", REGULARIZERS, ids=lambda case: case.name)


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_fake_tensors(case: RegularizerCase, dtype: torch.dtype) -> None:
    with FakeTensorMode():
        xs = [torch.randn(4, 8, 3, 3, dtype=dtype), torch.randn(5, dtype=dtype), torch.randn((), dtype=dtype)]
        step = torch.rand((), dtype=torch.float64)
        kinds = [[step] * 3] + [[torch.rand(x.shape) for x in xs]] * case.diagonal
        for steps in kinds:
            zs = case.regularizer.prox_of(xs, steps)
            assert [(z.shape, z.dtype) for z in zs] == [(x.shape, dtype) for x in xs]
            assert all(t.dtype == torch.float64 for t in case.regularizer.terms_of(zs))
        assert case.regularizer.decrease(xs, zs).dtype == torch.float64


@every
def test_meta_device(case: RegularizerCase) -> None:
    x = torch.empty(4, 8, device="meta")
    z = case.regularizer.prox(x, torch.empty((), device="meta"))
    assert z.device.type == "meta"
    assert z.shape == x.shape
    assert case.regularizer.prox(x, torch.tensor(0.5)).shape == x.shape  # a number from the host


@pytest.mark.parametrize("case", ONE_OF_EACH, ids=lambda case: case.name)
def test_compiles_to_one_graph(case: RegularizerCase) -> None:
    torch._dynamo.reset()  # every regularizer compiles the same prox_of anew, and torch counts
    compiled = torch.compile(case.regularizer.prox_of, backend="eager", fullgraph=True)
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    step = torch.tensor(0.5, dtype=torch.float64)
    [z] = compiled([x], [step])
    torch.testing.assert_close(z, case.regularizer.prox(x, step))
