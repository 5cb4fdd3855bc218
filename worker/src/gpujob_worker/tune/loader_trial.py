"""Compares steps with no or fewer worker processes of a data loader to steps with more of them.

The first number of workers is a guess, because the training process loads with all its threads and
a worker with one. If steps still wait, the first trial has measured the workers' speed, and a
second number is tried.
"""

import math
from dataclasses import dataclass

from gpujob_worker.run.meter import Meter, Timed

# Steps with workers that are not counted, because workers start and prefetched batches are
# available at once.
SETTLE_STEPS = 5
TRIAL_STEPS = 20
# Steps to which a trial is compared, after the other settings are applied.
BEFORE_STEPS = 10
# Maximum number of different worker counts that are tried.
TRIALS_MAX = 2
# Loading must be this many times faster than computing, so that steps of varying length do not
# wait.
MARGIN = 1.25
_COMPUTING_SECONDS_MIN = 1e-4


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Mean seconds of a step, and the seconds of it spent waiting for data."""

    seconds: float
    waiting: float

    @property
    def wait_percent(self) -> float:
        return 100.0 * self.waiting / self.seconds if self.seconds > 0 else 0.0

    def loading_seconds(self, workers: int) -> float:
        """Returns the core seconds that loading a step's batches takes. `workers` load now, without
        a pause.
        """
        return workers * self.seconds if workers else self.waiting

    def workers_needed(self, workers: int) -> int:
        """Returns how many workers can load a step's batches while the step computes. `workers`
        load now.
        """
        loading = self.loading_seconds(workers)
        computing = max(self.seconds - self.waiting, _COMPUTING_SECONDS_MIN)
        return max(1, math.ceil(MARGIN * loading / computing))


@dataclass(frozen=True, slots=True)
class TrialVerdict:
    """The steps before and during a trial with `workers` workers."""

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
    """Runs from the first step after tuning to the verdict. It may start once `before` returned its
    steps.
    """

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
        """The steps without more workers, or None until enough of them were timed."""
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
        """Returns the steps without more workers once, when enough of them were timed; None
        otherwise.
        """
        if self._before is not None or self._steps_since(self._tuned_at) < BEFORE_STEPS:
            return None
        self._before = StepTimes(*self._meter.undisturbed(self._tuned_at))
        return self._before

    def starts(self, workers: int) -> None:
        """Records that `workers` workers load from now on."""
        if workers != self._workers:
            self._workers, self._started, self._settled = workers, self._meter.timed, None

    @property
    def may_try_more(self) -> bool:
        return len(self._tried) < TRIALS_MAX

    @property
    def best(self) -> TrialVerdict:
        """The verdict with the shortest steps. Of two equal ones, it is the one with fewer
        workers.
        """
        return min(self._tried, key=lambda verdict: verdict.after.seconds)

    def verdict(self) -> TrialVerdict | None:
        """Returns the verdict on the current workers, or None until enough steps were timed."""
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
