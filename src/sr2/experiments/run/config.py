"""A run as data: its settings in one frozen dataclass, the options of its optimizer in a dictionary, and its key."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import UnionType
from typing import Any, Literal, Self, Union, get_args, get_origin, get_type_hints

from ..errors import UserError
from ..names import Precision, check_known
from . import registry
from .options import Value


def setting(default: Any, words: str, section: str = "run") -> Any:
    """A field with the words and the section that `--help` shows it in."""
    return field(default=default, metadata={"help": words, "section": section})


@dataclass(frozen=True)
class Settings:
    """What all runs of a grid share."""

    data: str = setting("digits", "Data set: a name of `sr2 data list`, or your own as module:callable.", "")
    model: str = setting(
        "cnn", "Network: cnn, resnet34, … (an unknown name lists them all), or your own as module:callable.", ""
    )
    penalize: Literal["weights", "all"] = setting(
        "weights", "What R counts: weights (no biases, no norms), or all parameters, as in the paper's formula."
    )
    epochs: int = setting(30, "Passes over the training examples.")
    batch: int = setting(128, "Examples per step.")
    hold_out: int = setting(
        0, "So many training examples are not trained on and take the test examples' place: for choices."
    )
    ridge: float = setting(0.0, "lambda / 2 |x|^2 beside the regularizer: a part of F, which --weight-decay is not.")
    options: Mapping[str, Value] = field(default_factory=dict)
    """Of the optimizer; one that is not here stays at the optimizer's own default, and "none" is None."""
    largest_batch: int = setting(4096, "With batch_growth: the largest batch.")
    certificate: bool = setting(
        False, "SR2: at the end, two more passes estimate the paper's bound on stationarity: certificate.json."
    )
    augment: bool = setting(
        True, "Whether to crop and flip, where the data set asks for it; --no-augment turns it off."
    )
    precision: Precision = setting(  # noqa: RUF009 - a field
        "fp32",
        "Arithmetic of the network: fp32, tf32 (CUDA only) or bf16 (parameters stay float32, SR2's rho allows for it).",
        "machine",
    )
    compile: bool = setting(False, "Compile the network with torch.compile.", "machine")
    deterministic: bool = setting(
        False, "On CUDA: only algorithms that give the same bits every time, as a resume needs; slower.", "machine"
    )
    device: str = setting("cpu", "cpu, cuda, cuda:0, or auto.", "machine")

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):  # 1 equals 1.0, and would have another key
            value = getattr(self, item.name)
            if str(item.type).startswith("float") and type(value) is int:
                object.__setattr__(self, item.name, float(value))
        numbers = {n: float(v) if type(v) is int else v for n, v in self.options.items() if v is not None}
        object.__setattr__(self, "options", numbers)

    def option(self, name: str) -> Value | None:
        """An option of the optimizer; None where it is not given, or given as "none"."""
        value = self.options.get(name)
        return None if value == "none" else value

    @classmethod
    def of(cls, **values: Any) -> Self:
        """Settings and options side by side: what is no field is an option.

        >>> RunConfig.of(epochs=2, sigma=1).options
        {'sigma': 1.0}
        """
        return cls().having(**values)

    def having(self, **values: Any) -> Self:
        """The same with other settings and options; an option that is None is taken away."""
        names = {item.name for item in dataclasses.fields(self)}
        others = {name: value for name, value in values.items() if name not in names}
        settings = {name: value for name, value in values.items() if name in names}
        settings["options"] = {**self.options, **settings.get("options", {}), **others}
        return dataclasses.replace(self, **settings)


@dataclass(frozen=True)
class RunConfig(Settings):
    """One run: a network, its data, an optimizer, a regularizer, a seed.

    >>> RunConfig(lam=0.01).key
    'digits-cnn-sr2-l1-0.01-s0-2e0ca8c746'
    """

    lam: float = setting(1e-3, "lambda, the weight of the regularizer, where it has one.", "")
    regularizer: str = setting(
        "l1", "l1, l0, … (an unknown name lists them all), none, or your own as module:callable."
    )
    reg: tuple[str, ...] = setting(
        (), "Further constants of the regularizer as key=value: p=0.5, density=0.1, groups=rows."
    )
    seed: int = setting(0, "Decides the first weights, the order of the examples and their augmentation.")
    optimizer: str = setting(
        "sr2", "sr2, … (an unknown name lists them all), or your own as module:callable.", "optimizer"
    )

    def to_dict(self) -> dict[str, Any]:
        """All settings, as `config.json` holds them."""
        return {**dataclasses.asdict(self), "reg": list(self.reg), "options": dict(self.options)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RunConfig:
        """The inverse of `to_dict`; a field that is missing has its default.

        Until version 0.1 the options stood among the settings, null where they were not given: such files are read too.
        """
        kinds = get_type_hints(cls)
        flat = {name: value for name, value in values.items() if name not in kinds}
        for name in flat:
            check_known("setting", name, [*kinds, *FIRST_OPTIONS], own=False)
        given = {name: value for name, value in values.items() if name in kinds}
        if not isinstance(given.get("options", {}), dict):
            raise UserError(f"the setting options cannot be {given['options']!r}")
        given["options"] = {**given.get("options", {}), **{n: v for n, v in flat.items() if v is not None}}
        for name, value in {**given, **given["options"]}.items():
            if not _fits(value, kinds.get(name, Value)):
                raise UserError(f"the setting {name} cannot be {value!r}")
        return cls(**{**given, "reg": tuple(given.get("reg", ()))})

    @property
    def telling(self) -> dict[str, Value]:
        """The options that tell this run from others: without those that say what was so before they could be said.

        >>> RunConfig.of(sigma=1, average=False).telling
        {'sigma': 1.0}
        """
        meant = FIRST_DEFAULTS if self.optimizer == "sr2" else {}
        return {n: v for n, v in self.options.items() if n in FIRST_OPTIONS or v != meant.get(n)}

    def flat(self) -> dict[str, Any]:
        """Settings and telling options side by side, in one order."""
        telling = self.telling
        first = [name for name in FIRST_OPTIONS if name in telling]
        found: dict[str, Any] = {}
        for name, value in vars(self).items():
            if name == "options":
                found |= {n: telling[n] for n in dict.fromkeys([*first, *telling])}
            else:
                found[name] = value
        return found

    @property
    def key(self) -> str:
        """The name of the run's folder: readable, and a hash of what tells it from other runs.

        Hashed are the telling options, the settings of the first version (`FIRST_SETTINGS`), and of those that came
        later the ones that differ from their defaults: so a new setting leaves every key as it was. No default of a
        constructor is looked up here: it may be another one tomorrow (`checked` writes it out where it already is).
        """
        settings = {n: v for n, v in self.to_dict().items() if n in FIRST_SETTINGS or v != _default(n)}
        settings["reg"] = sorted(self.reg)
        settings.pop("options", None)
        settings |= {n if n not in FIRST_SETTINGS else f"opt.{n}": v for n, v in self.telling.items()}
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:10]
        words = [self.data, self.model, self.optimizer, self.regularizer, *self._lam()]
        readable = "-".join(re.sub(r"\W+", ".", word) if ":" in word else word for word in words)
        return f"{readable}-s{self.seed}-{digest}"

    @property
    def label(self) -> str:
        """For a legend: optimizer, regularizer and its constants.

        >>> RunConfig(regularizer="lp", reg=("p=0.5",)).label
        'SR2 lp 0.001 p=0.5'
        """
        density = self.option("density")
        own = [] if density is None else [f"density={density:g}"]
        penalty = [self.regularizer, *self._lam(), *self.reg, *([f"ridge {self.ridge:g}"] if self.ridge else [])]
        if ":" not in self.optimizer and not registry.takes_regularizer(self.optimizer):
            penalty = []
        return " ".join([registry.printed(self.optimizer), *penalty, *own])

    def _lam(self) -> list[str]:
        own = ":" in self.regularizer  # a name must not depend on whether the user's module can be imported
        return [f"{self.lam:g}"] if own or registry.has_lambda(self.regularizer) else []


FIRST_SETTINGS = frozenset(
    {
        *("data", "model", "penalize", "epochs", "batch", "largest_batch", "certificate", "augment", "precision"),
        *("compile", "deterministic", "device", "optimizer", "regularizer", "lam", "reg", "seed"),
    }
)
"""The settings of the first version, which every key hashes. Closed: a new one does not belong here."""
FIRST_OPTIONS = (
    *("sigma", "eta1", "eta2", "gamma1", "gamma2", "gamma3", "sigma_min", "cooldown", "momentum", "metric", "epsilon"),
    *("batch_growth", "lr", "weight_decay", "lr_decay", "rho", "rho_decay"),
)
"""The options that stood among the settings of a `config.json` of the first version. Closed, too."""
FIRST_DEFAULTS: Mapping[str, Value] = {
    "eta1": 7.5e-4,
    "eta2": 0.99,
    "gamma1": 5.56,
    "gamma3": "auto",
    "rule": "none",
    "sigma_min": 1e-6,
    "momentum": 0.0,
    "direction": "none",
    "metric": "none",
    "schedule": "none",
    "average": False,
    "test_every": 1.0,
    "weight_decay": 0.0,
}
"""What SR2 did in the first version where nothing was said: what a `config.json` means that does not say it. Frozen."""


def _default(name: str) -> Any:
    item = RunConfig.__dataclass_fields__[name]
    made = {} if item.default is dataclasses.MISSING else item.default
    return list(made) if isinstance(made, tuple) else made


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
    kind = get_origin(kind) or kind
    return isinstance(value, int | float if kind is float else kind)
