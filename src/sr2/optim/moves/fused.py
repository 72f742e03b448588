"""The proximal step in one pass, for CUDA: x and v are read once, x + s and the kept x written once.

For every R = a |x|_1 + b |x|_0 + c |x|^2 / 2 (`Regularizer.coefficients`), all groups in one launch: a table holds each
tensor's addresses and coefficients, and each program takes one chunk of one tensor. The sums are taken in float64,
chunk by chunk in a fixed order, so that the same input gives the same bits. `ByGroup` is its oracle and its fallback.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...numerics import capturing
from ..parts.rules import Constants, Rounding
from ..state import Outcome, SearchState
from ..theory.stationarity import FORGET
from .base import NEEDS_A_STEP, Model, Proposal

_F64 = torch.float64
CHUNK = 16384
"""Entries of one program."""
BLOCK = 512
"""Entries of one turn of its loop."""
WARPS = 4


@functools.cache
def kernels() -> Any:
    """The Triton kernels, compiled when first used; None where there is no Triton."""
    try:
        from . import kernels as compiled
    except ImportError:
        return None
    return compiled


class FusedMove:
    """What `ByGroup` does, in one kernel. Made once and used for every step, so that its buffers and tables stay put.

    Args:
        capturable: settle on the device, without looking.
    """

    def __init__(self, *, capturable: bool) -> None:
        self.proposals: Sequence[Proposal] = ()
        self._capturable = capturable
        self._layout: tuple[Any, ...] = ()
        self._next_ms: list[Tensor] = []
        self._ratio: FusedRatio | None = None

    @staticmethod
    def fits(proposals: Sequence[Proposal]) -> bool:
        """Whether the kernel knows these groups: float32 on one CUDA device, dense, known coefficients, no metric, and
        no direction but an average."""
        if not proposals or not proposals[0].xs[0].is_cuda or kernels() is None:
            return False
        device = proposals[0].xs[0].device
        return all(
            p.diagonal is None
            and (p.direction is None or p.direction.beta is not None)
            and p.regularizer.coefficients is not None
            and all(
                x.dtype == g.dtype == torch.float32 and x.device == device and _dense(x) and _aligned(x)
                for x, g in zip(p.xs, p.gs, strict=True)
            )
            for p in proposals
        )

    def use(self, proposals: Sequence[Proposal]) -> None:
        """Take this step's groups; tables are made anew only where the tensors have changed."""
        self.proposals = proposals
        direction = proposals[0].direction  # one for all
        self.momentum = 0.0 if direction is None else direction.beta or 0.0
        self._moved = False
        self._xs = [x for p in proposals for x in p.xs]
        # A gradient has its parameter's strides, as autograd promises; one that has not is laid out anew.
        self._gs = [_laid_like(g, x) for p in proposals for x, g in zip(p.xs, p.gs, strict=True)]
        self._states = [state for p in proposals for state in p.states]
        layout = (bool(self.momentum), *((x.data_ptr(), x.numel(), x.stride()) for x in self._xs))
        if layout != self._layout:
            self._lay_out(layout)
        if self.momentum:
            self._find_averages()

    def _find_averages(self) -> None:
        """m_{t-1} from the states, zero at first, laid out as x; and the weights of m_t."""
        for x, state in zip(self._xs, self._states, strict=True):
            if "momentum" not in state:
                if capturing():
                    raise RuntimeError(NEEDS_A_STEP)
                state["momentum"], state["momentum_weight"] = torch.zeros_like(x), 0.0
            elif not _alike(state["momentum"], x):
                state["momentum"] = torch.empty_like(x).copy_(state["momentum"])
        self._ms = [state["momentum"] for state in self._states]
        weights, device = [state["momentum_weight"] for state in self._states], self._xs[0].device
        if any(isinstance(w, Tensor) for w in weights):
            self._old_weights = torch.stack([torch.as_tensor(w, dtype=_F64, device=device) for w in weights])
        else:
            self._old_weights = torch.tensor(weights, dtype=_F64, device="cpu").to(device, non_blocking=True)
        self._new_weights = self.momentum * self._old_weights + (1 - self.momentum)

    def to_trial(self) -> Model:
        device, step = self._xs[0].device, self.proposals[0].steps[0]  # one for all
        step = step if isinstance(step, Tensor) else torch.full((), step, dtype=_F64, device=device)
        rows = (self._xs, self._gs, self._kept, *((self._ms, self._next_ms) if self.momentum else ()))
        pointers = [tuple(t.data_ptr() for t in ts) for ts in rows]
        self._pointers = self._table("pointers", pointers, torch.int64)
        weights = [p.regularizer.coefficients for p in self.proposals for _ in p.xs]
        self._weights = self._table("weights", weights, torch.float64)
        kernels().move[(self._chunks,)](
            self._pointers,
            self._weights,
            self._sizes,
            self._chunk_tensor,
            self._chunk_start,
            step,
            self._partial,
            self._new_weights if self.momentum else self._weights,  # not read without momentum
            1 - self.momentum,
            len(self._xs),
            self._chunks,
            MOMENTUM=bool(self.momentum),
            CHUNK=CHUNK,
            BLOCK=BLOCK,
            num_warps=WARPS,
            enable_fp_fusion=False,  # x - step * v rounds twice, as in the path that is its oracle
        )
        self._moved = True
        self.sums = self._partial.sum(dim=1)
        vs, dR, ss = self.sums[:3].unbind()
        return Model(vs, dR, ss, ss / step)

    def noise(self) -> Tensor | None:
        return self.sums[4] if self.momentum else None

    @property
    def kept(self) -> list[list[Tensor]]:
        kept = iter(self._kept)
        return [[next(kept) for _ in p.xs] for p in self.proposals]

    def put_back(self) -> None:
        if self._moved:  # else what is kept is of another step, or nothing yet
            torch._foreach_copy_(self._xs, self._kept)

    def judge(
        self,
        losses: Sequence[Tensor],
        constants: Constants,
        sigma_min: float,
        rounding: Rounding,
        state: SearchState,
    ) -> Outcome:
        """Algorithm 1's decision on this step in one kernel more, which writes the state too."""
        wanted = (constants, sigma_min, rounding)
        if self._ratio is None or self._ratio.made_for != wanted:
            self._ratio = FusedRatio(*wanted, self.sums.device)
        return self._ratio.judge(losses, self.sums, state)

    def settle(self, outcome: Outcome) -> None:
        if not self._capturable:
            if outcome.sound:
                self.commit(None)
            if not outcome.accepted:
                self.put_back()
            return
        self._copy_if(outcome.accepted, wanted=0, target=0, source=2)
        self.commit(outcome.sound)

    def commit(self, sound: Tensor | None) -> None:
        if not self.momentum:
            return
        if sound is None:  # the two buffers change places
            for state, new in zip(self._states, self._next_ms, strict=True):
                state["momentum"] = new
                state["momentum_weight"] = self.momentum * state["momentum_weight"] + (1 - self.momentum)
            self._next_ms = self._ms
            return
        self._copy_if(sound, wanted=1, target=3, source=4)
        weights = torch.where(sound, self._new_weights, self._old_weights).unbind()
        for state, weight in zip(self._states, weights, strict=True):
            if not isinstance(state["momentum_weight"], Tensor):
                if capturing():
                    raise RuntimeError(NEEDS_A_STEP)
                state["momentum_weight"] = torch.empty_like(weight)
        torch._foreach_copy_([state["momentum_weight"] for state in self._states], weights)

    def _copy_if(self, flag: Tensor, *, wanted: int, target: int, source: int) -> None:
        kernels().copy_if[(self._chunks,)](
            self._pointers,
            self._sizes,
            self._chunk_tensor,
            self._chunk_start,
            flag,
            len(self._xs),
            WANTED=wanted,
            TARGET=target,
            SOURCE=source,
            CHUNK=CHUNK,
            BLOCK=BLOCK,
        )

    def _lay_out(self, layout: tuple[Any, ...]) -> None:
        if capturing():
            raise RuntimeError("these tensors are new to the optimizer: take a step before capturing a CUDA graph")
        self._layout = layout
        self._tables: dict[str, tuple[Any, Tensor]] = {}
        self._hosts: list[Tensor] = []
        device = self._xs[0].device
        self._kept = [torch.empty_like(x) for x in self._xs]
        self._next_ms = [torch.empty_like(x) for x in self._xs] if self.momentum else []
        sizes = [x.numel() for x in self._xs]
        counts = [-(-n // CHUNK) for n in sizes]
        self._chunks = sum(counts)
        numbers = [i for i, count in enumerate(counts) for _ in range(count)]
        starts = [CHUNK * k for count in counts for k in range(count)]
        self._sizes = torch.tensor(sizes, device=device)
        self._chunk_tensor = torch.tensor(numbers, dtype=torch.int32, device=device)
        self._chunk_start = torch.tensor(starts, device=device)
        self._partial = torch.empty(5 if self.momentum else 4, self._chunks, dtype=torch.float64, device=device)

    def _table(self, name: str, rows: Any, dtype: torch.dtype) -> Tensor:
        """Host numbers on the device, without waiting for it."""
        if name in self._tables and self._tables[name][0] == rows:
            return self._tables[name][1]
        host = torch.tensor(rows, dtype=dtype, device="cpu")
        if capturing():
            # Every replay copies it again, so the host side must stay; and outside a replay the copy holds nothing.
            self._hosts.append(host.pin_memory())
            return self._hosts[-1].to(self._xs[0].device, non_blocking=True)
        self._tables[name] = (rows, host.to(self._xs[0].device, non_blocking=True))
        return self._tables[name][1]


class FusedRatio:
    """Algorithm 1's decision in one kernel, for a fused move whose rule declares its constants.

    It judges and writes the state in one launch instead of a hundred; `Ratio.judge` and `SearchState.record` are its
    oracles.

    Args:
        constants: the rule's.
        sigma_min: the least sigma.
        rounding: how well f is known.
    """

    def __init__(self, constants: Constants, sigma_min: float, rounding: Rounding, device: torch.device) -> None:
        self.made_for = (constants, sigma_min, rounding)
        numbers = (*constants, sigma_min, 10 * rounding.eps, rounding.coarse, FORGET)
        self._constants = torch.tensor(numbers, dtype=_F64, device=device)
        self._accepted, self._null, self._sound = (torch.zeros((), dtype=torch.bool, device=device) for _ in range(3))

    def judge(self, losses: Sequence[Tensor], sums: Tensor, state: SearchState) -> Outcome:
        """From the loss, f(x) and f(x + s), and the sums of the move."""
        kernels().decide[(1,)](
            *(loss.to(sums.device) for loss in losses),  # a closure may return a number of the host
            sums,
            self._constants,
            state.sigma,
            *state.counts,
            *state.moments,
            *state.figures,
            self._accepted,
            self._null,
            self._sound,
            enable_fp_fusion=False,
            num_warps=1,
        )
        return Outcome(self._accepted, self._null, self._sound, state.figures.rho, state.sigma, None, {})


def _dense(x: Tensor) -> bool:
    return x.is_contiguous() or x.is_contiguous(memory_format=torch.channels_last)


def _aligned(x: Tensor) -> bool:
    return x.data_ptr() % 16 == 0


def _laid_like(v: Tensor, x: Tensor) -> Tensor:
    """v in x's order in memory. The stride of a dimension of one entry says nothing: 1 x 1 convolutions have two."""
    return v if _alike(v, x) else torch.empty_like(x).copy_(v)


def _alike(v: Tensor, x: Tensor) -> bool:
    same = all(a == b for a, b, size in zip(v.stride(), x.stride(), x.shape, strict=True) if size != 1)
    return same and v.dtype == x.dtype and v.device == x.device and _aligned(v)
