"""When jobs are expected to end, for thousands of jobs at once: arrays with a number per job.

An end is either a moment, or the start of a run plus the duration of similar runs. Durations are
computed anew every time. The rest is computed only for jobs that changed.
"""

from dataclasses import dataclass, field
from math import inf
from typing import Protocol

import numpy as np

from gpujob_operator.decide.backfill.release_times import ReleaseTime, RunClass
from gpujob_operator.decide.packing.arrays import Floats, Integers

# Numbering starts again once this many more numbers were assigned than there are jobs.
NUMBERS_SPARE = 4096


class ReleaseSource(Protocol):
    """What is used of `release_times.ReleaseTimes`."""

    now_seconds: float
    version: int

    def end(self, uid: str) -> ReleaseTime: ...

    def length(self, run_class: RunClass) -> float: ...


@dataclass(slots=True)
class ReleaseArrays:
    """Moments by job number. Number 0 is no job.

    Call `number` for each job, `forget` whenever `releases` gets a job, and `tidy` once a cycle.
    """

    releases: ReleaseSource
    # Numbers by UID. Replaced by a new object if the assigned numbers become invalid.
    numbers: dict[str, int] = field(default_factory=dict[str, int])
    _at: Floats = field(default_factory=lambda: np.full(64, inf))
    _unknown_from: Floats = field(default_factory=lambda: np.full(64, inf))
    # The index of the run class. 0: none.
    _run_class: Integers = field(default_factory=lambda: np.zeros(64, np.int64))
    _run_classes: dict[RunClass, int] = field(default_factory=dict[RunClass, int])
    # Jobs whose end has to be computed again.
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
        """Marks a job that may have changed."""
        if uid in self.numbers:
            self._stale.add(uid)

    def tidy(self, jobs: int) -> None:
        """Renumbers from scratch once most numbers belong to deleted jobs."""
        if len(self.numbers) > 2 * jobs + NUMBERS_SPARE:
            self.numbers, self._run_classes = {}, {}
            self._stale.clear()

    def released_at_all(self, numbers: Integers) -> Floats:
        """Returns `ReleaseTimes.released_at` of the jobs with these numbers, in the same shape.

        The moment of number 0 is infinite.
        """
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
