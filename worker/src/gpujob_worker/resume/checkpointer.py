"""Decides when a run's state is saved: in the background of the training, and once more before it
leaves.

Training stands still while the state is copied into host memory, and a thread commits the copy.
Without memory for a copy, training stands still until the commit. Errors are logged at the next
safe point and end nothing, except if a newer attempt owns the directory.
"""

import atexit
import contextlib
import gc
import statistics
import time
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, NoReturn

import torch

from gpujob_api.codec import encode
from gpujob_api.report import CheckpointReport, WorkerPhase
from gpujob_worker.checkpoint.background_writer import BackgroundWriter, CancelledError, Written
from gpujob_worker.checkpoint.errors import CheckpointError, FencedError
from gpujob_worker.checkpoint.host_memory import available_bytes
from gpujob_worker.checkpoint.interval import (
    CheckpointCost,
    StopPlan,
    interval_seconds,
    plan_stop,
)
from gpujob_worker.checkpoint.shared_store import SharedStore
from gpujob_worker.checkpoint.staging import NoRoomError, StagingBuffer
from gpujob_worker.checkpoint.store import Commit, Store
from gpujob_worker.checkpoint.tree import encode_tree
from gpujob_worker.resume.lockstep import Alone, Order, Pace, Wish
from gpujob_worker.run.graceful_stop import (
    EXIT_MARGIN_SECONDS,
    Interrupted,
    leave_unsaved,
)
from gpujob_worker.run.session import Session

_ITEM = "checkpoint"
# Number of steps whose lengths are compared, with and without a running write.
_STEPS_COMPARED = 50
_SLOWDOWN_MAX = 0.9
# Minimum of the seconds that training waits for a write if the user requested this interval.
_WAIT_SECONDS_MIN = 60.0
_LOOK_SECONDS = 0.05
# Maximum seconds that the first of several processes waits for the others to read the decision.
_KNOWN_SECONDS_MAX = 20.0


class Checkpointer:
    """Saves the result of `snapshot`. `safe_point` is called between two steps.

    If several processes save together, `pace` decides at which safe point all of them do.
    `free_bytes` returns the host memory that is free for a copy, by default that of the machine.
    """

    def __init__(
        self,
        session: Session,
        store: Store | SharedStore | None,
        snapshot: Callable[[], Any],
        free_bytes: Callable[[], int | None] | None = None,
        pace: Pace | None = None,
    ) -> None:
        self._session = session
        self._store = store
        self._snapshot = snapshot
        self._staging = StagingBuffer(free_bytes or self._free_bytes)
        self._writer = BackgroundWriter(store) if store is not None else None
        self._pace = pace or Alone()
        self._step_lengths = _StepLengths()
        self._due_from = time.monotonic()
        self._blocked_seconds = 0.0
        self._cost: CheckpointCost | None = None
        self._prepared = self._described = False
        # Checkpoints that were begun, so that callers notice a new one.
        self.begun = 0
        if self._writer is not None:
            atexit.register(self._writer.close)

    def safe_point(self) -> None:
        """Starts a checkpoint when one is due. Leaves by `Interrupted` on a stop."""
        self.carry_out(self.ordered())

    def ordered(self) -> Order:
        """Returns what to do now. Call it once after each step."""
        self._follow_writer()
        return self._pace.passes(self._wish())

    @property
    def is_lost(self) -> bool:
        """Whether the processes of a gang have lost each other, so that nothing is saved
        any more.
        """
        return self._pace.lost is not None

    def carry_out(self, order: Order) -> None:
        """Carries out the order at a safe point."""
        if self._pace.lost is not None and order is not Order.GO_ON:
            self._session.log.note(_ITEM, f"nothing more is saved: {self._pace.lost}")
            self._abstain(self._pace.lost)
            if order is Order.STOP:
                self.leave(saved=False)
            return
        if order is Order.STOP:
            self.leave()
        if order is Order.SAVE:
            self._begin_with_all()
            self._step_lengths.forget()

    def _follow_writer(self) -> None:
        if self._writer is None or self._session.stop.requested:
            return
        self._step_lengths.passes(busy=self._writer.busy)
        self._collect()
        if self._session.state.phase is WorkerPhase.TRAINING:
            self._prepare()

    def leave(self, *, saved: bool | None = None) -> NoReturn:
        """Commits the present state if there is time, and leaves.

        If it is known whether it was `saved`, it only leaves.
        """
        saved = self.save_last() if saved is None else saved
        self._session.state.enter(WorkerPhase.DRAINING)
        self._wait_until_known()
        if not saved:
            leave_unsaved()
        raise Interrupted(saved=True)

    def _wait_until_known(self) -> None:
        left = self._session.stop.remaining_seconds() - EXIT_MARGIN_SECONDS
        if self._store is not None and self._pace.lost is None:
            with contextlib.suppress(CheckpointError):
                self._store.wait_until_known(min(_KNOWN_SECONDS_MAX, max(0.0, left)))

    def wait(self, seconds: float) -> bool:
        """Waits for the current write. Returns True if none is left."""
        return self._writer is None or self._writer.wait(seconds)

    def resumed(self) -> None:
        """Called when the state is that of a checkpoint, so that none is due at once."""
        self._due_from = time.monotonic()

    def _interval_seconds(self) -> float:
        environment = self._session.environment
        asked = environment.settings.checkpoint_interval_seconds
        return interval_seconds(asked, self._cost, environment.grace_seconds)

    def _wish(self) -> Wish:
        """Returns what this process would do here on its own."""
        stop = self._session.stop
        if stop.requested:
            return Wish(Order.STOP, stop.remaining_seconds(), stop.reason)
        if self._writer is None or not self._pace.leads or self._pace.lost is not None:
            return Wish()
        if time.monotonic() - self._due_from < self._interval_seconds():
            return Wish()
        return Wish(Order.SAVE) if self._writer_is_free() else Wish()

    def _writer_is_free(self) -> bool:
        """Returns whether a due checkpoint can be written. While another one is written, it is
        skipped or waited for.
        """
        assert self._writer is not None
        asked = self._session.environment.settings.checkpoint_interval_seconds
        if self._writer.busy and asked is not None:
            # The user requested this interval, whatever it costs.
            self._waits("one is written while the next is due: training waits for it")
            self._wait_for_writer(max(_WAIT_SECONDS_MIN, 2.0 * asked))
            self._collect()
            self._step_lengths.forget()
        return not self._writer.busy

    def _begin_with_all(self) -> None:
        """The first process saw its last checkpoint committed, which may not be known here yet."""
        assert self._writer is not None
        if self._writer.busy:
            self._wait_for_writer(_WAIT_SECONDS_MIN)
        self._collect()
        if self._writer.busy:
            self._abstain("an earlier checkpoint is still being written")
        else:
            self.begin()

    def _wait_for_writer(self, seconds: float) -> None:
        assert self._writer is not None
        deadline = time.monotonic() + seconds
        with self._session.meter.paused():
            while not self._session.stop.requested and time.monotonic() < deadline:
                if self._writer.wait(_LOOK_SECONDS):
                    return

    def begin(self) -> None:
        """Starts a checkpoint of the present state. No other may be running."""
        session, start = self._session, time.monotonic()
        try:
            with session.state.during(WorkerPhase.CHECKPOINTING), session.meter.paused():
                self._stage_or_write()
        except FencedError:
            raise
        except (CheckpointError, OSError) as error:
            self._failed(error)
        self._due_from, self._blocked_seconds = start, time.monotonic() - start

    def _stage_or_write(self) -> None:
        assert self._writer is not None
        step = self._session.state.step
        text, tensors = self._encoded()
        try:
            staged = self._staging.stage(tensors)
        except NoRoomError as error:
            self._waits(f"training waits until it is written: {error}")
            self._wrote_in_place(step, text, tensors)
            return
        self._writer.start(step, text, staged, self._about())
        self.begun += 1

    def _encoded(self) -> tuple[str, dict[str, torch.Tensor]]:
        """Returns the present state. If it cannot be saved, the other processes do not
        wait for it.
        """
        try:
            with _without_collections():
                return encode_tree(self._snapshot())
        except CheckpointError as error:
            self._abstain(str(error))
            raise

    def _abstain(self, why: str) -> None:
        if self._store is not None:
            with contextlib.suppress(CheckpointError):
                self._store.abstain(why)

    def _wrote_in_place(self, step: int, text: str, tensors: Any) -> None:
        assert self._store is not None
        commit = self._store.write(step, text, tensors, self._about())
        self._cost = CheckpointCost(commit.seconds)
        self._committed(commit)

    def _prepare(self) -> None:
        """Allocates memory for the copy, once, after the measurements at the beginning of a run."""
        if self._prepared or self._cost is not None:
            return
        self._prepared = True
        try:
            _, tensors = encode_tree(self._snapshot())
        except CheckpointError:
            return  # the first checkpoint reports it
        self._staging.prepare(tensors)

    def _collect(self) -> None:
        assert self._writer is not None
        written = self._writer.take()
        if written is None:
            return
        if isinstance(written.error, FencedError):
            raise written.error
        if written.error is not None:
            if not isinstance(written.error, CancelledError):
                self._failed(written.error)
            return
        self._wrote_beside(written)

    def _wrote_beside(self, written: Written) -> None:
        commit = written.commit
        assert commit is not None
        slowdown = self._step_lengths.slowdown()
        self._cost = CheckpointCost(self._blocked_seconds, commit.seconds, slowdown)
        self._committed(commit)
        if not self._described:
            self._described = True
            size, every = commit.bytes / 1e6, self._interval_seconds()
            self._session.log.applied(
                _ITEM,
                f"{size:.0f} MB: training stood still for {self._blocked_seconds:.2f} s, written"
                f" beside it in {commit.seconds:.2f} s; one every {every:.0f} s",
            )

    def _committed(self, commit: Commit) -> None:
        report = CheckpointReport(commit.step, commit.bytes, commit.seconds)
        self._session.state.committed(report)
        self._session.reporter.wake()

    def _failed(self, error: Exception) -> None:
        text = f"{type(error).__name__}: {error}" if not str(error) else str(error)
        self._session.log.note(_ITEM, f"not written: {text}")
        self._due_from = time.monotonic()

    def save_last(self) -> bool:
        """Commits the present state if there is time. Returns whether it is committed now."""
        if self._writer is None:
            return False
        plan = self._end_write_under_way() if self._writer.busy else StopPlan.FINISH_THEN_SAVE
        self._collect()
        at = self._session.state.checkpoint
        if at is not None and at.step == self._session.state.step:
            return True
        if plan is StopPlan.FINISH_ONLY:
            self._abstain("the time that is left is too short for it")
            return False
        return self._write_last()

    def _end_write_under_way(self) -> StopPlan:
        assert self._writer is not None
        session = self._session
        left = session.stop.remaining_seconds() - EXIT_MARGIN_SECONDS
        known = self._cost.whole_seconds if self._cost is not None else None
        plan = plan_stop(left, known, self._writer.rest_seconds)
        if plan is not StopPlan.FINISH_THEN_SAVE:
            session.log.note(_ITEM, f"{left:.1f} s are left: {plan.value}")
        if plan is StopPlan.CANCEL_AND_SAVE:
            self._writer.cancel()
        with session.state.during(WorkerPhase.CHECKPOINTING), session.meter.paused():
            self._writer.wait(left)
        return plan

    def _write_last(self) -> bool:
        """Writes the state in place. Nothing changes it any more, so no copy is needed."""
        session = self._session
        try:
            with session.state.during(WorkerPhase.CHECKPOINTING), session.meter.paused():
                text, tensors = self._encoded()
                self._wrote_in_place(session.state.step, text, tensors)
        except FencedError:
            raise
        except (CheckpointError, OSError) as error:
            self._failed(error)
            return False
        return True

    def _about(self) -> dict[str, Any]:
        environment = self._session.environment
        return {"name": environment.name, "settings": encode(environment.settings)}

    def _free_bytes(self) -> int | None:
        """Returns the host memory that may be taken. On the CPU it is the device's, within the
        job's limit.
        """
        session, free = self._session, available_bytes()
        limit = session.environment.memory_limit_bytes
        if limit is None or session.state.device not in ("", "cpu"):
            return free
        held = max(session.meter.memory.current_bytes(), session.meter.window.peak_memory_bytes)
        left = max(0, limit - held)
        return left if free is None else min(left, free)

    def _waits(self, text: str) -> None:
        self._session.log.note(f"{_ITEM} wait", text)


@contextlib.contextmanager
def _without_collections() -> Generator[None]:
    """Turns garbage collection off. A state is thousands of small containers for a moment, and a
    search for cycles among these and the script's own objects would find nothing.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _StepLengths:
    """Seconds from safe point to safe point, with and without a running write."""

    def __init__(self) -> None:
        self._busy: deque[float] = deque(maxlen=_STEPS_COMPARED)
        self._idle: deque[float] = deque(maxlen=_STEPS_COMPARED)
        self._last: tuple[float, bool] | None = None

    def passes(self, *, busy: bool) -> None:
        now = time.monotonic()
        if self._last is not None and self._last[1] is busy:
            (self._busy if busy else self._idle).append(now - self._last[0])
        self._last = now, busy

    def forget(self) -> None:
        """Drops the last time, because the next interval is more than a step."""
        self._last = None

    def slowdown(self) -> float:
        """Returns the share of its speed that the training lost during writes."""
        if not self._busy or not self._idle:
            return 0.0
        busy, idle = statistics.median(self._busy), statistics.median(self._idle)
        return min(max(0.0, 1.0 - idle / busy), _SLOWDOWN_MAX) if busy > 0 else 0.0
