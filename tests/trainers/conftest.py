"""One thread, and the trainers' own warnings are theirs; those of this library fail."""

import warnings

import pytest
import torch


@pytest.fixture(autouse=True)
def _quiet(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    torch.set_num_threads(before)


@pytest.fixture
def said(monkeypatch):
    """What the library has told, wherever it was told from."""
    messages = []
    for place in ("sr2.optim.closure.watch", "sr2.optim.state", "sr2.optim.processes", "sr2.optim.start"):
        monkeypatch.setattr(f"{place}.tell", messages.append)
    return messages
