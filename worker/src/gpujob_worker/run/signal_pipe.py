"""A pipe by which a thread learns of signals at once, whatever the main thread does."""

import contextlib
import os
import signal


class SignalPipe:
    """Made by any thread; `hear_signals` and `hear_no_signals` are for the main thread alone."""

    def __init__(self) -> None:
        self._ends: tuple[int, int] | None = None

    def open(self) -> tuple[int, int]:
        """Both ends, which stay open; a `wake` before it is lost."""
        if self._ends is None:
            self._ends = os.pipe()
            os.set_blocking(self._ends[1], False)
        return self._ends

    def hear_signals(self) -> None:
        """From now on every signal that Python handles is written, by its number; not where the
        script has them written somewhere already, as an event loop does."""
        write = self.open()[1]
        before = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        if before not in (-1, write):
            signal.set_wakeup_fd(before)

    def hear_no_signals(self) -> None:
        """Undoes `hear_signals`. In a forked child signals would be written to the parent's end."""
        if self._ends is None:
            return
        before = signal.set_wakeup_fd(-1)
        if before not in (-1, self._ends[1]):
            signal.set_wakeup_fd(before)

    def wake(self) -> None:
        """Ends a `wait`, without a signal."""
        if self._ends is not None:
            # A full pipe wakes as well.
            with contextlib.suppress(BlockingIOError):
                os.write(self._ends[1], b"\0")

    def wait(self) -> bytes:
        """Waits for signals, and returns their numbers; 0 for a `wake`."""
        return os.read(self.open()[0], 64)
