"""Accept? Next sigma? Exchangeable parts of SR2: `SR2(model, rule=Ratio(eta2=0.9))`."""

from .optim.parts import rules, steering
from .optim.parts.rules import *  # noqa: F403
from .optim.parts.steering import *  # noqa: F403

__all__ = [*rules.__all__, *steering.__all__]
