"""The door to finished runs: `from sr2.experiments.trained import trained`."""

from .run.trained import trained

__all__ = ["trained"]
