"""v from g. Exchangeable parts of SR2: `SR2(model, direction=Average(0.9))`."""

from .optim.parts.directions import Average, Direction

__all__ = ["Average", "Direction"]
