"""When queued requests become a batch, and which requests are refused: rules without a clock, a
thread or a tensor.

Each request joins a planned batch when it arrives, in the order of arrivals. It joins the last
planned batch if that one still ends in time for all of its requests, else it begins another one.
The planned times give the moment of its answer, so that a request that would be late is refused at
once. Nothing is refused later. All times are in seconds of one monotonic clock.

Immediate dispatches as soon as the device is free. Deadline waits until

    earliest deadline - margin <= now + t(n + 1)

for the n samples of the first planned batch: later, one more sample would make a request late. With
agreeable deadlines no other time of dispatch has fewer batches. It does not wait if a second batch
is planned, or if the batch is full.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from gpujob_api.serving import Batching, BatchingPolicy, Objective
from gpujob_worker.serving.batch_time import BatchTimes, Line
from gpujob_worker.serving.quantile import RecentQuantile

Request = TypeVar("Request")

QUEUE_MAX = 1024
AUTO_SIZE_MAX = 256
# The largest request, in largest batches. Larger ones would hold up all others for long.
REQUEST_FACTOR = 4
# A batch is full once its fixed part is a smaller share: waiting would save less than that.
FIXED_SHARE_MIN = 0.05
RETRY_SECONDS_RANGE = (0.001, 60.0)
LATENESS_KEPT = 512
LATENESS_PERCENT = 99.5
# Of the objective.
LATENESS_SHARE_MAX = 0.25


@dataclass(frozen=True, slots=True)
class Part(Generic[Request]):
    """Samples `start` to `start + samples` of a request."""

    request: Request
    start: int
    samples: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The answer would have been late, by `retry_after_seconds`, or the queue is full."""

    retry_after_seconds: float


@dataclass(frozen=True, slots=True)
class Dispatch(Generic[Request]):
    """The parts to execute now, in the order of arrivals. `size` includes padding."""

    parts: tuple[Part[Request], ...]
    samples: int
    size: int


@dataclass(frozen=True, slots=True)
class WaitUntil:
    seconds: float


@dataclass(frozen=True, slots=True)
class Idle:
    """Nothing is queued."""


@dataclass(slots=True)
class _Planned(Generic[Request]):
    """Its requests are in time by `deadline`. It waits on purpose only if it ends by `wait_end`."""

    deadline: float
    wait_end: float
    samples: int
    size: int
    parts: list[Part[Request]] = field(default_factory=list[Part[Request]])


@dataclass(frozen=True, slots=True)
class _Running:
    since: float
    size: int


def padded_size(samples: int, sizes: tuple[int, ...] | None) -> int:
    """Returns the smallest size of at least `samples`. Raises `ValueError` beyond the largest."""
    if sizes is None:
        return samples
    for size in sizes:
        if size >= samples:
            return size
    raise ValueError(f"samples: must be at most {sizes[-1]}, the largest batch; got {samples}")


class BatchQueue(Generic[Request]):
    """Requests in order of arrival, grouped into planned batches. Not thread-safe.

    The caller alternates between `next` and `finished`: one batch is executed at a time.
    """

    def __init__(
        self,
        objective: Objective,
        batching: Batching,
        times: BatchTimes,
        *,
        sizes: tuple[int, ...] | None = None,
        queue_max: int = QUEUE_MAX,
    ) -> None:
        self.shared = False
        self.draining = False
        self.times = times
        self._objective_seconds = objective.latency_milliseconds / 1000
        self._percentile = objective.percentile
        self._batching = batching
        self._sizes = sizes
        self._queue_max = queue_max
        self._largest = batching.max_size or AUTO_SIZE_MAX
        if sizes is not None:
            self._largest = max((one for one in sizes if one <= self._largest), default=sizes[0])
        self._memory_size: int | None = None
        self._planned: deque[_Planned[Request]] = deque()
        self._planned_size = 0
        self._queued = 0
        self._running: _Running | None = None
        self._wait_until: float | None = None
        self._lateness = RecentQuantile(LATENESS_KEPT)
        self._size_line: Line | None = None
        self._size_max = self._auto_size = 1

    @property
    def queued(self) -> int:
        """The number of requests, or parts of large ones, that are not dispatched."""
        return self._queued

    @property
    def running(self) -> bool:
        return self._running is not None

    @property
    def policy(self) -> BatchingPolicy:
        """The policy in force: Auto is Deadline beside others, else Immediate."""
        if self._batching.policy is not BatchingPolicy.AUTO:
            return self._batching.policy
        return BatchingPolicy.DEADLINE if self.shared else BatchingPolicy.IMMEDIATE

    @property
    def size_max(self) -> int:
        """The number of samples in a full batch."""
        if self._size_line is not self.times.line:
            self._size_line = self.times.line
            self._auto_size = self._find_auto_size(self._size_line)
            self._size_max = self._find_size_max()
        return self._size_max

    @property
    def samples_max(self) -> int:
        """The number of samples of the largest request. It does not depend on measurements, so
        that a client's request is not valid at one time and invalid at another.
        """
        return REQUEST_FACTOR * self._largest

    def limit_size(self, size: int | None) -> None:
        """No later batch is larger than `size`, because memory ran out above it."""
        if size != self._memory_size:
            self._memory_size = size
            self._size_line = None

    def set_prior(self, line: Line) -> None:
        """Replaces all that is known of batches' times."""
        self.times = BatchTimes(line, self._percentile)

    def abandon(self) -> list[Part[Request]]:
        """Returns all that is queued, and empties the queue."""
        left = [part for batch in self._planned for part in batch.parts]
        self._planned.clear()
        self._planned_size = self._queued = 0
        return left

    def offer(
        self, request: Request, samples: int, now: float, deadline: float | None = None
    ) -> Refused | None:
        """Queues a request, or refuses it.

        The deadline is by default `now` plus the objective, or plus twice the time of a whole batch
        if this is longer: an objective that the model cannot keep does not refuse everything.
        Batches do not wait for others in the time beyond the objective.

        A batch behind others must have room to become a large one. Otherwise, under overload, each
        request that is just in time would get a batch that none can join, and most of the
        device's time would go into fixed parts.

        Raises `ValueError` for less than one sample or more than `samples_max`.
        """
        if not 1 <= samples <= self.samples_max:
            text = f"{REQUEST_FACTOR} times the largest batch"
            raise ValueError(f"samples: must be 1 to {self.samples_max}, {text}; got {samples}")
        size_max = self.size_max
        whole, rest = divmod(samples, size_max)
        own_seconds = whole * self._seconds(size_max) + (self._seconds(rest) if rest else 0)
        room_seconds = own_seconds
        if self.policy is not BatchingPolicy.OFF:
            room_seconds = max(own_seconds, self._seconds(min(size_max, self._auto_size)))
        # No batch waits beyond the objective, however long a late request is accepted.
        wait_end = now + self._objective_seconds if deadline is None else deadline
        if deadline is None:
            deadline = max(wait_end, now + 2 * room_seconds)
        backlog_end = self._backlog_end(now)
        if self._queued + whole + bool(rest) > self._queue_max:
            return self._refused(backlog_end - now)
        if rest == samples and self._joins(samples, now, deadline):
            self._join(Part(request, 0, samples), deadline, wait_end)
            return None
        late = backlog_end + (room_seconds if backlog_end > now else own_seconds) - deadline
        if late > 0:
            return self._refused(late)
        for start in range(0, samples, size_max):
            part = Part(request, start, min(size_max, samples - start))
            self._open(part, deadline, wait_end)
        return None

    def next(self, now: float) -> Dispatch[Request] | WaitUntil | Idle:
        """Returns what to do with the free device. A dispatch lasts until `finished`."""
        if self._running is not None:
            raise RuntimeError("next: a batch is being executed; call finished first")
        if not self._planned:
            self._wait_until = None
            return Idle()
        due = self.due(now)
        if due > now:
            self._wait_until = due
            return WaitUntil(due)
        if self._wait_until is not None:
            late = max(0.0, now - self._wait_until)
            self._lateness.add(min(late, LATENESS_SHARE_MAX * self._objective_seconds))
            self._wait_until = None
        batch = self._planned.popleft()
        self._planned_size -= batch.size
        self._queued -= len(batch.parts)
        self._running = _Running(now, batch.size)
        return Dispatch(tuple(batch.parts), batch.samples, batch.size)

    def finished(self, now: float, size: int | None) -> None:
        """Ends the dispatch. `size` is that of the batch executed, or None if its time tells
        nothing about batches of this size, because it failed.
        """
        running, self._running = self._running, None
        if running is None:
            raise RuntimeError("finished: no batch is being executed")
        if size is not None:
            self.times.observe(size, now - running.since)

    def due(self, now: float) -> float:
        """Returns when the first planned batch is dispatched on a free device: not later than
        `now` if at once.
        """
        if self.policy is not BatchingPolicy.DEADLINE or self.draining or len(self._planned) != 1:
            return now
        first = self._planned[0]
        if first.samples >= self.size_max:
            return now
        line = self.times.line
        if line.fixed_seconds < FIXED_SHARE_MIN * line.seconds(first.size):
            return now
        size = padded_size(first.samples + 1, self._sizes)
        seconds = line.seconds(size) * (1 + self.times.margin)
        return first.wait_end - seconds - self._lateness.value(LATENESS_PERCENT, 0.0)

    def _joins(self, samples: int, now: float, deadline: float) -> bool:
        if not self._planned or self.policy is BatchingPolicy.OFF:
            return False
        last = self._planned[-1]
        joined = last.samples + samples
        if joined > self.size_max:
            return False
        before = self._backlog_end(now, without_last=True)
        return before + self._seconds(joined) <= min(deadline, last.deadline)

    def _join(self, part: Part[Request], deadline: float, wait_end: float) -> None:
        last = self._planned[-1]
        last.parts.append(part)
        last.samples += part.samples
        last.deadline = min(last.deadline, deadline)
        last.wait_end = min(last.wait_end, wait_end)
        size = padded_size(last.samples, self._sizes)
        self._planned_size += size - last.size
        last.size = size
        self._queued += 1

    def _open(self, part: Part[Request], deadline: float, wait_end: float) -> None:
        size = padded_size(part.samples, self._sizes)
        self._planned.append(_Planned(deadline, wait_end, part.samples, size, [part]))
        self._planned_size += size
        self._queued += 1

    def _seconds(self, samples: int) -> float:
        """Returns the time of a batch with the usual margin."""
        size = padded_size(samples, self._sizes)
        return self.times.line.seconds(size) * (1 + self.times.usual_margin)

    def _backlog_end(self, now: float, *, without_last: bool = False) -> float:
        """Returns when the device has executed all planned batches, or all but the last one.

        A batch that is late by some time is expected to take that time once more: during a hang,
        requests are refused.
        """
        line = self.times.line
        count, size = len(self._planned), self._planned_size
        if without_last:
            count, size = count - 1, size - self._planned[-1].size
        end = now + line.fixed_seconds * count + line.per_sample_seconds * size
        if self._running is not None:
            left = self._running.since + line.seconds(self._running.size) - now
            end += abs(left)
        return end

    def _refused(self, seconds: float) -> Refused:
        low, high = RETRY_SECONDS_RANGE
        return Refused(min(high, max(low, seconds)))

    def _find_size_max(self) -> int:
        size = self._largest
        if self._batching.max_size is None:
            size = min(size, self._auto_size)
        if self._memory_size is not None:
            size = min(size, self._memory_size)
        if self._sizes is None:
            return size
        return max((one for one in self._sizes if one <= size), default=self._sizes[0])

    def _find_auto_size(self, line: Line) -> int:
        """Returns the largest size that takes half of the objective, margin included: a request
        may wait for one batch and be in the next one.

        If one sample takes longer, it is the largest within the objective, and beyond it the
        largest in twice the time of one sample.
        """
        objective_seconds = self._objective_seconds / (1 + self.times.usual_margin)
        one = line.seconds(1)
        limits = (objective_seconds / 2, objective_seconds, 2 * one)
        limit = next(limit for limit in limits if one <= limit)
        left = limit - line.fixed_seconds
        if left >= line.per_sample_seconds * AUTO_SIZE_MAX:
            return AUTO_SIZE_MAX
        return max(1, int(left / line.per_sample_seconds))
