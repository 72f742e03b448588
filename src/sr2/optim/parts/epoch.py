"""How many batches an epoch has, where nobody says: in the second one the examples of the first come again.

A `DataLoader` that shuffles gives every example once per epoch. So no example comes twice in the first K batches, and
all examples of the next batches have come before. It is not so where examples are changed at random (crops, mirrors),
are drawn with replacement, or are windows of a text: then nothing is found.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

REPEATED = 0.1
"""The largest share of examples of the first epoch that have come before in it, as equal rows of a table do."""
RETURNED = 0.7
"""Of the examples of the second epoch's first batches at least this share came in the first epoch. A loader that leaves
out what does not fill a batch leaves out a quarter at the most, where there are three batches."""
SURE = 4, 16
"""So many batches of the second epoch are looked at, and so many examples, to make sure."""
WATCHED = 512
"""Of larger batches about so many examples are watched."""
KEPT = 256
"""About so many examples of the first epoch are remembered, to know them again in later ones."""


@dataclass
class Epoch:
    """Finds K from the marks of the examples of each batch, integers. Plain data, which is saved with the search.

    >>> epoch = Epoch(most=40)
    >>> first, second = [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]], [[4, 7, 1, 10], [12, 5, 8, 3], [9, 2, 11, 6]]
    >>> [epoch.take(batch) for batch in first + second + first[:1]], epoch.batches
    ([False, False, False, False, False, False, True], 3)
    >>> epoch.goes_on([8, 2, 5, 9]), epoch.goes_on([13, 14, 15, 16])
    (True, False)
    """

    most: int
    """The longest epoch that is wanted."""
    batches: int = 0
    """K; 0 where it is not known, or not yet."""
    over: bool = False
    """K is found, or cannot be found."""
    taken: int = 0
    """Batches that were looked at."""
    every: int = 0
    """Marks that are multiples of this number are watched, so that the same examples are watched at any time."""
    first: int = 0
    """What may be K, while that is made sure."""
    came: int = 0
    again: int = 0
    """Examples of the first epoch, and those of them that had come before; then the same of the second."""
    known: set[int] = field(default_factory=set)

    def take(self, marks: list[int]) -> bool:
        """Takes the examples of the next batch; returns whether K is found, or cannot be found."""
        self.every = self.every or max(1, len(marks) // WATCHED)
        watched = [mark for mark in marks if mark % self.every == 0]
        again = sum(mark in self.known for mark in watched)
        small = 2 * len(watched) * self.taken < self.came  # the rest of an epoch, of which chance decides
        if not self.first and watched and 2 * again >= len(watched) and not small:
            if self.again > REPEATED * self.came:
                return self._end(0)
            self.first, self.came, self.again = self.taken, 0, 0
        self.taken += 1
        self.came += len(watched)
        if self.first:
            self.again += again
            if self.taken - self.first < SURE[0] or self.came < SURE[1]:
                return False
            return self._end(self.first if self.again >= RETURNED * self.came else 0)
        before = len(self.known)
        self.known.update(watched)
        self.again += before + len(watched) - len(self.known)
        too_many = self.taken > self.most or len(self.known) > 2 * WATCHED * self.most  # these of a small first batch
        return self._end(0) if not marks or too_many else False

    def goes_on(self, marks: list[int]) -> bool:
        """Whether this batch is one of such epochs too: at least half of its examples came in the first one. Data may
        change, as where a shard is read twice before the next one, or an easy part of the data comes first."""
        watched = [mark for mark in marks if mark % self.every == 0]
        return 2 * sum(mark in self.known for mark in watched) >= len(watched)

    def _end(self, batches: int) -> bool:
        self.batches, self.over = batches, True
        self.every *= max(1, len(self.known) // KEPT)
        self.known = {mark for mark in self.known if batches and mark % self.every == 0}
        return True

    def saved(self) -> dict[str, Any]:
        """As plain data."""
        return {**vars(self), "known": sorted(self.known)}

    @staticmethod
    def of(saved: dict[str, Any]) -> Epoch:
        """The inverse."""
        return Epoch(**{**saved, "known": set(saved["known"])})
