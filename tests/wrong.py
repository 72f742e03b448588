"""Wrong arguments of every regularizer, as data: each must fail in one sentence. `test_arguments.py` runs over them."""

from __future__ import annotations

from math import inf

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
    Heads,
    KeepZeros,
    L0Ball,
    Lp,
    Nuclear,
    Rank,
    Ridge,
)

from .cases import Wrong, each_entry
from .registry import ONE_OF_EACH

_X = torch.tensor([1.0, 2.0])

WRONG_REGULARIZERS: list[Wrong] = [
    *(
        Wrong(lambda make=make, lam=lam: make(lam), ValueError, r"lam\d? must be a number at least 0 and finite")
        for make in (
            L1,
            L0,
            Nuclear,
            GroupL2,
            GroupL0,
            Ridge,
            lambda lam: Lp(lam, 0.5),
            lambda lam: MCP(lam, 2.0),
            lambda lam: SCAD(lam, 3.0),
            lambda lam: ElasticNet(lam, 1.0),
            lambda lam: ElasticNet(1.0, lam),
        )
        for lam in (-1.0, float("nan"), inf, "1", None, True, 1j)
    ),
    *(Wrong(lambda p=p: Lp(1.0, p), ValueError, "p must be a number above 0 and below 1") for p in (0, 1, -1, 2.0)),
    *(Wrong(lambda g=g: MCP(1.0, g), ValueError, "gamma must be a number above 0") for g in (0, -1, inf)),
    *(Wrong(lambda a=a: SCAD(1.0, a), ValueError, "a must be a number above 2") for a in (2, 1.0, inf)),
    Wrong(lambda: Ridge(1.0, L1), TypeError, r"regularizer must be a Regularizer or None"),
    Wrong(lambda: Box(1.0, 0.0), ValueError, "lo <= hi"),
    Wrong(lambda: Box(float("nan"), 0.0), ValueError, "lo <= hi"),
    Wrong(lambda: Box("0", 1.0), ValueError, "must be numbers"),
    Wrong(lambda: Box(inf, inf), ValueError, "a finite number between"),
    Wrong(lambda: L0Ball(), ValueError, "exactly one of k and density"),
    Wrong(lambda: L0Ball(k=1, density=0.5), ValueError, "exactly one of k and density"),
    *(Wrong(lambda k=k: L0Ball(k=k), ValueError, "k must be an integer of at least 0") for k in (-1, 1.5, 2.0, True)),
    Wrong(lambda: L0Ball(0.05), ValueError, "k is a number of nonzeros, and is 0.05: a share is density=0.05"),
    *(
        Wrong(
            lambda d=d: L0Ball(density=d), ValueError, "density must be the share that stays, .*density=0.05 keeps 5 %"
        )
        for d in (-0.1, 1.1, 5, "1", True, float("nan"))
    ),
    *(Wrong(lambda r=r: Rank(r), ValueError, "r must be an integer of at least 0") for r in (-1, 1.0)),
    *(Wrong(lambda f=f: L0Ball(1, floor=f), ValueError, "floor must be a number") for f in (-0.1, 1.1, "1")),
    Wrong(lambda: L0Ball(1, groups="kernels"), ValueError, "L0Ball: groups must be .* a callable, and is 'kernels'"),
    Wrong(lambda: L0Ball(1, groups=each_entry).at_strength(0.5), TypeError, "share must be a 0-dim tensor"),
    Wrong(lambda: L1(1.0).at_strength(torch.ones(2)), TypeError, "share must be a 0-dim tensor"),
    *(
        Wrong(lambda n=n: Heads(n), ValueError, "Heads: number must be an integer of at least 1")
        for n in (0, 2.0, True)
    ),
    Wrong(lambda: GroupL2(1.0, Heads(3)).prox(_X, 1.0), ValueError, r"2 rows \(of \(2,\)\) are not 3 heads"),
    Wrong(lambda: KeepZeros().prox(_X, 1.0), RuntimeError, r"no zeros to keep yet: call start\(xs\)"),
    Wrong(lambda: KeepZeros().start([_X]).value(_X[:1]), ValueError, r"started on .*\(2,\).*given \[\(1,\)\]"),
    Wrong(lambda: NM(0, 4), ValueError, "n must be an integer of at least 1"),
    Wrong(lambda: NM(1, 4.0), ValueError, "m must be an integer of at least 1"),
    Wrong(lambda: NM(5, 4), ValueError, "n must be at most m, and they are 5 and 4"),
    Wrong(lambda: GroupL2(1.0, "kernels"), ValueError, "'filters', 'rows', 'columns' or a callable, and is 'kernels'"),
    Wrong(lambda: GroupL0(1.0, None), ValueError, "'filters', 'rows', 'columns' or a callable, and is None"),
    Wrong(
        lambda: GroupL2(1.0, lambda x: each_entry(x)[:1]).prox(_X, 1.0),
        ValueError,
        r"integer tensor of x's shape \(2,\)",
    ),
    Wrong(lambda: GroupL0(1.0, lambda x: x).value(_X), ValueError, "integer tensor .* gave torch.float32"),
    Wrong(lambda: GroupL0(1.0, lambda x: x > 0).value(_X), ValueError, "integer tensor .* gave torch.bool"),
    Wrong(lambda: GroupL0(1.0, lambda x: 0).value(_X), ValueError, "integer tensor .* gave 0"),
    *(
        Wrong(lambda s=s: L1(1.0).prox(_X, s), ValueError, "step must be positive and finite")
        for s in (0, -1.0, inf, float("nan"))
    ),
    *(Wrong(lambda s=s: L1(1.0).prox(_X, s), ValueError, "step must be a number, a tensor") for s in (None, True)),
    Wrong(lambda: L1(1.0).prox(_X, torch.tensor([1.0, 0.0])), ValueError, "step must be positive and finite"),
    Wrong(lambda: L1(1.0).prox(_X, torch.ones(3)), ValueError, r"shape \(2,\) needs steps of that shape, not \(3,\)"),
    Wrong(lambda: L1(1.0).prox([_X, _X], [torch.ones(2)]), ValueError, "2 tensors need 2 tensors of steps, and got 1"),
    Wrong(lambda: L1(1.0).prox([_X], [1.0]), ValueError, r"shape \(2,\) needs steps of that shape, not 1.0"),
    *(
        Wrong(lambda r=r: r.prox(_X, torch.ones(2)), ValueError, "its step is one number per tensor, not per entry")
        for r in (c.regularizer for c in ONE_OF_EACH if not c.diagonal)
    ),
    Wrong(lambda: L1(1.0).prox(_X.half(), 1.0), ValueError, "float32, float64 or bfloat16, not torch.float16"),
    Wrong(lambda: L1(1.0).value(torch.arange(3)), ValueError, "float32, float64 or bfloat16, not torch.int64"),
    Wrong(lambda: L1(1.0).value([_X, 1.0]), TypeError, "expected tensors and got a float"),
    Wrong(lambda: L1(1.0).decrease(_X, _X[:1]), ValueError, "tensors of the same shapes"),
]
