"""`torch.cuda`'s events, streams and graphs on the imitated device."""

from types import TracebackType
from typing import Any

from tests.harness.imitated_gpu.gpu import ImitatedGpu


class Stream:
    """A queue of its own beside the default one."""

    def __init__(self, gpu: ImitatedGpu, number: int | None = None) -> None:
        self._gpu = gpu
        if number is None:
            number, gpu.streams_made = gpu.streams_made, gpu.streams_made + 1
        self.number = number

    def synchronize(self) -> None:
        self._gpu.refuse_in_capture()
        self._gpu.clock.wait_until(self._gpu.clock.mark(self.number))

    def wait_stream(self, other: "Stream") -> None:
        """The device waits, not the host."""
        mine = self._gpu.clock.stream(self.number)
        mine.free_at = max(mine.free_at, self._gpu.clock.mark(other.number))

    def is_capturing(self) -> bool:
        return self._gpu.capture is not None

    def query(self) -> bool:
        return self._gpu.clock.stream(self.number).free_at <= self._gpu.clock.now()


class OnStream:
    """What `torch.cuda.stream` returns."""

    def __init__(self, gpu: ImitatedGpu, stream: Stream | None) -> None:
        self._gpu, self._stream, self._before = gpu, stream, gpu.stream

    def __enter__(self) -> None:
        self._before = self._gpu.stream
        self._gpu.stream = self._stream.number if self._stream is not None else self._before

    def __exit__(self, *_: object) -> None:
        self._gpu.stream = self._before


class Event:
    """Happens on the device when what was queued before it is done."""

    def __init__(self, gpu: ImitatedGpu, *, enable_timing: bool = False) -> None:
        self._gpu, self._timing = gpu, enable_timing
        self._at: float | None = None
        self._captured = False

    def record(self, stream: Stream | None = None) -> None:
        number = stream.number if stream is not None else self._gpu.stream
        self._captured = self._gpu.capture is not None
        self._gpu.clock.host_works(self._gpu.model.cost.launch_seconds / 5)
        self._at = self._gpu.clock.mark(number)

    def query(self) -> bool:
        self._gpu.refuse_in_capture()
        return self._at is None or self._at <= self._gpu.clock.now()

    def synchronize(self) -> None:
        self._gpu.refuse_in_capture()
        if self._at is not None:
            self._gpu.clock.wait_until(self._at)

    def elapsed_time(self, end: "Event") -> float:
        """Milliseconds. Raises as CUDA does where one was not recorded, or is not over yet."""
        if not (self._timing and end._timing) or self._captured or end._captured:
            raise RuntimeError("CUDA error: invalid resource handle")
        if self._at is None or end._at is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        if not (self.query() and end.query()):
            raise RuntimeError("CUDA error: device not ready")
        return 1000.0 * (end._at - self._at)


class Graph:
    """What `torch.cuda.CUDAGraph` is: kernels captured once, replayed into the same memory."""

    def __init__(self, gpu: ImitatedGpu) -> None:
        self._gpu = gpu
        self._kernels: list[Any] | None = None
        self._seconds = 0.0
        self._began = 0.0

    def capture_begin(self, *_: Any, **__: Any) -> None:
        self._gpu.synchronize()
        self._began = self._gpu.clock.mark(self._gpu.stream)
        self._gpu.capture = []

    def capture_end(self) -> None:
        self._kernels, self._gpu.capture = self._gpu.capture, None
        stream = self._gpu.clock.stream(self._gpu.stream)
        # Nothing ran yet: what was launched is what a replay takes.
        self._seconds = max(0.0, stream.free_at - self._began)
        stream.free_at = self._began

    def replay(self) -> None:
        if self._kernels is None:
            raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
        for kernel in self._kernels:
            kernel()
        self._gpu.clock.launch(self._gpu.stream, self._gpu.model.cost.launch_seconds, self._seconds)

    def reset(self) -> None:
        self._kernels = None


class Capturing:
    """What `torch.cuda.graph` is: the capture of what runs inside."""

    def __init__(self, graph: Graph, *_: Any, **__: Any) -> None:
        self._graph = graph

    def __enter__(self) -> None:
        self._graph.capture_begin()

    def __exit__(
        self, kind: type[BaseException] | None, _: object, traceback: TracebackType | None
    ) -> None:
        self._graph.capture_end()
        if kind is not None:
            self._graph.reset()
