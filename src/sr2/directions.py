"""v from g. Exchangeable parts of SR2: `SR2(model, direction=Average(0.9))`."""

from .optim.parts.directions import *  # noqa: F403
from .optim.parts.directions import __all__ as __all__
