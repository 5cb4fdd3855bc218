"""Numbers for classes of pending jobs that fit, or do not, together and have the same rights."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import lru_cache

# Maximum number of classes at a time. Pending jobs keep the numbers that they have.
CLASSES_MAX = 10_000


@dataclass(slots=True)
class EquivalenceClasses:
    """`number` is that of a class, never 0. A number is never given again, not even to the class
    that had it."""

    number: Callable[[Hashable], int] = field(init=False)
    _last: int = 0

    def __post_init__(self) -> None:
        # `lru_cache` hashes a class once, which is most of the work, and is asked for every job.
        self.number = lru_cache(CLASSES_MAX)(self._next)

    def _next(self, _: Hashable) -> int:
        self._last += 1
        return self._last
