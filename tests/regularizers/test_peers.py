"""The same numbers as scikit-learn, skglm and pyproximal, where they have the function and have it right."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from sr2.regularizers import L0, L1, MCP, SCAD, Box, ElasticNet, GroupL2, L0Ball, Lp, Nuclear, Regularizer

linear_model = pytest.importorskip("sklearn.linear_model")
pyproximal = pytest.importorskip("pyproximal")
skglm = pytest.importorskip("skglm.utils.prox_funcs")

Array = np.ndarray
X: Array = np.random.default_rng(0).normal(size=(6, 4)) * 2


def entrywise(function: Callable[..., float], *args: float) -> Callable[[Array], Array]:
    """skglm's functions of one number, as Python: compiling them takes longer than all tests."""
    return np.vectorize(lambda x: getattr(function, "py_func", function)(x, *args), otypes=[float])


def rows(function: Callable[..., Array], *args: float) -> Callable[[Array], Array]:
    return lambda x: np.stack([function.py_func(row, *args) for row in x])  # type: ignore[attr-defined]


def flat(operator: object, step: float) -> Callable[[Array], Array]:
    return lambda x: operator.prox(x.ravel(), step).reshape(x.shape)  # type: ignore[attr-defined]


PEERS: list[tuple[str, Regularizer, float, Callable[[Array], Array]]] = [
    ("skglm ST", L1(0.5), 0.8, entrywise(skglm.ST, 0.4)),
    ("skglm prox_05", Lp(0.5, 0.5), 0.8, entrywise(skglm.prox_05, 0.4)),
    ("skglm prox_2_3", Lp(0.5, 2 / 3), 0.8, entrywise(skglm.prox_2_3, 0.4)),
    ("skglm prox_MCP", MCP(0.5, 3.0), 0.8, entrywise(skglm.prox_MCP, 0.8, 0.5, 3.0)),
    ("skglm prox_SCAD", SCAD(0.5, 3.7), 0.8, entrywise(skglm.prox_SCAD, 0.8, 0.5, 3.7)),
    ("skglm prox_SCAD, long step", SCAD(0.5, 3.7), 8.0, entrywise(skglm.prox_SCAD, 8.0, 0.5, 3.7)),
    ("skglm BST", GroupL2(1.5, "rows"), 0.8, rows(skglm.BST, 1.2)),
    ("skglm box_proj", Box(-1.0, 0.5), 0.8, entrywise(skglm.box_proj, -1.0, 0.5)),
    ("pyproximal L1", L1(0.5), 0.8, flat(pyproximal.L1(0.5), 0.8)),
    ("pyproximal L0, at our threshold", L0(0.5), 0.8, flat(pyproximal.L0(1.0), 0.8**0.5)),  # see the last test
    ("pyproximal L0Ball", L0Ball(k=7), 0.8, flat(pyproximal.L0Ball(7), 0.8)),
    ("pyproximal Box", Box(-1.0, 0.5), 0.8, flat(pyproximal.Box(-1.0, 0.5), 0.8)),
    ("pyproximal SCAD", SCAD(0.5, 3.7), 0.8, flat(pyproximal.SCAD(0.5, 3.7), 0.8)),
    ("pyproximal L21", GroupL2(1.5, "columns"), 0.8, flat(pyproximal.L21(6, 1.5), 0.8)),
    ("pyproximal Nuclear", Nuclear(1.5), 0.8, flat(pyproximal.Nuclear((6, 4), 1.5), 0.8)),
]


@pytest.mark.parametrize(("name", "regularizer", "step", "theirs"), PEERS, ids=[p[0] for p in PEERS])
def test_same_prox(name: str, regularizer: Regularizer, step: float, theirs: Callable[[Array], Array]) -> None:
    for scale in (0.1, 1.0, 5.0):
        ours = regularizer.prox(torch.from_numpy(scale * X), step).numpy()
        np.testing.assert_allclose(ours, theirs(scale * X), rtol=1e-9, atol=1e-9)


VALUES: list[tuple[str, Regularizer, Callable[[Array], float]]] = [
    ("skglm MCP", MCP(0.5, 3.0), lambda x: skglm.value_MCP.py_func(x.ravel(), 0.5, 3.0)),
    ("skglm SCAD", SCAD(0.5, 3.7), lambda x: skglm.value_SCAD.py_func(x.ravel(), 0.5, 3.7)),
    ("pyproximal L1", L1(0.5), lambda x: pyproximal.L1(0.5)(x.ravel())),
    ("pyproximal SCAD", SCAD(0.5, 3.7), lambda x: pyproximal.SCAD(0.5, 3.7)(x.ravel())),
    ("pyproximal L21", GroupL2(1.5, "columns"), lambda x: pyproximal.L21(6, 1.5)(x.ravel())),
    ("pyproximal Nuclear", Nuclear(1.5), lambda x: pyproximal.Nuclear((6, 4), 1.5)(x.ravel())),
]


@pytest.mark.parametrize(("name", "regularizer", "theirs"), VALUES, ids=[v[0] for v in VALUES])
def test_same_value(name: str, regularizer: Regularizer, theirs: Callable[[Array], float]) -> None:
    for scale in (0.1, 1.0, 5.0):
        ours = float(regularizer.value(torch.from_numpy(scale * X)))
        np.testing.assert_allclose(ours, theirs(scale * X), rtol=1e-12)


def test_scikit_learn_on_the_identity() -> None:
    """With the design I of n rows its objective is R(w) + |y - w|^2 / (2 n): the prox with step n."""
    n, y = X.size, X.ravel()
    tight = {"fit_intercept": False, "tol": 1e-12}
    lasso = linear_model.Lasso(0.03, **tight).fit(np.eye(n), y).coef_
    np.testing.assert_allclose(L1(0.03).prox(torch.from_numpy(y), n).numpy(), lasso, atol=1e-10)
    net = linear_model.ElasticNet(0.05, l1_ratio=0.4, **tight).fit(np.eye(n), y).coef_
    np.testing.assert_allclose(ElasticNet(0.02, 0.03).prox(torch.from_numpy(y), n).numpy(), net, atol=1e-10)
    tasks = linear_model.MultiTaskLasso(0.3, **tight).fit(np.eye(6), X).coef_.T
    np.testing.assert_allclose(GroupL2(0.3, "rows").prox(torch.from_numpy(X), 6).numpy(), tasks, atol=1e-10)


def test_where_skglm_and_pyproximal_are_not_minimizers_and_we_are() -> None:
    """skglm's MCP and pyproximal's SCAD are the formulas for a step below gamma and a - 1, whatever the step;
    pyproximal's L0 thresholds at lam step instead of its root sqrt(2 lam step)."""

    def objective(regularizer: Regularizer, z: float, x: float, step: float) -> float:
        return float(regularizer.value(torch.tensor(z, dtype=torch.float64))) + (z - x) ** 2 / (2 * step)

    mcp, scad, step = MCP(1.0, 2.0), SCAD(1.0, 3.0), 8.0
    x, theirs = 5.0, skglm.prox_MCP.py_func(5.0, step, 1.0, 2.0)
    assert objective(mcp, float(mcp.prox(torch.tensor(x), step)), x, step) < objective(mcp, theirs, x, step) - 0.5
    x, theirs = 7.0, pyproximal.SCAD(1.0, 3.0).prox(np.array([7.0]), step)[0]
    assert objective(scad, float(scad.prox(torch.tensor(x), step)), x, step) < objective(scad, theirs, x, step) - 0.5
    l0, x, step = L0(0.5), 0.6, 0.8
    theirs = pyproximal.L0(0.5).prox(np.array([x]), step)[0]
    assert objective(l0, float(l0.prox(torch.tensor(x), step)), x, step) < objective(l0, theirs, x, step) - 0.2
