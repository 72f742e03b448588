"""The one exception for a user's mistake."""

from __future__ import annotations


def short(error: BaseException) -> str:
    """What an error says in one line of at most 300 characters: a hostile file may choose its words.

    >>> short(ValueError("two\\nlines"))
    'two lines'
    """
    return " ".join(str(error).split())[:300] or type(error).__name__


class UserError(Exception):
    """A mistake of the user or of their machine: one sentence that names the value and the way out.

    The command line prints it without a traceback; anything else that reaches the top is a bug of ours.
    """
