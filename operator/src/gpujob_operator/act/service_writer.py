"""Writes what was decided about services: their jobs, their gates, and their statuses.

Every write is safe to repeat: a job's name says which replica it is, and a status has the version
that it was decided for as its precondition. A refused write is remembered until one succeeds, so
that the service's conditions can give the reason.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from gpujob_api.gpuservice import GPUService
from gpujob_api.meta import Metadata
from gpujob_operator.client.api_errors import (
    AlreadyExists,
    ApiError,
    Conflict,
    NotFound,
    Unavailable,
)
from gpujob_operator.client.kube import GPU_SERVICES, JOBS, PODS, Kube, Manifest, ResourceType
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.gates import GatePod
from gpujob_operator.decide.model.plan import EventNote
from gpujob_operator.decide.model.service_plan import CreateJob, RemoveJob, ServiceStep
from gpujob_operator.read.shapes import mapping
from gpujob_operator.render.gate import gate_pod
from gpujob_operator.render.gpuservice import service_job, service_status
from gpujob_operator.telemetry.logs import Log

log = Log(__name__)

PROBLEMS_MAX = 1000
MESSAGE_CHARACTERS_MAX = 512
# After a refusal, the next request follows after this time.
REFUSED_PAUSE = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class _Deletion:
    """A request that deletes an object of a service."""

    kind: ResourceType
    name: str
    namespace: str
    uid: str


@dataclass(frozen=True, slots=True)
class ServiceFeedback:
    """Passes writes to the cache immediately, so that the next round includes them."""

    written: Callable[[ResourceType, Manifest], None]
    gone: Callable[[ResourceType, str], None]
    noted: Callable[[Metadata, EventNote], None]


class ServiceWriter:
    """Writes steps one after the other. Raises nothing but cancellation."""

    def __init__(
        self,
        kube: Kube,
        feedback: ServiceFeedback,
        *,
        may_act: Callable[[], bool],
        unknown: Callable[[str], Manifest],
        configuration: Configuration | None = None,
    ) -> None:
        """`unknown` returns the fields of a service's stored status that this version does not
        know, by UID.
        """
        self._kube = kube
        self._feedback = feedback
        self._may_act = may_act
        self._unknown = unknown
        self._configuration = configuration or Configuration()
        # When jobs are created again after a refusal, by UID.
        self._create_at: dict[str, datetime] = {}
        # When the next gate may be created, by UID.
        self._gate_at: dict[str, datetime] = {}
        self._problems: dict[str, str] = {}
        self._gate_problems: dict[str, str] = {}
        # Deletions without an answer, by the service's UID.
        self._unanswered: dict[str, _Deletion] = {}

    def problem(self, uid: str) -> str:
        """Returns why the last job of this service was refused, or ""."""
        return self._problems.get(uid, "")

    def gate_problem(self, uid: str) -> str:
        """Returns why the last gate of this service was refused, or ""."""
        return self._gate_problems.get(uid, "")

    def forget_others(self, uids: set[str]) -> None:
        """Forgets services that are gone, or all of them without the lead."""
        kept = self._create_at, self._gate_at, self._problems, self._gate_problems, self._unanswered
        for of_services in kept:
            for uid in of_services.keys() - uids:
                del of_services[uid]

    async def write(self, step: ServiceStep, now: datetime) -> None:
        """Writes what the step has. After a refused job, none is created for a while.

        Jobs are removed first, so that a failed removal leaves no job more than was decided. A step
        that follows a deletion without an answer is not written, because it was decided without
        knowing whether the object exists.
        """
        service = step.service
        unanswered = self._unanswered.get(service.metadata.uid)
        try:
            if unanswered is not None:
                if self._may_act():
                    await self._deleted(service.metadata.uid, unanswered)
                return
            for remove in step.removes:
                await self._remove(service, remove)
            if not await self._creates(step, now):
                return
            await self._change_gates(step, now)
            if step.status is not None and self._may_act():
                unknown = self._unknown(service.metadata.uid)
                body = service_status(service, step.status, unknown)
                await self._write_status(service, body)
                for note in step.events:
                    self._feedback.noted(service.metadata, note)
        except ApiError as error:
            log.warning("service not written", service=service.metadata.key, error=str(error))

    async def _change_gates(self, step: ServiceStep, now: datetime) -> None:
        service, uid = step.service, step.service.metadata.uid
        for pod in step.gates.removes:
            await self._remove_gate(service, pod)
        # A gate that ends at once, or is refused, is not created every second.
        if not step.gates.creates or self._gate_at.get(uid, now) > now or not self._may_act():
            return
        self._gate_at[uid] = now + REFUSED_PAUSE
        self._gate_problems.pop(uid, None)
        for ordinal in step.gates.creates:
            await self._create_gate(service, ordinal)

    async def _create_gate(self, service: GPUService, ordinal: int) -> None:
        if not self._configuration.gate_image:
            text = "the operator's configuration has no gateImage, so minimum: 0 has no gate"
            self._refused(self._gate_problems, service, text)
            return
        pod = gate_pod(service, ordinal, self._configuration)
        if await self._created(PODS, pod, service, self._gate_problems):
            log.info("gate created", service=service.metadata.key, pod=pod["metadata"]["name"])

    async def _remove_gate(self, service: GPUService, pod: GatePod) -> None:
        deletion = _Deletion(PODS, pod.name, pod.namespace, pod.uid)
        if self._may_act() and await self._deleted(service.metadata.uid, deletion):
            log.info("gate removed", namespace=pod.namespace, pod=pod.name)

    async def _creates(self, step: ServiceStep, now: datetime) -> bool:
        """Creates the jobs. Returns False if this process may not act any more."""
        uid = step.service.metadata.uid
        if not step.creates or self._create_at.get(uid, now) > now:
            return True
        self._problems.pop(uid, None)
        for create in step.creates:
            if not self._may_act():
                return False
            await self._create(create)
        if uid in self._problems:
            self._create_at[uid] = now + REFUSED_PAUSE
        return True

    async def _create(self, create: CreateJob) -> None:
        service = create.service
        if await self._created(JOBS, service_job(create), service, self._problems):
            log.info("replica created", service=service.metadata.key, job=create.name)

    async def _created(
        self, kind: ResourceType, body: Manifest, service: GPUService, problems: dict[str, str]
    ) -> bool:
        """Creates an object of the service. Returns whether it exists; `problems` gets why not."""
        name, namespace = body["metadata"]["name"], service.metadata.namespace
        try:
            answer = await self._kube.create(kind, body, namespace)
        except AlreadyExists:
            answer = await self._kube.get(kind, name, namespace)
            if not belongs(answer, service.metadata.uid):
                text = f'{kind.plural} "{name}" exists and is not of this GPUService: delete it'
                self._refused(problems, service, text)
                return False
        except (Conflict, NotFound):
            raise
        except ApiError as error:
            self._refused(problems, service, f"{body['kind']} {name}: {error}")
            return False
        self._feedback.written(kind, answer)
        return True

    async def _deleted(self, service_uid: str, deletion: _Deletion) -> bool:
        """Deletes an object. Returns False if it was gone, or is another one."""
        kind, uid = deletion.kind, deletion.uid
        self._unanswered.pop(service_uid, None)
        try:
            answer = await self._kube.delete(kind, deletion.name, deletion.namespace, uid=uid)
        except (Conflict, NotFound):
            self._feedback.gone(kind, uid)
            return False
        except Unavailable:
            self._unanswered[service_uid] = deletion
            raise
        if mapping(answer.get("metadata")).get("deletionTimestamp"):
            self._feedback.written(kind, answer)
        else:
            self._feedback.gone(kind, uid)
        return True

    def _refused(self, problems: dict[str, str], service: GPUService, text: str) -> None:
        uid, kept = service.metadata.uid, text[:MESSAGE_CHARACTERS_MAX]
        if problems.get(uid) != kept:
            log.warning("service refused", service=service.metadata.key, problem=text)
        if len(problems) < PROBLEMS_MAX or uid in problems:
            problems[uid] = kept

    async def _remove(self, service: GPUService, remove: RemoveJob) -> None:
        metadata = remove.job.metadata
        if metadata.deletion_timestamp is not None or not self._may_act():
            return
        deletion = _Deletion(JOBS, metadata.name, metadata.namespace, metadata.uid)
        if await self._deleted(service.metadata.uid, deletion):
            log.info("replica removed", job=metadata.key, reason=remove.reason)

    async def _write_status(self, service: GPUService, body: Manifest) -> None:
        name, namespace = service.metadata.name, service.metadata.namespace
        try:
            answer = await self._kube.replace(
                GPU_SERVICES, name, body, namespace, subresource="status"
            )
        except Conflict:
            # An edit came first. The watch brings it, and the next round decides again.
            return
        except NotFound:
            self._feedback.gone(GPU_SERVICES, service.metadata.uid)
            return
        self._feedback.written(GPU_SERVICES, answer)


def belongs(manifest: Manifest, uid: str) -> bool:
    """Returns whether the object has an owner with this UID."""
    owners = mapping(manifest.get("metadata")).get("ownerReferences") or ()
    return any(mapping(owner).get("uid") == uid for owner in owners)
