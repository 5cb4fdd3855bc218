"""Step times, data wait and memory peaks of the training loop, in windows of steps.

A step lasts from the end of one optimizer step to the end of the next. Our own work in between
(probing, checkpoints) is taken out.
"""

import statistics
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from gpujob_api.report import MemoryPeaks, Timing
from gpujob_worker.device.gpu import CardMeter
from gpujob_worker.device.memory import DeviceMemory

WINDOW_STEPS_MAX = 200
MEMORY_SECONDS = 0.25
# Steps of a window in which the peaks of its two parts are told apart.
APART_STEPS = 5


@dataclass(frozen=True, slots=True)
class Timed:
    """Steps, their seconds, and the seconds of these that the loop waited for data."""

    steps: int = 0
    seconds: float = 0.0
    wait_seconds: float = 0.0

    def since(self, earlier: "Timed") -> "Timed":
        return Timed(
            self.steps - earlier.steps,
            self.seconds - earlier.seconds,
            self.wait_seconds - earlier.wait_seconds,
        )

    def per_step(self) -> tuple[float, float]:
        """Seconds and seconds of waiting of one step."""
        steps = max(1, self.steps)
        return self.seconds / steps, self.wait_seconds / steps


class Window:
    """Steps measured under one set of settings."""

    def __init__(self) -> None:
        self.seconds: deque[float] = deque(maxlen=WINDOW_STEPS_MAX)
        self.peak_memory_bytes = 0
        self.wait_seconds = 0.0
        self.total_seconds = 0.0
        self.forward_backward_bytes = 0
        self.optimizer_bytes = 0
        self.apart = 0

    @property
    def peaks(self) -> MemoryPeaks | None:
        if not self.apart:
            return None
        return MemoryPeaks(self.forward_backward_bytes, self.optimizer_bytes)

    def timing(self, samples_per_step: int | None) -> Timing | None:
        if not self.seconds:
            return None
        step_seconds = statistics.median(self.seconds)
        rate = samples_per_step / step_seconds if samples_per_step and step_seconds > 0 else None
        return Timing(step_seconds, self.peak_memory_bytes, rate)

    @property
    def data_wait_percent(self) -> float | None:
        if self.total_seconds <= 0:
            return None
        return min(100.0, 100.0 * self.wait_seconds / self.total_seconds)


class Meter:
    """Counts optimizer steps and measures them. `synchronize` waits for the device where asked."""

    def __init__(self, memory: DeviceMemory, clock: Callable[[], float] | None = None) -> None:
        self.memory = memory
        self.steps = 0
        # Of all steps that were timed, in whatever window.
        self.timed = Timed()
        self.window = Window()
        self.card: CardMeter | None = None
        self.clock = clock or time.perf_counter
        self._last: float | None = None
        self._paused = 0.0
        self._wait = 0.0
        self._memory_read = 0.0

    def new_window(self) -> Window:
        """Starts a window; the step under way is not counted in it. Returns the one that ended."""
        self.read_memory()
        ended = self.window
        self.window = Window()
        self.memory.reset_peak()
        if self.card is not None:
            self.card.restart()
        self._last = None
        return ended

    def optimizer_starts(self) -> None:
        """Forward and backward are over: the peak so far is theirs."""
        if self.window.apart >= APART_STEPS:
            return
        self.read_memory()
        peak = self.memory.allocated_peak_bytes()
        self.window.forward_backward_bytes = max(self.window.forward_backward_bytes, peak)
        self.memory.reset_peak()

    def optimizer_ends(self) -> None:
        if self.window.apart >= APART_STEPS:
            return
        self.read_memory()
        peak = self.memory.allocated_peak_bytes()
        self.window.optimizer_bytes = max(self.window.optimizer_bytes, peak)
        self.window.apart += 1
        self.memory.reset_peak()

    def step_done(self) -> None:
        now = self.clock()
        self.steps += 1
        if self._last is not None:
            seconds = max(0.0, now - self._last - self._paused)
            self.window.seconds.append(seconds)
            self.window.total_seconds += seconds
            wait = min(self._wait, seconds)
            self.window.wait_seconds += wait
            before = self.timed
            self.timed = Timed(
                before.steps + 1, before.seconds + seconds, before.wait_seconds + wait
            )
        self._paused = self._wait = 0.0
        self._last = now
        if now - self._memory_read >= MEMORY_SECONDS:
            self.read_memory()

    def read_memory(self) -> None:
        self._memory_read = self.clock()
        if self.card is not None:
            self.card.sample()
        self.window.peak_memory_bytes = max(self.window.peak_memory_bytes, self.memory.peak_bytes())

    def waited(self, seconds: float) -> None:
        """The loop waited so long for its data."""
        self._wait += seconds

    def paused(self) -> "Pause":
        """Time in here is ours, not the step's."""
        return Pause(self)

    def pause_ended(self, seconds: float) -> None:
        self._paused += seconds


class Pause:
    """Entered after every step: a generator's context costs several times as much."""

    __slots__ = ("_meter", "_start")

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._start = 0.0

    def __enter__(self) -> None:
        self._start = self._meter.clock()

    def __exit__(self, *_: object) -> None:
        self._meter.pause_ended(self._meter.clock() - self._start)
