"""ProximalOptimizer: what SR2, ProxGEN and ProxSGD share. Arguments, groups, state, and the last step's figures."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ..regularizers.base import Regularizer, Step, check_compatible, check_regularizer
from .evaluation import NO_SPARSE, parallel
from .fused import FusedTrial
from .groups import ParamGroups, module_groups
from .metrics import Metric, State, as_metric
from .proposal import Proposal
from .proximal_step import Piece, Zero, move_to_trial

Params = nn.Module | Iterable[Tensor] | Iterable[tuple[str, Tensor]] | Iterable[dict[str, Any]]

_ZERO = Zero()


@dataclass(frozen=True)
class StepInfo:
    """What the last step of SR2 saw and did."""

    loss: float
    """f(x_t), the loss at the starting point."""
    trial_loss: float
    """f(x_t + s_t)."""
    rho: float
    """actual / predicted, with rounding slack in both; NaN for a null step."""
    sigma: float
    """As the next step will use it."""
    accepted: bool | None
    """True: x moved. False: refused, x put back. None: a null step, s = 0."""
    predicted: float
    """R(x) - R(x + s) - v's."""
    actual: float
    """f(x) - f(x + s) + R(x) - R(x + s), and with momentum + (g - v)'s."""
    step_norm: float
    """|s_t|, of the step that was tried."""

    @staticmethod
    def of(numbers: Sequence[float], *, accepted: bool, null: bool) -> StepInfo:
        """From loss, trial loss, rho, sigma, predicted, actual and |s|, in this order."""
        loss, trial_loss, rho, sigma, predicted, actual, norm = numbers
        return StepInfo(loss, trial_loss, rho, sigma, None if null else accepted, predicted, actual, norm)

    def as_tensor(self) -> Tensor:
        """The inverse of `of`, with accepted and null as 0 or 1."""
        numbers = (self.loss, self.trial_loss, self.rho, self.sigma, self.predicted, self.actual, self.step_norm)
        flags = (float(self.accepted is True), float(self.accepted is None))
        return torch.tensor([*numbers, *flags], dtype=torch.float64, device="cpu")


class ProximalOptimizer(torch.optim.Optimizer):
    """The base of SR2, ProxGEN and ProxSGD.

    Args:
        params: a module, an iterable of (named) parameters, or group dicts that may each name their own `regularizer`
            (as `param_groups` makes them). With a module, buffers are protected during repeated evaluations.
        regularizer: R of the groups that name none; None is no regularizer.
        defaults: the options that each group may override.
        metric: a diagonal metric, by name ("adam", "adagrad", "rmsprop", "andrei") or as an object, or None.
        penalize: with a module, "weights" (no biases, no norms) or "all" (every parameter, the paper's formula).
        foreach: True works through a separable group in few passes or launches; False tensor by tensor.
        capturable: keep every number that changes between steps on the device, for CUDA graphs.
    """

    _twin: torch.Generator | None = None  # of the CUDA graph that is being captured

    def __init__(
        self,
        params: Params,
        regularizer: Regularizer | None,
        defaults: dict[str, Any],
        *,
        metric: Metric | str | None,
        penalize: str,
        foreach: bool | None,
        capturable: bool,
    ) -> None:
        check_regularizer(regularizer)
        self.capturable = capturable
        self._fused: dict[int, FusedTrial] = {}
        self.metric = as_metric(metric)
        self.foreach = foreach
        self._module: nn.Module | None = None
        if isinstance(params, nn.Module):
            params = module_groups(params, regularizer, penalize)
        if isinstance(params, ParamGroups):
            self._module = params.module
        super().__init__(params, {"regularizer": regularizer, **defaults})

    # ---- groups

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, which may name its own `regularizer`; it must fit this optimizer and its metric."""
        known = ["params", *self.defaults]
        for key in param_group:
            of_scheduler = "lr" in known and str(key).endswith("_lr")
            if key not in (*known, "param_names", "name") and not of_scheduler:
                raise ValueError(f"a group of {type(self).__name__} has no {key!r}: it has {', '.join(known)}")
        param_group = self._named(param_group)
        regularizer = param_group.get("regularizer", self.defaults["regularizer"])
        check_regularizer(regularizer)
        self._check_fits(regularizer)
        super().add_param_group(param_group)
        if "search" in self._own:
            self._own["search"]["entered"] = False  # the new tensors may start where their R is infinite
        for p in self.param_groups[-1]["params"]:
            if p.dtype not in (torch.float32, torch.float64, torch.bfloat16):
                del self.param_groups[-1]
                raise ValueError(
                    f"parameters must be float32, float64 or bfloat16, and one is {p.dtype}: "
                    "keep float32 parameters and compute in lower precision with torch.autocast, "
                    "or view a complex one as real (torch.view_as_real)"
                )

    def _named(self, param_group: dict[str, Any]) -> dict[str, Any]:
        """The group with names, where the others have some: torch wants all or none, and a module's have."""
        params = param_group["params"]
        if isinstance(params, set) or "param_names" in param_group:  # the former is torch's to refuse
            return param_group
        params = [params] if isinstance(params, Tensor) else list(params)
        named = not params or isinstance(params[0], tuple)
        if named or not any("param_names" in group for group in self.param_groups):
            return {**param_group, "params": params}
        known = {p: name for name, p in self._module.named_parameters()} if self._module is not None else {}
        prefix = f"group{len(self.param_groups)}"
        return {**param_group, "params": [(known.get(p, f"{prefix}.{i}"), p) for i, p in enumerate(params)]}

    def _check_fits(self, regularizer: Regularizer | None) -> None:
        if self.metric is not None:
            instead = "use metric=None, or a separable regularizer such as L1, L0, Lp, MCP"
            check_compatible(f"the metric {self.metric!r}", regularizer, separable=instead)

    def _parameters(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"] if p.requires_grad]

    def _all_parameters(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"]]

    def _process_group(self) -> Any:
        """The processes that must agree on decisions: those of a DistributedDataParallel module."""
        return self._parallel.process_group if self._parallel is not None else None

    @cached_property
    def _parallel(self) -> DistributedDataParallel | None:
        return parallel(self._module)

    def _regularizer(self, group: dict[str, Any]) -> Regularizer:
        return group["regularizer"] or _ZERO

    # ---- one step

    def _propose(self, group: dict[str, Any], momentum: float) -> Proposal | None:
        """The tensors of one group that take part in this step, None if there are none.

        A parameter without a gradient is left alone, unless R couples it to the others: then its gradient is zero.
        """
        regularizer = self._regularizer(group)
        trained = [p for p in group["params"] if p.requires_grad]
        if all(p.grad is None for p in trained):
            return None
        xs = trained if not regularizer.separable else [p for p in trained if p.grad is not None]
        gs = [torch.zeros_like(x) if x.grad is None else x.grad for x in xs]
        if any(g.layout != torch.strided for g in gs):
            raise ValueError(NO_SPARSE)
        states = [self.state[x] for x in xs]
        diagonal: list[Tensor] | None = None
        news: list[State] = [{} for _ in xs]
        if self.metric is not None:
            diagonal, news = self.metric.update(xs, gs, states)
        return Proposal(group, regularizer, xs, gs, gs, diagonal, states, news, momentum)

    def _move(self, number: int, proposal: Proposal, step: Step) -> list[Tensor]:
        """x <- prox_{step R / D}(x - step v / D) for group `number`, and its new state; returns what x was."""
        xs, diagonal = proposal.xs, proposal.diagonal
        if self.foreach is None and FusedTrial.fits([proposal]):
            fused = self._fused.setdefault(number, FusedTrial()).use([proposal])
            fused.move(1.0 / step)
            self._commit(fused)
            return fused.kept
        proposal.average()
        steps = [step] * len(xs) if diagonal is None else [step / d for d in diagonal]
        kept = [torch.empty_like(x) for x in xs]
        move_to_trial(Piece(xs, kept, proposal.vs, steps), proposal.regularizer, [], flat=self._flat(xs))
        self._commit(proposal)
        return kept

    def _flat(self, xs: Sequence[Tensor]) -> bool:
        return self.foreach is not False

    def _commit(self, moved: Proposal | FusedTrial) -> None:
        if self.capturable:
            moved.commit_on_device(torch.ones((), dtype=torch.bool, device=self._parameters()[0].device))
        else:
            moved.commit()

    # ---- state

    def _place(self) -> None:
        """With `capturable`, what changes between steps lives on the device: learning rates, weights of averages."""
        for p in self._all_parameters():
            if p in self.state:
                on_device = partial(torch.as_tensor, dtype=torch.float64, device=p.device)
                self.state[p] = _with_weights(self.state[p], on_device if self.capturable else float)
        for group in self.param_groups:
            if "lr" in group:
                lr, device = group["lr"], group["params"][0].device
                group["lr"] = torch.as_tensor(lr, dtype=torch.float64, device=device) if self.capturable else float(lr)

    @property
    def _own(self) -> dict[str, dict[str, Any]]:
        """What belongs to no single parameter. torch saves and loads such entries of `state` as they are."""
        return cast(dict[str, dict[str, Any]], self.state)

    def state_dict(self) -> dict[str, Any]:
        """Plain data only: `torch.load(weights_only=True)` reads it. Regularizers are written as their repr."""
        state = super().state_dict()
        for group in state["param_groups"]:
            group["regularizer"] = repr(group["regularizer"])
        # On load torch casts tensors to their parameter's dtype: the weights of averages, float64, go as numbers.
        state["state"] = {key: _with_weights(entry, float) for key, entry in state["state"].items()}
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved state. The regularizers stay this optimizer's own; a change is warned about."""
        state_dict = {**state_dict, "param_groups": [dict(g) for g in state_dict["param_groups"]]}
        self._check_state(state_dict)
        mine = [group["regularizer"] for group in self.param_groups]
        for number, (saved, regularizer) in enumerate(zip(state_dict["param_groups"], mine, strict=False)):
            if saved.get("regularizer") != repr(regularizer):
                warnings.warn(
                    f"group {number} was saved under {saved.get('regularizer')} and goes on under {regularizer!r}",
                    stacklevel=2,
                )
            saved["regularizer"] = None  # torch would deep-copy it
        own = {name: value for name, value in self._own.items() if isinstance(name, str)}
        super().load_state_dict(state_dict)
        for name, value in own.items():  # copies, as torch shares these; an older state may lack a number
            self._own[name] = {**value, **copy.deepcopy(self._own.get(name, {}))}
        for group, regularizer in zip(self.param_groups, mine, strict=True):
            group["regularizer"] = regularizer
        for p in self._all_parameters():  # a state that is written in place must be nobody else's
            self.state[p] = {k: v.clone() if isinstance(v, Tensor) else v for k, v in self.state[p].items()}
        self._place()

    def _check_state(self, state_dict: dict[str, Any]) -> None:
        """Whether it is one of this class."""
        own = [name for name in self._own if isinstance(name, str) and name not in state_dict["state"]]
        lacking = own + [name for group in state_dict["param_groups"] for name in self.defaults if name not in group]
        if lacking:
            name = type(self).__name__
            raise ValueError(f"this is not the state of {name}: it has no {lacking[0]!r}; load one that {name} saved")

    def __getstate__(self) -> dict[str, Any]:
        # torch keeps only defaults, state and groups; a copy must know its module and options too.
        own = {k: v for k, v in self.__dict__.items() if k in self._carried}
        return {**super().__getstate__(), **own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for p, entry in state["state"].items():
            momentum = entry.get("momentum")
            if momentum is not None and momentum.shape != p.shape:
                raise ValueError(
                    f"the momentum of a parameter of shape {tuple(p.shape)} has shape {tuple(momentum.shape)}: "
                    "load the state of the same network"
                )
        super().__setstate__(state)
        self._fused = {}

    _carried: frozenset[str] = frozenset({"metric", "foreach", "capturable", "_module"})

    # ---- words

    def _options(self) -> str:
        """The options that `repr` shows, as keyword arguments."""
        return ""

    def __repr__(self) -> str:
        lines = [f"{type(self).__name__}({self._options()}"]
        for number, group in enumerate(self.param_groups):
            count = sum(p.numel() for p in group["params"])
            what = group["regularizer"] or "no regularizer"
            lines.append(f"  group {number}: {len(group['params'])} tensors, {count:,} parameters, {what}")
        return "\n".join(lines) + "\n)"


def _with_weights(state: dict[str, Any], convert: Callable[[Any], Any]) -> dict[str, Any]:
    """A parameter's state with the weights of its averages converted."""
    return {name: convert(value) if name.endswith("_weight") else value for name, value in state.items()}
