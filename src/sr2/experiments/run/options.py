"""Options as users type them, key=value, and the options that a constructor has. Nothing here knows an optimizer."""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..errors import UserError
from ..names import call, import_callable

Value = float | int | bool | str
"""What an option can be on the command line and in a file; "none" is None."""


def parse(text: str) -> Value:
    """A number, true or false, or the text itself.

    >>> parse("3"), parse("0.5"), parse("true"), parse("auto")
    (3, 0.5, True, 'auto')
    """
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return {"true": True, "false": False}.get(text.lower(), text)


def parse_pairs(flag: str, what: str, pairs: Iterable[str], elsewhere: Mapping[str, str]) -> dict[str, Value]:
    """The options of key=value pairs.

    Args:
        flag: how the user gave them, for an error.
        what: what they are, for an error.
        pairs: as typed.
        elsewhere: names that have a way of their own, and that way.
    """
    found: dict[str, Value] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not name or not equals or name in found or name in elsewhere:
            way = elsewhere.get(name, "write each one once, as key=value")
            raise UserError(f"{flag} {pair!r} is not {what}: {way}")
        found[name] = parse(text)
    return found


def parameters(constructor: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """The parameters of a constructor by name; none of one that has no signature to read."""
    try:
        return inspect.signature(constructor).parameters
    except ValueError:
        return {}


def as_annotated(value: Value, parameter: inspect.Parameter | None) -> Any:
    """The value as a constructor wants it: None for "none", and a whole number where it asks for an int.

    Where it asks for an object, `module:callable` is imported and called to make one.

    >>> def f(n: int, x: float): ...
    >>> as_annotated(3.0, parameters(f)["n"]), as_annotated(3.0, parameters(f)["x"]), as_annotated("none", None)
    (3, 3.0, None)
    """
    if value == "none":
        return None
    if isinstance(value, str) and ":" in value and not _is_text(parameter):
        return call("option", value, import_callable("option", value))
    if parameter is not None and isinstance(value, float) and value.is_integer() and _is_int(parameter):
        return int(value)
    return value


def _is_text(parameter: inspect.Parameter | None) -> bool:
    """Whether a text may be meant as such: where nothing is said, or str is."""
    kind = inspect.Parameter.empty if parameter is None else parameter.annotation
    return kind is inspect.Parameter.empty or "str" in re.findall(r"\w+", str(kind))


def _is_int(parameter: inspect.Parameter) -> bool:
    kind = parameter.annotation
    if kind is inspect.Parameter.empty:
        return type(parameter.default) is int
    words = re.findall(r"\w+", kind if isinstance(kind, str) else getattr(kind, "__name__", str(kind)))
    return "int" in words and "float" not in words


@functools.cache
def described(constructor: Callable[..., Any]) -> dict[str, str]:
    """What the docstring of a constructor says about each of its arguments: the first clause.

    >>> from sr2 import SR2
    >>> described(SR2)["sigma_min"]
    'the least sigma'
    """
    found: dict[str, str] = {}
    _, _, arguments = (inspect.getdoc(constructor) or "").partition("Args:\n")
    for names, text in re.findall(r"^    (\w+(?:, \w+)*): (.*(?:\n {6,}.*)*)", arguments, re.MULTILINE):
        first = re.split(r"[;.](?:\s|$)", " ".join(text.split()))[0]
        found |= dict.fromkeys(names.split(", "), first)
    return found
