"""When jobs are expected to end, of thousands of them at once: arrays with a number for each job.

An end is either a moment, or the start of a run and what runs like it took. What those took is
asked anew every time, the rest only of jobs that are not the same any more.
"""

from dataclasses import dataclass, field
from math import inf
from typing import Protocol

import numpy as np

from gpujob_operator.decide.backfill.release_times import ReleaseTime, RunClass
from gpujob_operator.decide.packing.arrays import Floats, Integers

# Numbers are given again from the start once so many more were given than there are jobs.
NUMBERS_SPARE = 4096


class ReleaseSource(Protocol):
    """What is asked of `release_times.ReleaseTimes`."""

    now_seconds: float
    version: int

    def end(self, uid: str) -> ReleaseTime: ...

    def length(self, run_class: RunClass) -> float: ...


@dataclass(slots=True)
class ReleaseArrays:
    """`number` a job, and ask for the moments of any numbers; number 0 is nobody.

    Call `forget` whenever `releases` gets a job, and `tidy` once a cycle.
    """

    releases: ReleaseSource
    # By UID. Another object once the numbers that were given hold no longer.
    numbers: dict[str, int] = field(default_factory=dict[str, int])
    _at: Floats = field(default_factory=lambda: np.full(64, inf))
    _unknown_from: Floats = field(default_factory=lambda: np.full(64, inf))
    # The place of its run class; 0: none.
    _run_class: Integers = field(default_factory=lambda: np.zeros(64, np.int64))
    _run_classes: dict[RunClass, int] = field(default_factory=dict[RunClass, int])
    # Jobs whose end is to be found again.
    _stale: set[str] = field(default_factory=set[str])

    @property
    def version(self) -> int:
        """Incremented when the release time of any job may have changed."""
        return self.releases.version

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
        """Renumbers from scratch once most numbers belong to deleted jobs."""
        if len(self.numbers) > 2 * jobs + NUMBERS_SPARE:
            self.numbers, self._run_classes = {}, {}
            self._stale.clear()

    def released_at_all(self, numbers: Integers) -> Floats:
        """`ReleaseTimes.released_at` of the jobs of these numbers, in their shape; of 0
        infinite."""
        self._renew()
        lengths = np.array([0.0, *map(self.releases.length, self._run_classes)])
        at = self._at + lengths[self._run_class]
        at[(self._run_class > 0) & (at <= self.releases.now_seconds)] = inf
        at[self._unknown_from <= self.releases.now_seconds] = inf
        return at[numbers]

    def _renew(self) -> None:
        missing = len(self.numbers) + 1 - len(self._at)
        if missing > 0:
            more = max(missing, len(self._at))
            self._at = np.pad(self._at, (0, more), constant_values=inf)
            self._unknown_from = np.pad(self._unknown_from, (0, more), constant_values=inf)
            self._run_class = np.pad(self._run_class, (0, more))
        for uid in self._stale:
            end, number = self.releases.end(uid), self.numbers[uid]
            self._at[number], self._unknown_from[number] = end.at, end.unknown_from
            run_class = end.run_class
            self._run_class[number] = (
                0
                if run_class is None
                else self._run_classes.setdefault(run_class, len(self._run_classes) + 1)
            )
        self._stale.clear()
