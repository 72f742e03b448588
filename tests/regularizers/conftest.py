"""Hypothesis: the same examples every time, few enough for every commit."""

from hypothesis import settings

settings.register_profile("sr2", max_examples=25, deadline=None, derandomize=True, database=None)
settings.load_profile("sr2")
