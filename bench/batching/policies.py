"""The policies that take turns: the product's, and a fixed delay as servers have it."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from gpujob_api.serving import Batching, BatchingPolicy, Objective
from gpujob_worker.serving.batch_time import BatchTimes, Line
from gpujob_worker.serving.batching import BatchQueue, Dispatch, Idle, Part, Refused, WaitUntil

Action = Dispatch[int] | WaitUntil | Idle


class Policy(Protocol):
    """What a simulated server asks. Requests are numbers, of one sample each."""

    def offer(self, request: int, samples: int, now: float) -> Refused | None: ...
    def next(self, now: float) -> Action: ...
    def finished(self, now: float, size: int | None) -> None: ...


@dataclass(frozen=True, slots=True)
class Profile:
    """A device and an objective."""

    line: Line
    objective_milliseconds: float

    def text(self) -> str:
        fixed, per_sample = self.line.fixed_seconds, self.line.per_sample_seconds
        return f"{1000 * fixed:g} + {1000 * per_sample:g} b ms, {self.objective_milliseconds:g} ms"


def ours(profile: Profile, policy: BatchingPolicy) -> BatchQueue[int]:
    """The product's core. Its prior is wrong by half: it learns the device's times as it does when
    it is started without a warm-up."""
    objective = Objective(profile.objective_milliseconds)
    prior = Line(profile.line.fixed_seconds * 1.5, profile.line.per_sample_seconds * 0.5)
    times = BatchTimes(prior, objective.percentile)
    return BatchQueue[int](objective, Batching(policy), times)


class FixedDelay:
    """Dispatches when the oldest request has waited for a delay, or the batch is full. Nothing is
    refused."""

    def __init__(self, delay_seconds: float, size_max: int) -> None:
        self._delay = delay_seconds
        self._size_max = size_max
        self._queue: deque[tuple[int, float]] = deque()

    def offer(self, request: int, samples: int, now: float) -> Refused | None:
        self._queue.append((request, now))
        return None

    def next(self, now: float) -> Action:
        if not self._queue:
            return Idle()
        due = self._queue[0][1] + self._delay
        if len(self._queue) < self._size_max and due > now:
            return WaitUntil(due)
        size = min(len(self._queue), self._size_max)
        taken = [self._queue.popleft()[0] for _ in range(size)]
        return Dispatch(tuple(Part(one, 0, 1) for one in taken), size, size)

    def finished(self, now: float, size: int | None) -> None:
        pass


def delays(objective_seconds: float, steps: int = 20) -> Sequence[float]:
    return [objective_seconds * step / steps for step in range(steps)]
