"""A run as data: every setting in one frozen dataclass, its key, and the checks that come before anything starts.

What a regularizer and an optimizer can be told is read from their own constructors: a new one needs no line here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import torch
from torch import nn

from ... import optim, regularizers
from ...optim import ProximalOptimizer
from ...regularizers import Regularizer
from .. import data, models
from ..errors import UserError
from ..names import check_known, import_callable
from .network import AUTOCAST

Precision = Literal["fp32", "tf32", "bf16"]


@dataclass(frozen=True)
class Settings:
    """What all runs of a grid share. An option of the optimizer that is None stays at that optimizer's own default."""

    data: str = "digits"
    """Data set: a name of `sr2 data list`, or your own as module:callable."""
    model: str = "cnn"
    """Network: cnn, resnet34, … (an unknown name lists them all), or your own as module:callable."""
    penalize: Literal["weights", "all"] = "weights"
    """What R counts: weights (no biases, no norms), or all parameters, as in the paper's formula."""
    epochs: int = 30
    """Passes over the training images."""
    batch: int = 128
    """Images a step."""
    sigma: float | Literal["auto"] | None = None
    """SR2: the first inverse step size, or auto, from the curvature of the first batch."""
    eta1: float | None = None
    """SR2: the ratio that accepts a step."""
    eta2: float | None = None
    """SR2: the ratio that lowers sigma."""
    gamma1: float | None = None
    """SR2: the factor that raises sigma after a refusal."""
    gamma2: float | None = None
    """SR2: the factor after a trial that is not finite."""
    gamma3: float | Literal["auto"] | None = None
    """SR2: the factor that lowers sigma, or auto, the nearer to 1 the larger R is at the start."""
    sigma_min: float | None = None
    """SR2: the least sigma."""
    cooldown: float | None = None
    """The share of the steps, at the end of the run, over which they are made ever shorter, by sigma or by lr: 0.2."""
    momentum: float | None = None
    """SR2, ProxGEN: the weight of past gradients."""
    metric: str | None = None
    """Diagonal metric: adam, adagrad, rmsprop, andrei, or none."""
    epsilon: float | None = None
    """SR2: stop once the mean of |s|^2 over accepted steps is below its square, the paper's measure of stationarity."""
    batch_growth: float | None = None
    """SR2: kappa of the paper's assumption 3; a batch that fails it is not stepped on, and the next one is larger."""
    lr: float | None = None
    """ProxGEN, ProxSGD: the learning rate."""
    weight_decay: float | None = None
    """ProxGEN: decoupled weight decay."""
    lr_decay: float | None = None
    """ProxSGD: the power by which the learning rate falls."""
    rho: float | Literal["none"] | None = None
    """ProxSGD: the weight of the newest gradient, or none for no momentum."""
    rho_decay: float | None = None
    """ProxSGD: the power by which rho falls."""
    largest_batch: int = 4096
    """With batch_growth: the largest batch."""
    certificate: bool = False
    """SR2: at the end of the run, two more passes estimate the paper's bound on stationarity: certificate.json."""
    augment: bool = True
    """Whether to crop and flip, where the data set asks for it; --no-augment turns it off."""
    precision: Precision = "fp32"
    """Arithmetic of the network: fp32, tf32 (CUDA only) or bf16 (parameters stay float32, SR2's rho allows for it)."""
    compile: bool = False
    """Compile the network with torch.compile."""
    deterministic: bool = False
    """On CUDA: only algorithms that give the same bits every time, so that a resumed run does too; a little slower."""
    device: str = "cpu"
    """cpu, cuda, cuda:0, or auto."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # 1 equals 1.0, and would have another key
            value = getattr(self, field.name)
            if str(field.type).startswith("float") and type(value) is int:
                object.__setattr__(self, field.name, float(value))


@dataclass(frozen=True)
class RunConfig(Settings):
    """One run: a network, its data, an optimizer, a regularizer, a seed.

    >>> RunConfig(lam=0.01).key
    'digits-cnn-sr2-l1-0.01-s0-2e0ca8c746'
    """

    optimizer: str = "sr2"
    """sr2, proxgen, proxsgd, or your own as module:callable."""
    regularizer: str = "l1"
    """l1, l0, … (an unknown name lists them all), none, or your own as module:callable."""
    lam: float = 1e-3
    """lambda, the weight of the regularizer, where it has one."""
    reg: tuple[str, ...] = ()
    """Further constants of the regularizer as key=value: p=0.5, density=0.1, groups=rows."""
    seed: int = 0
    """Decides the first weights, the order of the images and their augmentation."""

    def to_dict(self) -> dict[str, Any]:
        """All fields, as `config.json` holds them."""
        return {**dataclasses.asdict(self), "reg": list(self.reg)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RunConfig:
        """The inverse of `to_dict`; a field that is missing has its default."""
        kinds = get_type_hints(cls)
        for name, value in values.items():
            check_known("setting", name, kinds)
            if not _fits(value, kinds[name]):
                raise UserError(f"the setting {name} cannot be {value!r}")
        return cls(**{**values, "reg": tuple(values.get("reg", ()))})

    @property
    def key(self) -> str:
        """The name of the run's folder: readable, and a hash of every field that is set."""
        fields = {name: value for name, value in self.to_dict().items() if value is not None}
        fields["reg"] = sorted(self.reg)
        digest = hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:10]
        words = [self.data, self.model, self.optimizer, self.regularizer]
        words += self._lam()
        readable = "-".join(re.sub(r"\W+", ".", word) if ":" in word else word for word in words)
        return f"{readable}-s{self.seed}-{digest}"

    @property
    def label(self) -> str:
        """For a legend: optimizer, regularizer and its constants.

        >>> RunConfig(regularizer="lp", reg=("p=0.5",)).label
        'SR2 lp 0.001 p=0.5'
        """
        optimizer = OPTIMIZERS[self.optimizer].__name__ if self.optimizer in OPTIMIZERS else self.optimizer
        return " ".join([optimizer, self.regularizer, *self._lam(), *self.reg])

    def _lam(self) -> list[str]:
        own = ":" in self.regularizer  # a name must not depend on whether the user's module can be imported
        return [f"{self.lam:g}"] if own or has_lambda(self.regularizer) else []


OPTIONS = tuple(f.name for f in dataclasses.fields(RunConfig) if f.default is None)
"""The fields that are options of an optimizer."""


def _fits(value: object, kind: Any) -> bool:
    """Whether a value read from JSON can be of a field's type; a tuple comes as a list, a float maybe as an int."""
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if get_origin(kind) is tuple:
        return isinstance(value, list | tuple) and all(_fits(item, get_args(kind)[0]) for item in value)
    if get_origin(kind) in (UnionType, Union):
        return any(_fits(value, one) for one in get_args(kind))
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, int | float if kind is float else kind)


def _snake(name: str) -> str:
    """L0Ball -> l0_ball, GroupL2 -> group_l2, NM -> nm, MCP -> mcp."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z][a-z0-9])", "_", name).lower()


def _classes(module: Any, base: type, name: Callable[[str], str]) -> dict[str, Callable[..., Any]]:
    exported = {n: getattr(module, n) for n in module.__all__}
    return {name(n): c for n, c in exported.items() if isinstance(c, type) and issubclass(c, base) and c is not base}


REGULARIZERS = _classes(regularizers, Regularizer, _snake)
"""The built-in regularizers by the names that users type."""
OPTIMIZERS = _classes(optim, ProximalOptimizer, str.lower)
"""The built-in optimizers by the names that users type."""


# ---- from names to objects


def make_regularizer(config: RunConfig) -> Regularizer | None:
    """The regularizer with its constants; None for "none"."""
    constants = _constants(config.reg)
    takes = _regularizer_arguments(config.regularizer)
    if "lam" in takes:
        constants = {"lam": config.lam, **constants}
    elif config.lam != RunConfig.lam:
        raise UserError(f"{config.regularizer} has no lam: leave out --lam")
    needed = [f"{n}=…" for n, default in takes.items() if default is inspect.Parameter.empty and n not in constants]
    unknown = [n for n in constants if n not in takes]
    others = [n for n in takes if n != "lam"]
    if unknown:
        known = f"its constants are {', '.join(others)}" if others else "it takes none"
        raise UserError(f"{config.regularizer} has no constant {unknown[0]!r}: {known}")
    if needed:
        raise UserError(f"{config.regularizer} needs more constants: add --reg {' '.join(needed)}")
    if config.regularizer == "none":
        return None
    with _as_user_errors():
        made = _find("regularizer", config.regularizer, REGULARIZERS)(**constants)
        regularizers.base.check_regularizer(made)
    return made  # type: ignore[no-any-return]


def make_optimizer(config: RunConfig, model: nn.Module, steps: int = 1) -> ProximalOptimizer:
    """The optimizer of the model's parameters, with its options and its regularizer.

    steps: of the whole run, which a cooldown must know.
    """
    regularizer = make_regularizer(config)
    constructor = _find("optimizer", config.optimizer, OPTIMIZERS)
    signature = inspect.signature(constructor)
    takes = signature.parameters
    options = {name: value for name in OPTIONS if (value := getattr(config, name)) is not None}
    for name in options:
        if not has_option(config.optimizer, name):
            theirs = ", ".join(n for n in OPTIONS if has_option(config.optimizer, n))
            raise UserError(f"{config.optimizer} has no option {name}: its options are {theirs}")
    options = {name: None if value == "none" else value for name, value in options.items()}
    on_device = torch.device(config.device).type == "cuda" and "capturable" in takes and config.batch_growth is None
    if on_device:
        options["capturable"] = True  # whole steps are replayed as CUDA graphs
    with _as_user_errors():
        if config.batch_growth is not None:
            growth = optim.BatchGrowth(config.batch_growth, config.batch, largest=config.largest_batch)
            options["batch_growth"] = growth
        if "autocast" in takes:
            options["autocast"] = AUTOCAST.get(config.precision)
        if options.pop("cooldown", None) is not None and "cooldown" in takes:  # else the trainer lowers lr
            options["cooldown"] = cooldown_steps(config, steps)
        options["penalize"] = config.penalize
        try:
            signature.bind(model, regularizer, **options)
        except TypeError as error:
            raise UserError(f"{config.optimizer} {_OWN_OPTIMIZER}: {error}") from error
        made = constructor(model, regularizer, **options)
    if not isinstance(made, ProximalOptimizer):
        raise UserError(f"{config.optimizer} {_OWN_OPTIMIZER}, and returned a {type(made).__name__}")
    return made


_OWN_OPTIMIZER = (
    "is called as (model, regularizer, penalize=…, **options) and must return a sr2.optim.ProximalOptimizer"
)


def cooldown_steps(config: RunConfig, steps: int) -> tuple[int, int] | None:
    """The first and the last step of the run's cooldown, of so many steps in all.

    >>> cooldown_steps(RunConfig(cooldown=0.2), 1000)
    (800, 1000)
    """
    if config.cooldown is None:
        return None
    first = max(1, round((1 - config.cooldown) * steps))
    return first, max(first + 1, steps)


def has_lambda(regularizer: str) -> bool:
    """Whether lambda is a constant of the regularizer of that name."""
    return "lam" in _regularizer_arguments(regularizer)


def has_option(optimizer: str, option: str) -> bool:
    """Whether the optimizer of that name can be told `option`; one with a learning rate can be cooled."""
    takes = inspect.signature(_find("optimizer", optimizer, OPTIMIZERS)).parameters
    return option in takes or (option == "cooldown" and "lr" in takes)


def _find(kind: str, name: str, known: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    if ":" in name:
        return import_callable(kind, name)
    check_known(kind, name, known)
    return known[name]


def _regularizer_arguments(name: str) -> dict[str, Any]:
    """The constants of a regularizer and their defaults."""
    if name == "none":
        return {}
    if ":" not in name:
        check_known("regularizer", name, [*REGULARIZERS, "none"])
    return {n: p.default for n, p in inspect.signature(_find("regularizer", name, REGULARIZERS)).parameters.items()}


def _constants(pairs: tuple[str, ...]) -> dict[str, Any]:
    constants: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not name or not equals or name in constants or name == "lam":
            way = "use --lam for lambda" if name == "lam" else "write each constant once, as key=value"
            raise UserError(f"--reg {pair!r} is not a constant of a regularizer: {way}")
        constants[name] = _number(text)
    return constants


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text


@contextlib.contextmanager
def _as_user_errors() -> Iterator[None]:
    """What a constructor of the library finds wrong with its arguments is a mistake of the user."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise UserError(str(error)) from error


# ---- before anything starts


def checked(config: RunConfig) -> RunConfig:
    """The config with `auto` resolved, if it can be run; a UserError that says why, if not. Nothing is loaded."""
    if config.device == "auto":
        config = dataclasses.replace(config, device="cuda" if torch.cuda.is_available() else "cpu")
    for kind, name, known in (("data set", config.data, data.known()), ("network", config.model, models.known())):
        if ":" not in name:
            check_known(kind, name, known)
    for name, least in (("epochs", 1), ("batch", 1), ("seed", 0)):
        if getattr(config, name) < least:
            raise UserError(f"{name} must be at least {least}, and is {getattr(config, name)}")
    if config.seed >= 2**63:
        raise UserError(f"seed must be below 2^63, and is {config.seed}")
    check_arithmetic(config.precision, find_device(config.device))
    if config.batch_growth is not None and config.largest_batch < config.batch:
        raise UserError(f"largest_batch must be at least the batch, {config.batch}, and is {config.largest_batch}")
    if config.cooldown is not None and not 0 < config.cooldown <= 1:
        raise UserError(f"cooldown must be a share of the run, as 0.2, and is {config.cooldown:g}")
    for name in ("batch_growth", "epsilon"):  # with either, nobody knows the last step
        if config.cooldown is not None and (value := getattr(config, name)) is not None:
            raise UserError(f"leave out cooldown={config.cooldown:g} or {name}={value:g}: they exclude each other")
    if config.certificate and config.optimizer != "sr2":
        raise UserError(f"a certificate is about steps of sr2, and the optimizer is {config.optimizer}")
    if config.certificate and (config.momentum or config.metric not in (None, "none")):
        raise UserError("a certificate is about plain gradients: leave out momentum and metric, or the certificate")
    # What it finds wrong with its options, it says itself.
    make_optimizer(dataclasses.replace(config, device="cpu"), nn.Linear(2, 2))
    return config


def check_arithmetic(precision: str, device: torch.device) -> None:
    """A UserError if there is no such arithmetic, or not on that device."""
    if precision not in get_args(Precision):
        raise UserError(f"precision must be one of {', '.join(get_args(Precision))}, and is {precision!r}")
    if precision == "tf32" and device.type != "cuda":
        raise UserError(f"tf32 is arithmetic of CUDA devices, and the device is {device}: use fp32 or bf16")


def find_device(name: str) -> torch.device:
    """The device of that name, if it is here; a UserError if not."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UserError(f"unknown device {name!r}: use cpu, cuda, cuda:0 or auto") from error
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"the device must be cpu or cuda, and is {name!r}")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(f"there is no device {name!r} here ({torch.cuda.device_count()} are): use --device cpu")
    return device
