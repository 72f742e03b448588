"""A grid of optimizers x regularizers x lambdas x seeds: what is finished is skipped, what does not fit is left out."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

from ..errors import UserError
from . import registry
from .build import checked, make_regularizer, without_regularizer
from .config import RunConfig, Settings, setting
from .on_ray import Place, train_on_ray
from .one import train
from .options import parse
from .processes import started
from .progress import Watch
from .shared import Folder, join
from .stop import DivergedError, StoppedError, StopSignals

HERE = Place()


@dataclasses.dataclass(frozen=True)
class Grid(Settings):
    """What to compare; every other setting is shared, and an option goes to the optimizers that have it."""

    optimizers: tuple[str, ...] = setting(
        ("sr2", "proxgen", "proxsgd"),
        "Each may bring options of its own: sr2 gmp,density=0.05 adamw,lr=0.003 sgd proxgen,lr=0.1.",
        "",
    )
    regularizers: tuple[str, ...] = setting(("l1", "l0"), "Each may bring constants: l1 lp,p=0.5 none.", "")
    lams: tuple[float, ...] = setting((1e-4, 1e-3, 1e-2), "lambdas, for the regularizers that have one.", "")
    densities: tuple[float, ...] = setting(
        (),
        "Budgets, each as the share of weights that are not zero: 0.1 0.05 0.01. Alone, they are all that is compared.",
        "",
    )
    seeds: tuple[int, ...] = setting((0,), "Seeds.")


def expand(grid: Grid) -> tuple[list[RunConfig], list[str]]:
    """The runs of a grid, checked, and a sentence for each pair that does not fit.

    >>> runs, left_out = expand(Grid(optimizers=("sr2", "proxsgd"), lams=(0.1,)))
    >>> [run.label for run in runs]
    ['SR2 l1 0.1', 'SR2 l0 0.1', 'ProxSGD l1 0.1']
    """
    optimizers = [_optimizer(grid, text) for text in grid.optimizers]
    regularizers = [_regularizer(text) for text in _regularizers(grid)]
    _check_each(grid, optimizers, regularizers)
    runs: dict[str, RunConfig] = {}
    left_out: dict[str, str] = {}
    for optimizer, regularizer in itertools.product(optimizers, regularizers):
        for lam, seed in itertools.product(_lams(grid, regularizer), grid.seeds):
            try:
                run = checked(_fitting(RunConfig(**optimizer, **regularizer, lam=lam, seed=seed)))
            except UserError as error:  # each is right, and they do not fit
                pair = f"{optimizer['optimizer']} x {regularizer['regularizer']}"
                left_out.setdefault(pair, f"{pair} is left out: {error}")
            else:
                runs[run.key] = run
    if not runs:
        raise UserError(next(iter(left_out.values()), "the grid is empty: name an optimizer, a regularizer and a seed"))
    return list(runs.values()), list(left_out.values())


def _fitting(run: RunConfig) -> RunConfig:
    """Of a baseline without a regularizer there is one run for each budget, else one, whatever the others have."""
    if registry.takes_regularizer(run.optimizer):
        return run
    run = dataclasses.replace(run, ridge=0.0)
    with contextlib.suppress(UserError):
        return without_regularizer(run)
    return dataclasses.replace(run, regularizer="none", lam=RunConfig.lam, reg=())


def _optimizer(grid: Grid, text: str) -> dict[str, Any]:
    """The settings of "proxgen,lr=0.1": its own options over those of the grid that it has."""
    name, *pairs = text.split(",")
    settings = {f.name: getattr(grid, f.name) for f in dataclasses.fields(Settings)}
    options = {option: value for option, value in grid.options.items() if registry.has_option(name, option)}
    for pair in pairs:
        option, equals, value = pair.partition("=")
        if not equals or not registry.has_option(name, option):
            if pair in registry.OPTIMIZERS:
                raise UserError(f"{text!r} is one optimizer and its options: write {name} {pair}, with a space")
            theirs = ", ".join(registry.option_names(name))
            raise UserError(f"{pair!r} is not an option of {name}: write {name},key=value with key one of {theirs}")
        options[option] = parse(value)
    return {**settings, "optimizer": name, "options": options}


def _regularizers(grid: Grid) -> list[str]:
    """Those of the grid and its budgets; the budgets alone where no others were named."""
    named = () if grid.densities and grid.regularizers == Grid.regularizers else grid.regularizers
    return [*named, *(f"l0_ball,density={density:g}" for density in grid.densities)]


def _regularizer(text: str) -> dict[str, Any]:
    """The settings of "lp,p=0.5"."""
    name, *constants = text.split(",")
    return {"regularizer": name, "reg": tuple(constants)}


def _lams(grid: Grid, regularizer: dict[str, Any]) -> Sequence[float]:
    return grid.lams if registry.has_lambda(regularizer["regularizer"]) else (RunConfig.lam,)


def _check_each(grid: Grid, optimizers: Sequence[dict[str, Any]], regularizers: Sequence[dict[str, Any]]) -> None:
    """What is wrong by itself, not only in a pair, is an error of the whole grid."""
    for option in grid.options:
        if not any(registry.has_option(o["optimizer"], option) for o in optimizers):
            raise UserError(f"no optimizer of the grid has the option {option}: leave it out")
    if grid.ridge and not any(registry.takes_regularizer(o["optimizer"]) for o in optimizers):
        raise UserError("no optimizer of the grid has a regularizer, which --ridge is: use their own --weight-decay")
    for optimizer in optimizers:
        for seed in grid.seeds:
            checked(_fitting(RunConfig(**optimizer, regularizer="none", seed=seed)))
    for regularizer in regularizers:
        for lam in _lams(grid, regularizer):
            make_regularizer(RunConfig(**regularizer, lam=lam))


def compare(
    grid: Grid, root: Folder, stop: StopSignals, tensorboard: bool = False, place: Place = HERE
) -> tuple[list[Folder], list[str]]:
    """Train the runs of a grid, one after another or side by side on a cluster.

    A run that diverges does not end the others.

    Returns:
        the folders of the finished runs, and a sentence for each that diverged.
    """
    if started() > 1:
        raise UserError("a grid is trained run by run, in one process each: use torchrun with `sr2 train`")
    runs, left_out = expand(grid)
    watch = Watch(len(runs))
    for sentence in left_out:
        watch.say(sentence)
    if place.on == "ray":
        lost = {run.key: sentence for run, sentence in train_on_ray(runs, root, place, watch, stop, tensorboard)}
        return [join(root, run.key) for run in runs if run.key not in lost], list(lost.values())
    done: list[Folder] = []
    failed: list[str] = []
    for run in runs:
        if stop.asked:
            raise StoppedError(f"stopped after {len(done)} of {len(runs)} runs: run the same command to go on")
        try:
            done.append(train(run, root, watch, stop, tensorboard))
        except DivergedError as error:
            failed.append(str(error))
            watch.say(str(error))
    return done, failed
