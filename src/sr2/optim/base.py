"""ProximalOptimizer: what SR2, ProxGEN and ProxSGD share. Arguments, groups, and what is saved."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ..regularizers.base import Regularizer, check_regularizer
from ..telling import tell
from .groups import ParamGroups, Trained, check_dtypes, module_groups, named_as_others, some
from .moves.base import Move, Proposal
from .moves.choose import choose
from .notices import say_frozen, say_parametrized
from .parts.directions import Direction
from .parts.metrics import Metric, as_metric
from .processes import Processes, check_not_flat
from .saving import (
    AT_ONE_X,
    SHAPED,
    first_entry,
    fits,
    from_line,
    in_its_dtype,
    loaded_entry,
    saved_entry,
    to_line,
    with_weights,
)
from .shards import bound, check_parts

Params = nn.Module | Iterable[Tensor] | Iterable[tuple[str, Tensor]] | Iterable[dict[str, Any]]


class Remembered(Protocol):
    """What belongs to no single parameter, and is saved under a name of its own."""

    def state_dict(self) -> dict[str, Any]:
        """Plain data."""

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Go on from there."""


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
        compile: have torch.compile make one pass of each separable group.
    """

    _twin: torch.Generator | None = None  # of the CUDA graph that is being captured
    _carried = frozenset({"_module", "_search", "_given", "_count", "_decay"})  # by a copy, beside public options

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
        compile: bool = False,  # noqa: A002 - torch's own word
    ) -> None:
        check_regularizer(regularizer)
        for option, value in {"foreach": foreach, "capturable": capturable, "compile": compile}.items():
            if not isinstance(value, bool) and (value is not None or option != "foreach"):
                words = "True, False or None" if option == "foreach" else "True or False"
                raise TypeError(f"{type(self).__name__}: {option} must be {words}, and is {value!r}")
        self.capturable, self.compile = capturable, compile
        self.metric, self.foreach = as_metric(metric), foreach
        self._module: nn.Module | None = None
        if isinstance(params, nn.Module):
            params = module_groups(params, regularizer, penalize)
        elif isinstance(params, Mapping) or not isinstance(params, Iterable):
            name, kind = type(self).__name__, type(params).__name__
            raise TypeError(f"{name}: the first argument is the module, and is a {kind}: give {name}(model, R)")
        elif regularizer is not None and isinstance(params, ParamGroups) and all("regularizer" in g for g in params):
            tell(
                f"{type(self).__name__}: {regularizer!r} reaches no parameter, since these groups name their own: "
                "leave it out, or name it in a rule of param_groups"
            )
        if isinstance(params, ParamGroups):
            self._module = params.module
        super().__init__(params, {"regularizer": regularizer, **defaults})
        if not self._all_parameters():
            raise ValueError(f"{type(self).__name__}: no group has a parameter: give a module that has some")
        say_parametrized(self._module, self.param_groups)
        self._forget()

    def _forget(self) -> None:
        """What is not state: memory that can be made anew."""
        options = {"foreach": self.foreach, "compile": self.compile, "capturable": self.capturable}
        self._moves = Moves(partial(choose, **options))  # type: ignore[arg-type]
        self._bound: Trained | None = None
        self._in_force: list[Regularizer | None] = []

    # ---- groups

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, which may name its own `regularizer`; it must fit this optimizer and its metric."""
        known = ["params", *self.defaults]
        for key in param_group:
            of_scheduler = "lr" in known and str(key).endswith("_lr")
            # A group that another optimizer has made has its `lr` too.
            of_optimizer = "param_names" in param_group and str(key).endswith("lr")
            if key not in (*known, "param_names", "name") and not (of_scheduler or of_optimizer):
                raise ValueError(f"a group of {type(self).__name__} has no {key!r}: it has {', '.join(known)}")
        param_group = named_as_others(param_group, self.param_groups, self._module)
        regularizer = param_group.get("regularizer", self.defaults["regularizer"])
        check_regularizer(regularizer)
        self._check_fits(regularizer)
        super().add_param_group(param_group)
        self._bound = None
        self.__dict__.pop("_processes", None)
        try:
            check_dtypes(self.param_groups[-1]["params"])
        except ValueError:
            del self.param_groups[-1]
            raise
        for p in self.param_groups[-1]["params"]:
            self.state[p] = {}  # torch.distributed.checkpoint would step an optimizer that has no state

    def _check_fits(self, regularizer: Regularizer | None) -> None:
        """Raise where this optimizer cannot have that regularizer."""

    def _parameters(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"] if p.requires_grad]

    def _penalized(self, *, in_force: bool = False) -> list[tuple[Regularizer | None, list[Tensor]]]:
        """Each group's regularizer, its own or the one in force, and the tensors that are trained."""
        mine = self._in_force if in_force else [g["regularizer"] for g in self.param_groups]
        trained = ([p for p in g["params"] if p.requires_grad] for g in self.param_groups)
        return list(zip(mine, trained, strict=True))

    def _all_parameters(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"]]

    @cached_property
    def _processes(self) -> Processes:
        """Those that must agree on decisions."""
        return Processes.of(self._module, self._all_parameters())

    def _direction_of(self, group: dict[str, Any]) -> Direction | None:
        """What makes v of the gradients of this group."""
        return getattr(self, "direction", None)

    def _bind(self) -> None:
        """Show every regularizer its tensors before the first step: `KeepZeros` takes its zeros from them."""
        self.__dict__.pop("_processes", None)  # a trainer may have exchanged the tensors since they were given
        check_not_flat(type(self).__name__, self._module, self._all_parameters())
        check_parts(self, self._processes)
        check_dtypes(self._all_parameters())  # one may have been unfrozen, or `model.half()` called
        for p in self._all_parameters():
            in_its_dtype(p, self.state[p])
        for group in self.param_groups:
            check_regularizer(group["regularizer"])  # a user may have written another one there
            self._check_fits(group["regularizer"])
            if group["regularizer"] is not None:
                trained = [p for p in group["params"] if p.requires_grad]
                group["regularizer"] = bound(group["regularizer"], trained, self._processes)
        say_frozen(self.param_groups, self._bound or [])
        self._dtypes = {p.dtype for p in self._all_parameters()}
        self._in_force = [self._strengthened(*pair) for pair in self._penalized()]
        self._bound = self._trained()

    def _strengthened(self, regularizer: Regularizer | None, params: Sequence[Tensor]) -> Regularizer | None:
        """The R that steps are taken under: on its way to the group's own, while that is reached."""
        return regularizer

    def _trained(self) -> Trained:
        """Of each group its regularizer, and which of its tensors are trained, of which dtype."""
        return [(id(g["regularizer"]), [(p.requires_grad, p.dtype) for p in g["params"]]) for g in self.param_groups]

    def _take(self, number: int, proposal: Proposal) -> Sequence[Sequence[Tensor]]:
        """x <- prox_{step R}(x - step v) for group `number`, and its new state; returns what x was."""
        move = self._moves([proposal], number)
        move.to_trial()
        move.commit(torch.ones((), dtype=torch.bool, device=proposal.xs[0].device) if self.capturable else None)
        return move.kept

    # ---- state

    def _remembered(self) -> dict[str, Remembered]:
        """What belongs to no single parameter, by the name under which it is saved."""
        return {}

    def _place(self) -> None:
        """With `capturable`, what changes between steps lives on the device: learning rates, weights of averages."""
        self._forget()
        for p in self._all_parameters():
            if p in self.state:
                on_device = partial(torch.as_tensor, dtype=torch.float64, device=p.device)
                self.state[p] = with_weights(self.state[p], on_device if self.capturable else float)
        for group in self.param_groups:
            if "lr" in group and group["params"]:
                lr, device = group["lr"], group["params"][0].device
                group["lr"] = torch.as_tensor(lr, dtype=torch.float64, device=device) if self.capturable else float(lr)

    def state_dict(self) -> dict[str, Any]:
        """Plain data only: `torch.load(weights_only=True)` reads it. Regularizers are written as their repr."""
        parameters = self._all_parameters()
        for p in set(self.state) - set(parameters):  # a trainer has exchanged the tensors
            del self.state[p]
        state = super().state_dict()
        for group in state["param_groups"]:
            numbers = {"lr": float(group["lr"])} if "lr" in group else {}
            group.update(numbers, regularizer=repr(group["regularizer"]))
        state["state"] = {key: self._saved(parameters[key], entry) for key, entry in state["state"].items()}
        for name, remembered in self._remembered().items():
            state["param_groups"][0][name] = to_line(remembered.state_dict())
        return state

    def _saved(self, p: Tensor, entry: dict[str, Any]) -> dict[str, Any]:
        if entry.keys() - set(AT_ONE_X) or not p.requires_grad:
            return saved_entry(p, entry, begun=True)
        group = next(g for g in self.param_groups if any(p is q for q in g["params"]))
        points = (("average", "averaging"), ("passed", "testing"))  # of SR2, each in the state of a parameter
        copies = [name for name, part in points if getattr(self, part, None) is not None]
        first = first_entry(p, self.metric, self._direction_of(group), copies)
        return saved_entry(p, first | entry, begun=False)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved state. The regularizers stay this optimizer's own; a change is warned about."""
        read: list[dict[str, Any]] = []
        mine = [group["regularizer"] for group in self.param_groups]

        def checked(_: object, given: dict[str, Any]) -> dict[str, Any]:
            read.append(self._checked(given))
            return read[0]

        def finished(_: object) -> None:
            for name, remembered in self._remembered().items():
                remembered.load_state_dict(from_line(self.param_groups[0].pop(name)))
            for group, regularizer in zip(self.param_groups, mine, strict=True):
                group["regularizer"] = regularizer
            numbers = [number for group in read[0]["param_groups"] for number in group["params"]]
            for number, p in zip(numbers, self._all_parameters(), strict=True):
                self.state[p] = loaded_entry(p, self.state[p], read[0]["state"].get(number, {}))
            self._place()

        # Behind the pre-hooks of a user, as torch describes them for parameters in another order: they give another
        # state. Before the post-hooks, which may read all of it.
        last = self.register_load_state_dict_pre_hook(checked)
        first = self.register_load_state_dict_post_hook(finished, prepend=True)
        try:
            super().load_state_dict(state_dict)
        finally:
            last.remove()
            first.remove()

    def _checked(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """The state as torch is to load it; what is none of this class is an error."""
        if "param_groups" not in state_dict or "state" not in state_dict:
            raise ValueError(
                f"this is not the state of an optimizer, since its keys are {some(list(state_dict))}: load what "
                "optimizer.state_dict() gave, as saved['optimizer']"
            )
        groups = [dict(g) for g in state_dict["param_groups"]]
        self._check_state(groups)
        for number, (saved, group) in enumerate(zip(groups, self.param_groups, strict=False)):
            if saved.get("regularizer") != repr(regularizer := group["regularizer"]):
                tell(f"group {number} was saved under {saved.get('regularizer')} and goes on under {regularizer!r}")
            saved["regularizer"] = None  # torch would deep-copy it
        return {**state_dict, "param_groups": groups}

    def _check_state(self, groups: list[dict[str, Any]]) -> None:
        """Whether it is one of this class."""
        lacking = [name for name in self._remembered() if not groups or name not in groups[0]]
        lacking += [name for group in groups for name in self.defaults if name not in group]
        if lacking:
            name = type(self).__name__
            raise ValueError(f"this is not the state of {name}: it has no {lacking[0]!r}; load one that {name} saved")

    def __getstate__(self) -> dict[str, Any]:
        # torch keeps only defaults, state and groups; a copy must know its module and options too.
        own = {k: v for k, v in self.__dict__.items() if not k.startswith("_") or k in self._carried}
        return {**own, **super().__getstate__()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for p, entry in state["state"].items():
            for name in sorted(SHAPED & entry.keys()):
                if not fits(p, value := entry[name]):
                    raise ValueError(
                        f"the {name} of a parameter of shape {tuple(p.shape)} has shape {tuple(value.shape)}: "
                        "load the state of the same network"
                    )
        super().__setstate__(state)
        self.defaults.pop("differentiable", None)  # torch adds its own option, which these optimizers do not have
        self._forget()

    # ---- words

    def _options(self) -> str:
        """The options that `repr` shows, as keyword arguments."""
        return ""

    def _options_of(self, group: dict[str, Any]) -> str:
        """Those of a group."""
        return ""

    def __repr__(self) -> str:
        lines = [f"{type(self).__name__}({self._options()}"]
        for number, group in enumerate(self.param_groups):
            count = sum(p.numel() for p in group["params"])
            what = group["regularizer"] or "no regularizer"
            tensors = "1 tensor" if len(group["params"]) == 1 else f"{len(group['params'])} tensors"
            entries = "1 parameter" if count == 1 else f"{count:,} parameters"
            lines.append(f"  group {number}: {tensors}, {entries}, {what}{self._options_of(group)}")
        return "\n".join(lines) + "\n)"


class Moves:
    """The moves of an optimizer, one for each set of groups that step together; chosen anew where tensors change.

    Args:
        choose: makes a move for these proposals, keeping x in these buffers.
    """

    def __init__(self, choose: Callable[[Sequence[Proposal], dict[Tensor, Tensor]], Move]) -> None:
        self._choose = choose
        self._made: dict[int, tuple[Any, Move]] = {}
        self._buffers: dict[Tensor, Tensor] = {}

    def __call__(self, proposals: Sequence[Proposal], number: int = 0) -> Move:
        """The move of set `number`, for this step's tensors."""
        layout = [(id(p.regularizer), [_layout(x, g) for x, g in zip(p.xs, p.gs, strict=True)]) for p in proposals]
        known, move = self._made.get(number, (None, None))
        if move is None or known != layout or not move.use(proposals):
            move = self._choose(proposals, self._buffers)
            self._made[number] = (layout, move)
            move.use(proposals)
        return move


def _layout(x: Tensor, g: Tensor) -> tuple[Any, ...]:
    return id(x), x.dtype, x.device, x.shape, x.stride(), g.dtype, g.device
