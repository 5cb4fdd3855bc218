"""Operators whose shell is wrong in one way each, to show that the checks can fail."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Any, ClassVar

from gpujob_api.gpunode import GPUNodeStatus
from gpujob_api.meta import ANNOTATION_GPUS, LABEL_JOB_UID
from gpujob_operator.act.executor import Executor, Submission
from gpujob_operator.client.api_errors import ApiError, Unavailable
from gpujob_operator.client.kube import (
    GPU_NODES,
    JOBS,
    NODES,
    PODS,
    PROFILES,
    QUEUES,
    Manifest,
    ResourceType,
)
from gpujob_operator.decide.model.plan import Plan
from gpujob_operator.observe.cache import Cache, Kind
from gpujob_operator.observe.store import Mark
from gpujob_operator.read.shapes import Identity
from tests.simulation.api_server import OtherKind
from tests.simulation.kube import SimulatedKube
from tests.simulation.operator_shell import Parts
from tests.simulation.pods import is_foreign, worker_ended
from tests.simulation.troubles import Request

Call = Callable[[], Awaitable[Manifest]]
WATCHED = (JOBS, GPU_NODES, QUEUES, PROFILES, NODES, PODS)
REPEATS = 40


class _ReadsWrong(Cache, ABC):
    """A cache that gets something else than what is so, of each object of one kind."""

    KIND = Kind.POD

    def apply(self, kind: Kind, event_type: str | None, manifest: object) -> bool:
        read = self._read(manifest) if kind is self.KIND else manifest
        return super().apply(kind, event_type, read)

    def condense(self, kind: Kind, mark: Mark, manifest: object) -> object:
        read = self._read(manifest) if kind is self.KIND else manifest
        return super().condense(kind, mark, read)

    def resync(
        self,
        kind: Kind,
        manifests: Iterable[object],
        resource_version: str,
        mark: Mark | None = None,
    ) -> bool:
        if kind is self.KIND:
            # Of what was condensed the state was read then.
            manifests = [one if isinstance(one, Identity) else self._read(one) for one in manifests]
        return super().resync(kind, manifests, resource_version, mark)

    @abstractmethod
    def _read(self, pod: Any) -> Any:
        """The object as this cache takes it."""


class BelievesLabels(_ReadsWrong):
    """I15: what any pod with a job's label says is taken for its worker's word."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._workers: dict[str, Manifest] = {}

    def _read(self, pod: Any) -> Any:
        labels = pod["metadata"].get("labels") or {}
        job_uid = labels.get(LABEL_JOB_UID, "")
        if not is_foreign(pod):
            self._workers[job_uid] = pod
            return pod
        worker = self._workers.get(job_uid)
        if worker is None or worker_ended(pod) is None:
            return pod
        version = pod["metadata"]["resourceVersion"]
        metadata = {**worker["metadata"], "resourceVersion": version}
        return {**worker, "metadata": metadata, "status": pod["status"]}


class WaitsForEveryContainer(_ReadsWrong):
    """I5: a worker has ended when its pod has, of which nothing is looked at while it goes."""

    def _read(self, pod: Any) -> Any:
        status = pod.get("status") or {}
        lasts = status.get("phase") == "Running" or "deletionTimestamp" in pod["metadata"]
        if not lasts or worker_ended(pod) is None:
            return pod
        running = [{"name": "worker", "state": {"running": {}}}]
        return {**pod, "status": {**status, "phase": "Running", "containerStatuses": running}}


class BreaksOnOddWords(_ReadsWrong):
    """I15: one termination message ends the process."""

    def _read(self, pod: Any) -> Any:
        message = (worker_ended(pod) or {}).get("message") or ""
        if message.startswith('{"attempt":1,"phase":"training","loss":1000'):
            raise OverflowError("int too large to convert to float")
        return pod


class BreaksOnMovedLabels(_ReadsWrong):
    """I15: a label that goes from one job to another and back is more than a cycle can take."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._labels: dict[str, str] = {}

    def _read(self, pod: Any) -> Any:
        label = pod["metadata"]["labels"][LABEL_JOB_UID]
        if self._labels.setdefault(pod["metadata"]["uid"], label) != label:
            raise KeyError(label)
        return pod


class BlocksAnnotatedGPUs(_ReadsWrong):
    """I15: GPUs that any live pod names are closed, whoever made it."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._named: set[str] = set()

    def _read(self, pod: Any) -> Any:
        if is_foreign(pod) and worker_ended(pod) is None:
            self._named |= set(pod["metadata"]["annotations"][ANNOTATION_GPUS].split(","))
        return pod

    def apply(self, kind: Kind, event_type: str | None, manifest: Any) -> bool:
        if kind is Kind.GPU_NODE and event_type != "DELETED" and "status" in manifest:
            status = manifest["status"]
            gpus = [{**one, "healthy": one["uuid"] not in self._named} for one in status["gpus"]]
            manifest = {**manifest, "status": {**status, "gpus": gpus}}
        return super().apply(kind, event_type, manifest)

    def take_reading(self, name: str, status: GPUNodeStatus, taken_at: datetime) -> bool:
        gpus = tuple(replace(one, healthy=one.uuid not in self._named) for one in status.gpus)
        return super().take_reading(name, replace(status, gpus=gpus), taken_at)


class DeletesWhatCarriesLabels(Executor):
    """I15: the operator is a deputy for deleting pods to whoever may label them."""

    def submit(self, plan: Plan) -> Submission:
        kube = self._runner._writer._kube
        assert isinstance(kube, SimulatedKube)
        for pod in kube.known(Kind.POD):
            if is_foreign(pod) and LABEL_JOB_UID in pod["metadata"]["labels"]:
                asyncio.get_running_loop().create_task(_delete(kube, pod["metadata"]))
        return super().submit(plan)


async def _delete(kube: SimulatedKube, metadata: Manifest) -> None:
    with suppress(ApiError):
        await kube.delete(PODS, metadata["name"], metadata["namespace"], uid=metadata["uid"])


def _is_refusal(error: ApiError) -> bool:
    """The server could not, or no answer came; whatever the operator's client calls it."""
    return error.status == 0 or error.status >= 500


class ListsAllWhenRefused(SimulatedKube):
    """I15: one refused write makes everything doubtful."""

    async def _ask(self, request: Request, call: Call) -> Manifest:
        try:
            return await super()._ask(request, call)
        except ApiError as error:
            if _is_refusal(error):
                for kind in WATCHED:
                    await self.list(kind)
            raise


class RepeatsWhatIsRefused(SimulatedKube):
    """I15: a refusal is answered with more of the same, without a pause that grows."""

    async def _ask(self, request: Request, call: Call) -> Manifest:
        for _ in range(REPEATS):
            try:
                return await super()._ask(request, call)
            except ApiError as error:
                if not _is_refusal(error):
                    raise
        return await super()._ask(request, call)


class OneWriteAtATime(SimulatedKube):
    """I15: a slow write of one namespace is waited for by all."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._lock = asyncio.Lock()

    async def _ask(self, request: Request, call: Call) -> Manifest:
        if request.kind is OtherKind.LEASE or request.verb in ("get", "list"):
            return await super()._ask(request, call)
        async with self._lock:
            return await super()._ask(request, call)


class TakesDoubtForNo(SimulatedKube):
    """I1, I3: a write without an answer counts as one that was not made."""

    async def _ask(self, request: Request, call: Call) -> Manifest:
        try:
            return await super()._ask(request, call)
        except Unavailable as error:
            if request.verb == "try":
                raise
            raise ApiError(422, "Invalid", error.message) from error


class _DeletesOtherwise(SimulatedKube):
    GRACE_SECONDS: ClassVar[int | None] = None
    # Whether only the state that was decided on is deleted.
    PINNED: ClassVar[bool] = True

    async def delete(
        self,
        kind: ResourceType,
        name: str,
        namespace: str = "",
        *,
        uid: str,
        resource_version: str = "",
        grace_seconds: int | None = None,
    ) -> Manifest:
        return await super().delete(
            kind,
            name,
            namespace,
            uid=uid,
            resource_version=resource_version if self.PINNED else "",
            grace_seconds=grace_seconds if self.GRACE_SECONDS is None else self.GRACE_SECONDS,
        )


class GivesLittleGrace(_DeletesOtherwise):
    """I13: every worker is killed after a second."""

    GRACE_SECONDS = 1


class GivesMuchGrace(_DeletesOtherwise):
    """I13: every worker may take as long as the longest of the templates says."""

    GRACE_SECONDS = 600


class DeletesWhatItHasNotSeen(_DeletesOtherwise):
    """I5: a worker that ended a moment ago is deleted before anybody looked at how it ended."""

    PINNED = False


class IgnoresDeletion(_ReadsWrong):
    """I7: a job that is deleted and kept by a finalizer looks like any other."""

    KIND = Kind.JOB

    def _read(self, pod: Any) -> Any:
        return _undeleted(pod)


def _undeleted(manifest: Any) -> Manifest:
    metadata = {k: v for k, v in manifest["metadata"].items() if k != "deletionTimestamp"}
    return {**manifest, "metadata": metadata}


BELIEVES_LABELS = Parts(cache=BelievesLabels)
BREAKS_ON_MOVED_LABELS = Parts(cache=BreaksOnMovedLabels)
BLOCKS_ANNOTATED_GPUS = Parts(cache=BlocksAnnotatedGPUs)
WAITS_FOR_EVERY_CONTAINER = Parts(cache=WaitsForEveryContainer)
BREAKS_ON_ODD_WORDS = Parts(cache=BreaksOnOddWords)
DELETES_WHAT_CARRIES_LABELS = Parts(executor=DeletesWhatCarriesLabels)
LISTS_ALL_WHEN_REFUSED = Parts(kube=ListsAllWhenRefused)
REPEATS_WHAT_IS_REFUSED = Parts(kube=RepeatsWhatIsRefused)
ONE_WRITE_AT_A_TIME = Parts(kube=OneWriteAtATime)
TAKES_DOUBT_FOR_NO = Parts(kube=TakesDoubtForNo)
GIVES_LITTLE_GRACE = Parts(kube=GivesLittleGrace)
GIVES_MUCH_GRACE = Parts(kube=GivesMuchGrace)
DELETES_WHAT_IT_HAS_NOT_SEEN = Parts(kube=DeletesWhatItHasNotSeen)
IGNORES_DELETION = Parts(cache=IgnoresDeletion)
