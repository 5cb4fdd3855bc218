"""Numbers for classes of pending jobs that fit, or do not, together and have the same rights."""

from collections.abc import Hashable
from dataclasses import dataclass, field

from cachetools import LRUCache

# Maximum number of classes at a time. Pending jobs keep the numbers that they have.
CLASSES_MAX = 10_000


@dataclass(slots=True)
class EquivalenceClasses:
    """A number is never given again, not even to the class that had it."""

    _numbers: LRUCache[Hashable, int] = field(default_factory=lambda: LRUCache(CLASSES_MAX))
    _last: int = 0

    def number(self, of: Hashable) -> int:
        """Of this class; never 0."""
        number = self._numbers.get(of)
        if number is None:
            self._last += 1
            number = self._numbers[of] = self._last
        return number
