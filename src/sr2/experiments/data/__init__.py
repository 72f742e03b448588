"""Data sets, one a file: `digits` (embedded, the default), `fashion_mnist`, `cifar10`, `cifar100`; or yours.

>>> from sr2.experiments.data import load
>>> load("digits").train_images.shape
torch.Size([1437, 1, 8, 8])
"""

from .base import Dataset, default_root, known, load
from .batches import Batches, EvalBatches, Plan, augment_batch, epoch_plan, eval_batches, plain_batch
from .fetch import Progress, Row, check, fetch, rows

__all__ = [
    "Batches",
    "Dataset",
    "EvalBatches",
    "Plan",
    "Progress",
    "Row",
    "augment_batch",
    "check",
    "default_root",
    "epoch_plan",
    "eval_batches",
    "fetch",
    "known",
    "load",
    "plain_batch",
    "rows",
]
