"""Folds every revision of a cluster's objects and checks the promises on each. Pure.

It knows only what the API server committed, in the order of resourceVersions; `recorder.py` feeds
it from a real cluster, unit tests from made histories.
"""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from gpujob_api.gpujob import GPUJob, JobPhase, Reservation, SharingMode, StopReason
from gpujob_api.gpunode import GPUNode
from gpujob_api.manifest import gpujob_from_manifest, gpunode_from_manifest
from gpujob_api.meta import ConditionStatus
from gpujob_operator.decide.model.notices import notice_of
from gpujob_operator.read.nodes import cached_node
from tests.harness.durable import went_back
from tests.harness.pod_facts import (
    attempt_of,
    exit_code_of,
    is_asked_to_end,
    is_live,
    job_uid_of,
)
from tests.harness.recorded import RecordedJobs
from tests.harness.room import Room
from tests.harness.worker_ends import WorkerEnds

Json = dict[str, Any]
# On pods that a test made to look like workers. The operator knows nothing of these.
IMPOSTOR = "tests.example/impostor"
LEAVING = "tests.example/leaving"
# The API server rounds, and a request is on its way for a while.
GRACE_SLACK_SECONDS = 2
# Watches, the cycle and the write itself take time beyond the staleness limit.
STALE_SLACK_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Revision:
    """`type` is ADDED, MODIFIED or DELETED; `version` the resourceVersion, which orders them."""

    version: int
    kind: str
    type: str
    object: Json


@dataclass(frozen=True, slots=True)
class Violation:
    promise: str
    version: int
    message: str

    def __str__(self) -> str:
        return f"{self.promise} at revision {self.version}: {self.message}"


class History:
    """Feed it revisions in order; `violations` is what it found."""

    def __init__(
        self, telemetry_stale_seconds: float = 30.0, *, leaders_freeze: bool = False
    ) -> None:
        """`leaders_freeze`: a request of a leader that stood still may arrive when another one has
        given its attempt up. Such a pod has to be asked to go: `late` has those that were not.
        """
        self.late: set[str] = set()
        self._came_late: set[str] = set()
        self._leaders_freeze = leaders_freeze
        self.violations: list[Violation] = []
        # As their pods record them, until their statuses do.
        self.jobs: dict[str, GPUJob] = {}
        self._recorded = RecordedJobs()
        self.pods: dict[str, Json] = {}
        # The pods that only look like workers.
        self.impostors: dict[str, Json] = {}
        self.ends = WorkerEnds()
        self.job_revisions: dict[str, int] = defaultdict(int)
        # What each job began with, by UID.
        self.first_reservations: dict[str, Reservation] = {}
        # Why its attempts were ended, by UID.
        self.stops: dict[str, list[StopReason]] = defaultdict(list)
        self._stale_seconds = telemetry_stale_seconds
        self._nodes: dict[str, GPUNode] = {}
        # Nodes that are about to go, and end their processes themselves.
        self._leaving: set[str] = set()
        # Job UID and attempt of every worker pod, by the pod's UID.
        self._workers: dict[str, tuple[str, int]] = {}
        self._room = Room(self.ends)

    def fold(self, revision: Revision) -> None:
        if revision.kind == "GPUJob":
            self._fold_job(revision)
        elif revision.kind == "Pod":
            self._fold_pod(revision)
        elif revision.kind == "GPUNode":
            self._fold_node(revision)
        elif revision.kind == "Node":
            self._fold_core_node(revision)
        elif revision.kind == "Lease":
            self.ends.fold_lease(revision.object)

    def orphans(self) -> list[str]:
        """Live worker pods without a live owner, as of the last revision (I7)."""
        found: list[str] = []
        for pod in self.pods.values():
            job = self.jobs.get(job_uid_of(pod))
            deleted = job is not None and job.metadata.deletion_timestamp is not None
            if is_live(pod) and (job is None or job.finished or deleted):
                found.append(pod["metadata"]["name"])
        return sorted(found)

    def _fail(self, promise: str, revision: Revision, message: str) -> None:
        self.violations.append(Violation(promise, revision.version, message))

    # GPUs

    def _fold_node(self, revision: Revision) -> None:
        node = gpunode_from_manifest(revision.object)
        if revision.type == "DELETED":
            self._nodes.pop(node.metadata.name, None)
            return
        self._nodes[node.metadata.name] = node
        self._room.read(node, self._workers)

    def _fold_core_node(self, revision: Revision) -> None:
        """A leader that sees an end and the sign of its node at the same time cannot know which
        came first.
        """
        name = revision.object["metadata"]["name"]
        if not ends_jobs(revision.object):
            self._leaving.discard(name)
            return
        self._leaving.add(name)
        for uid, pod in self.pods.items():
            if (pod.get("spec") or {}).get("nodeName") == name:
                self.ends.asked_later(self._workers[uid], _rank(pod))

    # Jobs

    def _fold_job(self, revision: Revision) -> None:
        uid = revision.object["metadata"]["uid"]
        if revision.type == "DELETED":
            self.jobs.pop(uid, None)
            self._recorded.job_gone(uid)
            return
        job = self._recorded.seen(gpujob_from_manifest(revision.object))
        self.job_revisions[uid] += 1
        self._take_job(revision, job)

    def _take_job(self, revision: Revision, job: GPUJob) -> None:
        uid = job.metadata.uid
        before = self.jobs.get(uid)
        self.jobs[uid] = job
        if job.status.placement is not None:
            # Pods of another leader are taken over by a status of their attempt.
            key = uid, _attempt(job)
            taken_over = {one for one in self._came_late if self._workers[one] == key}
            self._came_late -= taken_over
            self.late -= taken_over
        if job.status.reservation is not None:
            self.first_reservations.setdefault(uid, job.status.reservation)
        stop = job.status.stop
        if stop is not None and (before is None or before.status.stop != stop):
            self.stops[uid].append(stop)
        self._check_said(revision, job)
        if before is not None:
            self._check_life(revision, before, job)
        if _holds(job) and (before is None or _held(job) != _held(before)):
            self._check_gpus(revision, before, job)

    def _check_said(self, revision: Revision, job: GPUJob) -> None:
        """I4: finished, placed, or waiting with a reason."""
        status, name = job.status, job.metadata.name
        if not status.conditions or job.finished:
            return
        if status.phase is not JobPhase.PENDING:
            if status.placement is None or status.reservation is None:
                self._fail("I4", revision, f"{name} is {status.phase.value} without a place")
            return
        wanted = [c for c in status.conditions if c.type in ("Scheduled", "Accepted")]
        why = [c for c in wanted if c.status is ConditionStatus.FALSE and c.reason and c.message]
        if not why:
            self._fail("I4", revision, f"{name} waits without a reason")

    def _check_life(self, revision: Revision, before: GPUJob, job: GPUJob) -> None:
        name, old, new = job.metadata.name, before.status, job.status
        # The first number is passed over where a leader before may have given it.
        most = old.attempt + 2 if old.attempt == 0 and job.spec.workers == 1 else old.attempt + 1
        if new.attempt < old.attempt or new.attempt > most:
            self._fail("I3", revision, f"{name}: attempt {old.attempt} became {new.attempt}")
        if before.finished and new.phase is not old.phase:
            self._fail("I5", revision, f"{name}: {old.phase.value} became {new.phase.value}")
        self._check_end(revision, before, job)
        if went_back(old, new):
            text = f"durable step {old.checkpoint} became {new.checkpoint}"
            self._fail("I6", revision, f"{name}: {text}")

    def _check_end(self, revision: Revision, before: GPUJob, job: GPUJob) -> None:
        """I5, I15: only a job's own workers end it, and an attempt that is done is the last."""
        name, old, new = job.metadata.name, before.status, job.status
        succeeded = new.phase is JobPhase.SUCCEEDED and not before.finished
        workers = job.spec.workers
        # Of an attempt that its pod alone recorded, the status before knows nothing.
        key = job.metadata.uid, new.attempt if succeeded else old.attempt
        if succeeded and (done := self.ends.count(key)) < workers:
            self._fail("I15", revision, f"{name} Succeeded, {done} of {workers} workers are done")
        if not succeeded and new.attempt > old.attempt and self.ends.known(key) >= workers:
            self._fail("I5", revision, f"{name}: attempt {new.attempt}, the one before was done")

    def _check_gpus(self, revision: Revision, before: GPUJob | None, job: GPUJob) -> None:
        placement = job.status.placement
        assert placement is not None
        is_new = before is None or not _holds(before) or _attempt(before) != _attempt(job)
        for worker in placement.workers:
            for uuid in worker.gpus:
                self._check_room(revision, None if is_new else before, job, uuid)
                self._check_alone(revision, uuid)
            if is_new:
                self._check_telemetry(revision, job, worker.node, worker.gpus)

    def _check_room(
        self, revision: Revision, before: GPUJob | None, job: GPUJob, uuid: str
    ) -> None:
        """I1. `before` is the job of the same attempt."""
        tenants = self._tenants(uuid)
        if before is None:
            found = self._room.check_placed(job, uuid, tenants)
        else:
            found = self._room.check_changed(before, job, uuid, tenants)
        for text in found:
            self._fail("I1", revision, f"{uuid}: {text}")

    def _check_alone(self, revision: Revision, uuid: str) -> None:
        tenants = self._tenants(uuid)
        if len(tenants) > 1 and any(_wants_all(tenant) for tenant in tenants):
            names = ", ".join(sorted(tenant.metadata.name for tenant in tenants))
            self._fail("I2", revision, f"{uuid} is shared by {names}")

    def _check_telemetry(
        self, revision: Revision, job: GPUJob, node_name: str, gpus: tuple[str, ...]
    ) -> None:
        """I14: whatever is placed rests on a recent reading of that very GPU."""
        node, started = self._nodes.get(node_name), job.status.attempt_started_at
        observed = node.status.observed_at if node is not None else None
        known = {gpu.uuid for gpu in node.status.gpus} if node is not None else set[str]()
        if observed is None or started is None or not known.issuperset(gpus):
            self._fail("I14", revision, f"{job.metadata.name} placed on unmeasured {node_name}")
            return
        age = (started - observed).total_seconds()
        if age > self._stale_seconds + STALE_SLACK_SECONDS:
            text = f"{job.metadata.name} placed on {node_name}, measured {age:.0f} s before"
            self._fail("I14", revision, text)

    def _tenants(self, uuid: str) -> list[GPUJob]:
        """Of a job that is deleted and kept by somebody, its live pods alone hold anything."""
        live = {job_uid_of(pod) for pod in self.pods.values() if is_live(pod)}
        return [
            job
            for job in self.jobs.values()
            if uuid in _gpus(job)
            and (job.metadata.deletion_timestamp is None or job.metadata.uid in live)
        ]

    # Pods

    def _fold_pod(self, revision: Revision) -> None:
        pod = revision.object
        uid, job_uid = pod["metadata"]["uid"], job_uid_of(pod)
        if IMPOSTOR in (pod["metadata"].get("labels") or {}):
            self._fold_impostor(revision)
            return
        if not job_uid:
            return
        self._check_grace(revision)
        key = self._workers[uid] = job_uid, attempt_of(pod)
        rank = _rank(pod)
        if exit_code_of(pod) == 0:
            owner = self.jobs.get(job_uid)
            stops = owner is not None and owner.status.stop is not None
            leaves = (pod.get("spec") or {}).get("nodeName") in self._leaving
            self.ends.done(key, rank, asked=stops or leaves or is_asked_to_end(pod))
            if self._leaders_freeze and is_asked_to_end(pod):
                self.ends.asked_later(key, rank)
        is_new = uid not in self.pods
        self.pods[uid] = pod
        if revision.type == "DELETED" or "deletionTimestamp" in pod["metadata"]:
            self.late.discard(uid)
        if revision.type == "DELETED":
            self.ends.gone(key, rank)
            del self.pods[uid]
            if (job := self._recorded.removed(pod)) is not None:
                self.jobs[job_uid] = job
        elif is_new:
            self._check_new_pod(revision, job_uid)

    def _fold_impostor(self, revision: Revision) -> None:
        """I15: nobody but its author takes away a pod that is not ours."""
        metadata = revision.object["metadata"]
        self.impostors[metadata["uid"]] = revision.object
        going = revision.type == "DELETED" or "deletionTimestamp" in metadata
        if going and LEAVING not in (metadata.get("annotations") or {}):
            self._fail("I15", revision, f"{metadata['name']} is no pod of ours, and was deleted")
        if revision.type == "DELETED":
            del self.impostors[metadata["uid"]]

    def _check_grace(self, revision: Revision) -> None:
        """I13: no worker gets more time than it was told of, so that nobody waits for it in vain.

        Less is no breach by itself: a node may go, and a gang has spent some of it by then.
        """
        pod = revision.object
        given = pod["metadata"].get("deletionGracePeriodSeconds")
        told = (pod.get("spec") or {}).get("terminationGracePeriodSeconds")
        if given is not None and told is not None and given > told + GRACE_SLACK_SECONDS:
            name = pod["metadata"]["name"]
            self._fail("I13", revision, f"{name}: {given} s of grace given, {told} s told")

    def _check_new_pod(self, revision: Revision, job_uid: str) -> None:
        name = revision.object["metadata"]["name"]
        before, uid = self.jobs.get(job_uid), revision.object["metadata"]["uid"]
        given_up = before is not None and attempt_of(revision.object) < before.status.attempt
        another = self._recorded.is_of_another(revision.object, self.ends.led_since)
        if self._leaders_freeze and (given_up or another):
            self.late.add(uid)
            self._came_late.add(uid)
            return
        recorded = self._recorded.created(revision.object, self.jobs.get(job_uid))
        if recorded is not None:
            self._take_job(revision, recorded)
        pods = [
            pod
            for uid, pod in self.pods.items()
            if job_uid_of(pod) == job_uid and is_live(pod) and uid not in self._came_late
        ]
        attempts = {attempt_of(pod) for pod in pods}
        if len(attempts) > 1:
            self._fail("I3", revision, f"{name}: live pods of attempts {sorted(attempts)}")
        job = self.jobs.get(job_uid)
        if job is None:
            return
        if job.finished:
            self._fail("I5", revision, f"{name}: a pod of a {job.status.phase.value} job")
        elif not _holds(job) or job.status.attempt != attempt_of(revision.object):
            self._fail("I3", revision, f"{name}: the job is at attempt {job.status.attempt}")


def ends_jobs(node: Json) -> bool:
    """Whether a sign on the node says that it goes soon."""
    notice = notice_of(cached_node(node).empty)
    return notice is not None and notice.kind.stops_jobs


def _rank(pod: Json) -> int:
    return int(pod["metadata"]["name"].rpartition("-")[2])


def _holds(job: GPUJob) -> bool:
    return job.status.placement is not None and not job.finished


def _attempt(job: GPUJob) -> int:
    return job.status.attempt


def _held(job: GPUJob) -> tuple[object, ...]:
    # The UIDs of its pods become known later and move nobody.
    placement = job.status.placement
    workers = placement.workers if placement is not None else ()
    places = tuple((worker.rank, worker.node, worker.gpus) for worker in workers)
    return _holds(job), job.status.attempt, places, job.status.reservation


def _gpus(job: GPUJob) -> set[str]:
    placement = job.status.placement
    if placement is None or job.finished:
        return set()
    return {uuid for worker in placement.workers for uuid in worker.gpus}


def _wants_all(job: GPUJob) -> bool:
    held = job.status.reservation
    whole = held is not None and (held.exclusive or held.source.value == "WholeGPU")
    return whole or job.spec.sharing.mode is SharingMode.EXCLUSIVE
