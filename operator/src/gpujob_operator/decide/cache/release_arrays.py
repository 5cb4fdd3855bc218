"""When jobs are expected to end, of thousands of them at once: arrays with a number for each job.

An end is either a moment, or the start of a run and what runs like it took. What those took is
asked anew every time, the rest only of jobs that are not the same any more.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

import numpy as np

from gpujob_operator.decide.packing.arrays import Floats, Integers

# A workload, by its profile's namespace and name.
Workload = tuple[str, str]
# Runs of a workload on so many cards.
Like = tuple[Workload, int]

# Numbers are given again from the start once so many more were given than there are jobs.
NUMBERS_SPARE = 4096


@dataclass(frozen=True, slots=True)
class End:
    """When a job's cards are free, in seconds since 1970; or, with `like`, since when it runs, for
    as long as those did."""

    at: float
    like: Like | None = None

    def moment(self, length_seconds: float, now_seconds: float) -> float:
        """One that has run longer than its like is not expected to end at once."""
        if self.like is None:
            return self.at
        at = self.at + length_seconds
        return at if at > now_seconds else inf


UNKNOWN = End(inf)


@dataclass(slots=True)
class Ends:
    """`number` a job, and ask for the moments of any numbers; number 0 is nobody."""

    # By UID. Another object once the numbers that were given hold no longer.
    numbers: dict[str, int] = field(default_factory=dict[str, int])
    _at: Floats = field(default_factory=lambda: np.full(64, inf))
    # The place of what it is like; 0: nothing.
    _like: Integers = field(default_factory=lambda: np.zeros(64, np.int64))
    _likes: dict[Like, int] = field(default_factory=dict[Like, int])
    # Jobs whose end is to be found again.
    _stale: set[str] = field(default_factory=set[str])

    def number(self, uid: str) -> int:
        number = self.numbers.get(uid)
        if number is None:
            number = self.numbers[uid] = len(self.numbers) + 1
            self._stale.add(uid)
        return number

    def forget(self, uid: str) -> None:
        """Something may be different about this job."""
        if uid in self.numbers:
            self._stale.add(uid)

    def tidy(self, jobs: int) -> None:
        """Jobs come and go: takes all numbers back where most are of nobody any more."""
        if len(self.numbers) > 2 * jobs + NUMBERS_SPARE:
            self.numbers, self._likes = {}, {}
            self._stale.clear()

    def moments(
        self,
        numbers: Integers,
        end_of: Callable[[str], End],
        length_of: Callable[[Like], float],
        now_seconds: float,
    ) -> Floats:
        """See `End.moment`, of each of these numbers, in their shape."""
        self._renew(end_of)
        lengths = np.array([0.0, *map(length_of, self._likes)])
        at = self._at + lengths[self._like]
        at[(self._like > 0) & (at <= now_seconds)] = inf
        return at[numbers]

    def _renew(self, end_of: Callable[[str], End]) -> None:
        missing = len(self.numbers) + 1 - len(self._at)
        if missing > 0:
            more = max(missing, len(self._at))
            self._at = np.pad(self._at, (0, more), constant_values=inf)
            self._like = np.pad(self._like, (0, more))
        for uid in self._stale:
            end, number = end_of(uid), self.numbers[uid]
            self._at[number] = end.at
            like = end.like
            self._like[number] = (
                0 if like is None else self._likes.setdefault(like, len(self._likes) + 1)
            )
        self._stale.clear()
