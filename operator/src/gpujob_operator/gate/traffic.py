"""The requests that are at the gate, and since when there is none."""

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager

from gpujob_api.gate import GateReport


class Traffic:
    """Counts requests. `held_first` is called when the first of several requests is held."""

    def __init__(
        self,
        monotonic: Callable[[], float],
        sequence: int,
        held_first: Callable[[], None] = lambda: None,
    ) -> None:
        """`sequence` is above that of all reports of an earlier process of the same pod."""
        self._monotonic = monotonic
        self._sequence = sequence
        self._held_first = held_first
        self._requests = 0
        self._idle_since = monotonic()
        # Set while there is no request.
        self.none = asyncio.Event()
        self.none.set()
        self.held = 0
        self.held_bytes = 0

    @contextmanager
    def request(self) -> Generator[None]:
        """Covers one request, from its arrival to its end."""
        self._requests += 1
        self.none.clear()
        try:
            yield
        finally:
            self._requests -= 1
            self._idle_since = self._monotonic()
            if not self._requests:
                self.none.set()

    @contextmanager
    def hold(self, size_bytes: int) -> Generator[None]:
        """Covers the time in which a request waits for a replica."""
        self.held += 1
        self.held_bytes += size_bytes
        try:
            if self.held == 1:
                self._held_first()
            yield
        finally:
            self.held -= 1
            self.held_bytes -= size_bytes

    @property
    def requests(self) -> int:
        """Requests that have not ended."""
        return self._requests

    def report(self) -> GateReport:
        """Returns the next report."""
        self._sequence += 1
        idle = 0.0 if self._requests else self._monotonic() - self._idle_since
        return GateReport(
            sequence=self._sequence,
            held=self.held,
            forwarded=self._requests - self.held,
            idle_seconds=round(idle, 1),
        )
