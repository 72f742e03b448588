"""Warnings that point at the user's own line, however deep in the library they are raised."""

from __future__ import annotations

import contextlib
import sys
import warnings
from pathlib import Path

import torch
from torch import nn

_OURS = (str(Path(__file__).parent), str(Path(torch.__file__).parent), contextlib.__file__)


def called_by_us() -> bool:
    """Whether what torch is doing was asked for by this library, and not by the user."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OURS[1:]):
        frame = frame.f_back
    return frame.f_code.co_filename.startswith(_OURS[0])


def put_to_use(model: nn.Module) -> None:
    """Let who trains a network say what is to be said of it before it is saved or exported for use.

    Those are hooks of `state_dict` with a method `before_use`; a `state_dict()` alone may be a checkpoint.
    """
    for module in model.modules():
        for hook in list(module._state_dict_hooks.values()):
            if (say := getattr(hook, "before_use", None)) is not None:
                say()


def tell(message: str) -> None:
    """Warn, as if from the nearest caller that is neither this library nor torch."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OURS):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)
