"""Executes requests in batches: one thread between the callers' futures and the backend."""

import math
import threading
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Protocol

from gpujob_api.serving import Batching, BatchTime, Objective
from gpujob_worker.serving.backend import Backend, Tensors
from gpujob_worker.serving.batch_time import BatchTimes, Line
from gpujob_worker.serving.batching import QUEUE_MAX, BatchQueue, Dispatch, Part, WaitUntil
from gpujob_worker.serving.model_runner import ModelRunner, concatenated, rows
from gpujob_worker.serving.signature import InputError
from gpujob_worker.serving.statistics import BatcherStatistics, SlidingWindow
from gpujob_worker.serving.warm_up import WARM_UP_SECONDS, WarmUp

CLOSE_SECONDS = 5.0
ERROR_CHARACTERS_MAX = 256
# Shares of the objective, before anything was measured. Low, so that a guess refuses nothing.
PRIOR_FIXED_SHARE, PRIOR_SAMPLE_SHARE = 0.02, 0.0005
# Share of the objective for reading a request before the queue and sending its answer after it.
OUTSIDE_SHARE = 0.05


class Overloaded(RuntimeError):  # noqa: N818 - a state, as the two answers with 503 are
    """The answer would come after its deadline, or the queue is full."""

    def __init__(self, retry_after_seconds: float) -> None:
        super().__init__(f"overloaded: try again in {retry_after_seconds:.3f} s")
        self.retry_after_seconds = retry_after_seconds


class Draining(RuntimeError):  # noqa: N818
    """The process is about to end, and takes no requests."""


class Parked(RuntimeError):  # noqa: N818
    """The weights are in the memory of the host."""

    def __init__(self) -> None:
        super().__init__("parked: the operator wakes it for a request that comes through the gate")


class Moves(Protocol):
    """Parks and wakes the backend (see `Mover`)."""

    @property
    def can_park(self) -> bool: ...

    def park(self) -> bool:
        """Returns whether it is parked."""
        ...

    def wake(self) -> bool:
        """Returns whether it is awake."""
        ...


class _Stage(Enum):
    ANSWERING = auto()
    PARKING = auto()
    PARKED = auto()
    WAKING = auto()


@dataclass(eq=False, slots=True)
class _Request:
    """One request. A large one is executed in parts, which end in their order."""

    inputs: Tensors
    samples: int
    arrived: float
    future: Future[Tensors] = field(default_factory=Future[Tensors])
    outputs: list[Tensors] = field(default_factory=list[Tensors])
    answered_samples: int = 0


def _within(objective: Objective) -> Objective:
    """Returns the objective of the queue, which leaves time to read and to send."""
    milliseconds = objective.latency_milliseconds * (1 - OUTSIDE_SHARE)
    return replace(objective, latency_milliseconds=max(milliseconds, 1.0))


class Batcher:
    """Takes requests from any thread, and executes them on one thread, which also parks and wakes.

    The thread lives until `close`, whatever the backend raises. A request ends with its outputs,
    its error, or the cancellation by its caller, and never twice.
    """

    def __init__(
        self,
        backend: Backend,
        objective: Objective,
        batching: Batching,
        *,
        queue_max: int = QUEUE_MAX,
        prior: BatchTime | None = None,
    ) -> None:
        self._backend = backend
        self._objective_seconds = objective.latency_milliseconds / 1000
        line = Line(
            self._objective_seconds * PRIOR_FIXED_SHARE,
            self._objective_seconds * PRIOR_SAMPLE_SHARE,
        )
        if prior is not None:
            line = Line(prior.fixed_milliseconds / 1000, prior.per_sample_milliseconds / 1000)
        self._runner = ModelRunner(backend)
        self._queue = BatchQueue[_Request](
            _within(objective),
            batching,
            BatchTimes(line, objective.percentile),
            sizes=backend.sizes,
            queue_max=queue_max,
        )
        # Guards the queue and all that follows.
        lock = threading.Lock()
        self._work = threading.Condition(lock)
        self._empty = threading.Condition(lock)
        # When the last batch ended.
        self._free_since = time.monotonic()
        self._window = SlidingWindow(
            self._objective_seconds, self._free_since, objective.percentile
        )
        self._answered = self._failed = self._refused = 0
        # None while the thread does not sleep.
        self._sleeps_until: float | None = None
        self._closed = False
        self._thread: threading.Thread | None = None
        self._mover: Moves | None = None
        self._on_moved: Callable[[], None] = lambda: None
        self._stage = _Stage.ANSWERING
        self._parks = False
        self._parked_since = 0.0
        # Requests that are being read, and will be submitted.
        self._arriving = 0

    @property
    def shared(self) -> bool:
        """Whether others use the GPU, too. May be set at any time; Auto depends on it."""
        return self._queue.shared

    @shared.setter
    def shared(self, shared: bool) -> None:
        with self._work:
            self._queue.shared = shared
            self._work.notify()

    def warm_up(self, examples: Tensors, seconds: float = WARM_UP_SECONDS) -> None:
        """Measures batches of several sizes, made of the examples. Call it before `start`.

        Raises what the model raises for one sample.
        """
        sizes = WarmUp(self._runner, self._backend.sizes, self._objective_seconds)
        line = sizes.measure(examples, seconds)
        with self._work:
            self._queue.set_prior(line)
            self._queue.limit_size(self._runner.size_max)

    def parks_by(self, mover: Moves, on_moved: Callable[[], None]) -> None:
        """Makes `park` possible. `on_moved` is called after each attempt. Call it before
        `start`.
        """
        self._mover, self._on_moved = mover, on_moved

    def park(self, parks: bool | None) -> None:
        """Parks once no request is queued or in progress, or wakes. Returns at once.

        A call replaces the one before. After None the backend stays as it is, and parking no longer
        waits for the end of requests. Requests are refused with `Parked` until it is awake. After
        an attempt that failed it stays as it is until the next call.
        """
        with self._work:
            if parks is None:
                parks = self._stage in (_Stage.PARKING, _Stage.PARKED)
            self._parks = parks and self._can_park
            self._work.notify()

    @property
    def _can_park(self) -> bool:
        return self._mover is not None and self._mover.can_park

    @property
    def is_parked(self) -> bool:
        return self._stage is _Stage.PARKED

    @contextmanager
    def arrival(self) -> Generator[None]:
        """Spans a request that is being read. The backend does not park before the block ends, so
        `submit` in it does not raise `Parked`. Raises `Parked` at the start.
        """
        with self._work:
            self._refuse_if_parked()
            self._arriving += 1
        try:
            yield
        finally:
            with self._work:
                self._arriving -= 1
                if self._parks and not self._arriving:
                    self._work.notify()

    def start(self) -> None:
        with self._work:
            if self._thread is not None or self._closed:
                return
            self._thread = threading.Thread(target=self._run, name="gpujob-batcher", daemon=True)
            self._thread.start()

    def submit(
        self, inputs: Tensors, samples: int, *, seconds: float | None = None
    ) -> Future[Tensors]:
        """Queues a request. Its future has the outputs, on the CPU, or the model's exception.

        `seconds` is the time that the caller waits, by default the objective (see
        `BatchQueue.offer`). Raises `Overloaded`, `Draining`, `Parked`, or `InputError` for too many
        samples.
        """
        with self._work:
            now = time.monotonic()
            if self._closed or self._queue.draining:
                self._refused += 1
                raise Draining("draining: this process takes no more requests; try another one")
            self._refuse_if_parked()
            request = _Request(inputs, samples, now)
            try:
                deadline = None if seconds is None else now + seconds
                refused = self._queue.offer(request, samples, now, deadline)
            except ValueError as error:
                raise InputError(str(error)) from None
            if refused is not None:
                self._refused += 1
                if seconds is None:
                    self._window.refused(now)
                raise Overloaded(refused.retry_after_seconds)
            if self._sleeps_until is not None and self._queue.due(now) < self._sleeps_until:
                self._work.notify()
        return request.future

    def statistics(self) -> BatcherStatistics:
        with self._work:
            sums = self._window.sums(time.monotonic())
            line = self._queue.times.line
            observed = self._queue.times.observed
            percent = 100 * sums.within / sums.requests if sums.requests else None
            needed = sums.needed_seconds
            is_parked = self._stage in (_Stage.PARKED, _Stage.WAKING)
            return BatcherStatistics(
                answered=self._answered,
                failed=self._failed,
                refused=self._refused,
                queued=self._queue.queued,
                recent_requests=sums.requests,
                recent_failed=sums.failed,
                recent_error=sums.error,
                requests_per_second=sums.requests / sums.seconds,
                samples_per_second=sums.samples / sums.seconds,
                within_objective_percent=percent,
                latency=sums.latency,
                needed_percent=None if needed is None else 100 * needed / self._objective_seconds,
                busy_percent=min(100.0, 100 * sums.busy_seconds / sums.seconds),
                batch_samples=sums.batched_samples / sums.batches if sums.batches else None,
                time=BatchTime(1000 * line.fixed_seconds, 1000 * line.per_sample_seconds)
                if observed
                else None,
                policy=self._queue.policy,
                can_park=self._can_park,
                parked_seconds=time.monotonic() - self._parked_since if is_parked else None,
            )

    def drain(self, seconds: float) -> bool:
        """Refuses new requests from now on, and executes the queue at once.

        Returns True once all requests have ended, or False after `seconds`.
        """
        with self._work:
            self._queue.draining = True
            self._work.notify()
            return self._empty.wait_for(self._is_empty, timeout=seconds)

    def close(self) -> None:
        """Ends the thread after the batch that it executes. Requests not dispatched fail with
        `Draining`. May be called again.
        """
        with self._work:
            self._closed = True
            left = self._queue.abandon()
            self._work.notify()
            thread = self._thread
        for part in left:
            self._fail(part.request, Draining("draining: the process ended before this request"))
        if thread is not None and thread is not threading.current_thread():
            thread.join(CLOSE_SECONDS)

    def _is_empty(self) -> bool:
        moves = self._stage in (_Stage.PARKING, _Stage.WAKING)
        return not (self._queue.queued or self._queue.running or moves)

    def _refuse_if_parked(self) -> None:
        if self._stage is not _Stage.ANSWERING:
            raise Parked

    def _run(self) -> None:
        while self._turn():
            pass

    def _turn(self) -> bool:
        """Executes the next batch or move. Returns False after `close`.

        The batch is a variable of this call, so that its tensors are released while the thread
        waits for another one.
        """
        action = self._wait()
        if action is None:
            return False
        if isinstance(action, Dispatch):
            self._execute(action)
        else:
            self._move(action)
        return True

    def _wait(self) -> Dispatch[_Request] | Moves | None:
        """Returns the next batch, or the mover if the stage of a move was entered. Returns None
        after `close`.
        """
        with self._work:
            while not self._closed:
                mover = self._next_move()
                if mover is not None:
                    return mover
                now = time.monotonic()
                action = self._queue.next(now)
                if isinstance(action, Dispatch):
                    return action
                self._sleeps_until = math.inf
                timeout = None
                if isinstance(action, WaitUntil):
                    self._sleeps_until = action.seconds
                    timeout = action.seconds - now
                self._work.wait(timeout)
                self._sleeps_until = None
            return None

    def _next_move(self) -> Moves | None:
        """Enters the stage of a move and returns the mover, if a move is due."""
        is_parked = self._stage is _Stage.PARKED
        if self._mover is None or self._parks is is_parked or self._queue.draining:
            return None
        if not is_parked and (self._arriving or not self._is_empty()):
            return None
        self._stage = _Stage.WAKING if is_parked else _Stage.PARKING
        return self._mover

    def _move(self, mover: Moves) -> None:
        parks = self._stage is _Stage.PARKING
        moved = mover.park() if parks else mover.wake()
        with self._work:
            if not moved:
                self._parks = not parks
            elif parks:
                self._parked_since = time.monotonic()
            self._stage = _Stage.PARKED if parks is moved else _Stage.ANSWERING
            self._empty.notify_all()
        self._on_moved()

    def _execute(self, dispatch: Dispatch[_Request]) -> None:
        started = time.monotonic()
        parts = [part for part in dispatch.parts if _begins(part)]
        size: int | None = None
        outcomes: Sequence[Tensors | Exception] = ()
        try:
            if parts:
                executed = self._runner.run([_inputs(part) for part in parts])
                outcomes, size = executed.outcomes, executed.size
        except BaseException as error:  # a model may call sys.exit
            failure = RuntimeError(f"the model ended its thread: {type(error).__name__}: {error}")
            outcomes = [failure] * len(parts)
        ended = [
            part.request
            for part, outcome in zip(parts, outcomes, strict=True)
            if self._ends(part, outcome)
        ]
        now = time.monotonic()
        with self._work:
            self._queue.finished(now, size)
            self._queue.limit_size(self._runner.size_max)
            if parts:
                samples = sum(part.samples for part in parts)
                self._window.executed(now, now - started, samples)
            for request in ended:
                error = request.future.exception()
                self._answered += error is None
                self._failed += error is not None
                # Before that the device was busy, or the request had not arrived.
                could_start = max(request.arrived, self._free_since)
                self._window.answered(
                    now,
                    now - request.arrived,
                    request.samples,
                    None if error is None else _first_line(error),
                    waited_seconds=max(0.0, started - could_start),
                )
            self._free_since = now
            if self._is_empty():
                self._empty.notify_all()

    def _ends(self, part: Part[_Request], outcome: Tensors | Exception) -> bool:
        """Returns whether this part's outcome ends its request."""
        try:
            return self._take(part, outcome)
        except BaseException as error:  # of joining the outputs, or of a caller's callback
            return self._fail(part.request, RuntimeError(f"{type(error).__name__}: {error}"))

    def _take(self, part: Part[_Request], outcome: Tensors | Exception) -> bool:
        request = part.request
        if isinstance(outcome, Exception):
            return self._fail(request, outcome)
        request.outputs.append(outcome)
        request.answered_samples += part.samples
        if request.answered_samples < request.samples:
            return False
        whole = outcome if len(request.outputs) == 1 else concatenated(request.outputs, 0)
        request.future.set_result(whole)
        return True

    def _fail(self, request: _Request, error: Exception) -> bool:
        """Returns False if the request has ended before, as after another part's failure."""
        try:
            request.future.set_exception(error)
        except InvalidStateError:
            return False
        return True


def _first_line(error: BaseException) -> str:
    """Returns the class and the first line of the message, which has the cause: torch appends
    advice.
    """
    line = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {line}"[:ERROR_CHARACTERS_MAX]


def _begins(part: Part[_Request]) -> bool:
    """Returns False for a request that its caller cancelled, or whose earlier part failed."""
    future = part.request.future
    return future.set_running_or_notify_cancel() if part.start == 0 else not future.done()


def _inputs(part: Part[_Request]) -> Tensors:
    request = part.request
    if part.samples == request.samples:
        return request.inputs
    return rows(request.inputs, part.start, part.samples)
