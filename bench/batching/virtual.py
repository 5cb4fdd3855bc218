"""One server in virtual time: arrivals, a policy, and a device with a known time for each batch."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bench.batching.policies import Policy
from gpujob_worker.serving.batching import Dispatch, Refused, WaitUntil

# Seconds of a batch of this size that begins at this moment.
Device = Callable[[int, float], float]


@dataclass(slots=True)
class Played:
    """What happened. Latencies are of the answered requests, by their numbers."""

    seconds: float = 0.0
    busy_seconds: float = 0.0
    waits: int = 0
    dispatched: list[tuple[float, Dispatch[int]]] = field(
        default_factory=list[tuple[float, Dispatch[int]]]
    )
    refused: dict[int, Refused] = field(default_factory=dict[int, Refused])
    latencies: dict[int, float] = field(default_factory=dict[int, float])

    def within(self, objective_seconds: float) -> int:
        return sum(value <= objective_seconds for value in self.latencies.values())

    def percentile(self, percent: float) -> float:
        ordered = sorted(self.latencies.values())
        return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def poisson(rate: float, count: int, seed: int) -> list[float]:
    """Moments of arrivals at a rate a second."""
    rng = random.Random(seed)
    now, moments = 0.0, list[float]()
    for _ in range(count):
        now += rng.expovariate(rate)
        moments.append(now)
    return moments


def play(
    arrivals: Sequence[float],
    policy: Policy,
    device: Device,
    samples: Sequence[int] | None = None,
) -> Played:
    """Plays all arrivals, in their order, until the last one is answered."""
    server = _Server(arrivals, policy, device, samples or [1] * len(arrivals))
    while server.step():
        pass
    return server.played


class _Server:
    def __init__(
        self,
        arrivals: Sequence[float],
        policy: Policy,
        device: Device,
        samples: Sequence[int],
    ) -> None:
        self.played = Played()
        self._arrivals = arrivals
        self._policy = policy
        self._device = device
        self._samples = samples
        self._missing: dict[int, int] = {}
        self._arrived = 0
        self._running: tuple[Dispatch[int], float] | None = None
        self._now = 0.0

    def step(self) -> bool:
        """Goes to the next event. Returns False after the last one."""
        moment = self._begin() if self._running is None else self._running[1]
        left = self._arrived < len(self._arrivals)
        if left and (moment is None or self._arrivals[self._arrived] <= moment):
            self._arrive()
            return True
        if moment is None:
            self.played.seconds = self._now
            return False
        self._now = moment
        if self._running is not None and self._running[1] == moment:
            self._end(self._running[0])
        return True

    def _begin(self) -> float | None:
        """Dispatches if it is time. Returns the end of the batch or of the wait, or None."""
        action = self._policy.next(self._now)
        if isinstance(action, Dispatch):
            seconds = self._device(action.size, self._now)
            self._running = (action, self._now + seconds)
            self.played.busy_seconds += seconds
            self.played.dispatched.append((self._now, action))
            return self._now + seconds
        if isinstance(action, WaitUntil):
            self.played.waits += 1
            return action.seconds
        return None

    def _arrive(self) -> None:
        index, self._now = self._arrived, self._arrivals[self._arrived]
        self._arrived += 1
        refused = self._policy.offer(index, self._samples[index], self._now)
        if refused is None:
            self._missing[index] = self._samples[index]
        else:
            self.played.refused[index] = refused

    def _end(self, batch: Dispatch[int]) -> None:
        for part in batch.parts:
            self._missing[part.request] -= part.samples
            if not self._missing[part.request]:
                self.played.latencies[part.request] = self._now - self._arrivals[part.request]
        self._policy.finished(self._now, batch.size)
        self._running = None
