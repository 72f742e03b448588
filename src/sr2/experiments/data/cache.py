"""One file of verified arrays per data set, so that the second load is fast."""

from __future__ import annotations

import json
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...files import write_atomically
from .files import Arrays

FILE = "verified.npz"
_VERSION = 1
_KEYS = ("train_images", "train_labels", "test_images", "test_labels")  # in the file: its words stay


@dataclass(frozen=True)
class Cached:
    """What a cache holds: the arrays and the stamp of the files they were read from."""

    arrays: Arrays
    stamp: Any


def save(folder: Path, name: str, arrays: Arrays, stamp: Any) -> None:
    """Write the cache of the data set `name` in its folder."""
    about = json.dumps({"version": _VERSION, "name": name, "stamp": stamp})
    named = dict(zip(_KEYS, arrays, strict=True))
    write_atomically(folder / FILE, lambda file: np.savez(file, allow_pickle=False, about=np.array(about), **named))


def read(folder: Path, name: str) -> Cached | None:
    """The cache, or None where there is none or it is damaged (zip compares the CRC of every array)."""
    try:
        # Opened here, since numpy leaves open what turns out to be no zip file.
        with open(folder / FILE, "rb") as file, np.load(file, allow_pickle=False) as stored:
            about = json.loads(str(stored["about"]))
            if (about["version"], about["name"]) != (_VERSION, name):
                return None
            arrays = Arrays(*(stored[key] for key in _KEYS))
            return Cached(arrays, about["stamp"])
    except (OSError, ValueError, TypeError, KeyError, EOFError, NotImplementedError, zipfile.BadZipFile):
        return None
