"""One regularizer is another, or nothing at all, at the right constants."""

from __future__ import annotations

import pytest
import torch

from sr2.regularizers import (
    L0,
    L1,
    MCP,
    NM,
    SCAD,
    Box,
    ElasticNet,
    GroupL0,
    GroupL2,
    L0Ball,
    Lp,
    Nuclear,
    Rank,
    Regularizer,
)
from tests.cases import each_entry
from tests.registry import REGULARIZERS

X = torch.randn(6, 4, 3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 2
X[0] = 0.0

IDENTITIES: list[Regularizer] = [
    *(c.scaled(0.0) for c in REGULARIZERS if c.scaled),
    NM(4, 4),
    NM(3, 3),
    Rank(6),
    L0Ball(k=X.numel()),
    L0Ball(density=1.0),
    L0Ball(density=1),
    Box(-torch.inf, torch.inf),
]


@pytest.mark.parametrize("regularizer", IDENTITIES, ids=repr)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_identity(regularizer: Regularizer, dtype: torch.dtype) -> None:
    x = X.to(dtype)
    steps = [0.3, 1e12, torch.tensor(2.0)] + [torch.rand_like(x) + 0.1] * regularizer.diagonal
    for step in steps:
        z = regularizer.prox(x, step)
        assert torch.equal(z, x)
        assert z.data_ptr() != x.data_ptr()
    assert regularizer.value(x) == 0


PAIRS: list[tuple[Regularizer, Regularizer]] = [
    (ElasticNet(0.5, 0.0), L1(0.5)),
    (GroupL2(0.5, each_entry), L1(0.5)),
    (GroupL0(0.5, each_entry), L0(0.5)),
    (GroupL2(0.5, "filters"), GroupL2(0.5, "rows")),
    (MCP(0.5, 1e14), L1(0.5)),
    (SCAD(0.5, 1e14), L1(0.5)),
    (MCP(1e6, 1e-12), L0(0.5)),  # gamma lam^2 / 2 for all but the tiniest
    (Lp(0.5, 1 - 1e-13), L1(0.5)),
    (Lp(0.5, 1e-14), L0(0.5)),
]


@pytest.mark.parametrize(("one", "other"), PAIRS, ids=repr)
def test_equal(one: Regularizer, other: Regularizer) -> None:
    for step in (0.2, 1.0, 3.0, torch.tensor(0.7)):
        torch.testing.assert_close(one.prox(X, step), other.prox(X, step), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(one.value(X), other.value(X), rtol=1e-9, atol=0)


def test_vectors_are_matrices_of_one_column() -> None:
    x = X.flatten()[:8]
    torch.testing.assert_close(GroupL2(0.5).prox(x, 1.0), L1(0.5).prox(x, 1.0))
    torch.testing.assert_close(GroupL2(0.5, "columns").value(x), 0.5 * x.norm())
    torch.testing.assert_close(Nuclear(0.5).value(x), 0.5 * x.norm())
    torch.testing.assert_close(Nuclear(0.5).prox(x, 1.0), GroupL2(0.5, "columns").prox(x, 1.0))
    assert torch.equal(NM(1, 4).prox(x, 1.0), x)
    torch.testing.assert_close(GroupL2(0.5, "columns").prox(x[0], 1.0), L1(0.5).prox(x[0], 1.0))


def test_convolutions_are_their_matrix() -> None:
    matrix = X.reshape(6, -1)
    for regularizer in (GroupL2(2.0), GroupL2(2.0, "columns"), GroupL0(9.0, "columns"), Nuclear(2.0), Rank(2)):
        torch.testing.assert_close(regularizer.prox(X, 1.0).reshape(6, -1), regularizer.prox(matrix, 1.0))
    one = NM(2, 4).prox(X, 1.0)[:, :, 1, 2]
    assert torch.equal(one, NM(2, 4).prox(X[:, :, 1, 2], 1.0))
