"""Writes a plan: in order within a job, side by side across jobs, each write with a precondition.

Nothing is decided here. A write that no longer fits (a conflict, an object that is gone) is dropped
together with what the plan had after it for the same job: the next cycle sees the new state and
decides again. So a crash between any two writes leaves nothing that a later cycle cannot read.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Protocol

from gpujob_api.meta import Metadata
from gpujob_operator.act.kube import (
    JOBS,
    PODS,
    PROFILES,
    QUEUES,
    SERVICES,
    AlreadyExists,
    ApiError,
    Conflict,
    Kube,
    Manifest,
    NotFound,
    ResourceType,
    Unavailable,
)
from gpujob_operator.act.retry import Retry
from gpujob_operator.decide.configuration import Configuration
from gpujob_operator.decide.plan import (
    CreatePod,
    DeletePod,
    EventNote,
    Plan,
    PlanItem,
    RejectJob,
    SaveProfile,
    WriteQueueStatus,
    WriteStatus,
)
from gpujob_operator.decide.workers import was_created_for
from gpujob_operator.logs import Log
from gpujob_operator.metrics import Metrics
from gpujob_operator.render.pod import worker_pod
from gpujob_operator.render.profile import profile_manifest, profile_status_patch
from gpujob_operator.render.service import gang_service
from gpujob_operator.render.status import queue_patch, rejection_patch, status_patch

log = Log(__name__)

WRITES_PER_CYCLE_MAX = 2000
WRITES_AT_ONCE_MAX = 32


class NotLeader(Exception):  # noqa: N818 - a state of affairs, not a fault
    """The lease was lost between the decision and the write."""


class _HasMetadata(Protocol):
    @property
    def metadata(self) -> Metadata: ...


class WriteResult(Enum):
    DONE = "done"
    CONFLICT = "conflict"
    GONE = "gone"
    FAILED = "failed"
    NOT_LEADER = "not_leader"


@dataclass(frozen=True, slots=True)
class Feedback:
    """What the cache is told at once, so that the next snapshot holds what was just written."""

    written: Callable[[ResourceType, Manifest], None]
    gone: Callable[[ResourceType, str], None]
    noted: Callable[[Metadata, EventNote], None] = lambda metadata, note: None
    # A write was never answered: it may have happened, and nothing may be decided on the cache
    # before it was listed anew (I1).
    unsure: Callable[[], None] = lambda: None


@dataclass(slots=True)
class Outcome:
    """How a plan went. `postponed` items did not fit into one cycle."""

    results: dict[WriteResult, int] = field(default_factory=dict[WriteResult, int])
    postponed: int = 0

    def count(self, result: WriteResult) -> None:
        self.results[result] = self.results.get(result, 0) + 1

    @property
    def complete(self) -> bool:
        return self.postponed == 0 and set(self.results) <= {WriteResult.DONE}


class Executor:
    def __init__(
        self,
        kube: Kube,
        feedback: Feedback,
        metrics: Metrics,
        *,
        configuration: Configuration,
        clock: Callable[[], datetime],
        monotonic: Callable[[], float],
        may_act: Callable[[], bool],
        retry: Retry,
        at_once: int = WRITES_AT_ONCE_MAX,
    ) -> None:
        self._kube = kube
        self._feedback = feedback
        self._metrics = metrics
        self._configuration = configuration
        self._clock = clock
        self._monotonic = monotonic
        self._may_act = may_act
        self._retry = retry
        self._slots = asyncio.Semaphore(at_once)

    async def execute(self, plan: Plan) -> Outcome:
        """Writes the plan's items; raises nothing that a single item causes."""
        items = plan.items[:WRITES_PER_CYCLE_MAX]
        outcome = Outcome(postponed=len(plan.items) - len(items))
        lanes: dict[str, list[PlanItem]] = {}
        for item in items:
            lanes.setdefault(_lane(item), []).append(item)
        async with asyncio.TaskGroup() as group:
            for lane in lanes.values():
                group.create_task(self._run_lane(lane, outcome))
        return outcome

    async def _run_lane(self, items: Sequence[PlanItem], outcome: Outcome) -> None:
        for item in items:
            async with self._slots:
                result = await self._run_item(item)
            outcome.count(result)
            self._metrics.writes.labels(type(item).__name__, result.value).inc()
            if result is not WriteResult.DONE:
                return

    async def _run_item(self, item: PlanItem) -> WriteResult:
        started = self._monotonic()
        try:
            return await self._retry.run(lambda: self._write(item))
        except (Conflict, AlreadyExists) as error:
            log.info("write dropped", item=type(item).__name__, error=str(error))
            return WriteResult.CONFLICT
        except NotFound:
            self._forget(item)
            return WriteResult.GONE
        except (ApiError, NotLeader) as error:
            log.warning("write failed", item=type(item).__name__, error=str(error))
            if isinstance(error, Unavailable):
                self._feedback.unsure()
            return WriteResult.NOT_LEADER if isinstance(error, NotLeader) else WriteResult.FAILED
        except Exception as error:
            # A defect in rendering one job must not stop the others.
            log.error(
                "write broke", item=type(item).__name__, error=str(error), with_traceback=True
            )
            return WriteResult.FAILED
        finally:
            seconds = self._monotonic() - started
            self._metrics.write_seconds.labels(type(item).__name__).observe(seconds)

    async def _write(self, item: PlanItem) -> WriteResult:
        if not self._may_act():
            raise NotLeader("the lease is not held any more")
        match item:
            case WriteStatus():
                body = status_patch(item)
                await self._patch_status(JOBS, item.job.metadata.namespace, item.job, body)
                for note in item.events:
                    self._feedback.noted(item.job.metadata, note)
            case RejectJob():
                body = rejection_patch(item, self._clock())
                await self._patch_status(JOBS, item.job.metadata.namespace, item.job, body)
            case WriteQueueStatus():
                body = queue_patch(item)
                await self._patch_status(QUEUES, "", item.queue, body)
            case CreatePod():
                await self._create_pod(item)
            case DeletePod():
                await self._delete_pod(item)
            case SaveProfile():
                await self._save_profile(item)
        return WriteResult.DONE

    async def _patch_status(
        self, kind: ResourceType, namespace: str, noun: _HasMetadata, body: Manifest
    ) -> None:
        name = noun.metadata.name
        try:
            answer = await self._kube.patch(kind, name, body, namespace, subresource="status")
        except Conflict:
            await self._refresh(kind, name, namespace, noun.metadata.uid)
            raise
        self._feedback.written(kind, answer)

    async def _refresh(self, kind: ResourceType, name: str, namespace: str, uid: str) -> None:
        """Somebody wrote in between, perhaps we ourselves with an answer that was lost."""
        try:
            current = await self._kube.get(kind, name, namespace)
        except NotFound:
            self._feedback.gone(kind, uid)
            return
        if current["metadata"]["uid"] != uid:
            self._feedback.gone(kind, uid)
        self._feedback.written(kind, current)

    async def _create_pod(self, item: CreatePod) -> None:
        manifest = worker_pod(item, self._configuration)
        namespace = item.job.metadata.namespace
        if item.job.spec.workers > 1 and item.rank == 0:
            # Before the first of the pods that look for each other by its names.
            with suppress(AlreadyExists):
                await self._kube.create(SERVICES, gang_service(item.job), namespace)
        try:
            answer = await self._kube.create(PODS, manifest, namespace)
        except AlreadyExists:
            name = manifest["metadata"]["name"]
            answer = await self._kube.get(PODS, name, namespace)
            if not _same_worker(answer, item):
                log.error("pod name taken", pod=name, namespace=namespace)
                raise
        self._feedback.written(PODS, answer)

    async def _delete_pod(self, item: DeletePod) -> None:
        pod = item.pod
        try:
            answer = await self._kube.delete(
                PODS, pod.name, pod.namespace, uid=pod.uid, grace_seconds=item.grace_seconds
            )
        except (NotFound, Conflict):
            # Gone, or replaced by another pod of the name: either way this one is no more.
            self._feedback.gone(PODS, pod.uid)
            return
        if answer.get("kind") == "Pod" and answer["metadata"].get("deletionTimestamp"):
            self._feedback.written(PODS, answer)

    async def _save_profile(self, item: SaveProfile) -> None:
        metadata = item.profile.metadata
        version = metadata.resource_version or await self._create_profile(item)
        body = profile_status_patch(item, version)
        await self._patch_status(PROFILES, metadata.namespace, item.profile, body)

    async def _create_profile(self, item: SaveProfile) -> str:
        manifest = profile_manifest(item)
        namespace = item.profile.metadata.namespace
        try:
            created = await self._kube.create(PROFILES, manifest, namespace)
        except AlreadyExists:
            created = await self._kube.get(PROFILES, manifest["metadata"]["name"], namespace)
        return created["metadata"]["resourceVersion"]

    def _forget(self, item: PlanItem) -> None:
        match item:
            case WriteStatus() | RejectJob():
                self._feedback.gone(JOBS, item.job.metadata.uid)
            case WriteQueueStatus():
                self._feedback.gone(QUEUES, item.queue.metadata.uid)
            case SaveProfile():
                self._feedback.gone(PROFILES, item.profile.metadata.uid)
            case CreatePod() | DeletePod():
                return


def _lane(item: PlanItem) -> str:
    """Items of one lane are written one after the other: those of one job, queue or profile."""
    match item:
        case WriteStatus() | RejectJob() | CreatePod():
            return item.job.metadata.uid
        case DeletePod():
            return item.pod.job_uid
        case SaveProfile():
            return f"profile {item.profile.metadata.namespace}/{item.profile.metadata.name}"
        case WriteQueueStatus():
            return f"queue {item.queue.metadata.name}"


def _same_worker(manifest: Manifest, item: CreatePod) -> bool:
    """The pod that stands in the way is the very one we wanted: an earlier answer was lost."""
    metadata = manifest["metadata"]
    deleting = "deletionTimestamp" in metadata
    return not deleting and was_created_for(metadata, item.job, item.rank)
