"""Warnings that point at the user's own line, however deep in the library they are raised."""

from __future__ import annotations

import contextlib
import sys
import warnings
from pathlib import Path
from types import FrameType

import torch

_OURS = (str(Path(__file__).parent), str(Path(torch.__file__).parent), contextlib.__file__)
_SAVE = (str(Path(__file__).parent / "export" / "container.py"), "save")  # saves for its caller, as torch.save does


def called_by_us() -> bool:
    """Whether what torch is doing was asked for by this library, and not by the user."""
    frame = sys._getframe(2)
    while frame.f_back is not None and (
        frame.f_code.co_filename.startswith(_OURS[1:]) or (frame.f_code.co_filename, frame.f_code.co_name) == _SAVE
    ):
        frame = frame.f_back
    return frame.f_code.co_filename.startswith(_OURS[0])


def saving_for_use() -> bool:
    """Whether `sr2.export.save` is writing: a network to use, where a `state_dict()` may be a checkpoint to go on."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (frame.f_code.co_filename, frame.f_code.co_name) != _SAVE:
        frame = frame.f_back
    return frame is not None


def tell(message: str) -> None:
    """Warn, as if from the nearest caller that is neither this library nor torch."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OURS):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)
