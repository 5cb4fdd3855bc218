"""A worker process of the simulated cluster: it computes, reports, checkpoints, and ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from gpujob_api import settings as names
from gpujob_api.report import (
    STOP_ATTEMPT_OVER,
    CheckpointReport,
    Failure,
    FailureClass,
    Reply,
    Report,
    Timing,
    WorkerPhase,
)
from gpujob_api.settings import (
    EXIT_DONE,
    EXIT_INTERRUPTED_SAVED,
    EXIT_INTERRUPTED_UNSAVED,
    TunedSettings,
)
from gpujob_operator.decide.model.held_gpus import CONTEXT_BYTES
from tests.harness.builders import MODEL
from tests.simulation.lies import WorkerLie, twisted
from tests.simulation.workloads import Farewell

if TYPE_CHECKING:
    from tests.simulation.api_server import Manifest
    from tests.simulation.cluster import Cluster
    from tests.simulation.machines import Machine, PhysicalGPU
    from tests.simulation.workloads import Workload

TICK_SECONDS = 3.0
# Loading the model before the first step.
WARM_UP_SECONDS = 2.0
# Before its first step a worker asks whether its attempt is in force, so often and so long. An
# operator that is away stops nobody.
ASK_AGAIN_SECONDS = 2.0
FENCE_SECONDS_MAX = 30.0
START_BYTES = 300 * 1024**2


@dataclass(slots=True)
class Disk:
    """The checkpoint store of one job. An attempt that was overtaken cannot commit any more."""

    step: int = 0
    attempt: int = 0
    bytes: int = 1000

    def open(self, attempt: int) -> int:
        self.attempt = max(self.attempt, attempt)
        return self.step

    def commit(self, attempt: int, step: int) -> bool:
        if attempt < self.attempt:
            return False
        self.step = max(self.step, step)
        return True


class Witness(Protocol):
    """Sees what really happens on a node."""

    def begins(self, worker: Worker) -> None:
        """It takes its first step."""

    def exceeds_cap(self, worker: Worker) -> None:
        """It uses more than its job's cap and a context."""

    def gpu_is_full(self, worker: Worker, uuid: str, wanted_bytes: int) -> None:
        """A worker that wants so many bytes in all does not get them."""


# Gives the report to whoever leads; `Worker.heard` gets the answer.
Tell = Callable[["Worker", Report], None]


class Worker:
    """One process. Ranks of a gang take steps only while all of them run."""

    def __init__(
        self, cluster: Cluster, machine: Machine, pod: Manifest, workload: Workload, disk: Disk,
        peers: Callable[[Worker], bool], tell: Tell, witness: Witness,
    ) -> None:  # fmt: skip
        self.machine = machine
        self.pod_uid: str = pod["metadata"]["uid"]
        self.name: str = pod["metadata"]["name"]
        self.namespace: str = pod["metadata"]["namespace"]
        labels = pod["metadata"]["labels"]
        self.job_uid: str = labels["gpujob.dev/job-uid"]
        self.attempt = int(labels["gpujob.dev/attempt"])
        self.rank = int(labels["gpujob.dev/rank"])
        self.gpus = tuple(pod["metadata"]["annotations"]["gpujob.dev/gpus"].split(","))
        environment = {
            entry["name"]: entry.get("value", "") for entry in pod["spec"]["containers"][0]["env"]
        }
        self._limit_bytes = int(environment.get(names.ENV_MEMORY_LIMIT_BYTES, 0))
        self._cluster = cluster
        self._clock = cluster.clock
        self._workload = workload
        self._disk = disk
        self._peers = peers
        self._tell = tell
        self._witness = witness
        self._started = self._clock.now
        self._used_bytes = START_BYTES
        self._resumed = disk.open(self.attempt)
        self._step = float(self._resumed)
        self._sequence = 0
        self._draining = False
        # By an operator, which its library heard: not by a signal that the script took.
        self._told = False
        self.ended = False
        self.sigterm_at: float | None = None
        self.begun = False
        # Its GPUs are gone: it waits for them in a call that nothing ends.
        self.lost_gpus = False
        # Whether an operator that leads has answered it.
        self.answered = False
        self._clock.after(WARM_UP_SECONDS, self._ask)

    @property
    def lie(self) -> WorkerLie | None:
        return self._workload.lie

    @property
    def is_done(self) -> bool:
        """Whether it took its last step, whatever it says."""
        return self._step >= self._workload.steps

    @property
    def utilization(self) -> float:
        return 0.0 if self._stands_still else self._workload.utilization_percent

    @property
    def _stands_still(self) -> bool:
        hangs = self.attempt <= self._workload.hanging_attempts
        return self.lost_gpus or (hangs and self._step >= self._workload.hang_at_step)

    def memory_on(self, uuid: str) -> int:
        return self._used_bytes if uuid in self.gpus else 0

    # -- the work

    def _ask(self) -> None:
        """The fence before the first step: an attempt that was given up must not begin."""
        if self.ended or self._draining or self.begun or self.lost_gpus:
            return
        waited = self._clock.now - self._started - WARM_UP_SECONDS
        if self._workload.is_silent or waited >= FENCE_SECONDS_MAX:
            self._begin()
            return
        self._report(WorkerPhase.STARTING)
        self._clock.after(ASK_AGAIN_SECONDS, self._ask)

    def _begin(self) -> None:
        if self._is_fenced_out:
            self._end(EXIT_INTERRUPTED_UNSAVED)
            return
        self.begun = True
        self._witness.begins(self)
        self._tick()

    def _tick(self) -> None:
        if self.ended or self._draining or self.lost_gpus:
            return
        if not self._take_memory():
            self._end(1, self._failure(FailureClass.OUT_OF_MEMORY))
            return
        if self._fails_now():
            self._fail()
            return
        if not self._stands_still and self._peers(self):
            self._advance()
            if self.ended:
                return
        if self._workload.breaks_gpus:
            self._break_gpus()
        if self._step >= self._workload.steps:
            self._commit(self._workload.steps)
            self._end(EXIT_DONE)
            return
        self._report(WorkerPhase.TRAINING)
        self._clock.after(TICK_SECONDS, self._tick)

    def _break_gpus(self) -> None:
        for uuid in self.gpus:
            if self.machine.gpus[uuid].healthy:
                self.machine.gpus[uuid].healthy = False
                self._repair_later(uuid, self.machine.gpus[uuid])

    def _repair_later(self, uuid: str, gpu: PhysicalGPU) -> None:
        """Nobody resets a GPU that processes use."""
        seconds, workers = self._workload.repaired_after_seconds, self.machine.workers

        def repair() -> None:
            if any(uuid in one.gpus for one in workers.values()):
                self._repair_later(uuid, gpu)
            else:
                gpu.healthy = True

        if seconds is not None:
            self._clock.after(seconds, repair)

    def _take_memory(self) -> bool:
        """False when neither the limit nor the GPU has room for what the job needs now."""
        leak = self._workload.leak_bytes_per_second * (self._clock.now - self._started)
        wanted = int(self._needed_bytes() + leak)
        more = wanted - self._used_bytes
        is_limited = self._limit_bytes and not self._workload.ignores_cap
        if is_limited and wanted > self._limit_bytes:
            return False
        for uuid in self.gpus:
            if self.machine.free_bytes(uuid) < more:
                self._witness.gpu_is_full(self, uuid, wanted)
                return False
        self._used_bytes = wanted
        if self._limit_bytes and wanted > self._limit_bytes + CONTEXT_BYTES:
            self._witness.exceeds_cap(self)
        return True

    def _needed_bytes(self) -> int:
        later = self._workload.later_bytes and self._step >= self._workload.later_at_step
        return self._workload.later_bytes if later else self._workload.memory_bytes

    def _fails_now(self) -> bool:
        failing = self.attempt <= self._workload.failing_attempts
        return bool(
            failing and self._workload.failure and self._step >= self._workload.fail_at_step
        )

    def _advance(self) -> None:
        before, self._step = self._step, self._step + TICK_SECONDS / self._workload.step_seconds
        if self._workload.failing_attempts >= self.attempt:
            self._step = min(self._step, max(before, float(self._workload.fail_at_step)))
        every = self._workload.checkpoint_steps
        due = int(self._step) // every * every
        if due > int(before) and not self._commit(due):
            self._end(EXIT_INTERRUPTED_UNSAVED)

    def _commit(self, step: int) -> bool:
        return self.rank != 0 or self._disk.commit(self.attempt, step)

    @property
    def _is_fenced_out(self) -> bool:
        """A later attempt has opened the checkpoint store, which takes nothing of this one."""
        return self.attempt < self._disk.attempt

    # -- what is said

    def report_now(self, phase: WorkerPhase, failure: Failure | None = None) -> Report:
        self._sequence += 1
        saved = CheckpointReport(self._disk.step, self._disk.bytes) if self._disk.step else None
        report = Report(
            attempt=self.attempt,
            phase=phase,
            rank=self.rank,
            sequence=self._sequence,
            step=int(self._step),
            steps_total=self._workload.steps,
            current=self._timing(1.0),
            baseline=self._timing(2.0),
            tuned=TunedSettings(compile=self.pod_uid[-1] in "02468"),
            resumed_from_step=self._resumed or None,
            checkpoint=saved,
            failure=failure,
            torch_version="2.9",
            device=MODEL,
        )
        return report if self._workload.lie is None else twisted(self._workload.lie, report)

    def _timing(self, slowdown: float) -> Timing | None:
        """Known once the first steps were taken."""
        if self._step <= self._resumed:
            return None
        return Timing(self._workload.step_seconds * slowdown, self._used_bytes)

    def _report(self, phase: WorkerPhase) -> None:
        if self._workload.is_silent or not self.machine.connected:
            return
        self._tell(self, self.report_now(phase))

    def heard(self, reply: Reply) -> None:
        """The answer to a report."""
        if self.ended or self.lost_gpus:
            return
        self.answered = True
        stop = reply.stop
        if stop is not None and stop.reason == STOP_ATTEMPT_OVER and not self.begun:
            self._end(EXIT_INTERRUPTED_UNSAVED)
        elif stop is not None and not self._workload.ignores_sigterm:
            self._told = True
            self._drain()
        elif not self.begun and not self._draining:
            self._begin()

    # -- the end

    def terminate(self) -> None:
        """SIGTERM."""
        self.sigterm_at = self._clock.now if self.sigterm_at is None else self.sigterm_at
        if not self._workload.ignores_sigterm and not self._stands_still:
            self._drain()

    def _drain(self) -> None:
        if not self._draining and not self.ended:
            self._draining = True
            self._clock.after(self._workload.checkpoint_seconds, self._drained)

    def _drained(self) -> None:
        if self.ended:
            return
        saved = self._step > 0 and self._commit(int(self._step))
        if self._workload.farewell is not None:
            self._end(EXIT_DONE)
            return
        self._end(EXIT_INTERRUPTED_SAVED if saved else EXIT_INTERRUPTED_UNSAVED)

    def kill_if_asked(self, deadline: datetime) -> None:
        """SIGKILL at the end of the grace; a later request may have shortened it."""
        if not self.ended and self._clock.moment >= deadline:
            self.ended = True
            self._cluster.ended(self, {"exitCode": 137, "reason": "Error"}, "Failed")

    def _last_report(self, failure: Failure | None) -> Report | None:
        farewell = self._workload.farewell if self._draining else None
        if self._workload.is_silent or farewell is Farewell.NOTHING:
            return None
        drains = farewell is Farewell.DRAINING or (farewell is not None and self._told)
        phase = WorkerPhase.DRAINING if drains else WorkerPhase.FINISHED
        report = self.report_now(phase, failure)
        return replace(report, steps_total=None) if farewell is Farewell.FINISHED else report

    def evict(self) -> None:
        """The kubelet ends it for want of room on its node's disk."""
        if not self.ended:
            self.ended = True
            self._cluster.ended(self, {"exitCode": 137, "reason": "Error"}, "Failed", "Evicted")

    def vanish(self) -> None:
        """The machine lost power, or nobody will ever hear of this process."""
        self.ended = True

    def _failure(self, failure_class: FailureClass) -> Failure:
        return Failure(failure_class, f"failed at step {int(self._step)}")

    def _fail(self) -> None:
        """As its workload does. Too little memory of the GPU is no such failure."""
        if self._workload.failing_xid:
            error = self._clock.moment, self.pod_uid, self._workload.failing_xid
            for uuid in self.gpus:
                self.machine.gpus[uuid].program_errors.append(error)
        if self._workload.host_out_of_memory:
            self.ended = True
            self._cluster.ended(self, {"exitCode": 137, "reason": "OOMKilled"}, "Failed")
            return
        self._end(1, self._failure(self._workload.failure or FailureClass.UNKNOWN))

    def _end(self, exit_code: int, failure: Failure | None = None) -> None:
        if self.ended:
            return
        self.ended = True
        reason = "Error" if exit_code else "Completed"
        status: dict[str, object] = {"exitCode": exit_code, "reason": reason}
        if self._workload.final_text:
            status["message"] = self._workload.final_text
        elif (last := self._last_report(failure)) is not None:
            status["message"] = last.termination_message()
        phase = "Succeeded" if exit_code == EXIT_DONE else "Failed"
        self._cluster.ended(self, status, phase)
