"""Flags from configurations and constructors: a new setting or a new option of an optimizer is a flag by itself."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from tyro.conf import arg

from .. import directions, rules, schedules
from ..optim.arguments import ALGORITHM_1, TUNED
from .errors import UserError
from .run import registry
from .run.config import RunConfig, Settings
from .run.options import described, parameters, parse, parse_pairs

_OF_THE_RUN = {
    "cooldown": "The share of the steps, at the end of the run, over which they are made ever shorter: 0.2. "
    "SR2 has 0.3 unless a constant of Algorithm 1 is named; 0 is none.",
    "batch_growth": "kappa of assumption 3; a batch that fails it is not stepped on, and the next is larger.",
}
"""Options whose value on the command line is a number that the run makes the constructor's argument of."""
_SECTIONS = {
    "run": "What is trained, and for how long.",
    "optimizer": "How it is trained. An option that is left out has the default of its optimizer's constructor.",
    "machine": "Where and in which arithmetic.",
    "files": "What is written, and where.",
}


@dataclasses.dataclass(frozen=True)
class Flags:
    """The flags of a command that trains: a dataclass for tyro, and the way from its values to a configuration."""

    kind: type
    start: Settings

    def config(self, values: Any) -> Any:
        """The configuration that parsed values ask for."""
        flat = _flat(values)
        settings = {f.name: flat[f.name] for f in dataclasses.fields(self.start) if flat.get(f.name) is not None}
        given = {name: parse(text) for name in [*options(), "density"] if (text := flat.get(name)) is not None}
        elsewhere = {name: f"it is given by --{name.replace('_', '-')} too" for name in given}
        given |= parse_pairs("--opt", "an option", flat["opt"], elsewhere)
        if isinstance(self.start, RunConfig):
            settings |= _penalty(given, settings)
        elif "regularizers" in settings and settings["densities"]:  # were they not typed, budgets would stand alone
            more = tuple(f"l0_ball,density={density:g}" for density in settings.pop("densities"))
            settings["regularizers"] += more
        return dataclasses.replace(self.start, **settings).having(options=given)

    def files(self, values: Any) -> dict[str, Any]:
        """Where to write."""
        files = {name: _flat(values)[name] for name in ("runs", "tensorboard")}
        if not files["runs"]:
            raise UserError("--runs is empty: name a folder, as --runs runs")
        return files


def training_flags(start: Settings, runs: Path) -> Flags:
    """The flags of a command that trains; what is not given stays as it is in `start`."""
    kinds = get_type_hints(type(start))
    sections: dict[str, list[Any]] = {"": [], **{name: [] for name in _SECTIONS}}
    for item in dataclasses.fields(start):
        if "help" in item.metadata:
            words, kind, value = item.metadata["help"], kinds[item.name], getattr(start, item.name)
            made = _flag(item.name, kind, value, words)
            if item.name in ("regularizer", "lam", "regularizers"):  # None where they were not typed, which is asked
                several = isinstance(value, tuple)
                shown = {"help_behavior_hint": f"(default: {' '.join(value) if several else value})"}
                shown |= {"metavar": "[STR [STR ...]]"} if several else {}
                made = _flag(item.name, kind | None, None, words, **shown)
            sections[item.metadata["section"]].append(made)
    if isinstance(start, RunConfig):
        words = "Instead of a lambda: the share of the penalized weights that is left at the end, by L0Ball or by GMP."
        sections[""].append(_flag("density", str | None, None, words, metavar="FLOAT"))
    known = {name for members in sections.values() for name, *_ in members}
    sections["optimizer"] += [_option_flag(name, start) for name in options() if name not in known]
    more = "Any option as key=value, also of your own optimizer: --opt eta2=0.9 rule=mine:make."
    sections["optimizer"].append(_flag("opt", tuple[str, ...], (), more))
    sections["files"] += [
        _flag(
            "runs", str, str(runs), "The folder of runs: a path, or an address that fsspec knows, as s3://bucket/runs."
        ),
        _flag("tensorboard", bool, False, "Also write TensorBoard's event files into the run's folder."),
    ]
    fields = sorted(sections.pop(""), key=lambda field: field[0] not in ("data", "model", "lam", "density"))
    for name, members in sections.items():
        kind = dataclasses.make_dataclass(name, members, frozen=True)
        fields.append((name, Annotated[kind, arg(help=_SECTIONS[name])], dataclasses.field(default=kind())))
    return Flags(dataclasses.make_dataclass("Flags", fields, frozen=True), start)


def _penalty(given: dict[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The regularizer that --density stands for, taken out of the options; what was typed and has no place is told."""
    optimizer, typed = settings["optimizer"], {n: settings[n] for n in ("regularizer", "lam") if n in settings}
    own, budget = registry.has_option(optimizer, "density"), given.get("density")
    if not registry.takes_regularizer(optimizer):
        idle = [f"--{n} {value}" for n, value in typed.items() if value not in ("none", "l0_ball")]
        if idle:
            raise UserError(f"{optimizer} has no regularizer: leave out {' '.join(idle)}, or use --optimizer sr2")
    if budget is None or own:
        return {}
    if (named := typed.get("regularizer", "l0_ball")) != "l0_ball":
        raise UserError(f"--density is the budget of l0_ball: leave out --regularizer {named}, or --density {budget}")
    if twice := [pair for pair in settings["reg"] if pair.startswith("density=")]:
        raise UserError(f"--density {budget} says it already: leave out --reg {twice[0]}")
    if "lam" in typed:
        raise UserError(
            f"--density is a budget and has no lambda: leave out --lam {typed['lam']}, or --density {budget}"
        )
    del given["density"]
    return {"regularizer": "l0_ball", "reg": (*settings["reg"], f"density={budget}")}


def options() -> list[str]:
    """The options of the built-in optimizers that have a flag of their own.

    Those named as a setting have none, nor has the density of gmp, which is a budget, as that of `l0_ball` is.
    """
    settings = {item.name for item in dataclasses.fields(Settings)}
    found = dict.fromkeys(n for optimizer in registry.OPTIMIZERS for n in registry.option_names(optimizer))
    return [name for name in found if name not in {*settings, "density"}]


def _option_flag(name: str, start: Settings) -> Any:
    """--eta2: whose it is, what it does, and the default of each of them."""
    owners = [o for o in registry.OPTIMIZERS if registry.has_option(o, name)]
    takes = {o: parameters(registry.OPTIMIZERS[o]).get(name) for o in owners}
    words = _OF_THE_RUN.get(name) or _words(name, owners)
    defaults = {registry.printed(o): _default(o, name, p.default if p else None) for o, p in takes.items()}
    if name in start.options:
        hint = str(start.options[name])
    elif len(set(defaults.values())) == 1:
        hint = next(iter(defaults.values()))
    else:
        hint = ", ".join(f"{o} {value}" for o, value in defaults.items())
    text = f"{', '.join(map(registry.printed, owners))}: {words}"
    known = [p for p in takes.values() if p is not None]
    metavar = "FLOAT" if name in _OF_THE_RUN else _metavar(str(known[0].annotation))
    return _flag(name, str | None, None, text, metavar=metavar, help_behavior_hint=f"(default: {hint})")


def _words(name: str, owners: Sequence[str]) -> str:
    """What the constructors of its owners say of an option, else those of the parts that it is shorthand for."""
    parts = [vars(module)[part] for module in (rules, directions, schedules) for part in module.__all__]
    for constructor in (*(registry.OPTIMIZERS[owner] for owner in owners), *parts):
        if words := described(constructor).get(name):
            return words
    return ""


def _flag(name: str, kind: Any, default: Any, words: str, **more: Any) -> Any:
    return name, Annotated[kind, arg(prefix_name=False, help=words, **more)], dataclasses.field(default=default)


def _default(optimizer: str, name: str, value: object) -> str:
    """A default as a reader needs it: of SR2's options that belong together, what stands for them."""
    if optimizer == "sr2" and hasattr(ALGORITHM_1.rule, name):
        return f"{getattr(ALGORITHM_1.rule, name)} in Algorithm 1"
    if optimizer == "sr2":
        value = getattr(TUNED, name, value)
    return "none" if value is None else str(value)


def _metavar(annotation: str) -> str:
    """float | None -> FLOAT."""
    words = [word for word in re.findall(r"\w+", annotation) if word in ("float", "int", "str", "bool")]
    return "|".join(dict.fromkeys(words)).upper() or "MODULE:CALLABLE"


def _flat(values: Any) -> Mapping[str, Any]:
    found: dict[str, Any] = {}
    for item in dataclasses.fields(values):
        value = getattr(values, item.name)
        found |= _flat(value) if dataclasses.is_dataclass(value) else {item.name: value}
    return found
