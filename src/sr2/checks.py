"""Constants that a user gives: a wrong one is an error of one sentence, with its name, its bounds and its value."""

from __future__ import annotations

import math
from numbers import Integral, Real


def check_number(
    owner: object, name: str, value: object, low: float, high: float = math.inf, *, open_low: bool = False
) -> None:
    """low <= value < high (low < value where `open_low`), and a real number."""
    is_number = is_real(value)
    if not is_number or not (low < value if open_low else low <= value) or not value < high:  # type: ignore[operator]
        what = owner if isinstance(owner, str) else type(owner).__name__
        bounds = f"{'above' if open_low else 'at least'} {low:g} and " + (
            "finite" if high == math.inf else f"below {high:g}"
        )
        raise ValueError(f"{what}: {name} must be a number {bounds}, and is {shown(value)}")


def check_integer(owner: object, name: str, value: object, low: int) -> None:
    """An integer, low <= value."""
    if not is_real(value) or not isinstance(value, Integral) or int(value) < low:
        what = owner if isinstance(owner, str) else type(owner).__name__
        raise ValueError(f"{what}: {name} must be an integer of at least {low}, and is {shown(value)}")


def is_real(value: object) -> bool:
    """Whether it is a number that torch takes: an integer of more than 64 bits is none."""
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    return is_number and not (isinstance(value, Integral) and abs(int(value)) >= 2**63)


def shown(value: object) -> str:
    """What an error shows of a value: one line, not too long a one."""
    words = " ".join(repr(value).split())
    return words if len(words) <= 80 else f"{words[:77]}..."
