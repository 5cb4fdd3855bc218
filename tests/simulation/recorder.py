"""Checks the promises on every revision of the simulated API server.

It reads only what was committed and what the machines really did, never what an operator believes.
"""

from gpujob_api.codec import parse_time
from gpujob_api.gpujob import GPUJob, StopReason
from gpujob_api.meta import TAINT_RECLAIM
from gpujob_operator.client.kube import REQUEST_SECONDS_MAX
from gpujob_operator.decide.model.held_gpus import Place, holds_gpus
from gpujob_operator.observe.cache import Kind
from tests.harness.durable import went_back
from tests.harness.recorded import RecordedJobs
from tests.simulation.api_server import ApiServer, Manifest, OtherKind, Revision
from tests.simulation.awaited_pods import AwaitedPods
from tests.simulation.ends import Ends
from tests.simulation.findings import Story, Violation
from tests.simulation.job_facts import (
    attempt_key,
    deleted,
    held,
    may_not_share,
    now_text,
    reason,
    still_holds_gpus,
    wants_all,
)
from tests.simulation.pods import attempt_of, is_gate, is_live, told_grace
from tests.simulation.room import Room

# Writes and events are under way for so long; times in objects are whole seconds.
GRACE_SLACK_SECONDS = 8.0
# An operator notices within this that the API server's data were restored: until then it asks for
# what it decided on the state that was lost.
RESTORE_NOTICED_SECONDS = 5.0
# A new leader lists everything within this, and relies on what it finds.
LISTS_SECONDS = 3.0
# The node itself goes at a time that nobody here decides.
DEADLINE_OF_OTHERS = frozenset({"NodeReclaimed", "NodeDrained"})


class Recorder:
    """Feed it every revision; `violations` is what it found."""

    def __init__(self, api: ApiServer, operators: set[str], *, sees_all: bool) -> None:
        """`sees_all`: no fault keeps an event from the operators."""
        self.violations: list[Violation] = []
        self.operator_writes = 0
        self.last_operator_write = 0.0
        self.attempts: dict[str, int] = {}
        self.stories: dict[str, Story] = {}
        # The pods that an operator created, by UID, with the job and the attempt they are of.
        self._ours: dict[str, tuple[str, int]] = {}
        # The nodes that pods of ours were bound to.
        self._node_of: dict[str, str] = {}
        # When an attempt was over, by job UID and attempt.
        self._over_at: dict[tuple[str, int], float] = {}
        # When pods came whose attempt was over, or the request for them given up.
        self._late: dict[str, float] = {}
        # Since when the present holder of the Lease has had it.
        self._led_since: tuple[str | None, float] = None, 0.0
        self._ends = Ends(operators, sees_all=sees_all)
        self._awaited = AwaitedPods(api)
        self._api = api
        self._operators = operators
        # As their pods record them, until their statuses do; and as they were before the newest
        # revision of each.
        self._jobs: dict[str, GPUJob] = {}
        self._before: dict[str, GPUJob] = {}
        self._recorded = RecordedJobs()
        self._room = Room()
        self._restored_at = -RESTORE_NOTICED_SECONDS
        api.recorders.append(self.observe)
        api.restored.append(self._restored)

    def observe(self, revision: Revision) -> None:
        ours = revision.by in self._operators
        if ours and revision.kind is not OtherKind.LEASE:
            self.operator_writes += 1
            self.last_operator_write = revision.at
        if revision.kind is OtherKind.LEASE:
            holder = revision.object.get("spec", {}).get("holderIdentity")
            if holder != self._led_since[0]:
                self._led_since = holder, revision.at
        elif revision.kind is Kind.GPU_NODE:
            if revision.type != "DELETED":
                status = revision.object.get("status") or {}
                self.read_gpus(revision.object["metadata"]["name"], status.get("gpus") or [])
        elif revision.kind is Kind.NODE:
            self._node(revision)
        elif revision.kind is Kind.JOB:
            self._job(revision, ours=ours)
        elif revision.kind is Kind.POD and not is_gate(revision.object):
            self._pod(revision, ours=ours)

    def _node(self, revision: Revision) -> None:
        name = revision.object["metadata"]["name"]
        taints = revision.object.get("spec", {}).get("taints") or ()
        if any(taint["key"] == TAINT_RECLAIM for taint in taints):
            self._ends.leaves(name)
        if revision.type == "DELETED":
            self._ends.gone(name)

    def _restored(self) -> None:
        """Lost revisions bind nobody: attempts may be made again, and ends may be unseen."""
        self._restored_at = self._api.now
        jobs = map(self._api.job, self._api.list(Kind.JOB))
        self._jobs = self._recorded.restored(jobs, self.pods_of_ours())
        self._ends.forget(self._ours.values())
        self._over_at = {
            (uid, attempt): at
            for (uid, attempt), at in self._over_at.items()
            if uid in self._jobs and _is_over(self._jobs[uid], attempt)
        }
        self._room.forget_placements()

    def operator_broke(self, what: str, error: BaseException) -> None:
        """I15: nothing that can be read ends a process, or a cycle."""
        self.fail("I15", f"{what}: {type(error).__name__}: {str(error)[:200]}")

    def fail(self, invariant: str, message: str) -> None:
        """Of what is so now, whoever brought it about."""
        self.violations.append(Violation(invariant, self._api.now, message))

    def pods_of_ours(self) -> list[Manifest]:
        """The pods that there are and that an operator created."""
        return [pod for pod in self._api.list(Kind.POD) if pod["metadata"]["uid"] in self._ours]

    def job_now(self, uid: str) -> GPUJob | None:
        """As its pod records it, until its status does."""
        return self._jobs.get(uid)

    def end_is_known(self, uid: str, attempt: int) -> bool:
        return self._ends.is_known((uid, attempt))

    def is_leaving(self, uid: str) -> bool:
        """Whether only a pod that is being deleted says that the job is placed: who leads next does
        not rely on it, and waits for its end."""
        pod_uid = self._recorded.pod_of(uid)
        pod = self._api.find(Kind.POD, pod_uid) if pod_uid else None
        return pod is not None and "deletionTimestamp" in pod["metadata"]

    def _has_left(self, uid: str) -> bool:
        """Whether the pod of such a job has ended: it is nobody's tenant, whatever the pod says."""
        pod = self._api.find(Kind.POD, self._recorded.pod_of(uid) or "")
        return pod is not None and self.is_leaving(uid) and not is_live(pod)

    def job_before(self, uid: str) -> GPUJob | None:
        return self._before.get(uid)

    def came_late(self, pod_uid: str) -> bool:
        return pod_uid in self._late

    def is_relied_on(self, pod_uid: str) -> bool:
        """Whether a pod that came late was there as the present leader began to lead, or listed
        everything again because it noticed a restore."""
        came_at = self._late.get(pod_uid)
        began_at = max(self._led_since[1], self._restored_at + RESTORE_NOTICED_SECONDS)
        return came_at is not None and came_at <= began_at + LISTS_SECONDS

    def may_not_know(self, at: float) -> bool:
        """Whether an operator then may still decide on what a restore has taken away."""
        return at <= self._restored_at + RESTORE_NOTICED_SECONDS

    def job_of(self, pod: Manifest) -> str:
        return self._ours[pod["metadata"]["uid"]][0]

    def live_pods(self, job_uid: str) -> list[Manifest]:
        return [pod for pod in self.pods_of_ours() if self.job_of(pod) == job_uid and is_live(pod)]

    def _fail(self, invariant: str, revision: Revision, message: str) -> None:
        self.violations.append(Violation(invariant, revision.at, message))

    # -- GPUs

    def read_gpus(self, node: str, gpus: list[Manifest]) -> None:
        """What an agent writes, or sends to an operator. It can say nothing of pods elsewhere."""
        here = {uid: one for uid, one in self._ours.items() if self._node_of.get(uid, node) == node}
        self._room.read(self._api.now, node, gpus, here)

    # -- jobs

    def _job(self, revision: Revision, *, ours: bool) -> None:
        uid = revision.object["metadata"]["uid"]
        if revision.type == "DELETED":
            self._jobs.pop(uid, None)
            self._recorded.job_gone(uid)
            return
        self._take(revision, self._recorded.seen(self._api.job(revision.object)), ours=ours)

    def _take(self, revision: Revision, job: GPUJob, *, ours: bool) -> None:
        uid, key = job.metadata.uid, job.metadata.key
        before = self._jobs.get(uid)
        self._jobs[uid] = job
        if before is not None:
            self._before[uid] = before
        self.attempts[key] = job.status.attempt
        if job.status.stop is not None:
            self._ends.stopped((uid, job.status.attempt))
        if before is None:
            self.stories[key] = Story(revision.at)
        elif job.finished and not before.finished:
            self.stories[key].ended_at = revision.at
            self.stories[key].end = job.status.phase.value
        if before is not None and holds_gpus(before) and not still_holds_gpus(job, before):
            self._over_at[uid, before.status.attempt] = revision.at
            self._ends.decided((uid, before.status.attempt))
        if before is None or not ours:
            return
        if revision.kind is Kind.JOB:
            self._awaited.written(revision, job)
        self._check_life(revision, before, job)
        if held(job) != held(before) and holds_gpus(job) and not self.may_not_know(revision.at):
            self._check_gpus(revision, before, job)

    def _check_life(self, revision: Revision, before: GPUJob, job: GPUJob) -> None:
        name = job.metadata.name
        is_new = holds_gpus(job) and not holds_gpus(before)
        if job.status.attempt < before.status.attempt + is_new:
            attempts = f"{before.status.attempt} to {job.status.attempt}"
            self._fail("I3", revision, f"{name}: attempt went from {attempts}")
        if not job.finished and job.status.placement is None and not reason(job):
            self._fail("I4", revision, f"{name} waits without a reason")
        if before.finished and job.status.phase is not before.status.phase:
            phases = f"{before.status.phase.value} to {job.status.phase.value}"
            self._fail("I5", revision, f"{name}: went from {phases}")
        self._check_end_is_true(revision, before, job)
        self._check_names(revision, job)
        if went_back(before.status, job.status):
            saved, now = before.status.checkpoint, job.status.checkpoint
            self._fail("I6", revision, f"{name}: durable step {saved} became {now}")
        if job.status.stop != before.status.stop and job.status.stop is not None:
            self._check_new_stop(revision, job, job.status.stop)

    def _check_end_is_true(self, revision: Revision, before: GPUJob, job: GPUJob) -> None:
        """I15, I5: a job's end is that of its own workers, and is the end."""
        name, attempt = job.metadata.name, job.status.attempt
        succeeded = job.status.phase.value == "Succeeded" and not before.finished
        # Of an attempt that its pod alone recorded, the status before knows nothing.
        key = (job.metadata.uid, attempt if succeeded else before.status.attempt)
        exits, done = self._ends.exits[key], self._ends.done(key)
        all_known = len(done) == job.spec.workers and self._ends.is_known(key)
        if self.may_not_know(revision.at):
            return
        if succeeded:
            if len(done) < job.spec.workers:
                self._fail("I15", revision, f"{name} Succeeded; its workers ended with {exits}")
        elif attempt > before.status.attempt and all_known:
            self._fail("I5", revision, f"{name}: attempt {attempt}, the one before was done")

    def _check_names(self, revision: Revision, job: GPUJob) -> None:
        """I15: who reads a status may not read the jobs of other namespaces."""
        status, own = str(revision.object.get("status")), job.metadata.namespace
        for other in self._jobs.values():
            if other.metadata.namespace != own and other.metadata.key in status:
                text = f"{job.metadata.key} reads of {other.metadata.key}"
                self._fail("I15", revision, text)

    def _check_new_stop(self, revision: Revision, job: GPUJob, stop: StopReason) -> None:
        """I13, I15: with all the grace that the workers were told of, and for a true reason."""
        name = job.metadata.name
        left = (stop.deadline - parse_time(now_text(revision))).total_seconds()
        if left < 0:
            self._fail("I13", revision, f"{name}: told to stop with {left:.0f} s left")
        pods = [
            pod for pod in self.pods_of_ours()
            if self._ours[pod["metadata"]["uid"]] == (job.metadata.uid, job.status.attempt)
        ]  # fmt: skip
        told = max([told_grace(pod) for pod in pods if is_live(pod)], default=left)
        # The workers of a gang are asked to agree on a step first, for half as long again.
        most = told * 1.5 if job.spec.workers > 1 else told
        fits = told - GRACE_SLACK_SECONDS <= left <= most + GRACE_SLACK_SECONDS
        if not fits and stop.reason not in DEADLINE_OF_OTHERS:
            text = f"{name} {stop.reason}: {left:.0f} s of grace, its workers know of {told}"
            self._fail("I13", revision, text)
        ended = bool(self._ends.exits[job.metadata.uid, job.status.attempt])
        if stop.reason == "WorkerEnded" and not ended:
            self._fail("I15", revision, f"{name}: {stop.message}; no worker of it ended")

    def _check_gpus(self, revision: Revision, before: GPUJob, job: GPUJob) -> None:
        placement = job.status.placement
        assert placement is not None
        is_new = not holds_gpus(before) or before.status.attempt != job.status.attempt
        for worker in placement.workers:
            for uuid in worker.gpus:
                place = worker.node, uuid
                for text in self._room.check(revision, before, job, place, self._tenants(place)):
                    self._fail("I1", revision, f"{uuid}: {text}")
                self._check_alone(revision, job, place)
                if not is_new:
                    continue
                self._check_tenants(revision, job, place)
                if not (self._room.recent(place, revision.sent_at) or self._is_taken_over(job)):
                    text = f"{job.metadata.name} placed on unmeasured {uuid}, {worker.node}"
                    self._fail("I14", revision, text)

    def _is_taken_over(self, job: GPUJob) -> bool:
        """A leader before placed it, with a pod that came late and that the present leader found
        when it began to lead."""
        return any(
            attempt == attempt_key(job) and self.is_relied_on(uid)
            for uid, attempt in self._ours.items()
        )

    def _check_alone(self, revision: Revision, job: GPUJob, place: Place) -> None:
        tenants = self._tenants(place)
        if len(tenants) > 1 and any(wants_all(tenant) for tenant in tenants):
            names = ", ".join(tenant.metadata.name for tenant in tenants)
            self._fail("I2", revision, f"{place[1]} is shared by {names}")

    def _check_tenants(self, revision: Revision, job: GPUJob, place: Place) -> None:
        for other in may_not_share(job, self._tenants(place), self._api.list(Kind.QUEUE)):
            text = f"{place[1]}: {job.metadata.key} beside {other.metadata.key}"
            self._fail("I15", revision, text)

    def _tenants(self, place: Place) -> list[GPUJob]:
        return [
            job
            for job in self._jobs.values()
            if holds_gpus(job) and job.status.placement is not None
            and not self._has_left(job.metadata.uid)
            and any(
                place == (worker.node, uuid)
                for worker in job.status.placement.workers for uuid in worker.gpus
            )
        ]  # fmt: skip

    # -- pods

    def _pod(self, revision: Revision, *, ours: bool) -> None:
        uid = revision.object["metadata"]["uid"]
        if revision.type == "ADDED" and ours:
            self._ours[uid] = attempt_of(revision.object)
        if uid not in self._ours:
            if ours and not self._gave_itself_up(revision.object):
                self._fail("I15", revision, f"{_name(revision)} is no pod of ours: {revision.type}")
            return
        job_uid, attempt = self._ours[uid]
        if (node := revision.object["spec"].get("nodeName")) is not None:
            self._node_of[uid] = node
        job = self._jobs.get(job_uid)
        self._ends.note(revision, self._ours[uid], job)
        if revision.type == "DELETED":
            self._forget_record(revision)
        if revision.type == "ADDED":
            self._check_pod(revision, job, job_uid, attempt)
        elif ours and job is not None and not self.may_not_know(revision.at):
            self._check_stop(revision, job, attempt)

    def _forget_record(self, revision: Revision) -> None:
        """Nothing says any more where an attempt is that only this pod recorded."""
        job = self._recorded.removed(revision.object)
        if job is not None:
            uid = job.metadata.uid
            before = self._before[uid] = self._jobs[uid]
            self._jobs[uid] = job
            self._over_at[uid, before.status.attempt] = revision.at

    def _gave_itself_up(self, pod: Manifest) -> bool:
        """It says that a job controls it that is gone, or one of its own namespace, as with any
        controller: that job may take it away, and the garbage collector will. It is no worker."""
        metadata = pod["metadata"]
        for owner in metadata.get("ownerReferences") or ():
            job = self._jobs.get(owner["uid"])
            if owner.get("controller") and (
                job is None or job.metadata.namespace == metadata["namespace"]
            ):
                return True
        return False

    def _check_pod(
        self, revision: Revision, job: GPUJob | None, job_uid: str, attempt: int
    ) -> None:
        name, uid = (revision.object["metadata"][key] for key in ("name", "uid"))
        is_over = revision.sent_at <= self._over_at.get((job_uid, attempt), -1.0)
        is_late = is_over or revision.at - revision.sent_at > REQUEST_SECONDS_MAX
        given_up = is_over or (is_late and self._awaited.are_given_up(revision, job_uid))
        recorded = None if given_up else self._recorded.created(revision.object, job)
        if recorded is not None:
            job = recorded
            self._take(revision, job, ours=True)
        is_late |= self._is_of_lost_status(revision, job, attempt)
        if is_late:
            # Nobody can call it back. Its process asks before it begins: see `Processes`.
            self._late[uid] = revision.at
        if is_over or (is_late and job is not None and not _is_in_force(job, attempt)):
            return
        live = [pod["metadata"]["uid"] for pod in self.live_pods(job_uid)]
        of_job = {self._ours[one][1] for one in live if one not in self._late}
        if len(of_job) > 1:
            self._fail("I3", revision, f"{name}: live pods of attempts {sorted(of_job)}")
        if job is None:
            return
        story = self.stories[job.metadata.key]
        story.first_pod_at = revision.at if story.first_pod_at is None else story.first_pod_at
        if job.finished:
            self._fail("I5", revision, f"{name}: a pod of a {job.status.phase.value} job")
        elif not _is_in_force(job, attempt):
            self._fail("I3", revision, f"{name}: the job is at attempt {job.status.attempt}")

    def _is_of_lost_status(self, revision: Revision, job: GPUJob | None, attempt: int) -> bool:
        """Whoever asked for the pod could not know yet that a restore took its attempt away."""
        unknown = self.may_not_know(revision.sent_at)
        return unknown and job is not None and job.status.attempt < attempt

    def _check_stop(self, revision: Revision, job: GPUJob, attempt: int) -> None:
        """A pod of the attempt in force is stopped after the reason is durable, with the grace."""
        pod = revision.object
        live = is_live(revision.before or pod)
        current = attempt == job.status.attempt and holds_gpus(job)
        if live and current and job.status.stop is None and not deleted(job):
            self._fail("I13", revision, f"{_name(revision)} stopped without a reason")
        given = pod["metadata"].get("deletionGracePeriodSeconds")
        if not live or given is None or revision.type == "DELETED":
            return
        told, stop = told_grace(pod), job.status.stop
        short = current and (stop is None or stop.reason not in DEADLINE_OF_OTHERS)
        if given > told + 1 or (short and given < told - 1):
            text = f"{given} s of grace given, {told} told"
            self._fail("I13", revision, f"{_name(revision)}: {text}")


def _is_over(job: GPUJob, attempt: int) -> bool:
    return attempt < job.status.attempt or (attempt == job.status.attempt and not holds_gpus(job))


def _is_in_force(job: GPUJob, attempt: int) -> bool:
    return job.status.placement is not None and job.status.attempt == attempt


def _name(revision: Revision) -> str:
    metadata = revision.object["metadata"]
    return f"{metadata['namespace']}/{metadata['name']}"
