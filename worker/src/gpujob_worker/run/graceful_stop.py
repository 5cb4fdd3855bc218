"""Stops in time: a request with a deadline is handled at the next safe point of the training loop.

SIGTERM and a `stop` in the reply to a report take the same path. The signal handler only sets a
flag. The safe point commits a checkpoint and leaves by `Interrupted`. A watcher thread ends the
process with 144 just before the deadline if no safe point was reached.

Python runs a signal handler between two of its instructions. A main thread that waits in a library
(for the other processes of a group, for example) does not reach any, so the watcher receives the
signal independently.
"""

import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import ClassVar, NoReturn

from gpujob_api.settings import EXIT_INTERRUPTED_SAVED, EXIT_INTERRUPTED_UNSAVED
from gpujob_worker.run.keyboard_interrupt import caught_by_script
from gpujob_worker.run.process_tree import children

# Seconds for the final report and the exit. A killed process has neither.
EXIT_MARGIN_SECONDS = 0.5
# Seconds that the main thread may take to run the signal's handler if nothing can be saved.
ANSWER_SECONDS = 5.0
# Seconds that the watcher may take to end. It only polls.
WATCHER_ENDS_SECONDS = 1.0


class SignalPipe:
    """A pipe of signal numbers. Any thread may make it, but only the main thread may call
    `hear_signals` and `hear_no_signals`.
    """

    def __init__(self) -> None:
        self._ends: tuple[int, int] | None = None

    def open(self) -> tuple[int, int]:
        """Returns both ends, which stay open. A `wake` before that is lost."""
        if self._ends is None:
            self._ends = os.pipe()
            os.set_blocking(self._ends[1], False)
        return self._ends

    def hear_signals(self) -> None:
        """Makes Python write the number of every signal that it handles to the pipe.

        Nothing changes if the script, for example its event loop, already has signals written
        elsewhere.
        """
        write = self.open()[1]
        before = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        if before not in (-1, write):
            signal.set_wakeup_fd(before)

    def hear_no_signals(self) -> None:
        """Undoes `hear_signals`. A forked child would otherwise write its signals to the parent's
        end.
        """
        if self._ends is None:
            return
        before = signal.set_wakeup_fd(-1)
        if before not in (-1, self._ends[1]):
            signal.set_wakeup_fd(before)

    def wake(self) -> None:
        """Ends a `wait` without a signal."""
        if self._ends is not None:
            # A full pipe wakes the reader too.
            with contextlib.suppress(BlockingIOError):
                os.write(self._ends[1], b"\0")

    def wait(self) -> bytes:
        """Waits for signals and returns their numbers; 0 for a `wake`."""
        return os.read(self.open()[0], 64)

    def unread(self) -> bytes:
        """Returns the signals that no `wait` has returned."""
        found = b""
        while self._ends is not None and select.select([self._ends[0]], [], [], 0.0)[0]:
            found += os.read(self._ends[0], 4096)
        return found


class Interrupted(SystemExit):
    """Leaves the training loop. `finally` blocks run; `except Exception` does not catch it."""

    # A process cannot read its own exit code, so the last report takes it from here.
    latest: ClassVar["Interrupted | None"] = None

    def __init__(self, *, saved: bool) -> None:
        super().__init__(EXIT_INTERRUPTED_SAVED if saved else EXIT_INTERRUPTED_UNSAVED)
        self.saved = saved
        Interrupted.latest = self


def is_launchers_stop(error: BaseException | None) -> bool:
    """Returns whether the error is the one that torchrun raises on SIGTERM."""
    signaled = type(error).__name__ == "SignalException"
    return signaled and getattr(error, "sigval", None) == signal.SIGTERM


class InterruptedAsFromKeyboard(Interrupted, KeyboardInterrupt):
    """Raised so that the script's own `except KeyboardInterrupt` catches it and saves."""


def leave_unsaved() -> NoReturn:
    """Leaves the training loop without a checkpoint of ours."""
    caught = caught_by_script(sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
    raise (InterruptedAsFromKeyboard if caught else Interrupted)(saved=False)


def _tell_children() -> bool:
    """Sends SIGTERM to the processes that this one started, because they train.

    Returns whether there are any.
    """
    library = sys.modules.get("multiprocessing")
    pids = {child.pid for child in library.active_children()} if library is not None else set()
    if "torch" not in sys.modules:
        # This process does not train, so all its children count, however it started them.
        pids |= children("self")
    for pid in pids - {None}:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGTERM)
    return bool(pids)


class Stop:
    """One request to stop. The first deadline may be moved earlier, never later."""

    def __init__(self, grace_seconds: float, final_report: Callable[[str], None]) -> None:
        """`final_report` is called with the reason why the watcher ends the process."""
        self.reason = ""
        # SIGTERM arrived, whoever handled it. Complete at the end of the run only.
        self.signaled = False
        self._grace_seconds = grace_seconds
        self._final_report = final_report
        self._deadline = float("inf")
        self._pipe = SignalPipe()
        self._watcher: threading.Thread | None = None
        self._over = self._answered = self._forks = False
        self.listens = False
        # A signal may be meant for this process alone. A request by the operator is for the run.
        self.by_operator = False
        # When the watcher received a signal whose handler had not run.
        self._heard_at = float("inf")
        self.interrupt_at_once: Callable[[], bool] = lambda: False
        # Called in the main thread, wherever the script is, once a signal was handled.
        self.heard: Callable[[], None] = lambda: None
        # Ends the commands with which a shell would continue.
        self.end_run: Callable[[], None] = lambda: None

    @property
    def requested(self) -> bool:
        return self._deadline != float("inf")

    def remaining_seconds(self) -> float:
        return self._deadline - time.monotonic()

    def request(self, reason: str, seconds: float, *, by_operator: bool = False) -> None:
        self.reason = self.reason or reason
        self.by_operator = self.by_operator or by_operator
        self._deadline = min(self._deadline, time.monotonic() + max(0.0, seconds))
        self._pipe.wake()

    @property
    def watches(self) -> bool:
        """Whether a thread enforces the deadline."""
        return self._watcher is not None

    @property
    def handles_signal(self) -> bool:
        """Whether SIGTERM comes here now, and not to a handler of the script."""
        return self._is_handler

    @property
    def _is_handler(self) -> bool:
        return signal.getsignal(signal.SIGTERM) == self._on_signal

    def listen(self, *, watches: bool = True) -> str | None:
        """Handles SIGTERM from now on. Returns why it cannot, or None.

        With `watches`, a thread enforces the deadline from now on, and not only from the signal on.
        Without it the script may still install its own handler, which the next call then reports. A
        library that installs one later calls this one in turn.
        """
        if self.listens:
            return None
        if not self._is_handler:
            if threading.current_thread() is not threading.main_thread():
                of = "and torch was imported by another one"
                return f"only the main thread may handle SIGTERM, {of}"
            if not self._forks:
                os.register_at_fork(after_in_child=self._in_child)
                self._forks = True
            if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
                self._pipe.hear_signals()
                return "the script handles SIGTERM itself"
            signal.signal(signal.SIGTERM, self._on_signal)
        hears = threading.current_thread() is threading.main_thread()
        if hears:
            # The pipe is needed even without a thread, because another thread may import torch and
            # start one.
            self._pipe.hear_signals()
        if watches:
            self.watch()
            self.listens = hears
        return None

    def leave_to_system(self) -> None:
        """Undoes `listen`, unless a handler of the script replaced ours."""
        if threading.current_thread() is threading.main_thread() and self._is_handler:
            self._pipe.hear_no_signals()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def end(self) -> None:
        """Ends the run. Neither a late SIGTERM nor the deadline changes its exit code
        after that.
        """
        self._over = True
        self._pipe.wake()
        if threading.current_thread() is not threading.main_thread():
            return
        if self._watcher is not None and not self.requested:
            # The watcher may have read a signal that it has not recorded yet.
            self._watcher.join(WATCHER_ENDS_SECONDS)
        self.signaled = self.signaled or signal.SIGTERM in self._pipe.unread()
        self._pipe.hear_no_signals()
        if self._is_handler:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def watch(self) -> None:
        if self._watcher is None:
            self._pipe.open()
            self._watcher = threading.Thread(target=self._run, name="gpujob-stop", daemon=True)
            self._watcher.start()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self._answered = True
        self.request("SIGTERM", self._grace_seconds)
        if self.interrupt_at_once() and not (_tell_children() and "torch" not in sys.modules):
            raise Interrupted(saved=False)
        # A process that only started others ends after them, because they may save. An exception
        # here would make `subprocess.run` kill them.
        self.watch()
        self.heard()

    def _in_child(self) -> None:
        # Loader processes are ended by SIGTERM. A handler that only sets a flag would keep them
        # alive.
        self._pipe.hear_no_signals()
        self._pipe = SignalPipe()
        if self._is_handler:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _run(self) -> None:
        while not (self.requested or self._over):
            self._hear()
        while (remaining := self.remaining_seconds() - EXIT_MARGIN_SECONDS) > 0:
            if self._over:
                return
            if self._waits_in_vain():
                self._leave("asked to before the first step, in a call that handles no signal")
            time.sleep(min(remaining, 0.2))
        if not self._over:
            self._leave(f"no safe point before the deadline ({self.reason})")

    def _hear(self) -> None:
        if signal.SIGTERM not in self._pipe.wait():
            return
        self.signaled = True
        if self._is_handler and not self._answered:
            self._heard_at = time.monotonic()
            self.request("SIGTERM", self._grace_seconds)

    def _waits_in_vain(self) -> bool:
        """Returns whether nothing can be saved and the main thread does not get to leave
        by itself.
        """
        waited = not self._answered and time.monotonic() - self._heard_at > ANSWER_SECONDS
        return waited and self.interrupt_at_once()

    def _leave(self, why: str) -> None:
        _tell_children()
        self._final_report(why)
        if self.by_operator:
            self.end_run()
        os._exit(EXIT_INTERRUPTED_UNSAVED)
