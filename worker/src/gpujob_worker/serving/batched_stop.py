"""The end of a process that uses `batched`: the drain and the exit of `serve`.

A web server of the user's own that handles SIGTERM ends itself. Otherwise, at a stop:

1. Calls are accepted for `drain_delay_seconds`.
2. Later calls raise `Draining`. All calls accepted before are answered.
3. `Interrupted` is raised in the main thread, wherever the script is, as Ctrl-C does it.
"""

import signal
import threading
import time

from gpujob_api.report import WorkerPhase
from gpujob_worker.run.graceful_stop import EXIT_MARGIN_SECONDS, Interrupted
from gpujob_worker.run.session import LAST_REPORT_SECONDS, Session
from gpujob_worker.serving.batcher import Batcher
from gpujob_worker.serving.lifecycle import Lifecycle, Stage

POLL_SECONDS = 0.1
# Of the time until the deadline, that the end and the delay may take.
END_SHARE_MAX = 0.2
DELAY_SHARE_MAX = 0.5


class BatchedStop:
    """Waits for a stop in a thread of its own."""

    def __init__(
        self, session: Session, batcher: Batcher, lifecycle: Lifecycle, delay_seconds: float
    ) -> None:
        self._session = session
        self._batcher = batcher
        self._lifecycle = lifecycle
        self._delay_seconds = delay_seconds
        # Whether all calls were answered. None before the drain is over.
        self._drained: bool | None = None
        self._over = threading.Event()

    def start(self) -> None:
        """Handles stops from now on. Call it in the main thread: others cannot handle signals."""
        session = self._session
        session.leaves_stops_to_script()
        session.listen_for_stop()
        session.stop.heard = self._leave
        threading.Thread(target=self._run, name="gpujob-drain", daemon=True).start()

    @property
    def is_under_way(self) -> bool:
        """Whether the drain is this object's, so that the process ends after it."""
        return self._session.stop.requested and self._session.stop.handles_signal

    def wait_and_leave(self) -> None:
        """Waits for the end of the drain, and raises `Interrupted` in the main thread."""
        self._over.wait(max(0.0, self._session.stop.remaining_seconds()))
        self._leave()

    def _leave(self) -> None:
        # Called by the signal's handler, too, also before the drain is over.
        if self._drained is not None:
            raise Interrupted(saved=self._drained)

    def _run(self) -> None:
        stop = self._session.stop
        while not stop.requested:
            time.sleep(POLL_SECONDS)
        if stop.handles_signal:
            self._drain()
        elif not stop.by_operator:
            return
        # Wakes the main thread, and is the operator's stop for a script's own handler.
        main = threading.main_thread().ident
        if main is not None and callable(signal.getsignal(signal.SIGTERM)):
            signal.pthread_kill(main, signal.SIGTERM)

    def _drain(self) -> None:
        stop = self._session.stop
        left = stop.remaining_seconds()
        reserve = min(EXIT_MARGIN_SECONDS + LAST_REPORT_SECONDS, END_SHARE_MAX * left)
        deadline = time.monotonic() + left - reserve
        self._lifecycle.enter(Stage.DRAINING)
        self._session.state.enter(WorkerPhase.DRAINING)
        self._session.reporter.wake()
        longest = max(0.0, DELAY_SHARE_MAX * (left - reserve))
        time.sleep(min(self._delay_seconds, longest))
        self._lifecycle.enter(Stage.REFUSING)
        self._drained = self._batcher.drain(max(0.0, deadline - time.monotonic()))
        self._over.set()
