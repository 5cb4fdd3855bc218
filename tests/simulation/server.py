"""The processes of a GPUService: a replica, and a measurement of backends."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from gpujob_api.quantities import GIB
from gpujob_api.report import Failure, FailureClass, Reply, Report, WorkerPhase
from gpujob_api.serving import BackendName, Choice, ServingReport, ServingSettings
from gpujob_api.settings import (
    EXIT_DONE,
    EXIT_INTERRUPTED_SAVED,
    EXIT_INTERRUPTED_UNSAVED,
    Precision,
    Task,
)
from tests.simulation.pods import told_grace
from tests.simulation.requests import End, Request
from tests.simulation.worker import TICK_SECONDS, Disk, Tell, Witness, Worker

if TYPE_CHECKING:
    from tests.simulation.api_server import Manifest
    from tests.simulation.cluster import Cluster
    from tests.simulation.machines import Machine
    from tests.simulation.service_worlds import Model

DRAIN_DELAY_SECONDS = ServingSettings().drain_delay_seconds
# A server lives for the whole seed, so it reports more seldom than other workers.
REPORT_SECONDS = 6.0
# A parked server reports more often, and learns that it has to wake.
PARKED_REPORT_SECONDS = 1.0
# The way of the weights to the memory of the host, or back, and what the process keeps on the GPU.
MOVE_SECONDS = 0.5
PARKED_BYTES = GIB // 2
# Rates are those of the last minute.
WINDOW_SECONDS = 60.0
MEASURING_SECONDS = 20.0
# A kill this long before the end of the pod's grace still counts as orderly.
GRACE_SLACK_SECONDS = 2.0


class Server(Worker):
    """Loads its model, answers requests, and drains at a stop, as `gpujob_worker.serving` does."""

    def __init__(
        self, cluster: Cluster, machine: Machine, pod: Manifest, model: Model,
        crash: tuple[float, int] | None, tell: Tell, witness: Witness,
        lost: Callable[[Server, int], None], misrouted: Callable[[Server], None],
    ) -> None:  # fmt: skip
        """`crash` has the seconds after which the process ends by itself, and its exit code. `lost`
        gets the number of requests that an orderly end has cost, `misrouted` is called for each
        request that arrives while it is parked.
        """
        super().__init__(
            cluster, machine, pod, model.workload, Disk(), lambda _: True, tell, witness
        )
        self._model = model
        self._crash = crash
        self._lost = lost
        self._misrouted = misrouted
        self._told_grace = told_grace(pod)
        self._loaded = False
        self._refuses = False
        self._requests: set[Request] = set()
        self._answered_at: deque[float] = deque()
        self._answered = 0
        # Whether it has answered all accepted requests.
        self.drained = False
        self._parked_at: float | None = None
        # Whether the weights are on their way.
        self._moves = False

    @property
    def is_ready(self) -> bool:
        """The result of its readiness probe."""
        return self._loaded and not (self._draining or self.ended)

    @property
    def utilization(self) -> float:
        return 0.0 if self._stands_still else self._busy_percent

    @property
    def is_done(self) -> bool:
        """Whether the script has returned."""
        return self._crash is not None and self._crash[1] == EXIT_DONE

    @property
    def _busy_percent(self) -> float:
        while self._answered_at and self._answered_at[0] < self._clock.now - WINDOW_SECONDS:
            self._answered_at.popleft()
        busy = len(self._answered_at) * self._model.busy_seconds
        return min(100.0, 100 * busy / WINDOW_SECONDS)

    # -- requests

    def accept(self, request: Request) -> bool:
        if not self._loaded or self._refuses or self.ended:
            return False
        if self._parked_at is not None or self._moves:
            self._misrouted(self)
            return False
        self._requests.add(request)
        self._clock.after(self._model.answer_seconds, lambda: self._answer(request))
        return True

    def _answer(self, request: Request) -> None:
        if self.ended or self.lost_gpus:
            return
        self._requests.discard(request)
        self._answered += 1
        self._answered_at.append(self._clock.now)
        request.ended(End.ANSWERED)
        self._end_if_answered()

    def _drop(self, *, orderly: bool = False) -> None:
        """Ends the accepted requests: the process is gone."""
        if orderly and self._requests:
            self._lost(self, len(self._requests))
        for request in list(self._requests):
            request.ended(End.LOST)
        self._requests.clear()

    # -- parking

    def heard(self, reply: Reply) -> None:
        super().heard(reply)
        asked = reply.park if self._loaded and not (self._draining or self.ended) else None
        if asked is None or self._moves or asked == (self._parked_at is not None):
            return
        if not (asked and self._requests):
            self._moves = True
            self._clock.after(MOVE_SECONDS, self._park if asked else self._wake)

    def _park(self) -> None:
        self._moves = False
        if not (self.ended or self._draining or self.lost_gpus):
            self._parked_at = self._clock.now
            self._take_memory()
            self._report_parked()

    def _report_parked(self) -> None:
        if self._parked_at is not None and not (self.ended or self._draining or self.lost_gpus):
            self._report(WorkerPhase.SERVING)
            self._clock.after(PARKED_REPORT_SECONDS, self._report_parked)

    def _wake(self) -> None:
        self._moves = False
        if self.ended or self._draining or self.lost_gpus:
            return
        self._parked_at = None
        if self._take_memory():
            self._report(WorkerPhase.SERVING)
        else:
            self._end(1, self._failure(FailureClass.OUT_OF_MEMORY))

    def _needed_bytes(self) -> int:
        return PARKED_BYTES if self._parked_at is not None else super()._needed_bytes()

    # -- its life

    def _begin(self) -> None:
        super()._begin()
        if self.ended:
            return
        self._clock.after(self._model.load_seconds, self._load)
        if self._crash is not None:
            self._clock.after(self._crash[0], self._break)

    def _load(self) -> None:
        if not (self.ended or self._draining or self.lost_gpus):
            self._loaded = True

    def _break(self) -> None:
        if self._crash is not None and not (self._draining or self.lost_gpus):
            code = self._crash[1]
            self._end(code, self._failure(FailureClass.UNKNOWN) if code else None)

    def _tick(self) -> None:
        if self.ended or self._draining or self.lost_gpus:
            return
        if not self._take_memory():
            self._end(1, self._failure(FailureClass.OUT_OF_MEMORY))
            return
        self._report(WorkerPhase.SERVING if self._loaded else WorkerPhase.STARTING)
        self._clock.after(REPORT_SECONDS, self._tick)

    def report_now(self, phase: WorkerPhase, failure: Failure | None = None) -> Report:
        report = super().report_now(phase, failure)
        return replace(
            report, task=Task.SERVING, step=self._answered, steps_total=None, tuned=None,
            current=None, baseline=None, serving=self._figures(),
        )  # fmt: skip

    def _figures(self) -> ServingReport:
        busy = self._busy_percent
        recent = len(self._answered_at)
        return ServingReport(
            ready=self.is_ready,
            answered=self._answered,
            queued=len(self._requests),
            recent_requests=recent,
            requests_per_second=recent / WINDOW_SECONDS,
            busy_percent=busy,
            can_park=True,
            parked_seconds=None if self._parked_at is None else self._clock.now - self._parked_at,
        )

    # -- its end

    def _drain(self) -> None:
        if self._draining or self.ended:
            return
        self._draining = True
        if self._loaded:
            self._clock.after(DRAIN_DELAY_SECONDS, self._refuse)
        else:
            self._clock.after(0.2, lambda: self._end(EXIT_INTERRUPTED_UNSAVED))

    def _refuse(self) -> None:
        self._refuses = True
        self._end_if_answered()

    def _end_if_answered(self) -> None:
        if self._refuses and not (self._requests or self.ended or self.lost_gpus):
            self.drained = True
            self._end(EXIT_INTERRUPTED_SAVED)

    def _last_report(self, failure: Failure | None) -> Report:
        phase = WorkerPhase.DRAINING if self._draining else WorkerPhase.FINISHED
        return self.report_now(phase, failure)

    def _end(self, exit_code: int, failure: Failure | None = None) -> None:
        super()._end(exit_code, failure)
        self._drop()

    def kill_if_asked(self, deadline: datetime) -> None:
        """An end is orderly if it has the grace that the pod was created with."""
        ended, now = self.ended, self._clock.now
        super().kill_if_asked(deadline)
        if self.ended and not ended:
            given = now - (now if self.sigterm_at is None else self.sigterm_at)
            in_time = given >= self._told_grace - GRACE_SLACK_SECONDS
            self._drop(orderly=in_time and not self.lost_gpus)

    def evict(self) -> None:
        super().evict()
        self._drop()

    def vanish(self) -> None:
        super().vanish()
        self._drop()


class Measurement(Worker):
    """Measures backends for a while, and ends with its choice."""

    def __init__(
        self, cluster: Cluster, machine: Machine, pod: Manifest, model: Model, tell: Tell,
        witness: Witness,
    ) -> None:  # fmt: skip
        super().__init__(
            cluster, machine, pod, model.workload, Disk(), lambda _: True, tell, witness
        )

    def _tick(self) -> None:
        if self.ended or self._draining or self.lost_gpus:
            return
        if not self._take_memory():
            self._end(1, self._failure(FailureClass.OUT_OF_MEMORY))
        elif self._clock.now - self._started >= MEASURING_SECONDS:
            self._step = float(self._workload.steps)
            self._end(EXIT_DONE)
        else:
            self._report(WorkerPhase.TUNING)
            self._clock.after(TICK_SECONDS, self._tick)

    def report_now(self, phase: WorkerPhase, failure: Failure | None = None) -> Report:
        chosen = Choice(BackendName.COMPILE, Precision.FLOAT32, seconds=MEASURING_SECONDS)
        serving = ServingReport(choice=chosen if self.is_done else None)
        report = super().report_now(phase, failure)
        return replace(report, task=Task.SERVING, current=None, baseline=None, serving=serving)
