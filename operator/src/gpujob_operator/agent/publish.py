"""Publishes the agent's readings: at once after a material change, otherwise as a heartbeat.

Readings go directly to the operator if there is a connection. The status of the node's GPUNode is
then only for people. It is written if a GPU comes, goes, sickens or heals, within half a minute if
other pods use it, and every few minutes. Without a connection the status is the route to the
operator, and everything is written there. Creates the GPUNode if it is missing. Deletes nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from random import Random

from gpujob_api.codec import FieldError, encode
from gpujob_api.gpunode import GPU, STATUS_SECONDS_MAX, UNREADABLE, GPUNodeStatus, summarize
from gpujob_api.manifest import GPUNODE, gpunode_from_manifest
from gpujob_api.meta import API_VERSION, Condition, ConditionStatus
from gpujob_operator.agent.changes import (
    differs_for_good,
    differs_for_people,
    materially_different,
)
from gpujob_operator.agent.direct import DirectReadings
from gpujob_operator.client.api_errors import AlreadyExists, Forbidden, NotFound
from gpujob_operator.client.kube import GPU_NODES, NODES, Kube, Manifest
from gpujob_operator.telemetry.logs import Log

log = Log(__name__)

READY = "Ready"
HEARTBEAT_INTERVALS = 5
# A third of the age at which the operator considers a reading stale. With a longer reading interval
# every reading is written, so that idle GPUs do not become stale.
HEARTBEAT_SECONDS_MAX = 10.0
# Minimum time between two writes of a status for people, for changes of use.
SHOWN_SECONDS_MIN = 30.0
SHOWN_SECONDS_SPREAD = 75.0
# Nodes that joined together, or lost the operator together, must not write together. The following
# write may come at any time before its deadline.
SPREAD_SECONDS_FIRST = STATUS_SECONDS_MAX - SHOWN_SECONDS_MIN
# The age of the last direct reading at which an equal one is written as status. By then the next
# leader is there, or else few agents write at a time. It is well below the age at which the
# operator considers a reading stale.
SILENT_SECONDS_MAX = 24.0
SILENT_SECONDS_SPREAD = 6.0


@dataclass(frozen=True, slots=True)
class Readiness:
    ready: bool
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Moment:
    """One moment on the wall clock, and on a clock in seconds that only runs forward."""

    clock: datetime
    monotonic: float


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
        direct: DirectReadings | None = None,
    ) -> None:
        """The status is the only route without `direct`."""
        self._direct = direct
        self._random = Random(node)  # noqa: S311 - jitter
        self._kube = kube
        self._node = node
        self._interval_seconds = interval_seconds
        self._agent_version = agent_version
        self._clock = clock
        self._monotonic = monotonic
        self._published: GPUNodeStatus | None = None
        self._recalled: GPUNodeStatus | None = None
        self._published_at = float("-inf")
        # What was sent or written for the operator, and when.
        self._delivered: GPUNodeStatus | None = None
        self._delivered_at = float("-inf")
        self._directly_at = float("-inf")
        self._silent_seconds = SILENT_SECONDS_MAX
        # When the figures were read. None while they are those of an earlier agent.
        self._read_at: float | None = None
        self._shown_seconds = STATUS_SECONDS_MAX
        self._generation = 0

    @property
    def last(self) -> GPUNodeStatus:
        """The last status that was sent or written, by this agent or an earlier one."""
        return self._delivered or self._recalled or GPUNodeStatus()

    async def recall(self) -> None:
        """Reads the status of an earlier agent, because jobs may run on GPUs that do not respond
        now.

        Raises `ApiError`.
        """
        if self._delivered is not None or self._recalled is not None:
            return
        try:
            # An empty patch returns the object and needs no right to read.
            answer = await self._kube.patch(GPU_NODES, self._node, {}, subresource="status")
            self._recalled = gpunode_from_manifest(answer).status
        except (NotFound, FieldError):
            self._recalled = GPUNodeStatus()

    def moment(self) -> Moment:
        """Returns the present moment on both clocks.

        A reading has the moment at which it began, because a driver may take its time.
        """
        return Moment(self._clock(), self._monotonic())

    async def publish(
        self,
        gpus: tuple[GPU, ...],
        driver_version: str,
        readiness: Readiness,
        began: Moment | None = None,
    ) -> bool:
        """Publishes a new reading. Returns whether it was sent or written. Raises `ApiError`."""
        began = began or self.moment()
        self._read_at = began.monotonic
        return await self._publish(gpus, driver_version, readiness, began.clock, self._clock())

    async def publish_failure(self, readiness: Readiness) -> bool:
        """Publishes that there is no new reading.

        The last GPUs stay unchanged, and nothing new is placed on them. The GPUs do not vanish,
        because their jobs still run. `observedAt` stays, because it is the age of the figures.
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
        delivered = self._due(status) and await self._reaches_operator(status)
        if delivered:
            self._delivered, self._delivered_at = status, self._monotonic()
        if self._worth_showing(status):
            first = self._published is None
            await self._show(status, SPREAD_SECONDS_FIRST if first else SHOWN_SECONDS_SPREAD)
            return True
        return delivered

    async def _reaches_operator(self, status: GPUNodeStatus) -> bool:
        """Sends the status directly, or else writes it if that is urgent. Returns whether
        it did.
        """
        now = self._monotonic()
        if await self._deliver(status):
            self._directly_at = now
            self._silent_seconds = SILENT_SECONDS_MAX - self._random.uniform(
                0, SILENT_SECONDS_SPREAD
            )
            return True
        if now - self._directly_at < self._silent_seconds and not self._differs(status):
            return False
        await self._show(status, SPREAD_SECONDS_FIRST)
        return True

    async def _deliver(self, status: GPUNodeStatus) -> bool:
        """Sends the reading directly, if this agent made it and therefore knows its age."""
        if self._direct is None or self._read_at is None:
            return False
        return await self._direct.deliver(status, self._read_at)

    async def _show(self, status: GPUNodeStatus, spread_seconds: float) -> None:
        await self._write(status)
        self._published, self._published_at = status, self._monotonic()
        self._shown_seconds = STATUS_SECONDS_MAX - self._random.uniform(0, spread_seconds)

    def _worth_showing(self, status: GPUNodeStatus) -> bool:
        """Returns whether a status that is not the route to the operator should be written."""
        if self._published is status:
            return False
        if self._published is None or differs_for_good(self._published, status):
            return True
        passed = self._monotonic() - self._published_at
        if passed >= self._shown_seconds:
            return True
        return passed >= SHOWN_SECONDS_MIN and differs_for_people(self._published, status)

    def _condition(self, readiness: Readiness, now: datetime) -> Condition:
        condition = Condition(
            type=READY,
            status=ConditionStatus.TRUE if readiness.ready else ConditionStatus.FALSE,
            reason=readiness.reason,
            message=readiness.message[:1024],
            last_transition_time=now,
            observed_generation=self._generation,
        )
        before = self._delivered.conditions if self._delivered is not None else ()
        for old in before:
            if old.status is condition.status:
                return replace(condition, last_transition_time=old.last_transition_time)
        return condition

    def _due(self, status: GPUNodeStatus) -> bool:
        heartbeat = min(self._interval_seconds * HEARTBEAT_INTERVALS, HEARTBEAT_SECONDS_MAX)
        # A heartbeat half an interval early is better than one a whole interval late.
        if self._monotonic() - self._delivered_at >= heartbeat - self._interval_seconds / 2:
            return True
        return self._differs(status)

    def _differs(self, status: GPUNodeStatus) -> bool:
        return self._delivered is None or materially_different(self._delivered, status)

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
        """Creates the GPUNode, owned by the Node, with which the garbage collector deletes it.

        Raises `NotFound` if there is no Node, so that nothing outlives a deleted Node.
        """
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
