"""What depends on the number of steps. Exchangeable parts of SR2: `SR2(model, schedule=Cooldown(800, 1000))`."""

from .optim.parts.schedules import *  # noqa: F403
from .optim.parts.schedules import __all__ as __all__
