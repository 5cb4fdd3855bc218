"""Writes one item of a plan to the API server: renders it, adds its precondition, and caches the
answer.

Every write is safe to repeat. `confirm` finds out by the object's name whether a write without an
answer took effect.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum
from typing import Protocol

from gpujob_api.gpujob import GPUJob
from gpujob_api.meta import Metadata
from gpujob_api.settings import Settings
from gpujob_operator.act.checkpoint_claims import CheckpointClaims
from gpujob_operator.act.targets import pod_name
from gpujob_operator.act.trials import look_for_claims
from gpujob_operator.client.api_errors import (
    AlreadyExists,
    ApiError,
    Conflict,
    NotFound,
    Throttled,
    Unavailable,
)
from gpujob_operator.client.kube import (
    JOBS,
    PODS,
    PROFILES,
    QUEUES,
    SERVICES,
    Kube,
    Manifest,
    ResourceType,
)
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.plan import (
    CreatePod,
    DeleteJob,
    DeletePod,
    DeleteProfile,
    EventNote,
    PlanItem,
    RejectJob,
    SaveProfile,
    TryTemplate,
    WriteQueueStatus,
    WriteStatus,
)
from gpujob_operator.decide.model.workers import was_created_for
from gpujob_operator.read.shapes import version_number
from gpujob_operator.render.pod import worker_pod
from gpujob_operator.render.profile import profile_manifest, profile_status
from gpujob_operator.render.service import gang_service
from gpujob_operator.render.status import job_status, queue_status, rejection
from gpujob_operator.telemetry.logs import Log

log = Log(__name__)


class _HasMetadata(Protocol):
    @property
    def metadata(self) -> Metadata: ...


class NotLeader(Exception):  # noqa: N818 - a state of affairs, not a fault
    """The lease was lost between the decision and the write."""


class WriteResult(Enum):
    DONE = "done"
    CONFLICT = "conflict"
    GONE = "gone"
    REFUSED = "refused"
    FAILED = "failed"
    NOT_LEADER = "not_leader"
    OVERTAKEN = "overtaken"


@dataclass(frozen=True, slots=True)
class Feedback:
    """Passes writes to the cache immediately, so that the next snapshot includes them."""

    written: Callable[[ResourceType, Manifest], None]
    gone: Callable[[ResourceType, str], None]
    noted: Callable[[Metadata, EventNote], None] = lambda metadata, note: None
    # The API server has an older state of an object than it once had.
    restored: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class _Current:
    uid: str
    version: str


class Writer:
    """Every call either raises an `ApiError` or returns after the cache has the answer.

    Right before each changing request it checks whether this process still leads, and raises
    `NotLeader` if not.
    """

    def __init__(
        self,
        kube: Kube,
        feedback: Feedback,
        *,
        configuration: Configuration,
        clock: Callable[[], datetime],
        may_act: Callable[[], bool],
        version: Callable[[ResourceType, str], int] = lambda kind, uid: 0,
        unknown: Callable[[ResourceType, str], Manifest] = lambda kind, uid: {},
    ) -> None:
        self._kube = kube
        self._feedback = feedback
        self._configuration = configuration
        self._clock = clock
        self.may_act = may_act
        # The resourceVersion of an object, by UID, in the newest snapshot. 0: unknown.
        self._version = version
        # The fields of an object's status that this version does not know, by UID. All fields for a
        # job that cannot be read.
        self._unknown = unknown
        template = configuration.checkpoint_claim_template
        self._claims = CheckpointClaims(kube, self._as_leader, template)

    def pinned(self, item: PlanItem) -> PlanItem:
        """Returns the item with the state of the cluster for which it was decided.

        Call it before anything else is read.
        """
        if not isinstance(item, DeletePod):
            return item
        version = self._version(PODS, item.pod.uid)
        return replace(item, resource_version=str(version)) if version else item

    async def write(self, item: PlanItem) -> None:
        """Writes the item.

        Raises `Conflict`, `AlreadyExists` or `NotFound` if the cluster has changed since the
        decision.
        """
        match item:
            case WriteStatus():
                body = job_status(item, self._unknown(JOBS, item.job.metadata.uid))
                await self._write_status(JOBS, item.job, body)
                self.note_events(item)
            case RejectJob():
                stored = self._unknown(JOBS, item.job.metadata.uid)
                await self._write_status(JOBS, item.job, rejection(item, stored, self._clock()))
            case WriteQueueStatus():
                body = queue_status(item, self._unknown(QUEUES, item.queue.metadata.uid))
                await self._write_status(QUEUES, item.queue, body)
            case CreatePod():
                await self._create_pod(item)
            case DeletePod():
                await self._delete_pod(item)
            case DeleteJob():
                await self._delete(JOBS, item.job.metadata)
            case DeleteProfile():
                await self._delete(PROFILES, item.profile.metadata)
            case SaveProfile():
                await self._save_profile(item)
            case TryTemplate():
                # It writes nothing.
                return

    def note_events(self, item: WriteStatus) -> None:
        """Posts the item's events, which have come true."""
        for note in item.events:
            self._feedback.noted(item.job.metadata, note)

    def _as_leader(self) -> Kube:
        """Returns the client for one changing request. Raises `NotLeader`."""
        if not self.may_act():
            raise NotLeader("leadership was lost")
        return self._kube

    async def try_pod(self, job: GPUJob) -> None:
        """Tries the pod of a placed job's first worker by a dry run.

        Raises the errors of its creation, and `UnfitClaim`.
        """
        pod = worker_pod(CreatePod(job, 0, Settings()), self._configuration)
        await self._kube.try_create(PODS, pod, job.metadata.namespace)
        await look_for_claims(self._kube, job)

    async def create_service(self, job: GPUJob) -> None:
        """Creates the headless Service by whose names the pods of a gang find each other."""
        with suppress(AlreadyExists):
            await self._as_leader().create(SERVICES, gang_service(job), job.metadata.namespace)

    async def confirm(self, item: PlanItem) -> WriteResult:
        """Reads the object by its name into the cache, after a write without an answer.

        Returns DONE if the write is known to have taken effect, CONFLICT if the next cycle must
        decide again, and FAILED if it did not take effect.
        """
        match item:
            case CreatePod():
                name, namespace = pod_name(item), item.job.metadata.namespace
                try:
                    answer = await self._kube.get(PODS, name, namespace)
                except NotFound:
                    return WriteResult.FAILED
                return self._took(answer, item)
            case DeletePod():
                await self._refresh(PODS, item.pod.name, item.pod.namespace, item.pod.uid)
            case DeleteJob():
                metadata = item.job.metadata
                await self._refresh(JOBS, metadata.name, metadata.namespace, metadata.uid)
            case DeleteProfile():
                metadata = item.profile.metadata
                await self._refresh(PROFILES, metadata.name, metadata.namespace, metadata.uid)
            case WriteStatus() | RejectJob():
                return await self._confirm_status(JOBS, item.job.metadata)
            case WriteQueueStatus():
                return await self._confirm_status(QUEUES, item.queue.metadata)
            case SaveProfile():
                return await self._confirm_status(PROFILES, item.profile.metadata)
            case TryTemplate():
                return WriteResult.DONE
        return WriteResult.CONFLICT

    async def _confirm_status(self, kind: ResourceType, metadata: Metadata) -> WriteResult:
        name, namespace = metadata.name, metadata.namespace
        current = await self._refresh(kind, name, namespace, metadata.uid)
        unchanged = current is not None and current.version == metadata.resource_version
        return WriteResult.FAILED if unchanged else WriteResult.CONFLICT

    def forget(self, item: PlanItem) -> None:
        """Removes an object from the cache after a write found it gone."""
        match item:
            case WriteStatus() | RejectJob() | DeleteJob():
                self._feedback.gone(JOBS, item.job.metadata.uid)
            case WriteQueueStatus():
                self._feedback.gone(QUEUES, item.queue.metadata.uid)
            case SaveProfile() | DeleteProfile():
                self._feedback.gone(PROFILES, item.profile.metadata.uid)
            case CreatePod() | DeletePod() | TryTemplate():
                return

    async def _write_status(self, kind: ResourceType, noun: _HasMetadata, body: Manifest) -> None:
        name, namespace = noun.metadata.name, noun.metadata.namespace
        try:
            answer = await self._as_leader().replace(
                kind, name, body, namespace, subresource="status"
            )
        except Conflict:
            await self._refresh(kind, name, namespace, noun.metadata.uid)
            raise
        self._feedback.written(kind, answer)

    async def _refresh(
        self, kind: ResourceType, name: str, namespace: str, uid: str
    ) -> _Current | None:
        """Reads the object after a conflict, and returns the object that has the name now, or None.

        Another writer was first, or an answer to this process's own write was lost.
        """
        before = self._version(kind, uid)
        try:
            current = await self._kube.get(kind, name, namespace)
        except NotFound:
            self._feedback.gone(kind, uid)
            return None
        found = _Current(current["metadata"]["uid"], str(current["metadata"]["resourceVersion"]))
        if found.uid != uid:
            self._feedback.gone(kind, uid)
        elif 0 < version_number(found.version) < before:
            self._feedback.restored()
        self._feedback.written(kind, current)
        return found

    async def _create_pod(self, item: CreatePod) -> None:
        manifest = worker_pod(item, self._configuration)
        namespace = item.job.metadata.namespace
        await self._claims.make(item.job)
        try:
            answer = await self._as_leader().create(PODS, manifest, namespace)
        except (Conflict, NotFound, Throttled, Unavailable):
            raise
        except ApiError:
            if not await self._is_there(item):
                raise
            return
        self._feedback.written(PODS, answer)

    async def _is_there(self, item: CreatePod) -> bool:
        """Returns True for this process's own pod of an earlier request whose answer was lost.

        The name is not the only obstacle: a quota, which is checked before the name, may be full
        because of this pod.
        """
        try:
            found = await self._kube.get(PODS, pod_name(item), item.job.metadata.namespace)
        except NotFound:
            return False
        return self._took(found, item) is WriteResult.DONE

    def _took(self, manifest: Manifest, item: CreatePod) -> WriteResult:
        """Handles a pod that already has the worker's name.

        It is this process's own pod if an answer was lost, or another one.
        """
        if not _same_worker(manifest, item):
            name, namespace = manifest["metadata"]["name"], item.job.metadata.namespace
            log.error("pod name taken", pod=name, namespace=namespace)
            return WriteResult.CONFLICT
        self._feedback.written(PODS, manifest)
        return WriteResult.DONE

    async def _delete_pod(self, item: DeletePod) -> None:
        pod = item.pod
        try:
            answer = await self._as_leader().delete(
                PODS,
                pod.name,
                pod.namespace,
                uid=pod.uid,
                resource_version=item.resource_version,
                grace_seconds=item.grace_seconds,
            )
        except NotFound:
            self._feedback.gone(PODS, pod.uid)
            return
        except Conflict:
            # The pod has changed, so the next cycle decides again, or another pod has the name, so
            # this one is gone.
            current = await self._refresh(PODS, pod.name, pod.namespace, pod.uid)
            if current is not None and current.uid == pod.uid:
                raise
            return
        if answer.get("kind") == "Pod" and answer["metadata"].get("deletionTimestamp"):
            self._feedback.written(PODS, answer)

    async def _delete(self, kind: ResourceType, metadata: Metadata) -> None:
        """Deletes a finished job or an unused profile, in the state in which that was decided."""
        name, namespace = metadata.name, metadata.namespace
        try:
            answer = await self._as_leader().delete(
                kind,
                name,
                namespace,
                uid=metadata.uid,
                resource_version=metadata.resource_version,
            )
        except Conflict:
            await self._refresh(kind, name, namespace, metadata.uid)
            raise
        log.info("deleted as no longer used", kind=kind.plural, name=metadata.key)
        if (answer.get("metadata") or {}).get("deletionTimestamp"):
            # A finalizer keeps it for a while.
            self._feedback.written(kind, answer)
        else:
            self._feedback.gone(kind, metadata.uid)

    async def _save_profile(self, item: SaveProfile) -> None:
        metadata = item.profile.metadata
        version = metadata.resource_version or await self._create_profile(item)
        body = profile_status(item, version, self._unknown(PROFILES, metadata.uid))
        await self._write_status(PROFILES, item.profile, body)

    async def _create_profile(self, item: SaveProfile) -> str:
        manifest = profile_manifest(item)
        namespace = item.profile.metadata.namespace
        try:
            created = await self._as_leader().create(PROFILES, manifest, namespace)
        except AlreadyExists:
            created = await self._kube.get(PROFILES, manifest["metadata"]["name"], namespace)
        return created["metadata"]["resourceVersion"]


def _same_worker(manifest: Manifest, item: CreatePod) -> bool:
    """Returns whether the existing pod is the very one to be created, whose answer was lost."""
    metadata = manifest["metadata"]
    deleting = "deletionTimestamp" in metadata
    return not deleting and was_created_for(metadata, item.job, item.rank)
