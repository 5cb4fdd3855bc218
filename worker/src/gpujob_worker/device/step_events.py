"""Step times by the device's own clock, without waiting for the device. Imports no torch.

A kernel is launched long before it runs. By the host's clock a step takes as long as its launches,
or as long as anything that waits for the device. An event on the stream is recorded when the device
reaches it, so the time between two events is the device's. It is read once both have been recorded.
"""

from typing import Any, Protocol


class DeviceEvents(Protocol):
    """Marks in the device's queue of work."""

    @property
    def capturing(self) -> bool: ...
    def mark(self) -> Any | None: ...
    def happened(self, mark: Any) -> bool: ...
    def wait(self, mark: Any) -> None: ...
    def seconds(self, first: Any, second: Any) -> float: ...


class CudaEvents:
    """Marks on a device's current stream. Nothing is marked or queried while a graph is
    captured.
    """

    def __init__(self, cuda: Any, device: Any) -> None:
        self._cuda, self._device = cuda, device

    @property
    def capturing(self) -> bool:
        """True while the script captures a CUDA graph. Every launch then becomes part of
        the graph.
        """
        return bool(self._cuda.is_current_stream_capturing())

    def mark(self) -> Any | None:
        """Returns a mark, or None during a capture."""
        if self.capturing:
            return None
        event = self._cuda.Event(enable_timing=True)
        event.record(self._cuda.current_stream(self._device))
        return event

    def happened(self, mark: Any) -> bool:
        return not self.capturing and bool(mark.query())

    def wait(self, mark: Any) -> None:
        if not self.capturing:
            mark.synchronize()

    def seconds(self, first: Any, second: Any) -> float:
        """Returns the seconds between two marks that were reached."""
        return max(0.0, float(first.elapsed_time(second)) / 1000)
