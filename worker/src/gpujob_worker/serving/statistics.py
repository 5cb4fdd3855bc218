"""What was answered in the last minute, in bounded memory."""

import math
from collections import deque
from dataclasses import dataclass, field

from gpujob_api.serving import BatchingPolicy, BatchTime, RequestLatency

WINDOW_SECONDS = 60
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
    busy_percent: float
    batch_samples: float | None
    time: BatchTime | None
    policy: BatchingPolicy


@dataclass(slots=True)
class _Second:
    """What ended in one second. `latencies` counts by the number of the histogram's bound."""

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


@dataclass(frozen=True, slots=True)
class Window:
    """The sums of the last minute. `seconds` is shorter soon after the start."""

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


class SlidingWindow:
    """Sums of seconds. `now` never decreases. Failed requests count as answered too late."""

    def __init__(self, objective_seconds: float, now: float) -> None:
        self._objective_seconds = objective_seconds
        self._start = now
        self._seconds: deque[_Second] = deque(maxlen=WINDOW_SECONDS)

    def answered(
        self, now: float, latency_seconds: float, samples: int, error: str | None = None
    ) -> None:
        """Adds a request that ended, with its error if it failed."""
        second = self._second(now)
        second.requests += 1
        second.samples += samples
        if error is not None:
            second.failed += 1
            second.error = error
        else:
            second.within += latency_seconds <= self._objective_seconds
        bound = _bound(latency_seconds)
        second.latencies[bound] = second.latencies.get(bound, 0) + 1

    def executed(self, now: float, seconds: float, samples: int) -> None:
        """Adds a batch. One longer than the window counts with the window's length."""
        second = self._second(now)
        second.batches += 1
        second.batched_samples += samples
        second.busy_seconds += min(seconds, WINDOW_SECONDS)

    def sums(self, now: float) -> Window:
        oldest = int(now) - WINDOW_SECONDS
        seconds = [second for second in self._seconds if second.number > oldest]
        counts: dict[int, int] = {}
        for second in seconds:
            for bound, count in second.latencies.items():
                counts[bound] = counts.get(bound, 0) + count
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
            latency=_latency(counts),
        )

    def _second(self, now: float) -> _Second:
        number = int(now)
        if not self._seconds or self._seconds[-1].number != number:
            self._seconds.append(_Second(number))
        return self._seconds[-1]


def _bound(seconds: float) -> int:
    low, high = LATENCY_SECONDS_RANGE
    return math.ceil(math.log(min(high, max(low, seconds))) / _LOG_RATIO)


def _latency(counts: dict[int, int]) -> RequestLatency | None:
    if not counts:
        return None
    total = sum(counts.values())
    ordered = sorted(counts.items())

    def milliseconds(percent: int) -> float:
        rank = math.ceil(total * percent / 100)
        seen = 0
        for bound, count in ordered:
            seen += count
            if seen >= rank:
                return 1000 * BOUND_RATIO**bound
        raise AssertionError(f"{percent} % of {total} were not found among {seen}")

    return RequestLatency(milliseconds(50), milliseconds(95), milliseconds(99))
