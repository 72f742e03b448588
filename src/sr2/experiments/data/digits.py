"""digits: 1,797 handwritten digits of 8 x 8, embedded in scikit-learn. The default: nothing to fetch."""

from __future__ import annotations

import numpy as np

from ..errors import UserError
from ..tasks import Images
from .base import Spec
from .files import Arrays


def _arrays() -> Arrays:
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise UserError(
            "digits are embedded in scikit-learn: install it with `pip install sr2[experiments]`"
        ) from error

    digits = load_digits()
    # 0..16 becomes 0..240: whole numbers, nothing is rounded.
    images = (digits.images * 15).astype(np.uint8)[:, None]
    labels = digits.target.astype(np.uint8)
    # Every fifth image of each class, in the order of the file, is a test image: no randomness, balanced.
    by_class = np.argsort(labels, kind="stable")
    test = np.zeros(len(labels), bool)
    test[by_class[::5]] = True
    return Arrays(images[~test], labels[~test], images[test], labels[test])


SPEC = Spec(
    name="digits",
    title="digits",
    shape=(1, 8, 8),
    outputs=10,
    train=1437,
    test=360,
    task=Images((0.2878,), (0.3541,)),
    embedded=_arrays,
)
