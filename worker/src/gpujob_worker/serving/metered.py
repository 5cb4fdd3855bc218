"""A backend whose batches are the steps of the run: counted, timed, within the memory limit."""

import time
import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager

from gpujob_worker.run.failure import MemoryLimitError, is_out_of_memory
from gpujob_worker.run.session import Session
from gpujob_worker.run.session_device import hold_to_card
from gpujob_worker.run.standard_error import say
from gpujob_worker.serving.backend import Backend, Parking, Tensors

# CUDA reports an error of a kernel again on every later call of the process.
_BROKEN_DEVICE = ("CUDA error", "device-side assert", "CUBLAS_STATUS_EXECUTION_FAILED")
# A broken model fails at each request, and a poisoned request several times in a batch.
EVERY_SECONDS = 60.0
FRAMES_MAX = 20
CHARACTERS_MAX = 16_000


class FailureLog:
    """Prints tracebacks of failing batches on standard error.

    A client gets the class and the message of an error. The line of the script that raised it is in
    the replica's log. At most one traceback is printed in a minute, with the number of those left
    out before it.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next_at = float("-inf")
        self._left_out = 0

    def failed(self, error: Exception) -> None:
        now = self._clock()
        if now < self._next_at:
            self._left_out += 1
            return
        lines = traceback.format_exception(error, limit=-FRAMES_MAX)
        text = "".join(lines).rstrip()[-CHARACTERS_MAX:]
        more = f"; {self._left_out} more failed since the last traceback" if self._left_out else ""
        say(f"gpujob: a batch failed (one traceback in {EVERY_SECONDS:g} s){more}\n{text}")
        self._next_at, self._left_out = now + EVERY_SECONDS, 0


class MeteredBackend:
    """Passes batches to another backend, and measures them once `begin` was called.

    The traceback of a failing batch is printed, at most one a minute.
    `failure` is an error that every later batch would have too, so that the process has to end.
    """

    def __init__(
        self, backend: Backend, session: Session, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._backend = backend
        self._session = session
        self._clock = clock
        self._log = FailureLog(clock)
        self._counts = False
        self._since: float | None = None
        self.failure: Exception | None = None

    @property
    def name(self) -> str:
        return self._backend.name

    @property
    def sizes(self) -> tuple[int, ...] | None:
        return self._backend.sizes

    @property
    def parking(self) -> Parking | None:
        return self._backend.parking

    def begin(self) -> None:
        """Counts batches from now on. Those before were no requests.

        Raises `MemoryLimitError` if they took more memory than the process may take.
        """
        self._session.meter.read_memory()
        hold_to_card(self._session)
        self._counts = True

    def running_seconds(self) -> float:
        """Returns for how long the present batch or move has taken, or 0 without one."""
        since = self._since
        return 0.0 if since is None else self._clock() - since

    def run(self, inputs: Tensors) -> Tensors:
        with self.watched():
            try:
                return self._measured(inputs) if self._counts else self._backend.run(inputs)
            except Exception as error:
                if self._counts:
                    self._log.failed(error)
                if breaks_device(error):
                    self.fails(error)
                raise

    @contextmanager
    def watched(self) -> Generator[None]:
        """Counts the time of the block as running."""
        self._since = self._clock()
        try:
            yield
        finally:
            self._since = None

    def fails(self, error: Exception) -> None:
        """Ends the process, with the first error."""
        self.failure = self.failure or error

    def _measured(self, inputs: Tensors) -> Tensors:
        meter = self._session.meter
        meter.step_starts()
        meter.call_starts()
        outputs = self._backend.run(inputs)
        meter.call_ends(len(next(iter(inputs.values()))))
        meter.step_done()
        try:
            hold_to_card(self._session)
        except MemoryLimitError as error:
            # The outputs are right. A GPU would have refused the memory before.
            self.fails(error)
        return outputs


def breaks_device(error: Exception) -> bool:
    """Returns whether the device fails from now on, whatever the batch."""
    if is_out_of_memory(error):
        return False
    return any(text in str(error) for text in _BROKEN_DEVICE)
