"""Docstrings as Markdown: an example that doctest runs is shown as it stands, and is no quotation."""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^>>> .*(?:\n.+)*(?:\n\n>>> .*(?:\n.+)*)*", re.MULTILINE)


class Docstrings(griffe.Extension):
    """Fences around the examples of every docstring."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(text: str) -> str:
    """The docstring with its examples fenced.

    >>> print(as_markdown("It doubles.\\n\\n>>> double(2)\\n4"))
    It doubles.
    <BLANKLINE>
    ```pycon
    >>> double(2)
    4
    ```
    """
    text = re.sub(r" *# doctest: \+\w+$", "", text, flags=re.MULTILINE)  # for doctest alone
    return EXAMPLE.sub(lambda example: f"```pycon\n{example[0]}\n```", text)
