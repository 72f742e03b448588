"""Data sets, one per file; `sr2 data list` names them all. `digits` is embedded, and the default.

>>> from sr2.experiments.data import load
>>> load("digits").train_inputs.shape
torch.Size([1437, 1, 8, 8])
"""

from .base import Dataset, default_root, known, load
from .batches import Batches, EvalBatches, eval_batches
from .fetch import Listed, Progress, check, fetch, listed

__all__ = [
    "Batches",
    "Dataset",
    "EvalBatches",
    "Listed",
    "Progress",
    "check",
    "default_root",
    "eval_batches",
    "fetch",
    "known",
    "listed",
    "load",
]
