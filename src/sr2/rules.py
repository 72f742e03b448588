"""Accept? Next sigma? Exchangeable parts of SR2: `SR2(model, rule=Ratio(eta2=0.9))`."""

from .optim.parts.rules import Constants, Evidence, Ratio, Rule, Verdict
from .optim.parts.steering import Follow, Tolerant

__all__ = ["Constants", "Evidence", "Follow", "Ratio", "Rule", "Tolerant", "Verdict"]
