"""D from the gradients. Exchangeable parts of every optimizer: `SR2(model, metric=Adam())`."""

from .optim.parts.metrics import AdaGrad, Adam, Andrei, Metric, RMSprop

__all__ = ["AdaGrad", "Adam", "Andrei", "Metric", "RMSprop"]
