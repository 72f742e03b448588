"""Runs that differ only in their seed, gathered: what is one row of a table and one line of a figure."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ..run.config import FIRST_OPTIONS, RunConfig
from ..run.registry import has_lambda, printed
from ..run.store import RunRecord
from ..tasks import Score

BASELINES_FIRST = ("sgd", "adamw", "gmp", "proxsgd", "proxgen", "sr2")
"""The order of optimizers in tables and legends; others come behind, by name."""


@dataclass(frozen=True)
class Group:
    """Runs of one configuration, the seed apart.

    Attributes:
        records: at least one.
        differs: the settings that tell it from other groups of the same data, network, penalty and optimizer.
    """

    records: tuple[RunRecord, ...]
    differs: tuple[str, ...] = ()

    @property
    def config(self) -> RunConfig:
        """The configuration of the first run."""
        return self.records[0].config

    @property
    def finished(self) -> tuple[RunRecord, ...]:
        """The runs that have a result."""
        return tuple(record for record in self.records if record.result is not None)

    @property
    def score(self) -> Score:
        """What the runs were judged by."""
        return self.records[0].score

    @property
    def regularizer(self) -> str:
        """Its name; l0_ball too for an optimizer that prunes to a density by itself."""
        return as_budget(self.config).regularizer

    @property
    def variant(self) -> str:
        """The settings that tell it apart, such as "sigma=2"; often empty."""
        settings = self.config.flat()
        return settings_text({name: settings.get(name) for name in self.differs})

    @property
    def label(self) -> str:
        """A line's name, such as "SR2 l1 1e-3"."""
        words = [printed(self.config.optimizer), penalty(self.config), self.variant]
        return " ".join(word for word in words if word)


def penalty(config: RunConfig) -> str:
    """A regularizer with its constants, such as "l1 1e-3" or "l0_ball density=0.1 ridge 2e-4"."""
    config = as_budget(config)
    constants = [short(config.lam)] if _has_lambda(config.regularizer) else []
    ridge = ["ridge", short(config.ridge)] if config.ridge else []
    return " ".join([config.regularizer, *constants, *config.reg, *ridge])


def as_budget(config: RunConfig) -> RunConfig:
    """The config as tables and figures place it: what GMP prunes to stands beside the same budget of others.

    >>> penalty(RunConfig.of(optimizer="gmp", regularizer="none", density=0.05))
    'l0_ball density=0.05'
    """
    density = config.option("density")
    if density is None or config.regularizer != "none":
        return config
    return config.having(density=None, regularizer="l0_ball", reg=(f"density={density:g}",))


def _has_lambda(regularizer: str) -> bool:
    return ":" in regularizer or has_lambda(regularizer)  # a report imports no code of the user's


def group(records: Iterable[RunRecord]) -> list[Group]:
    """Gather runs over seeds, in the order of the tables."""
    by_setting: dict[str, list[RunRecord]] = {}
    for record in sorted(records, key=lambda record: (record.config.seed, str(record.path))):
        by_setting.setdefault(str(sorted(_settings(record.config).items())), []).append(record)
    found = sorted((Group(tuple(runs)) for runs in by_setting.values()), key=lambda group: order(group.config))
    alike = itertools.groupby(found, key=lambda group: order(group.config))
    return list(itertools.chain.from_iterable(_tell_apart(list(same)) for _, same in alike))


def order(config: RunConfig) -> tuple[Any, ...]:
    """Where a run stands in a table."""
    config = as_budget(config)
    return (
        config.data,
        config.model,
        {"l1": 0, "l0": 1}.get(config.regularizer, 2),
        config.regularizer,
        config.lam if _has_lambda(config.regularizer) else 0.0,
        tuple(config.reg),
        config.ridge,
        [*BASELINES_FIRST, config.optimizer].index(config.optimizer),
        config.optimizer,
    )


def settings_text(settings: dict[str, Any]) -> str:
    """Settings as text: "momentum=0.9 sigma=default"."""
    return " ".join(f"{name}={_plain(value, name)}" for name, value in settings.items())


def short(number: float) -> str:
    """A constant in few characters.

    >>> short(0.0001), short(0.025), short(0.5), short(41.0), short(1e7)
    ('1e-4', '2.5e-2', '0.5', '41', '1e7')
    """
    if number and not 0.1 <= abs(number) < 1e5:
        power = math.floor(math.log10(abs(number)) + 1e-9)
        return f"{number / 10.0**power:.4g}e{power}"
    return f"{number:g}"


def _plain(value: object, name: str) -> str:
    if value is None:  # the optimizer's own default, which for some is to have none
        return "none" if name in ("cooldown", "epsilon", "batch_growth") else "default"
    return short(value) if isinstance(value, float) else str(value).lower()


def _settings(config: RunConfig) -> dict[str, Any]:
    return {name: value for name, value in config.flat().items() if name != "seed"}


def in_order(names: Iterable[str]) -> list[str]:
    """Names of settings and options in the order of a configuration."""
    everything = [*RunConfig.of(**dict.fromkeys(FIRST_OPTIONS, 0.0)).flat()]
    found = set(names)
    return [name for name in everything if name in found] + sorted(found - set(everything))


def _tell_apart(groups: list[Group]) -> list[Group]:
    every = [_settings(group.config) for group in groups]
    names = in_order(name for settings in every for name in settings)
    differs = tuple(name for name in names if len({str(settings.get(name)) for settings in every}) > 1)

    def place(group: Group) -> list[tuple[float, str]]:
        settings = group.config.flat()
        values = [settings.get(name) for name in differs]
        return [(value if isinstance(value, int | float) else -1, str(value)) for value in values]

    return sorted((dataclasses.replace(group, differs=differs) for group in groups), key=place)
