"""Times a backend: every batch between two synchronisations, in turns with the model as written."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from gpujob_worker.serving.backend import Tensors
from gpujob_worker.serving.choosing.timing import SizeTime

P99 = 0.99


class Timer(Protocol):
    """The seconds that pass, and the device that works beside the host."""

    def now(self) -> float: ...

    def synchronize(self) -> None:
        """Returns once the device has done all that it was given."""
        ...


class DeviceTimer:
    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"

    def now(self) -> float:
        return time.perf_counter()

    def synchronize(self) -> None:
        if self._cuda:
            torch.cuda.synchronize()


@dataclass(frozen=True, slots=True)
class Effort:
    """How long is measured. A size ends after its batches or its seconds, the sooner of both."""

    warm_ups: int = 10
    batches_max: int = 200
    size_seconds: float = 2.0
    # Of all sizes together. A size that would begin later is left out.
    seconds: float = 20.0

    def __post_init__(self) -> None:
        if self.batches_max < 1 or self.warm_ups < 0:
            raise ValueError(f"batches_max must be at least 1; got {self.batches_max}")


def clock(
    run: Callable[[Tensors], Tensors],
    eager: Callable[[Tensors], Tensors],
    batch_of: Callable[[int], Tensors],
    sizes: tuple[int, ...],
    timer: Timer,
    effort: Effort,
) -> tuple[SizeTime, ...]:
    """Returns the times at each size. At least one batch of the first size is timed."""
    end = timer.now() + effort.seconds
    found: list[SizeTime] = []
    for size in sizes:
        if found and timer.now() >= end:
            break
        batch = batch_of(size)
        until = min(end, timer.now() + effort.size_seconds)
        found.append(_size_time(run, eager, batch, size, timer, effort, until))
    return tuple(found)


def _size_time(
    run: Callable[[Tensors], Tensors],
    eager: Callable[[Tensors], Tensors],
    batch: Tensors,
    size: int,
    timer: Timer,
    effort: Effort,
    until: float,
) -> SizeTime:
    for number in range(effort.warm_ups):
        # Slow models have no time for all of them.
        if number and timer.now() >= until:
            break
        run(batch)
        eager(batch)
    ours: list[float] = []
    written: list[float] = []
    while len(ours) < effort.batches_max and (not ours or timer.now() < until):
        pairs = [(run, ours), (eager, written)]
        # Whoever is second finds warm caches.
        for call, seconds in pairs if len(ours) % 2 else pairs[::-1]:
            seconds.append(_seconds(call, batch, timer))
    return SizeTime(
        size,
        statistics.median(ours),
        sorted(ours)[min(len(ours) - 1, int(P99 * len(ours)))],
        statistics.median(written),
        len(ours),
    )


def _seconds(call: Callable[[Tensors], Tensors], batch: Tensors, timer: Timer) -> float:
    timer.synchronize()
    start = timer.now()
    call(batch)
    timer.synchronize()
    return timer.now() - start
