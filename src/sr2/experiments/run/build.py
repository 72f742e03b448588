"""From a configuration to objects, and the checks that come before anything starts."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from collections.abc import Iterator
from typing import Any, get_args

import torch
from torch import nn

from ... import optim, regularizers
from ...optim import ProximalOptimizer
from ...optim.arguments import ELSEWHERE
from ...optim.parts import metrics
from ...optim.parts.rules import Ratio
from ...optim.parts.schedules import Cooldown, cools_from
from ...regularizers import Regularizer
from .. import data, models
from ..baselines import Baseline
from ..errors import UserError
from ..names import Precision, check_known
from . import registry
from .config import FIRST_DEFAULTS, RunConfig
from .network import AUTOCAST
from .options import as_annotated, parameters, parse_pairs
from .processes import started


def make_regularizer(config: RunConfig) -> Regularizer | None:
    """The regularizer with its constants, and the ridge beside it; None for "none" without a ridge."""
    constants = parse_pairs(
        "--reg", "a constant of a regularizer", config.reg, {"lam": "use --lam for lambda, --lams in a grid"}
    )
    takes = registry.constants(config.regularizer)
    if "lam" in takes:
        constants = {"lam": config.lam, **constants}
    elif config.lam != RunConfig.lam:
        raise UserError(f"{config.regularizer} has no lam: leave out --lam {config.lam:g}")
    needed = [f"{n}=…" for n, default in takes.items() if default is inspect.Parameter.empty and n not in constants]
    unknown = [] if registry.takes_any(config.regularizer) else [n for n in constants if n not in takes]
    others = [n for n in takes if n != "lam"]
    if unknown:
        known = f"its constants are {', '.join(others)}" if others else "it takes none"
        raise UserError(f"{config.regularizer} has no constant {unknown[0]!r}: {known}")
    if needed:
        in_grid = ",".join([config.regularizer, *needed])
        raise UserError(
            f"{config.regularizer} needs more constants: add --reg {' '.join(needed)}, or in a grid {in_grid}"
        )
    with _as_user_errors():
        made = registry.find_regularizer(config.regularizer)(**constants) if config.regularizer != "none" else None
        regularizers.base.check_regularizer(made)
        return regularizers.Ridge(config.ridge, made) if config.ridge else made


def make_optimizer(config: RunConfig, model: nn.Module, steps: int = 1) -> ProximalOptimizer | Baseline:
    """The optimizer of the model's parameters, with its options and its regularizer.

    steps: of the whole run, which cooldowns, budgets and the schedules of baselines must know.
    """
    regularizer = make_regularizer(config)
    constructor = registry.find_optimizer(config.optimizer)
    takes = parameters(constructor)
    for name in config.options:
        check_option(config.optimizer, name)
    options = {name: as_annotated(value, takes.get(name)) for name, value in config.options.items()}
    with _as_user_errors():
        if (kappa := options.get("batch_growth")) is not None:
            options["batch_growth"] = optim.BatchGrowth(kappa, config.batch, largest=config.largest_batch)
        if options.pop("cooldown", None) is not None and cools_by_itself(config.optimizer):
            options["cooldown"] = cooldown_steps(config, steps)
        if options.get("steps_per_epoch") == "auto":
            options["steps_per_epoch"] = max(1, steps // config.epochs)
        given = _given(config)
        if _plans(config, regularizer):
            given["steps"] = max(2, steps)
        options |= {name: value for name, value in given.items() if name in takes or name == "penalize"}
        try:
            inspect.signature(constructor).bind(model, regularizer, **options)
        except TypeError as error:
            raise UserError(f"{config.optimizer} {_OWN_OPTIMIZER}: {error}") from error
        made = constructor(model, regularizer, **options)
    if not isinstance(made, ProximalOptimizer | Baseline):
        raise UserError(f"{config.optimizer} {_OWN_OPTIMIZER}, and returned a {type(made).__name__}")
    return made


def check_option(optimizer: str, name: str) -> None:
    """Raise a UserError that lists the options of an optimizer, unless `name` is one of them."""
    if not registry.has_option(optimizer, name):
        if optimizer == "sr2" and name in ELSEWHERE:
            raise UserError(f"sr2 has no option {name}: {ELSEWHERE[name]}")
        if name in registry.GIVEN:
            raise UserError(f"{optimizer} has no option {name} here: it follows from the run's own settings")
        theirs = ", ".join(registry.option_names(optimizer))
        raise UserError(f"{optimizer} has no option {name}: its options are {theirs}")


def _given(config: RunConfig) -> dict[str, Any]:
    """What follows from the settings; an optimizer is told what it has an argument for."""
    given: dict[str, Any] = {"penalize": config.penalize, "autocast": AUTOCAST.get(config.precision)}
    if torch.device(config.device).type == "cuda" and config.option("batch_growth") is None and started() == 1:
        given["capturable"] = True  # whole steps are replayed as CUDA graphs
    return given


_OWN_OPTIMIZER = (
    "is called as (model, regularizer, penalize=…, **options) and must return a sr2.optim.ProximalOptimizer"
)


def _plans(config: RunConfig, regularizer: Regularizer | None) -> bool:
    """Whether the optimizer is told how many steps there will be: a baseline, SR2 with its own defaults, which then has
    a cooldown, and one that has a budget to reach. Algorithm 1 goes on as long as one lets it."""
    if not registry.takes_regularizer(config.optimizer):
        return True
    if any(config.option(name) is not None for name in ("batch_growth", "epsilon")):
        return False
    named = any(config.option(name) is not None for name in ("eta1", "eta2", "gamma1", "gamma2", "gamma3"))
    algorithm_1 = named or str(config.option("rule")).partition(":")[2].startswith("Ratio")
    return not algorithm_1 or (regularizer is not None and regularizer.strict)


def cooldown_steps(config: RunConfig, steps: int) -> tuple[int, int] | None:
    """The first and the last step of the run's cooldown, of so many steps in all.

    >>> cooldown_steps(RunConfig.of(cooldown=0.2), 1000)
    (800, 1000)
    """
    share = config.option("cooldown")
    if share is None:
        return None
    first = max(1, round((1 - float(share)) * steps))
    return first, max(first + 1, steps)  # of 0 from the last step on, which no step follows


def cools_by_itself(optimizer: str) -> bool:
    """Whether the optimizer of that name is told its cooldown; else the run lowers its learning rate."""
    return "cooldown" in parameters(registry.find_optimizer(optimizer))


@contextlib.contextmanager
def _as_user_errors() -> Iterator[None]:
    """What a constructor of the library finds wrong with its arguments is a mistake of the user."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise UserError(str(error)) from error


# ---- before anything starts


def checked(config: RunConfig, *, here: bool = True) -> RunConfig:
    """The config as it will be run, if it can be; a UserError that says why, if not. Nothing is loaded.

    `auto` is resolved, and what SR2 chooses today where nothing was said is written out (`spelled_out`).

    here: whether the device must be on this machine; who only names a run need not have it.
    """
    config = without_regularizer(check_place(config, here=here))
    for name, least in (("epochs", 1), ("batch", 1), ("seed", 0), ("hold_out", 0), ("ridge", 0)):
        if getattr(config, name) < least:
            raise UserError(f"{name} must be at least {least}, and is {getattr(config, name)}")
    if config.seed >= 2**63:
        raise UserError(f"seed must be below 2^63, and is {config.seed}")
    if config.option("batch_growth") is not None and config.largest_batch < config.batch:
        raise UserError(f"largest_batch must be at least the batch, {config.batch}, and is {config.largest_batch}")
    if config.options.get("cooldown") == "none" and _plans(config, make_regularizer(config)):
        config = config.having(cooldown=0.0)  # else the optimizer would have its own
    if (share := config.option("cooldown")) is not None:
        if not isinstance(share, float) or not 0 <= share <= 1:
            raise UserError(f"cooldown must be a share of the run, as 0.2, 0 for none, and is {_plain(share)}")
        for name in ("batch_growth", "epsilon"):  # with either, nobody knows the last step
            if (value := config.option(name)) is not None:
                raise UserError(f"leave out cooldown={share:g} or {name}={_plain(value)}: they exclude each other")
    if config.certificate and config.optimizer != "sr2":
        raise UserError(f"a certificate is about steps of sr2, and the optimizer is {config.optimizer}")
    # What it finds wrong with its options, it says itself.
    config = spelled_out(config, make_optimizer(dataclasses.replace(config, device="cpu"), nn.Linear(2, 2)))
    if config.certificate and (config.option("momentum") or config.option("metric")):
        raise UserError("a certificate is about plain gradients: add --momentum 0 --metric none, or leave it out")
    return config


def spelled_out(config: RunConfig, made: torch.optim.Optimizer) -> RunConfig:
    """The config with what SR2's constructor chose by itself, where the first version would have chosen otherwise.

    So a `config.json` means the same run, and has the same key, whatever the constructor's defaults are one day.

    made: the optimizer of the config, on any model.
    """
    if config.optimizer != "sr2" or not isinstance(made, optim.SR2):
        return config
    rule = type(made.rule)
    chosen: dict[str, Any] = {
        "metric": next((name for name, kind in metrics.NAMES.items() if type(made.metric) is kind), "none"),
        "weight_decay": made.param_groups[0]["weight_decay"],
        "average": made.averaging is not None,
        "sigma_min": made.sigma_min,
        "test_every": 1 if made.testing is None else getattr(made.testing, "k", "auto"),
    }
    if "direction" not in config.options:
        chosen["momentum"] = made.momentum
    if chosen["weight_decay"] == "auto" and made.param_groups[0]["regularizer"] is None:
        chosen["steps_per_epoch"] = "auto"  # the run knows it; older runs were not told
    if isinstance(made.schedule, Cooldown) and "schedule" not in config.options:  # of steps=n, where none was named
        chosen["cooldown"] = round(1 - cools_from([g["regularizer"] for g in made.param_groups]), 3)
    if "rule" not in config.options:
        chosen["rule"] = "none" if rule is Ratio else f"sr2.rules:{rule.__name__}"
    if "rule" not in config.options and rule is Ratio:
        chosen |= {name: getattr(made.rule, name) for name in ("eta1", "eta2", "gamma1", "gamma3")}
    chosen = {name: value for name, value in chosen.items() if value != FIRST_DEFAULTS.get(name)}
    return config.having(**{**chosen, **config.options})


def without_regularizer(config: RunConfig) -> RunConfig:
    """The config of an optimizer that takes no regularizer; one that was asked for is a UserError.

    A budget is none to an optimizer that prunes by itself: its density is an option of that.

    >>> without_regularizer(RunConfig(optimizer="gmp", regularizer="l0_ball", reg=("density=0.05",))).label
    'GMP density=0.05'
    """
    if registry.takes_regularizer(config.optimizer):
        return config
    if config.ridge:
        raise UserError(f"{config.optimizer} has no regularizer, which --ridge is: use its own --weight-decay")
    if config.regularizer == "none":
        return config
    if config.regularizer == "l0_ball" and registry.has_option(config.optimizer, "density"):
        budget = parse_pairs("--reg", "a constant of a regularizer", config.reg, {})
        if [*budget] == ["density"]:
            config = config.having(options={"density": budget["density"], **config.options})
            return dataclasses.replace(config, regularizer="none", reg=())
    if any(getattr(config, name) != getattr(RunConfig, name) for name in ("regularizer", "lam", "reg")):
        if config.regularizer == "l0_ball":
            raise UserError(f"{config.optimizer} has no budget: leave out --density, or use --optimizer gmp or sr2")
        raise UserError(f"{config.optimizer} has no regularizer: leave out --regularizer, --lam and --reg")
    return dataclasses.replace(config, regularizer="none")


def check_place(config: RunConfig, *, here: bool = True) -> RunConfig:
    """The config with `auto` resolved, if its data set, its network and its device can be had; no optimizer is made."""
    if config.device == "auto":
        config = dataclasses.replace(config, device="cuda" if torch.cuda.is_available() else "cpu")
    for kind, name, known in (("data set", config.data, data.known()), ("network", config.model, models.known())):
        if ":" not in name:
            check_known(kind, name, known)
    check_arithmetic(config.precision, find_device(config.device, here=here))
    return config


def _plain(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def check_arithmetic(precision: str, device: torch.device) -> None:
    """A UserError if there is no such arithmetic, or not on that device."""
    if precision not in get_args(Precision):
        raise UserError(f"precision must be one of {', '.join(get_args(Precision))}, and is {precision!r}")
    if precision == "tf32" and device.type != "cuda":
        raise UserError(f"tf32 is arithmetic of CUDA devices, and the device is {device}: use fp32 or bf16")


def find_device(name: str, *, here: bool = True) -> torch.device:
    """The device of that name, a UserError if there is none; with `here`, one of this machine."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UserError(f"unknown device {name!r}: use cpu, cuda, cuda:0 or auto") from error
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"the device must be cpu or cuda, and is {name!r}")
    if here and device.type == "cuda" and (device.index or 0) >= (count := torch.cuda.device_count()):
        seen = f"torch sees {count} CUDA devices" if count else "torch sees no CUDA device"
        raise UserError(f"there is no device {name!r} here, {seen}: use --device cpu")
    return device
