"""Step times, data wait and memory peaks of the training loop, in windows of steps.

A step lasts from the end of one optimizer step to the end of the next. The worker's own work in
between (probes, checkpoints) is subtracted. If the device has its own clock, all times are the
device's and are known some steps later. Nothing waits for them except the end of a window.
"""

import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpujob_api.report import Efficiency, Latency, MemoryPeaks, Timing
from gpujob_api.settings import Precision
from gpujob_worker.device.gpu import GPUMeter, peak_flop_per_second
from gpujob_worker.device.memory import DeviceMemory
from gpujob_worker.device.step_events import DeviceEvents

WINDOW_STEPS_MAX = 200
# Calls of a model behind the percentiles of its latency.
WINDOW_CALLS_MAX = 1000
MEMORY_SECONDS = 0.25
# Steps of a window in which the peaks of its two parts are measured separately.
APART_STEPS = 5
# Maximum number of steps that the device has not completed. CUDA's launch queue holds 1,024
# kernels.
PENDING_STEPS_MAX = 1024
# Pauses, or waits for data, that are recorded for one step. An evaluation has thousands of them.
SPANS_MAX = 64
# A step that computed this many times longer than usual was disturbed, by an evaluation or a
# co-tenant.
DISTURBED_TIMES = 2.0


@dataclass(frozen=True, slots=True)
class Timed:
    """A number of steps, their seconds, and those seconds of them in which the loop waited for
    data.
    """

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
        """The seconds and the waiting seconds of one step."""
        steps = max(1, self.steps)
        return self.seconds / steps, self.wait_seconds / steps


class Window:
    """Steps measured under one set of settings."""

    def __init__(self) -> None:
        self.seconds: deque[float] = deque(maxlen=WINDOW_STEPS_MAX)
        self.peak_memory_bytes = 0
        self.wait_seconds = 0.0
        self.total_seconds = 0.0
        self.timed = 0
        self.forward_backward_bytes = 0
        self.optimizer_bytes = 0
        self.apart = 0
        # Of an inference run, whose calls may differ in size.
        self.call_seconds: deque[float] = deque(maxlen=WINDOW_CALLS_MAX)
        self.calls = self.samples = 0

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
        if self.samples:
            mean_seconds = self.total_seconds / self.timed
            rate = self.samples / self.calls / mean_seconds if mean_seconds > 0 else None
        return Timing(step_seconds, self.peak_memory_bytes, rate, self._latency())

    def _latency(self) -> Latency | None:
        seconds = sorted(self.call_seconds)
        if not seconds:
            return None
        p50, p95, p99 = (1000 * _quantile(seconds, percent) for percent in (50, 95, 99))
        return Latency(p50, p95, p99, len(seconds))

    @property
    def data_wait_percent(self) -> float | None:
        if self.total_seconds <= 0:
            return None
        return min(100.0, 100.0 * self.wait_seconds / self.total_seconds)


def _quantile(ordered: Sequence[float], percent: int) -> float:
    """Returns the smallest value that at least this share of all values does not exceed."""
    return ordered[max(0, -(-percent * len(ordered) // 100) - 1)]


@dataclass(frozen=True, slots=True)
class _PendingStep:
    """A step that was launched, with its marks in the device's queue."""

    window: Window
    begins: Any
    ends: Any
    pauses: list[tuple[Any, Any]]
    waits: list[tuple[Any, Any]]


@dataclass(slots=True)
class _Launched:
    """Marks of the steps that the device has not reached, and of the step that is being
    launched.
    """

    events: DeviceEvents
    pending: deque[_PendingStep] = field(default_factory=deque[_PendingStep])
    begins: Any | None = None
    wait_begins: Any | None = None
    pauses: list[tuple[Any, Any]] = field(default_factory=list[tuple[Any, Any]])
    waits: list[tuple[Any, Any]] = field(default_factory=list[tuple[Any, Any]])
    call_begins: Any | None = None
    calls: deque[tuple[Window, Any, Any]] = field(default_factory=deque[tuple[Window, Any, Any]])

    def call_ended(self, window: Window) -> None:
        """Marks the end of a call in the device's queue."""
        ends = self.events.mark() if self.call_begins is not None else None
        if ends is not None and len(self.calls) < PENDING_STEPS_MAX:
            self.calls.append((window, self.call_begins, ends))

    def read_calls(self) -> None:
        """Counts the calls that the device has completed."""
        while self.calls and self.events.happened(self.calls[0][2]):
            window, begins, ends = self.calls.popleft()
            window.call_seconds.append(max(0.0, self.events.seconds(begins, ends)))

    def step_done(self, window: Window) -> None:
        ends = self.events.mark()
        known = self.begins is not None and ends is not None
        if known and len(self.pending) < PENDING_STEPS_MAX:
            step = _PendingStep(window, self.begins, ends, self.pauses, self.waits)
            self.pending.append(step)
        self.begins, self.pauses, self.waits = ends, [], []

    def span_ended(self, spans: list[tuple[Any, Any]], begins: Any | None) -> None:
        ends = self.events.mark() if begins is not None and len(spans) < SPANS_MAX else None
        if ends is not None:
            spans.append((begins, ends))

    def next_known(self) -> tuple[Window, float, float] | None:
        """Returns the oldest step with its seconds and waiting seconds, or None if the device is
        not done with it.
        """
        if not self.pending or not self.events.happened(self.pending[0].ends):
            return None
        step = self.pending.popleft()
        seconds = self.events.seconds(step.begins, step.ends) - self._sum(step.pauses)
        return step.window, max(0.0, seconds), self._sum(step.waits)

    def _sum(self, spans: list[tuple[Any, Any]]) -> float:
        return sum(self.events.seconds(begins, ends) for begins, ends in spans)


class Meter:
    """Counts and measures optimizer steps, by the host's clock unless `use_events` is called."""

    def __init__(self, memory: DeviceMemory, clock: Callable[[], float] | None = None) -> None:
        self.memory = memory
        self.steps = 0
        # All steps that were timed, in any window.
        self.timed = Timed()
        # Seconds and waiting seconds of the latest steps.
        self._latest: deque[tuple[float, float]] = deque(maxlen=WINDOW_STEPS_MAX)
        self.window = Window()
        self.gpu: GPUMeter | None = None
        self.clock = clock or time.perf_counter
        self._last: float | None = None
        self._paused = 0.0
        self._wait = 0.0
        # The paused seconds before the current wait began.
        self._paused_before_wait = 0.0
        self._memory_read = 0.0
        self._call_begins = 0.0
        self._launched: _Launched | None = None

    def use_events(self, events: DeviceEvents) -> None:
        """Measures step times by the device's clock from now on, not by the host's."""
        self._launched = _Launched(events)
        self._last = None

    @property
    def events(self) -> DeviceEvents | None:
        return self._launched.events if self._launched is not None else None

    def restart(self) -> None:
        """Counts steps from 0 again, because those so far were of another kind."""
        self.new_window()
        self.steps = 0
        self.timed = Timed()
        self._latest.clear()

    def call_starts(self) -> None:
        """Called just before a call of the model of an inference run."""
        if self._launched is not None:
            self._launched.call_begins = self._launched.events.mark()
        else:
            self._call_begins = self.clock()

    def call_ends(self, samples: int | None) -> None:
        """Called after the call that started last. `step_done` follows."""
        if self._launched is not None:
            self._launched.call_ended(self.window)
        else:
            self.window.call_seconds.append(max(0.0, self.clock() - self._call_begins))
        self.window.calls += 1
        self.window.samples += samples or 0

    def settle(self) -> None:
        """Waits until the device has completed all launched steps."""
        launched = self._launched
        if launched is not None and launched.pending:
            launched.events.wait(launched.pending[-1].ends)
        self.read_steps()

    def read_steps(self) -> None:
        """Counts the steps that the device has completed since the last call, without waiting."""
        if self._launched is not None:
            self._launched.read_calls()
        while self._launched is not None:
            known = self._launched.next_known()
            if known is None:
                return
            self._count(*known)

    def new_window(self) -> Window:
        """Starts a window after the current step. Returns the window that ended."""
        self.settle()
        self.read_memory()
        ended = self.window
        self.window = Window()
        self.memory.reset_peak()
        if self.gpu is not None:
            self.gpu.restart()
        self._last = None
        if self._launched is not None:
            self._launched.begins = None
        return ended

    def optimizer_starts(self) -> None:
        """Called when forward and backward are over, so that the peak so far is theirs."""
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

    def step_starts(self) -> None:
        """Called at the start of a step that does not follow the last one directly. The time in
        between belongs to no step.
        """
        self._paused = self._wait = 0.0
        self._last = self.clock()
        if self._launched is not None:
            self._launched.begins = self._launched.events.mark()

    def step_done(self) -> None:
        now = self.clock()
        self.steps += 1
        if self._launched is not None:
            self._launched.step_done(self.window)
            self.read_steps()
        elif self._last is not None:
            self._count(self.window, max(0.0, now - self._last - self._paused), self._wait)
        self._paused = self._wait = 0.0
        self._last = now
        if now - self._memory_read >= MEMORY_SECONDS:
            self.read_memory()

    def _count(self, window: Window, seconds: float, waited: float) -> None:
        wait = min(waited, seconds)
        window.seconds.append(seconds)
        window.total_seconds += seconds
        window.timed += 1
        window.wait_seconds += wait
        self._latest.append((seconds, wait))
        before = self.timed
        self.timed = Timed(before.steps + 1, before.seconds + seconds, before.wait_seconds + wait)

    def undisturbed(self, since: Timed) -> tuple[float, float]:
        """Returns the mean seconds and waiting seconds of a step since then, over at most the
        latest two hundred.

        Steps that computed far longer than usual are left out. No step is left out for waiting.
        """
        number = min(self.timed.steps - since.steps, len(self._latest))
        steps = list(self._latest)[len(self._latest) - number :]
        if not steps:
            return 0.0, 0.0
        usual = statistics.median(seconds - wait for seconds, wait in steps)
        kept = [step for step in steps if step[0] - step[1] <= DISTURBED_TIMES * usual]
        return sum(s for s, _ in kept) / len(kept), sum(w for _, w in kept) / len(kept)

    def read_memory(self) -> None:
        self._memory_read = self.clock()
        if self.gpu is not None:
            self.gpu.sample()
        self.window.peak_memory_bytes = max(self.window.peak_memory_bytes, self.memory.peak_bytes())

    def wait_starts(self) -> None:
        """Called when the loop requests data."""
        self._paused_before_wait = self._paused
        if self._launched is not None:
            self._launched.wait_begins = self._launched.events.mark()

    def waited(self, seconds: float) -> None:
        """Called after the loop waited this many seconds for its data.

        Pauses are included in them and are subtracted. On a device, its idle time counts instead.
        """
        paused = max(0.0, self._paused - self._paused_before_wait)
        self._wait += max(0.0, seconds - paused)
        launched = self._launched
        if launched is not None:
            launched.span_ended(launched.waits, launched.wait_begins)
            launched.wait_begins = None

    def paused(self) -> "Pause":
        """Returns a context whose time is the worker's, not the step's."""
        return Pause(self)

    def pause_starts(self) -> Any | None:
        launched = self._launched
        if launched is None:
            return None
        # The loop does not wait for its data meanwhile.
        launched.span_ended(launched.waits, launched.wait_begins)
        return launched.events.mark()

    def pause_ended(self, seconds: float, begins: Any | None) -> None:
        self._paused += seconds
        launched = self._launched
        if launched is None:
            return
        launched.span_ended(launched.pauses, begins)
        if launched.wait_begins is not None:
            launched.wait_begins = launched.events.mark()


class Pause:
    """A context that is entered after every step, as a class because a generator costs several
    times as much.
    """

    __slots__ = ("_begins", "_meter", "_start")

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._start = 0.0
        self._begins: Any | None = None

    def __enter__(self) -> None:
        self._begins = self._meter.pause_starts()
        self._start = self._meter.clock()

    def __exit__(self, *_: object) -> None:
        self._meter.pause_ended(self._meter.clock() - self._start, self._begins)


def efficiency(
    meter: Meter, step_flop: float | None, device: str, precision: Precision
) -> Efficiency | None:
    """Returns the efficiency, or None if nothing is known. The peak is that of the applied
    `precision`.
    """
    timing = meter.window.timing(None)
    rate = None
    if step_flop is not None and timing is not None and timing.step_seconds > 0:
        rate = step_flop / timing.step_seconds
    steps, gpu = len(meter.window.seconds), meter.gpu
    joules = gpu.joules if gpu is not None else None
    found = Efficiency(
        step_flop=step_flop,
        flop_per_second=rate,
        gpu_flop_per_second=peak_flop_per_second(device, precision),
        gpu_utilization_percent=gpu.utilization_percent if gpu is not None else None,
        joules_per_step=joules / steps if joules is not None and steps else None,
    )
    return None if found == Efficiency() else found
