"""D from the gradients. Exchangeable parts of every optimizer: `SR2(model, metric=Adam())`."""

from .optim.parts.metrics import *  # noqa: F403
from .optim.parts.metrics import __all__ as __all__
