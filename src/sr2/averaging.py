"""The average of the iterates. An exchangeable part of SR2: `SR2(model, average=Polynomial(8.0))`."""

from .optim.parts.averaging import *  # noqa: F403
from .optim.parts.averaging import __all__ as __all__
