"""Numbers for classes of pending jobs that fit, or do not, together and have the same rights."""

from collections.abc import Hashable
from dataclasses import dataclass, field

# Maximum number of classes at a time.
CLASSES_MAX = 10_000


@dataclass(slots=True)
class EquivalenceClasses:
    """A number is never given again, not even to the class that had it."""

    _numbers: dict[Hashable, int] = field(default_factory=dict[Hashable, int])
    _last: int = 0

    def number(self, of: Hashable) -> int:
        """Of this class; never 0."""
        if len(self._numbers) >= CLASSES_MAX and of not in self._numbers:
            # Jobs that wait keep their numbers.
            self._numbers.clear()
        if of not in self._numbers:
            self._last += 1
            self._numbers[of] = self._last
        return self._numbers[of]
