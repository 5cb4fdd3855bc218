"""Moves a backend's device memory, on the batcher's thread."""

import time
from collections.abc import Callable

from gpujob_api.quantities import format_memory
from gpujob_worker.checkpoint.host_memory import available_bytes
from gpujob_worker.run.failure import is_out_of_memory
from gpujob_worker.run.session import Session
from gpujob_worker.run.standard_error import say
from gpujob_worker.serving.metered import MeteredBackend

# Memory of the host that has to be free beside what the weights need.
HOST_MARGIN_BYTES = 256 * 1024**2
LINE_CHARACTERS_MAX = 256


class Mover:
    """Parks and wakes a backend.

    If memory is lacking, the weights stay where they are. Any other error is a failure of the
    backend, and ends the process.
    """

    def __init__(
        self,
        backend: MeteredBackend,
        session: Session,
        *,
        available: Callable[[], int | None] = available_bytes,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._backend = backend
        self._session = session
        self._available = available
        self._clock = clock
        # Whether the present failure to wake was printed.
        self._told = False
        self.can_park = self._host_bytes() is not None

    def park(self) -> bool:
        """Parks, and returns whether that succeeded. After a failure it cannot park any more."""
        parking, needed_bytes = self._backend.parking, self._host_bytes()
        if parking is None or needed_bytes is None:
            self._cannot_park("the file that the model would be loaded from again is gone")
            return False
        available_now = self._available()
        if available_now is not None and available_now < needed_bytes + HOST_MARGIN_BYTES:
            needed = format_memory(needed_bytes + HOST_MARGIN_BYTES)
            self._cannot_park(
                f"needs {needed} of the host's memory; {format_memory(available_now)} are free"
            )
            return False
        began = self._clock()
        failed = self._attempt(parking.park)
        if failed is not None:
            self._cannot_park(failed)
            return False
        seconds = self._clock() - began
        say(f"gpujob: parked: {format_memory(needed_bytes)} in the host's memory, {seconds:.1f} s")
        return True

    def wake(self) -> bool:
        """Wakes, and returns whether that succeeded. After a failure it may be tried again."""
        parking = self._backend.parking
        assert parking is not None, "it was parked"
        began = self._clock()
        failed = self._attempt(parking.wake)
        if failed is None:
            say(f"gpujob: awake, {self._clock() - began:.1f} s")
        elif not self._told:
            say(f"gpujob: still parked, until the next attempt: {failed}")
        self._told = failed is not None
        return failed is None

    def _host_bytes(self) -> int | None:
        """Returns the memory that the weights need, or None if they cannot be moved."""
        try:
            parking = self._backend.parking
            return parking.host_bytes if parking is not None else None
        except Exception as error:  # raised by tensors of other libraries
            say(f"gpujob: cannot park: {_first_line(error)}")
            return None

    def _attempt(self, move: Callable[[], None]) -> str | None:
        """Returns the error's text, or None if the move succeeded."""
        failed: str | None = None
        try:
            with self._backend.watched():
                move()
        except Exception as error:
            if not is_out_of_memory(error):
                self._backend.fails(error)
            failed = _first_line(error)
        # After the error is gone, because its frames hold memory of the device.
        self._session.meter.memory.trim()
        return failed

    def _cannot_park(self, why: str) -> None:
        self.can_park = False
        self._session.log.note("parking", f"cannot park: {why}", aloud=False)
        self._session.log.said("parking")
        say(f"gpujob: cannot park: {why}")


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or ["no message"]
    return f"{type(error).__name__}: {lines[0][:LINE_CHARACTERS_MAX]}"
