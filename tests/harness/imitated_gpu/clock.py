"""Virtual time of a host and of the streams of its device, with a bounded queue of launches."""

import threading
from collections import deque

# As many launches as CUDA queues before a launch waits.
LAUNCHES_MAX = 1024
# A loop that only looks at the clock comes to its end.
_READ_SECONDS = 1e-7


class StreamTimeline:
    """When the work queued on one stream ends."""

    def __init__(self) -> None:
        self.free_at = 0.0
        self.ends: deque[float] = deque()


class VirtualClock:
    """Host time as `time.perf_counter` gives it, and each stream's end of work, in seconds.

    Threads that Python started (reports, for one) wait for nothing: the clock is the training's.
    """

    def __init__(self) -> None:
        self._now = 1000.0
        self.streams: dict[int, StreamTimeline] = {0: StreamTimeline()}
        # How long the host waited for the device, and how often.
        self.waited_seconds = 0.0
        self.waits = 0

    def now(self) -> float:
        if _is_the_trainings():
            self._now += _READ_SECONDS
        return self._now

    def host_works(self, seconds: float) -> None:
        if _is_the_trainings():
            self._now += max(0.0, seconds)

    def stream(self, number: int) -> StreamTimeline:
        return self.streams.setdefault(number, StreamTimeline())

    def launch(self, number: int, host_seconds: float, device_seconds: float) -> None:
        """Queues a kernel; returns at once unless the queue is full."""
        self.host_works(host_seconds)
        stream = self.stream(number)
        while stream.ends and stream.ends[0] <= self._now:
            stream.ends.popleft()
        if len(stream.ends) >= LAUNCHES_MAX:
            self.wait_until(stream.ends.popleft())
        stream.free_at = max(self._now, stream.free_at) + device_seconds
        stream.ends.append(stream.free_at)

    def mark(self, number: int) -> float:
        """When what is queued on the stream by now is done."""
        return max(self._now, self.stream(number).free_at)

    def wait_until(self, moment: float) -> None:
        """The host waits for the device; a moment that has passed costs nothing."""
        if moment <= self._now or not _is_the_trainings():
            return
        self.waits += 1
        self.waited_seconds += moment - self._now
        self._now = moment


def _is_the_trainings() -> bool:
    thread = threading.current_thread()
    # Threads of torch's autograd engine are none that Python started.
    return thread is threading.main_thread() or type(thread).__name__ == "_DummyThread"
