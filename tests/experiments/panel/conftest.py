"""A package of texts like npm's, small and made here."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from sr2.experiments.panel import text

BOOKS = {
    "austen-emma.txt": b"the quick brown fox jumps over the lazy dog, and the dog sleeps on.\n" * 60,
    "carroll-alice.txt": b"Alice was beginning to get very tired of sitting by her sister.\n" * 40,
}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Named by $SR2_GUTENBERG; README is no text."""
    path = tmp_path / "texts.tgz"
    with tarfile.open(path, "w:gz") as archive:
        for name, content in {"README": b"no text", **dict(reversed(BOOKS.items()))}.items():
            member = tarfile.TarInfo(f"package/gutenberg/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    monkeypatch.setenv("SR2_GUTENBERG", str(path))
    text.read.cache_clear()
    text.codes.cache_clear()
    return path
