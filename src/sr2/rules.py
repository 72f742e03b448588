"""Accept? Next sigma? Exchangeable parts of SR2: `SR2(model, rule=Ratio(eta2=0.9))`."""

from .optim.parts.rules import *  # noqa: F403
from .optim.parts.rules import __all__ as __all__
