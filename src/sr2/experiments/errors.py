"""The one exception for a user's mistake."""

from __future__ import annotations


class UserError(Exception):
    """A mistake of the user or of their machine: one sentence that names the value and the way out.

    The command line prints it without a traceback; anything else that reaches the top is a bug of ours.
    """
