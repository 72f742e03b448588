"""The settings of the paper's cells, one function per optimizer; `RunConfig.having` overrides any of them.

Common to all (section 5): 300 epochs of batches of 128; momentum, diagonal metrics and scheduled drops of the learning
rate turned off. What is penalized is what each method's authors penalize: SR2 counts R on the weights of convolutions
and linear layers, ProxGEN takes tensors with more than one dimension, ProxSGD everything. `docs/departures.md` says
where these settings depart from the paper's text, and why.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..report.groups import in_order
from ..run.config import RunConfig
from .cells import EPOCHS, Cell, cell, cells, match

__all__ = ["Cell", "cells", "departures", "papers_settings", "recipe"]

SIGMA0 = 41.0
"""sigma_0, which the paper's text leaves open.

ResNet-34: the authors' code takes 41. The DenseNets: the same. Their code starts from the top Hessian eigenvalue of one
batch there, which depends on the batch and comes out of a power iteration that may end at a negative number; 41 is the
one constant they name, and DenseNet-121 trains from it.
"""

OWN_CONSTANTS = {"cifar10-densenet121-sr2-l0-1e-2": {"eta2": 0.8, "gamma3": 0.9998}}
"""Where the paper's constants fail: here they set the whole network to zero within 30 steps, from every sigma_0 tried.

sigma must fall slowly for R to take weights no faster than f can make up for them (docs/sigma.md).
"""


def recipe(name: str) -> RunConfig:
    """The complete configuration of a cell.

    >>> recipe("cifar10-resnet34-sr2-l1-1e-4").options["sigma"]
    41.0
    """
    return papers_settings(name).having(**OWN_CONSTANTS.get(name, {}))


def papers_settings(name: str) -> RunConfig:
    """The same without `OWN_CONSTANTS`: what a run is said to depart from.

    >>> papers_settings("cifar10-densenet121-sr2-l0-1e-2").options["gamma3"]
    0.8
    """
    found = cell(name)
    common = RunConfig(
        data=found.data,
        model=found.model,
        optimizer=found.optimizer,
        regularizer=found.regularizer,
        lam=found.lam,
        penalize="weights",
        epochs=EPOCHS,
        batch=128,
        options={"metric": "none"},
    )
    return RECIPES[found.optimizer](common)


def sr2(common: RunConfig) -> RunConfig:
    """Algorithm 1 with the constants of the paper's Table 1, all of it named: the library's defaults are others.

    gamma2 = 2.95 of that table is left out: Algorithm 1 asks for gamma1 <= gamma2, and only 5.56 is ever used.
    """
    return common.having(sigma=SIGMA0, eta1=7.5e-4, eta2=0.99, gamma1=5.56, gamma3=0.8, momentum=0.0, average=False)


def proxgen(common: RunConfig) -> RunConfig:
    """The proximal SGD variant of ProxGEN, with the learning rate of its authors' code."""
    return common.having(lr=1e-3, momentum=0.0, weight_decay=0.0)


def proxsgd(common: RunConfig) -> RunConfig:
    """ProxSGD with eps_t = 0.06 / (t + 4)^0.5, v = g and tau = 1."""
    return common.having(penalize="all", lr=0.06, lr_decay=0.5, rho="none")


RECIPES: dict[str, Callable[[RunConfig], RunConfig]] = {"sr2": sr2, "proxgen": proxgen, "proxsgd": proxsgd}


_NO_DEPARTURE = {"device", "compile", "seed"}  # they change no mathematics, and the paper names no seed


def departures(config: RunConfig) -> dict[str, Any] | None:
    """The settings of a run that are not those that the paper names for its cell; None of a run of no cell."""
    found = match(config)
    if found is None:
        return None
    ours, theirs = config.flat(), papers_settings(found.name).flat()
    names = in_order((ours.keys() | theirs.keys()) - _NO_DEPARTURE)
    return {name: ours.get(name) for name in names if ours.get(name) != theirs.get(name)}
