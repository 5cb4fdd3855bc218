"""Compares steps without worker processes of a data loader, or with fewer, and steps with them.

How many are needed is a guess before there are any: the training process loads with all its
threads, a worker with one. Where steps still wait, what the workers take is known, and a second
number is tried.
"""

import math
from dataclasses import dataclass

from gpujob_worker.run.meter import Meter, Timed

# Steps with workers that are not counted: the workers start, and prefetched batches are available
# at once.
SETTLE_STEPS = 5
TRIAL_STEPS = 20
# Steps that a trial is compared with, after the other settings are in force.
BEFORE_STEPS = 10
# Numbers of workers that are tried.
TRIALS_MAX = 2
# Loading is to be faster than computing by so much, so that steps which vary do not wait.
MARGIN = 1.25
_COMPUTING_SECONDS_MIN = 1e-4


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds of a step, and those of waiting for data in it."""

    seconds: float
    waiting: float

    @property
    def wait_percent(self) -> float:
        return 100.0 * self.waiting / self.seconds if self.seconds > 0 else 0.0

    def loading_seconds(self, workers: int) -> float:
        """What a step's batches take of a core to load; `workers` do so now, without a pause."""
        return workers * self.seconds if workers else self.waiting

    def workers_needed(self, workers: int) -> int:
        """How many would load a step's batches while the step computes; `workers` do so now."""
        loading = self.loading_seconds(workers)
        computing = max(self.seconds - self.waiting, _COMPUTING_SECONDS_MIN)
        return max(1, math.ceil(MARGIN * loading / computing))


@dataclass(frozen=True, slots=True)
class TrialVerdict:
    """The steps of a trial with so many workers."""

    before: StepTimes
    after: StepTimes
    workers: int

    @property
    def shorter(self) -> bool:
        return self.after.seconds < self.before.seconds and self.after.waiting < self.before.waiting

    def __str__(self) -> str:
        return (
            f"steps take {self.after.seconds:.4f} s with workers, {self.after.waiting:.4f} s of it"
            f" waiting, after {self.before.seconds:.4f} s and {self.before.waiting:.4f} s"
        )


class LoaderTrial:
    """From the first step after tuning to the verdict. It may start once `before` returned them."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._tuned_at = meter.timed
        self._before: StepTimes | None = None
        self._workers = 0
        self._started: Timed | None = None
        self._settled: Timed | None = None
        self._tried: list[TrialVerdict] = []

    @property
    def found_before(self) -> StepTimes | None:
        """The steps without more workers, once enough of them were timed."""
        return self._before

    @property
    def measures_before(self) -> bool:
        return self._before is None

    @property
    def may_start(self) -> bool:
        return self._before is not None

    @property
    def has_started(self) -> bool:
        return self._started is not None

    def before(self) -> StepTimes | None:
        """The steps without more workers: returned once, when enough of them were timed."""
        if self._before is not None or self._steps_since(self._tuned_at) < BEFORE_STEPS:
            return None
        self._before = StepTimes(*self._meter.undisturbed(self._tuned_at))
        return self._before

    def starts(self, workers: int) -> None:
        """So many workers load from now on."""
        if workers != self._workers:
            self._workers, self._started, self._settled = workers, self._meter.timed, None

    @property
    def may_try_more(self) -> bool:
        return len(self._tried) < TRIALS_MAX

    @property
    def best(self) -> TrialVerdict:
        """That of the shortest steps; of two alike that of fewer workers."""
        return min(self._tried, key=lambda verdict: verdict.after.seconds)

    def verdict(self) -> TrialVerdict | None:
        """On the workers of now; None until enough steps were observed."""
        if self._before is None or self._started is None:
            return None
        if self._settled is None:
            if self._steps_since(self._started) >= SETTLE_STEPS:
                self._settled = self._meter.timed
            return None
        if self._steps_since(self._settled) < TRIAL_STEPS:
            return None
        after = StepTimes(*self._meter.undisturbed(self._settled))
        self._tried.append(TrialVerdict(self._before, after, self._workers))
        return self._tried[-1]

    def _steps_since(self, then: Timed) -> int:
        return self._meter.timed.since(then).steps
