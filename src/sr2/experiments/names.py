"""Names that users type: built-in ones with the closest match, or their own as `module:callable`."""

from __future__ import annotations

import dataclasses
import importlib
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from typing import Any, Literal

from .errors import UserError

Precision = Literal["fp32", "tf32", "bf16"]
"""Arithmetic of a network."""
Which = Literal["average", "last"]
"""Which weights of a run: the average of its iterates, or the last one."""
MEANT = {"l2": "ridge", "weight_decay": "ridge", "lasso": "l1", "group_lasso": "group_l2", "top_k": "l0_ball"}
"""What others call it: no letters lead from there to our name."""


def check_known(kind: str, name: str, known: Iterable[str], *, own: bool = True) -> None:
    """Raise a UserError that lists the known names and the closest, unless `name` is one of them.

    own: whether it may be the user's own.
    """
    names = list(known)
    if name in names:
        return
    module, dot, attribute = name.rpartition(".")
    dotted = own and dot and name.replace(".", "").isidentifier() and attribute != "py"
    lower = name.lower()
    meant = f"{module}:{attribute}" if dotted else MEANT[lower] if MEANT.get(lower) in names else None
    close = [meant] if meant else get_close_matches(lower, names, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]}? " if close else ""
    more = ", or your own as module:callable" if own else ""
    raise UserError(f"unknown {kind} {name!r}: {hint}known are {', '.join(names)}{more}")


def check_read(config: Any, words: str, but: Sequence[str] = ()) -> None:
    """Raise a UserError where a flag of this dataclass was given that nobody will read.

    words: why, and the way out.
    but: those that are read.
    """
    for item in dataclasses.fields(config):
        if item.name not in but and getattr(config, item.name) != item.default:
            raise UserError(f"--{item.name.replace('_', '-')} {words}")


def import_callable(kind: str, spec: str) -> Callable[..., Any]:
    """The callable that `module:callable` names; the working folder is searched too.

    >>> import_callable("network", "torch.nn:ReLU")
    <class 'torch.nn.modules.activation.ReLU'>
    """
    module_name, _, attribute = spec.partition(":")
    sys.path.insert(0, "")  # an installed command, unlike `python -m`, does not look where the user stands
    try:
        found: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except Exception as error:  # the user's module may fail in any way
        hint = ": a module is named without .py" if module_name.endswith(".py") else ""
        raise UserError(f"{kind} {spec!r} could not be imported ({type(error).__name__}): {error}{hint}") from error
    finally:
        sys.path.remove("")
    if not callable(found):
        raise UserError(f"{kind} {spec!r} is a {type(found).__name__}, and must be something to call")
    return found  # type: ignore[no-any-return]


def call(kind: str, spec: str, function: Callable[..., Any], **arguments: object) -> Any:
    """Call what a user named; where it fails, say where in one sentence."""
    try:
        return function(**arguments)
    except UserError:
        raise
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        if place.filename == __file__:  # its signature rejects the call
            given = f"with {', '.join(arguments)}" if arguments else "without arguments"
            raise UserError(f"{kind} {spec!r} was called {given}: {error}; give the rest defaults") from error
        raise UserError(
            f"{kind} {spec!r} failed in {place.filename}, line {place.lineno}: {type(error).__name__}: {error}"
        ) from error
