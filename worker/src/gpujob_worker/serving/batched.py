"""`gpujob_worker.batched`: the batches of the server without its HTTP, for a web server of the
user's own.

    predict = gpujob_worker.batched(model, examples)
    outputs = predict({"image": images})           # from any thread
    outputs = await predict.later({"image": images})

The process is reported like a server's. A web server that handles SIGTERM itself calls `close`.
Otherwise a stop ends the process as `serve` ends (`batched_stop`).
"""

import asyncio
import atexit
import threading
from concurrent.futures import Future

import torch

from gpujob_api.report import WorkerPhase
from gpujob_worker.run.current_session import known_session
from gpujob_worker.run.session import Session
from gpujob_worker.serving.backend import Tensors
from gpujob_worker.serving.batched_stop import BatchedStop
from gpujob_worker.serving.batcher import Batcher, Draining
from gpujob_worker.serving.examples import Examples, read_examples
from gpujob_worker.serving.lifecycle import Lifecycle, Stage
from gpujob_worker.serving.loading import load_backend
from gpujob_worker.serving.metered import MeteredBackend
from gpujob_worker.serving.reports import ServingState
from gpujob_worker.serving.serve import read_settings
from gpujob_worker.serving.signature import Signature

CLOSE_SECONDS = 10.0


class Batched:
    """Calls of a model that are executed together with those of other threads.

    Calls raise `InputError` for inputs that the model does not take, `Overloaded` if the answer
    would come too late, `Draining` after `close` or a stop, and what the model raises.
    """

    def __init__(
        self,
        batcher: Batcher,
        signature: Signature,
        lifecycle: Lifecycle,
        stop: BatchedStop | None = None,
    ) -> None:
        """`stop` ends the process after a stop. Without one, the caller does."""
        self._batcher = batcher
        self._signature = signature
        self._lifecycle = lifecycle
        self._stop = stop

    def __call__(self, inputs: Tensors) -> Tensors:
        """Returns the outputs by name, on the CPU. Ends the script if it is called by the main
        thread after a stop.
        """
        try:
            return self.submit(inputs).result()
        except Draining:
            is_main = threading.current_thread() is threading.main_thread()
            if is_main and self._stop is not None and self._stop.is_under_way:
                self._stop.wait_and_leave()
            raise

    async def later(self, inputs: Tensors) -> Tensors:
        """Returns the outputs without blocking the event loop."""
        return await asyncio.wrap_future(self.submit(inputs))

    def submit(self, inputs: Tensors) -> Future[Tensors]:
        return self._batcher.submit(inputs, self._signature.samples(inputs))

    def close(self, seconds: float = CLOSE_SECONDS) -> bool:
        """Takes no more calls. Returns whether all were answered within `seconds`."""
        self._lifecycle.enter(Stage.REFUSING)
        drained = self._batcher.drain(seconds)
        self._batcher.close()
        return drained


def batched(model: torch.nn.Module, examples: Examples) -> Batched:
    """Returns the model as a function that executes calls of several threads in one batch.

    `examples` are those of `serve`. Raises `InputError` for examples that the model does not take.
    """
    settings, given = read_settings(), read_examples(examples)
    session, lifecycle = known_session(), Lifecycle()
    state = ServingState(lifecycle)
    session.serves(state.report, state.share)
    session.start()
    loaded = load_backend(model, given, settings, session)
    metered = MeteredBackend(loaded.backend, session)
    batcher = Batcher(metered, settings.objective, settings.batching)
    batcher.warm_up(given)
    metered.begin()
    state.serves(batcher, loaded.backend.name, loaded.precision)
    batcher.start()
    stop = BatchedStop(session, batcher, lifecycle, settings.drain_delay_seconds)
    stop.start()
    lifecycle.enter(Stage.SERVING)
    session.state.enter(WorkerPhase.SERVING)
    session.reporter.wake()
    found = Batched(batcher, loaded.signature, lifecycle, stop)
    atexit.register(_at_exit, session, found)
    return found


def _at_exit(session: Session, predict: Batched) -> None:
    """Makes the last report. The hooks do it in their own processes."""
    predict.close(0.0)
    if not session.is_hooked:
        session.finish(None)
