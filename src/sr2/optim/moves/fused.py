"""The proximal step in one pass, for CUDA: x and v are read once, x + s and the kept x written once.

For every R = a |x|_1 + b |x|_0 + c |x|^2 / 2 (`Regularizer.coefficients`), all groups in one launch, and in two where
there is a budget of entries (`Regularizer.chooses`), which are chosen in between. A table holds each tensor's addresses
and coefficients, and each program takes one chunk of one tensor. The sums are taken in float64, chunk by chunk in a
fixed order, so that the same input gives the same bits. `ByGroup` is its oracle and its fallback.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...numerics import Rounding, capturing, take_if, total
from ...regularizers.base import as_tensor
from ..parts.averaging import move_toward
from ..parts.rules import Rule
from ..parts.testing import FAR, LARGEST
from ..state import Outcome, SearchState
from ..theory.stationarity import FORGET
from .base import Proposal
from .chosen import Budgets, known
from .moments import Moments, aligned, alike, dense, laid_like
from .pieces import Model

_F64 = torch.float64
CHUNK = 4096
"""Entries of one program: few, so that there are several for each place of a device, and the last ones end soon."""
BLOCK = 512
"""Entries of one turn of its loop."""
WARPS = 4
MOVE, SCORE, MOVE_CHOSEN = 0, 1, 2
"""What the kernel is to do: under a budget it is asked twice."""


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
        self._judge: FusedJudge | None = None
        self._budgets: Budgets | None = None

    @staticmethod
    def fits(proposals: Sequence[Proposal]) -> bool:
        """Whether the kernel knows these groups: float32 on one CUDA device, dense, known coefficients, and no metric
        or direction but Adam's."""
        if not proposals or not proposals[0].xs[0].is_cuda or kernels() is None:
            return False
        device = proposals[0].xs[0].device
        return all(
            (p.metric is None or p.metric.adam is not None)
            and (p.direction is None or p.direction.beta is not None)
            and known(p.regularizer) is not None
            and all(
                x.dtype == g.dtype == torch.float32 and x.device == device and dense(x) and aligned(x)
                for x, g in zip(p.xs, p.gs, strict=True)
            )
            for p in proposals
        )

    def use(self, proposals: Sequence[Proposal]) -> bool:
        """Take this step's groups; tables are made anew only where the tensors have changed."""
        self.proposals = proposals
        direction, metric = proposals[0].direction, proposals[0].metric  # one for all
        self.momentum = 0.0 if direction is None else direction.beta or 0.0
        self.adam = None if metric is None else metric.adam
        self.decays = any(p.decays_any for p in proposals)
        self._moved = False
        self._xs = [x for p in proposals for x in p.xs]
        # A gradient has its parameter's strides, as autograd promises; one that has not is laid out anew.
        self._gs = [laid_like(g, x) for p in proposals for x, g in zip(p.xs, p.gs, strict=True)]
        self._states = [state for p in proposals for state in p.states]
        layout = (self.momentum, self.adam, *((x.data_ptr(), x.numel(), x.stride()) for x in self._xs))
        if layout != self._layout:
            self._lay_out(layout)
        self._moments.find(self._xs, self._states)
        return True

    def to_trial(self, *, tested: bool = True, of_batch: bool = True) -> Model:
        self._keeps = tested or not capturing()  # nothing interrupts a graph
        device, step = self._xs[0].device, self.proposals[0].step  # one for all
        step = step if isinstance(step, Tensor) else torch.full((), step, dtype=_F64, device=device)
        rows = [self._xs, self._kept, *self._moments.rows, self._gs]
        pointers = [tuple(t.data_ptr() for t in ts) for ts in rows]
        self._pointers = self._table("pointers", pointers, torch.int64)
        weights = [known(p.regularizer) for p in self.proposals for _ in p.xs]
        self._weights = self._table("weights", weights, torch.float64)
        budgets = Budgets.of(self.proposals, self._xs, self._budgets)
        if budgets is not None:
            budgets.nonzeros.zero_()
            self._run(step, budgets, SCORE)
            budgets.choose()
        self._budgets = budgets
        self._run(step, budgets, MOVE if budgets is None else MOVE_CHOSEN)
        self._moved = self._keeps
        self.sums = self._partial.sum(dim=1)
        vs, dR, ss, _, _, sBs = self.sums.unbind()
        if budgets is not None:  # R(x) is infinite where a budget has shrunk, and R's decrease as `Reach` has it
            forced = vs + sBs if budgets.shrink else torch.full_like(dR, math.inf)
            torch.where(budgets.exceeded(), forced, dR, out=dR)
        return Model(vs, dR, ss, sBs, self._noise(of_batch=of_batch) if tested else None)

    def _run(self, step: Tensor, budgets: Budgets | None, kind: int) -> None:
        """One launch over all tensors."""
        of_budgets = (self._sizes,) * 6 if budgets is None else budgets.tables  # the former are not read
        kernels().move[(self._chunks,)](
            self._pointers,
            self._weights,
            self._sizes,
            self._chunk_tensor,
            self._chunk_start,
            step,
            self._partial,
            self._moments.new_weights if self._moments.rows else self._weights,  # the latter is not read
            self._decay_weights(),
            1 - self.momentum,
            1 - self.adam[0] if self.adam else 0.0,
            self.adam[1] if self.adam else 0.0,
            *of_budgets,
            len(self._xs),
            self._chunks,
            MOMENTUM=bool(self.momentum),
            METRIC=self.adam is not None,
            DECAY=self.decays,
            PASS=kind,
            KEEPS=self._keeps,
            RETURNS=self.proposals[0].returns,
            CHUNK=CHUNK,
            BLOCK=BLOCK,
            num_warps=WARPS,
            enable_fp_fusion=False,  # x - step * v rounds twice, as in the path that is its oracle
        )

    def _decay_weights(self) -> Tensor:
        """w of every tensor; where there is none, the kernel does not read it."""
        if not self.decays:
            return self._weights
        owner = [i if decays else -1 for i, p in enumerate(self.proposals) for decays in p.decaying]
        if not any(isinstance(p.decay, Tensor) for p in self.proposals):
            return self._table("decays", [0.0 if i < 0 else self.proposals[i].decay for i in owner], torch.float64)
        of_groups = [as_tensor(p.decay, p.xs[0]) for p in self.proposals]
        return torch.stack([*of_groups, of_groups[0].new_zeros(())])[self._table("owner", owner, torch.int64)]

    def _noise(self, *, of_batch: bool) -> Tensor | None:
        if not self.decays and not (of_batch and self.momentum):
            return None
        if of_batch or not self.momentum:
            return self.sums[4]
        vs = self._moments.corrected("momentum")  # what the kernel's sum has of them is taken out of it again
        parts = zip(self._gs, vs, self._xs, self._kept, strict=True)
        return self.sums[4] - total([(g - v) * (x - old) for g, v, x, old in parts])

    @property
    def kept(self) -> list[list[Tensor]]:
        kept = iter(self._kept)
        return [[next(kept) for _ in p.xs] for p in self.proposals]

    def put_back(self) -> None:
        if self._moved:  # else what is kept is of another step, or nothing yet
            torch._foreach_copy_(self._xs, self._kept)
            self._moments.put_back()

    def judge(
        self,
        losses: Sequence[Tensor],
        rule: Rule,
        sigma_min: float,
        rounding: Rounding,
        state: SearchState,
        *,
        tested: bool,
        of_batch: bool,
    ) -> Outcome:
        """The rule's decision on this step in one kernel more, which writes the state too."""
        wanted = (rule, sigma_min, rounding, of_batch)
        if self._judge is None or self._judge.made_for != wanted:
            self._judge = FusedJudge(*wanted, self.sums.device)
        return self._judge.judge(losses, self.sums, state, tested=tested)

    def settle(self, outcome: Outcome) -> None:
        if self._capturable:
            self._put_back_unless(outcome.accepted if self._keeps else None, outcome.learns)
            return
        if not outcome.accepted:
            torch._foreach_copy_(self._xs, self._kept)
        if outcome.learns:
            self._moments.take(self._states)
        else:
            self._moments.put_back()

    def commit(self, sound: Tensor | None) -> None:
        if sound is None:
            self._moments.take(self._states)
        else:
            self._put_back_unless(None, sound)

    def _put_back_unless(self, accepted: Tensor | None, learns: Tensor) -> None:
        """x where the step is not accepted, unless None is said of it, and the averages where nothing is learnt."""
        pairs = (1 if accepted is None else 0, 1 + len(self._moments.rows) // 2)
        if range(*pairs):
            self._copy_if(learns if accepted is None else accepted, learns, self._pointers, wanted=0, pairs=pairs)
        self._moments.take_if(learns)

    def toward(self, averages: Sequence[Tensor], xs: Sequence[Tensor], weight: Tensor) -> None:
        if not self._knows(xs, averages):
            move_toward(averages, xs, weight, looking=not self._capturable)
            return
        pointers = self._pairs("averages", averages)
        work = (pointers, self._sizes, self._chunk_tensor, self._chunk_start, weight, len(xs))
        kernels().toward[(self._chunks,)](*work, CHUNK=CHUNK, BLOCK=BLOCK, enable_fp_fusion=False)

    def take_if(self, flag: Tensor, xs: Sequence[Tensor], points: Sequence[Tensor]) -> None:
        if not self._knows(xs, points):
            take_if(flag, xs, points, looking=not self._capturable)
            return
        self._copy_if(flag, flag, self._pairs("points", points), wanted=1, pairs=(0, 1))

    def _knows(self, xs: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
        """Whether these are the tensors of this move, with others that lie as they do."""
        same = len(xs) == len(self._xs) and all(x is mine for x, mine in zip(xs, self._xs, strict=True))
        return self._capturable and same and all(alike(t, x) for t, x in zip(others, xs, strict=True))

    def _pairs(self, name: str, others: Sequence[Tensor]) -> Tensor:
        return self._table(name, [tuple(t.data_ptr() for t in ts) for ts in (self._xs, others)], torch.int64)

    def _copy_if(self, first: Tensor, others: Tensor, pointers: Tensor, *, wanted: int, pairs: tuple[int, int]) -> None:
        kernels().copy_if[(self._chunks,)](
            pointers,
            self._sizes,
            self._chunk_tensor,
            self._chunk_start,
            first,
            others,
            len(self._xs),
            WANTED=wanted,
            FIRST=pairs[0],
            END=pairs[1],
            CHUNK=CHUNK,
            BLOCK=BLOCK,
            enable_fp_fusion=False,
        )

    def _lay_out(self, layout: tuple[Any, ...]) -> None:
        if capturing():
            raise RuntimeError("these tensors are new to the optimizer: take a step before capturing a CUDA graph")
        self._layout, self._budgets = layout, None
        self._tables: dict[str, tuple[Any, Tensor]] = {}
        self._hosts: list[Tensor] = []
        device = self._xs[0].device
        self._kept = [torch.empty_like(x) for x in self._xs]
        given = (("momentum", self.momentum), ("square", self.adam[0] if self.adam else 0.0))
        self._moments = Moments({name: beta for name, beta in given if beta}, self._xs, capturable=self._capturable)
        sizes = [x.numel() for x in self._xs]
        counts = [-(-n // CHUNK) for n in sizes]
        self._chunks = sum(counts)
        numbers = [i for i, count in enumerate(counts) for _ in range(count)]
        starts = [CHUNK * k for count in counts for k in range(count)]
        self._sizes = torch.tensor(sizes, device=device)
        self._chunk_tensor = torch.tensor(numbers, dtype=torch.int32, device=device)
        self._chunk_start = torch.tensor(starts, device=device)
        self._partial = torch.empty(6, self._chunks, dtype=torch.float64, device=device)

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


class FusedJudge:
    """A rule's decision in one kernel, for a fused move whose rule declares its constants.

    It judges and writes the state in one launch instead of a hundred; `Rule.judge` and `SearchState.record` are its
    oracles.

    Args:
        rule: `Ratio` or `Tolerant`.
        sigma_min: the least sigma.
        rounding: how well f is known.
        of_batch: whether f is the batch's loss, and not an objective, which has no noise.
    """

    def __init__(self, rule: Rule, sigma_min: float, rounding: Rounding, of_batch: bool, device: torch.device) -> None:
        self.made_for = (rule, sigma_min, rounding, of_batch)
        assert rule.constants is not None
        unasked = {} if of_batch else dict.fromkeys(("agrees", "doubts", "alone", "signal", "noise"), math.inf)
        constants = rule.constants._replace(**unasked)
        numbers = (*constants, sigma_min, 10 * rounding.eps, rounding.coarse, FORGET, float(rule.forgets), FAR)
        self._constants = torch.tensor(numbers, dtype=_F64, device=device)
        self._flags = [torch.zeros((), dtype=torch.bool, device=device) for _ in range(5)]
        self._steps = torch.zeros((), dtype=_F64, device=device)

    def judge(self, losses: Sequence[Tensor], sums: Tensor, state: SearchState, *, tested: bool = True) -> Outcome:
        """From the loss, f(x) and f(x + s), and the sums of the move."""
        largest = state.memory.get(LARGEST)
        kernels().decide[(1,)](
            *(loss.to(sums.device) for loss in losses),  # a closure may return a number of the host
            sums,
            self._constants,
            state.sigma,
            *state.counts,
            *state.moments,
            *state.figures,
            *self._flags,
            self._steps,
            state.sigma if largest is None else largest,  # which is neither read nor written where it does not hold
            int(largest is not None),
            int(tested),
            enable_fp_fusion=False,
            num_warps=1,
        )
        accepted, null, sound, learns, failed = self._flags
        rho, sigma, steps = state.figures.rho, state.sigma, self._steps
        return Outcome(accepted, null, sound, learns, rho, sigma, None, {}, tested, failed, steps)
