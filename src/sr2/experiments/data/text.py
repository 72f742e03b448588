"""Texts as bytes: `text`, a file of the user's own, and `counting`, a small text that is made here.

The network is asked for the next byte at every place of a window of 64: 256 outputs, and no vocabulary to make.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..tasks import Tokens
from .base import Spec
from .files import Array, Arrays, File, Layout, damaged

LENGTH = 64
"""Bytes per window."""
TEST_SHARE = 0.1
"""The share of a text, at its end, that is the test."""


def windows(text: bytes) -> tuple[Array, Array]:
    """Windows of a text that do not overlap, and for each byte the one that follows it.

    >>> inputs, targets = windows(bytes(range(130)))
    >>> inputs.shape, int(inputs[1, 0]), int(targets[0, -1])
    ((2, 64), 64, 64)
    """
    data = np.frombuffer(text, np.uint8)
    n = max(len(data) - 1, 0) // LENGTH
    return data[: n * LENGTH].reshape(n, LENGTH), data[1 : n * LENGTH + 1].reshape(n, LENGTH)


def _split(text: bytes) -> Arrays:
    end = len(text) - round(TEST_SHARE * len(text))
    return Arrays(*windows(text[:end]), *windows(text[end:]))


def _decode(files: Sequence[File]) -> Arrays:
    (file,) = files
    arrays = _split(file.content)
    if len(arrays.test_inputs) == 0:
        raise damaged(file.name, f"has {len(file.content)} bytes, and a text needs at least {round(66 / TEST_SHARE)}")
    return arrays


# ---- counting

_ONES = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
]
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]


def in_words(number: int) -> str:
    """A number below a thousand, in words.

    >>> in_words(7), in_words(342)
    ('seven', 'three hundred forty-two')
    """
    if number < 20:
        return _ONES[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        return _TENS[tens - 2] + (f"-{_ONES[ones]}" if ones else "")
    hundreds, rest = divmod(number, 100)
    return f"{_ONES[hundreds]} hundred" + (f" {in_words(rest)}" if rest else "")


def _counting() -> Arrays:
    """Sums such as "two plus three is five": every fifth line is of the test."""
    lines = [f"{in_words(a)} plus {in_words(b)} is {in_words(a + b)}\n" for a in range(50) for b in range(0, 50, 5)]
    test = lines[::5]
    train = [line for number, line in enumerate(lines) if number % 5]
    return Arrays(*windows("".join(train).encode()), *windows("".join(test).encode()))


TEXT = Spec(
    name="text",
    title="a text of your own",
    shape=(LENGTH,),
    outputs=256,
    train=None,
    test=None,
    task=Tokens(),
    layouts=(Layout(("input.txt",), "text", (), _decode),),
    hint="a text of your own as input.txt",
)
COUNTING = Spec(
    name="counting",
    title="sums in words",
    shape=(LENGTH,),
    outputs=256,
    train=222,
    test=56,
    task=Tokens(),
    embedded=_counting,
)
