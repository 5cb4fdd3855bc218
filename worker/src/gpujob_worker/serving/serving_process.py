"""One serving process from its first report to its last answer."""

import asyncio
import os
import signal
import socket
import threading
import time
from types import FrameType

import torch

from gpujob_api.report import WorkerPhase
from gpujob_api.serving import ENV_SERVING_HOST, ServingSettings
from gpujob_worker.run.graceful_stop import EXIT_MARGIN_SECONDS, Interrupted
from gpujob_worker.run.session import LAST_REPORT_SECONDS, Session
from gpujob_worker.run.standard_error import say
from gpujob_worker.serving.backend import Tensors
from gpujob_worker.serving.batcher import Batcher
from gpujob_worker.serving.choosing.measure import measure
from gpujob_worker.serving.front import Ending, Front
from gpujob_worker.serving.lifecycle import Lifecycle
from gpujob_worker.serving.listening import bound_socket
from gpujob_worker.serving.loading import evaluated, load_backend
from gpujob_worker.serving.metered import MeteredBackend
from gpujob_worker.serving.mover import Mover
from gpujob_worker.serving.reports import ServingState
from gpujob_worker.serving.server import Server, Service
from gpujob_worker.serving.signature import Signature

# A longer batch is taken for a hang. The liveness probe then fails, and the kubelet restarts the
# process.
BATCH_SECONDS_MAX = 300.0
# Of the time until the deadline, that the last report and the exit may take.
END_SHARE_MAX = 0.2
KEYBOARD = "SIGINT"


class ServingProcess:
    """Loads the model, serves it, and drains at a stop."""

    def __init__(self, session: Session, settings: ServingSettings, name: str) -> None:
        self._session = session
        self._settings = settings
        self._name = name
        self._lifecycle = Lifecycle()
        self._state = ServingState(self._lifecycle)
        # When all requests have to be answered. Set once a drain begins.
        self._deadline = float("inf")

    def begin(self) -> None:
        """Starts the reports and the handling of stops."""
        self._session.serves(self._state.report, self._state.share, self._state.park)
        self._session.start()
        self._session.listen_for_stop()

    def measure(self, model: torch.nn.Module, examples: Tensors) -> None:
        """Measures the backends, and reports the choice."""
        self._session.state.enter(WorkerPhase.TUNING)
        choice = measure(evaluated(model, self._session), examples, self._settings)
        self._state.chose(choice)
        say(f"gpujob: chosen: {choice.reason}")

    def run(self, model: torch.nn.Module, examples: Tensors) -> Interrupted:
        """Returns how a stop ended the process. Raises what ended it otherwise."""
        host = os.environ.get(ENV_SERVING_HOST, "").strip()
        with bound_socket(host, self._settings.port) as listener:
            loaded = load_backend(model, examples, self._settings, self._session)
            metered = MeteredBackend(loaded.backend, self._session)
            batcher = Batcher(metered, self._settings.objective, self._settings.batching)
            batcher.warm_up(examples)
            batcher.parks_by(Mover(metered, self._session), self._session.reporter.wake)
            metered.begin()
            self._state.serves(batcher, loaded.backend.name, loaded.precision)
            drained = self._answer(listener, metered, batcher, loaded.signature)
        if metered.failure is not None:
            raise metered.failure
        return Interrupted(saved=drained)

    def _answer(
        self,
        listener: socket.socket,
        metered: MeteredBackend,
        batcher: Batcher,
        signature: Signature,
    ) -> bool:
        """Answers requests until the process ends. Returns whether all of them were answered."""
        # From here on a stop does not interrupt the main thread, because requests may be queued.
        self._session.leaves_stops_to_script()
        service = Service(
            self._name,
            signature,
            batcher.submit,
            self._state.report,
            lambda: metered.running_seconds() < BATCH_SECONDS_MAX,
            batcher.arrival,
        )
        server = Server(service, self._lifecycle)
        self._state.counts_refusals(lambda: server.intake.refused)
        ending = Ending(
            requested=lambda: self._session.stop.requested or metered.failure is not None,
            remaining_seconds=self._remaining_seconds,
            drain=batcher.drain,
            abandon=batcher.close,
            begins=self._drain_begins,
            delay_seconds=lambda: 0.0 if batcher.is_parked else self._delay_seconds(),
        )
        batcher.start()
        with _Keyboard(self._session):
            front = Front(server, self._lifecycle, ending)
            drained = asyncio.run(front.run(listener, lambda: self._started(listener)))
        if drained:
            # A thread in a library at the interpreter's exit may end the process by a signal.
            batcher.close()
        return drained

    def _started(self, listener: socket.socket) -> None:
        self._session.state.enter(WorkerPhase.SERVING)
        self._session.reporter.wake()
        port = listener.getsockname()[1]
        say(f"gpujob: {self._name} is ready on port {port}, by {self._state.backend}")

    def _drain_begins(self) -> None:
        stop, now = self._session.stop, time.monotonic()
        left = (
            stop.remaining_seconds() if stop.requested else self._session.environment.grace_seconds
        )
        reserve = min(EXIT_MARGIN_SECONDS + LAST_REPORT_SECONDS, END_SHARE_MAX * left)
        self._deadline = now + left - reserve
        self._session.state.enter(WorkerPhase.DRAINING)
        self._session.reporter.wake()

    def _remaining_seconds(self) -> float:
        return self._deadline - time.monotonic()

    def _delay_seconds(self) -> float:
        """Returns the delay, which is for senders in a cluster. A failure has to end at once."""
        stop = self._session.stop
        in_cluster = stop.requested and stop.reason != KEYBOARD
        return self._settings.drain_delay_seconds if in_cluster else 0.0


class _Keyboard:
    """Takes the first Ctrl-C for a stop. The second one ends the process as usual."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._installed = False

    def __enter__(self) -> None:
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._on_signal)
            self._installed = True

    def __exit__(self, *error: object) -> None:
        if self._installed:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self._session.stop.watch()
        self._session.stop.request(KEYBOARD, self._session.environment.grace_seconds)
