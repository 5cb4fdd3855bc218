"""Writes readings into the status of the node's GPUNode: at once after a material change, as a
heartbeat otherwise. Creates the object if it is missing; deletes nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

from gpujob_api.codec import FieldError, encode
from gpujob_api.gpunode import GPU, UNREADABLE, GPUNodeStatus, summarize
from gpujob_api.manifest import GPUNODE, gpunode_from_manifest
from gpujob_api.meta import API_VERSION, Condition, ConditionStatus
from gpujob_operator.act.kube import (
    GPU_NODES,
    NODES,
    AlreadyExists,
    Forbidden,
    Kube,
    Manifest,
    NotFound,
)
from gpujob_operator.logs import Log

log = Log(__name__)

READY = "Ready"
HEARTBEAT_INTERVALS = 5
# A third of the age at which the operator considers a reading stale. With a longer reading interval
# every reading is written, so that idle GPUs do not become stale.
HEARTBEAT_SECONDS_MAX = 10.0
MEMORY_CHANGE_FRACTION = 0.01
MEMORY_CHANGE_BYTES = 32 * 1024**2


@dataclass(frozen=True, slots=True)
class Readiness:
    ready: bool
    reason: str
    message: str


class Publisher:
    def __init__(
        self,
        kube: Kube,
        node: str,
        *,
        interval_seconds: float,
        agent_version: str,
        clock: Callable[[], datetime],
        monotonic: Callable[[], float],
    ) -> None:
        self._kube = kube
        self._node = node
        self._interval_seconds = interval_seconds
        self._agent_version = agent_version
        self._clock = clock
        self._monotonic = monotonic
        self._published: GPUNodeStatus | None = None
        self._recalled: GPUNodeStatus | None = None
        self._published_at = float("-inf")
        self._generation = 0

    @property
    def last(self) -> GPUNodeStatus:
        """The last status that was written, by this agent or an earlier one."""
        return self._published or self._recalled or GPUNodeStatus()

    async def recall(self) -> None:
        """Reads what an earlier agent of this node wrote, because jobs may run on GPUs that do not
        answer now. Raises `ApiError`.
        """
        if self._published is not None or self._recalled is not None:
            return
        try:
            # An empty patch returns the object and needs no right to read.
            answer = await self._kube.patch(GPU_NODES, self._node, {}, subresource="status")
            self._recalled = gpunode_from_manifest(answer).status
        except (NotFound, FieldError):
            self._recalled = GPUNodeStatus()

    async def publish(
        self, gpus: tuple[GPU, ...], driver_version: str, readiness: Readiness
    ) -> bool:
        """Publishes a new reading. Returns True if it was written. Raises `ApiError`."""
        now = self._clock()
        return await self._publish(gpus, driver_version, readiness, now, now)

    async def publish_failure(self, readiness: Readiness) -> bool:
        """Publishes that there is no new reading: the last GPUs stay as they were, and nothing new
        is placed on them.

        The GPUs do not vanish, because their jobs still run. `observedAt` stays, because it tells
        the age of the figures.
        """
        last = self.last
        message = f"{UNREADABLE}: {readiness.message}"[:256]
        # A GPU that was unhealthy before keeps that state.
        gpus = tuple(
            replace(gpu, healthy=False, health_message=message) if gpu.healthy else gpu
            for gpu in last.gpus
        )
        now = self._clock()
        return await self._publish(gpus, last.driver_version, readiness, last.observed_at, now)

    async def _publish(
        self,
        gpus: tuple[GPU, ...],
        driver_version: str,
        readiness: Readiness,
        observed_at: datetime | None,
        now: datetime,
    ) -> bool:
        status = GPUNodeStatus(
            observed_at=observed_at,
            observed_generation=self._generation,
            agent_version=self._agent_version,
            driver_version=driver_version,
            sample_interval_seconds=self._interval_seconds,
            gpus=gpus,
            summary=summarize(gpus),
            conditions=(self._condition(readiness, now),),
        )
        if not self._due(status):
            return False
        await self._write(status)
        self._published, self._published_at = status, self._monotonic()
        return True

    def _condition(self, readiness: Readiness, now: datetime) -> Condition:
        condition = Condition(
            type=READY,
            status=ConditionStatus.TRUE if readiness.ready else ConditionStatus.FALSE,
            reason=readiness.reason,
            message=readiness.message[:1024],
            last_transition_time=now,
            observed_generation=self._generation,
        )
        before = self._published.conditions if self._published is not None else ()
        for old in before:
            if old.status is condition.status:
                return replace(condition, last_transition_time=old.last_transition_time)
        return condition

    def _due(self, status: GPUNodeStatus) -> bool:
        heartbeat = min(self._interval_seconds * HEARTBEAT_INTERVALS, HEARTBEAT_SECONDS_MAX)
        # A heartbeat half an interval early is better than one a whole interval late.
        if self._monotonic() - self._published_at >= heartbeat - self._interval_seconds / 2:
            return True
        return self._published is None or materially_different(self._published, status)

    async def _write(self, status: GPUNodeStatus) -> None:
        # A merge patch replaces lists as a whole, so no GPU of an earlier agent remains.
        body: Manifest = {"status": encode(status)}
        try:
            answer = await self._kube.patch(GPU_NODES, self._node, body, subresource="status")
        except NotFound:
            await self._create()
            answer = await self._kube.patch(GPU_NODES, self._node, body, subresource="status")
        self._generation = int(answer["metadata"].get("generation") or 0)

    async def _create(self) -> None:
        """Owned by the Node: the garbage collector deletes the GPUNode with it. Raises `NotFound`
        while there is no Node, so that nothing outlives one that is gone."""
        body: Manifest = {
            "apiVersion": API_VERSION,
            "kind": GPUNODE.kind,
            "metadata": {"name": self._node, "ownerReferences": await self._owners()},
            "spec": {},
        }
        try:
            await self._kube.create(GPU_NODES, body)
        except AlreadyExists:
            return

    async def _owners(self) -> list[Manifest]:
        try:
            node = await self._kube.get(NODES, self._node)
        except Forbidden as error:
            log.warning("the GPUNode will outlive its Node", error=str(error))
            return []
        uid = node["metadata"]["uid"]
        return [{"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": uid}]


def materially_different(before: GPUNodeStatus, now: GPUNodeStatus) -> bool:
    """True if a decision may depend on the difference: GPUs, processes, health, or memory beyond
    noise.
    """
    if len(before.gpus) != len(now.gpus):
        return True
    if [(one.status, one.reason) for one in before.conditions] != [
        (one.status, one.reason) for one in now.conditions
    ]:
        return True
    return any(_gpu_differs(one, other) for one, other in zip(before.gpus, now.gpus, strict=True))


def _gpu_differs(before: GPU, now: GPU) -> bool:
    if _identity(before) != _identity(now):
        return True
    limit = max(MEMORY_CHANGE_BYTES, MEMORY_CHANGE_FRACTION * now.memory_total_bytes)
    pairs = zip(before.processes, now.processes, strict=True)
    moved = [abs(one.memory_bytes - other.memory_bytes) for one, other in pairs]
    moved.append(abs(before.memory_used_bytes - now.memory_used_bytes))
    return max(moved) > limit


def _identity(gpu: GPU) -> object:
    owners = [(process.pid, process.pod_uid) for process in gpu.processes]
    total, reserved = gpu.memory_total_bytes, gpu.memory_reserved_bytes
    return gpu.uuid, gpu.model, total, reserved, gpu.healthy, gpu.health_message, owners
