"""diabetes: 442 patients, ten measurements, the progress of the disease a year later. Embedded in scikit-learn.

A regression: inputs and targets have mean 0 and deviation 1 over the training rows, so that R^2 is what it was and a
lambda means the same as elsewhere.
"""

from __future__ import annotations

import numpy as np

from ..errors import UserError
from ..tasks import Regression
from .base import Spec
from .files import Array, Arrays


def _arrays() -> Arrays:
    try:
        from sklearn.datasets import load_diabetes
    except ImportError as error:
        raise UserError(
            "diabetes is embedded in scikit-learn: install it with `pip install sr2[experiments]`"
        ) from error

    x, y = load_diabetes(return_X_y=True)
    test = np.arange(len(y)) % 5 == 0  # every fifth row of the file: no randomness

    def scaled(values: Array) -> Array:
        known = values[~test]
        made: Array = ((values - known.mean(0)) / known.std(0)).astype(np.float32)
        return made

    x, y = scaled(x), scaled(y)
    return Arrays(x[~test], y[~test], x[test], y[test])


SPEC = Spec(
    name="diabetes",
    title="diabetes",
    shape=(10,),
    outputs=1,
    train=353,
    test=89,
    task=Regression(),
    embedded=_arrays,
)
