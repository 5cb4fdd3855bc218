"""What was answered in the last minute, in bounded memory."""

import math
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from gpujob_api.serving import BatchingPolicy, BatchTime, RequestLatency

WINDOW_SECONDS = 60
# Of `needed_percent`, which a neighbour's pace follows.
NEEDED_SECONDS = 10
# Of the objective, for a request that was refused because its answer would have been late.
REFUSED_NEEDS = 2.0
# The ratio of neighbouring bounds of the latency histogram: percentiles are at most 2 % too high.
BOUND_RATIO = 1.02
LATENCY_SECONDS_RANGE = (1e-5, 1e6)
_LOG_RATIO = math.log(BOUND_RATIO)


@dataclass(frozen=True, slots=True)
class BatcherStatistics:
    """What a batcher did since its start, and in the last minute. Fields as in `ServingReport`."""

    answered: int
    failed: int
    refused: int
    queued: int
    recent_requests: int
    recent_failed: int
    recent_error: str
    requests_per_second: float
    samples_per_second: float
    within_objective_percent: float | None
    latency: RequestLatency | None
    needed_percent: float | None
    busy_percent: float
    batch_samples: float | None
    time: BatchTime | None
    policy: BatchingPolicy
    can_park: bool = False
    parked_seconds: float | None = None


@dataclass(slots=True)
class _Second:
    """What ended in one second. `latencies` and `needed` count by the number of the histogram's
    bound.
    """

    number: int
    requests: int = 0
    samples: int = 0
    within: int = 0
    failed: int = 0
    error: str = ""
    batches: int = 0
    batched_samples: int = 0
    busy_seconds: float = 0.0
    latencies: dict[int, int] = field(default_factory=dict[int, int])
    needed: dict[int, int] = field(default_factory=dict[int, int])


@dataclass(frozen=True, slots=True)
class Window:
    """The sums of the last minute. `seconds` is shorter soon after the start. `needed_seconds` is
    of the last ten seconds.
    """

    seconds: float
    requests: int
    samples: int
    within: int
    failed: int
    # Of the newest failure. Empty without one.
    error: str
    batches: int
    batched_samples: int
    busy_seconds: float
    latency: RequestLatency | None
    needed_seconds: float | None


class SlidingWindow:
    """Sums of seconds. `now` never decreases. Failed requests count as answered too late."""

    def __init__(self, objective_seconds: float, now: float, percentile: float = 99.0) -> None:
        self._objective_seconds = objective_seconds
        self._percentile = percentile
        self._start = now
        self._seconds: deque[_Second] = deque(maxlen=WINDOW_SECONDS)

    def answered(
        self,
        now: float,
        latency_seconds: float,
        samples: int,
        error: str | None = None,
        *,
        waited_seconds: float = 0.0,
    ) -> None:
        """Adds a request that ended, with its error if it failed.

        `waited_seconds` of its latency were spent on purpose, for a larger batch. A late request
        needed them too, because its batch took longer than expected.
        """
        second = self._second(now)
        second.requests += 1
        second.samples += samples
        if error is not None:
            second.failed += 1
            second.error = error
        else:
            second.within += latency_seconds <= self._objective_seconds
        _count(second.latencies, latency_seconds)
        is_late = latency_seconds > self._objective_seconds
        _count(second.needed, latency_seconds - (0.0 if is_late else waited_seconds))

    def refused(self, now: float) -> None:
        """Adds a request that was refused because its answer would have been late."""
        _count(self._second(now).needed, REFUSED_NEEDS * self._objective_seconds)

    def executed(self, now: float, seconds: float, samples: int) -> None:
        """Adds a batch. One longer than the window counts with the window's length."""
        second = self._second(now)
        second.batches += 1
        second.batched_samples += samples
        second.busy_seconds += min(seconds, WINDOW_SECONDS)

    def sums(self, now: float) -> Window:
        oldest = int(now) - WINDOW_SECONDS
        seconds = [second for second in self._seconds if second.number > oldest]
        recent = (s.needed for s in seconds if s.number > int(now) - NEEDED_SECONDS)
        needed = _joined(recent)
        return Window(
            seconds=max(1e-3, now - max(self._start, oldest + 1)),
            requests=sum(second.requests for second in seconds),
            samples=sum(second.samples for second in seconds),
            within=sum(second.within for second in seconds),
            failed=sum(second.failed for second in seconds),
            error=next((second.error for second in reversed(seconds) if second.failed), ""),
            batches=sum(second.batches for second in seconds),
            batched_samples=sum(second.batched_samples for second in seconds),
            busy_seconds=sum(second.busy_seconds for second in seconds),
            latency=_latency(_joined(second.latencies for second in seconds)),
            needed_seconds=_quantile(needed, self._percentile) if needed else None,
        )

    def _second(self, now: float) -> _Second:
        number = int(now)
        if not self._seconds or self._seconds[-1].number != number:
            self._seconds.append(_Second(number))
        return self._seconds[-1]


def _bound(seconds: float) -> int:
    low, high = LATENCY_SECONDS_RANGE
    return math.ceil(math.log(min(high, max(low, seconds))) / _LOG_RATIO)


def _count(counts: dict[int, int], seconds: float) -> None:
    bound = _bound(seconds)
    counts[bound] = counts.get(bound, 0) + 1


def _joined(histograms: Iterable[dict[int, int]]) -> Counter[int]:
    found: Counter[int] = Counter()
    for one in histograms:
        found.update(one)
    return found


def _latency(counts: Counter[int]) -> RequestLatency | None:
    if not counts:
        return None
    p50, p95, p99 = (1000 * _quantile(counts, percent) for percent in (50, 95, 99))
    return RequestLatency(p50, p95, p99)


def _quantile(counts: Counter[int], percent: float) -> float:
    """Returns the bound, in seconds, that at least `percent` percent do not exceed."""
    rank = math.ceil(counts.total() * percent / 100)
    seen = 0
    for bound, count in sorted(counts.items()):
        seen += count
        if seen >= rank:
            return BOUND_RATIO**bound
    raise AssertionError(f"{percent} % of {counts.total()} were not found among {seen}")
