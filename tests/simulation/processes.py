"""Checks what processes really do, whatever objects say of them.

A process counts as long as its machine runs it: two attempts of one job, one that begins when its
attempt is over, one whose GPUs its job gave back, one that outlives its pod, a GPU that is really
full.
"""

from collections.abc import Callable, Iterator, Mapping, Set
from typing import Protocol

from gpujob_api.gpujob import GPUJob, JobPhase
from gpujob_operator.decide.model.held_gpus import holds_gpus
from gpujob_operator.decide.model.stop_reasons import MEMORY_CAP_EXCEEDED
from gpujob_operator.observe.cache import Kind
from tests.simulation.api_server import ApiServer, Revision
from tests.simulation.job_facts import AttemptKey, attempt_key
from tests.simulation.machines import Machine
from tests.simulation.worker import Worker

# A kubelet kills what has no pod any more within this time, once it can ask the API server.
OUTLIVES_SECONDS = 5.0
Fail = Callable[[str, str], None]


class Jobs(Protocol):
    """The jobs as they are committed, by UID, in their statuses or on their pods."""

    def job_now(self, uid: str) -> GPUJob | None: ...

    def job_before(self, uid: str) -> GPUJob | None:
        """As it was before its newest revision."""
        ...

    def came_late(self, pod_uid: str) -> bool:
        """Whether nobody could call the creation of the pod back."""
        ...

    def end_is_known(self, uid: str, attempt: int) -> bool:
        """Whether an operator can know how the attempt ended."""
        ...

    def is_relied_on(self, pod_uid: str) -> bool:
        """Whether a pod that came late was there as the present leader began to lead."""
        ...


class Processes:
    """Feed it every revision and every process that begins; `fail` is told the promise and what
    broke it. `jobs` must have been told of each revision before."""

    def __init__(
        self,
        api: ApiServer,
        machines: Mapping[str, Machine],
        fail: Fail,
        jobs: Jobs,
        done: Set[tuple[str, int, int]],
        ages_are_known: Callable[[], bool] = lambda: True,
    ) -> None:
        """`done`: the workers that took their last step: job UID, attempt and rank.

        `ages_are_known`: the operators' clocks have not jumped, so they know how old reports are.
        """
        self._api = api
        self._machines = machines
        self._fail = fail
        self._jobs = jobs
        self._done = done
        self._ages_are_known = ages_are_known
        # Since when a process has no pod, by the pod's UID.
        self._without_pod: dict[str, float] = {}
        # Attempts that used more than their cap and a context.
        self._beyond_cap: set[AttemptKey] = set()
        # Jobs that were stopped for what an agent said of their memory that was not so.
        self.misread: set[str] = set()
        # Whose pods a restore of the API server's data took away while their nodes were cut off.
        self._forgotten: set[str] = set()
        # Attempts that were being ended from outside when the data were restored.
        self._ended_before: set[tuple[str, int]] = set()
        api.recorders.append(self.observe)
        api.restored.append(self._restored)

    def _restored(self) -> None:
        """Of these nobody knows, and nobody can ask: they run until their nodes are back.

        Nor does anybody know of those that are being ended: the sign on their pods may be lost.
        """
        self._forgotten |= {
            one.pod_uid for one in self._all() if self._api.find(Kind.POD, one.pod_uid) is None
        }
        self._ended_before |= {
            (one.job_uid, one.attempt) for one in self._all() if one.sigterm_at is not None
        }

    def begins(self, worker: Worker) -> None:
        """I3: its attempt is not over, no process of another attempt of the job takes steps, and
        none of the same rank is left.

        One that nobody answered begins all the same, whatever became of its attempt: only the
        checkpoint store stops it.
        """
        if self._is_unasked_leftover(worker):
            return
        if self._is_over(worker):
            self._fail("I3", f"{worker.name} begins, its attempt {worker.attempt} is over")
        for other in self._of_job(worker.job_uid):
            if other is worker or not other.begun or self._is_unasked_leftover(other):
                continue
            if other.attempt != worker.attempt or other.rank == worker.rank:
                text = f"{other.name} of attempt {other.attempt} still runs"
                self._fail("I3", f"{worker.name} begins, {text}")

    def _is_unasked_leftover(self, worker: Worker) -> bool:
        if worker.pod_uid in self._forgotten:
            return True
        return not worker.answered and self._is_over(worker)

    def _is_over(self, worker: Worker) -> bool:
        """The job goes on without the worker's attempt, or knows nothing of it any more. Of a
        deleted job the pods go anyway."""
        job = self._jobs.job_now(worker.job_uid)
        if job is None:
            return False
        status = job.status
        waits = status.placement is None and not status.finished
        if waits and worker.attempt == status.attempt + 1:
            # Only the pod says that the attempt was placed.
            return not self._jobs.is_relied_on(worker.pod_uid)
        return status.finished or status.placement is None or status.attempt != worker.attempt

    def exceeds_cap(self, worker: Worker) -> None:
        self._beyond_cap.add((worker.job_uid, worker.attempt))

    def gpu_is_full(self, worker: Worker, uuid: str, wanted_bytes: int) -> None:
        """I1: a worker that keeps to what its job holds finds it, unless somebody else does not, or
        its node's agent has made the GPU larger than it is.
        """
        machine = worker.machine
        if machine.has_exaggerated:
            return
        if machine.gpus[uuid].unmanaged_bytes or wanted_bytes > self._held_bytes(worker, uuid):
            return
        tenants = [
            one for one in machine.workers.values() if uuid in one.gpus and one is not worker
        ]
        if all(one.memory_on(uuid) <= self._held_bytes(one, uuid) for one in tenants):
            names = ", ".join(one.name for one in tenants) or "nobody"
            text = f"{uuid} is full for {worker.name}, which holds {wanted_bytes} bytes; there: "
            self._fail("I1", text + names)

    def observe(self, revision: Revision) -> None:
        """I3: an attempt is over, and its GPUs are others', only when its processes are gone.

        A pod that came late may be there before any operator hears of it: a second one of its name,
        once the first is gone. Its process asks before it begins, and must not, unless nobody
        answers it: see `begins`.
        """
        if revision.kind is not Kind.JOB or revision.before is None or revision.by == "user":
            return
        if revision.type == "DELETED":
            return
        uid = revision.object["metadata"]["uid"]
        job, before = self._jobs.job_now(uid), self._jobs.job_before(uid)
        if job is not None and before is not None:
            self._check_success(before, job)
        if job is None or before is None or not holds_gpus(before):
            return
        if job.status.stop != before.status.stop:
            self._check_stop_for_memory(job)
        if holds_gpus(job) and job.status.attempt == before.status.attempt:
            return
        for process in self._of_job(job.metadata.uid):
            excused = not (process.begun and process.answered)
            excused &= self._jobs.came_late(process.pod_uid)
            excused |= process.pod_uid in self._forgotten
            if process.attempt == before.status.attempt and not excused:
                text = f"{process.name} runs on, its job gave its GPUs back: {job.status.phase}"
                self._fail("I3", text)

    def _check_success(self, before: GPUJob, job: GPUJob) -> None:
        """I15: no job Succeeded of which a worker had steps to take, whatever it ended with."""
        if before.finished or job.status.phase is not JobPhase.SUCCEEDED:
            return
        workers = ((job.metadata.uid, job.status.attempt, n) for n in range(job.spec.workers))
        left = [rank for uid, attempt, rank in workers if (uid, attempt, rank) not in self._done]
        if not self._ages_are_known() and not self._jobs.end_is_known(
            job.metadata.uid, job.status.attempt
        ):
            # Of an end without a word, an old report proves nothing.
            return
        if (job.metadata.uid, job.status.attempt) in self._ended_before:
            return
        if left:
            text = f"{job.metadata.key} Succeeded, attempt {job.status.attempt}"
            self._fail("I15", f"{text}; of its ranks {left} were not done")

    def _check_stop_for_memory(self, job: GPUJob) -> None:
        """I15: who is stopped beyond its cap was beyond it, unless the agent of its node lied."""
        stop, placement = job.status.stop, job.status.placement
        if stop is None or stop.reason != MEMORY_CAP_EXCEEDED or placement is None:
            return
        if attempt_key(job) in self._beyond_cap:
            return
        if any(self._machines[one.node].has_blamed_pods for one in placement.workers):
            self.misread.add(job.metadata.uid)
        else:
            self._fail("I15", f"{job.metadata.name} kept its cap: {stop.message}")

    def check(self) -> None:
        """I7: no process outlives its pod on a node that can ask for it. Call it every second."""
        left: set[str] = set()
        for process in self._all():
            if self._api.find(Kind.POD, process.pod_uid) is not None:
                continue
            if process.machine.connected:
                left.add(process.pod_uid)
                since = self._without_pod.setdefault(process.pod_uid, self._api.now)
                if self._api.now - since > OUTLIVES_SECONDS:
                    self._fail("I7", f"{process.name} outlives its pod")
        for uid in self._without_pod.keys() - left:
            del self._without_pod[uid]

    def _held_bytes(self, worker: Worker, uuid: str) -> int:
        """What the job of the process holds there for this attempt."""
        job = self._jobs.job_now(worker.job_uid)
        if job is None or self._is_let_go(worker, job):
            return 0
        placement, held = job.status.placement, job.status.reservation
        if placement is None or held is None or job.status.attempt != worker.attempt:
            return 0
        gpus = {gpu for one in placement.workers if one.rank == worker.rank for gpu in one.gpus}
        return held.memory_bytes if uuid in gpus else 0

    def _is_let_go(self, worker: Worker, job: GPUJob) -> bool:
        """Returns whether nothing connects the worker's pod to a job that is being deleted.

        Somebody removed the pod's owner reference before any status recorded the pod's UID.
        """
        pod = self._api.find(Kind.POD, worker.pod_uid)
        if job.metadata.deletion_timestamp is None or pod is None:
            return False
        placement = job.status.placement
        recorded = {one.pod_uid for one in placement.workers} if placement is not None else set()
        return not pod["metadata"].get("ownerReferences") and worker.pod_uid not in recorded

    def _of_job(self, job_uid: str) -> Iterator[Worker]:
        return (one for one in self._all() if one.job_uid == job_uid)

    def _all(self) -> Iterator[Worker]:
        for machine in list(self._machines.values()):
            yield from (one for one in list(machine.workers.values()) if not one.ended)
