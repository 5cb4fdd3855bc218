"""Reports of services' gates: an HTTP endpoint whose replies have the replicas of the gate's own
service.

The bearer token names the pod, and the pod's owner is the service. The newest report of each gate
goes into the next round of decisions about services.
"""

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Protocol

from aiohttp import web
from cachetools import LRUCache, TTLCache

from gpujob_api.codec import FieldError
from gpujob_api.gate import GATE_MESSAGE_BYTES_MAX, GATE_PATH, GateReply, GateReport
from gpujob_api.gpujob import GPUJob
from gpujob_api.gpuservice import GPUService, ReplicaStatus
from gpujob_operator.decide.model.gates import Gate, GatePod
from gpujob_operator.port.pod_requests import TokenChecker, answered, claim, prove, read_body
from gpujob_operator.port.requests import (
    PER_SECOND_MAX,
    Refused,
    client_limit,
    sender,
)
from gpujob_operator.rate_limit import RateLimit
from gpujob_operator.signals import Signal
from gpujob_operator.telemetry.metrics import Metrics

GATES_MAX = 4096
# How long a gate's requests are counted. After that it may send a burst again.
LIMITED_SECONDS = 300.0


class Gates(Protocol):
    """The part of the cache that identifies gates."""

    def gate(self, uid: str) -> GatePod | None: ...

    def gates(self) -> Iterable[GatePod]: ...

    def service(self, uid: str) -> GPUService | None: ...

    def job_named(self, namespace: str, name: str) -> GPUJob | None: ...


class GateReceiver:
    """Authenticates, stores and answers reports of gates. Times come from the given clocks."""

    def __init__(
        self,
        gates: Gates,
        tokens: TokenChecker,
        metrics: Metrics,
        *,
        clock: Callable[[], datetime],
        monotonic: Callable[[], float],
        takes_requests: Callable[[GPUJob], bool | None],
        is_leader: Callable[[], bool] = lambda: True,
    ) -> None:
        """`takes_requests` returns whether requests may be sent to a replica whose pod is ready.
        None: its status decides.
        """
        self._takes_requests = takes_requests
        self._gates = gates
        self._tokens = tokens
        self._metrics = metrics
        self._clock = clock
        self._monotonic = monotonic
        self._is_leader = is_leader
        # With the time of arrival, by the pod's UID.
        self._newest: LRUCache[str, tuple[GateReport, datetime]] = LRUCache(GATES_MAX)
        # Called for the first request that a gate holds.
        self.held_first = Signal[[]]()
        self._limits: TTLCache[str, RateLimit] = TTLCache(
            GATES_MAX, LIMITED_SECONDS, timer=monotonic
        )

    def add_to(self, application: web.Application) -> None:
        application.router.add_post(f"/{GATE_PATH}", self._post)

    def newest(self) -> tuple[Gate, ...]:
        """Returns every gate that exists, with its newest report if it has sent one."""
        pods = tuple(self._gates.gates())
        known = {pod.uid for pod in pods}
        for uid in [uid for uid in self._newest if uid not in known]:
            del self._newest[uid]
        return tuple(Gate(pod, *self._newest.get(pod.uid, (None, None))) for pod in pods)

    async def _post(self, request: web.Request) -> web.Response:
        return await answered(request, self._receive, self._metrics)

    async def _receive(self, request: web.Request) -> GateReply:
        token, claimed = claim(request, self._clock, is_leader=self._is_leader())
        pod = self._gates.gate(claimed.pod_uid)
        if pod is None:
            # This process's watch may lag behind a pod that has just started.
            raise Refused(503, "no_pod", f"pod {claimed.pod_name} is not a known gate")
        if (pod.namespace, pod.name) != (claimed.namespace, claimed.pod_name):
            raise Refused(403, "wrong_pod", "the token names another pod")
        source = sender(request)
        await prove(self._tokens, token, claimed, source, from_its_pod=source in pod.addresses)
        self._limit(pod.uid)
        self._keep(pod, _read_report(await read_body(request, GATE_MESSAGE_BYTES_MAX)))
        return self._reply(pod)

    def _limit(self, pod_uid: str) -> None:
        now = self._monotonic()
        if not self._limits.setdefault(pod_uid, client_limit(now)).take(now):
            raise Refused(429, "rate_limited", f"more than {PER_SECOND_MAX:g} reports a second")

    def _keep(self, pod: GatePod, report: GateReport) -> None:
        before = self._newest.get(pod.uid)
        if before is None or before[0].sequence < report.sequence:
            self._newest[pod.uid] = (report, self._clock())
            if report.held and not (before is not None and before[0].held):
                self.held_first()

    def _reply(self, pod: GatePod) -> GateReply:
        service = self._gates.service(pod.service_uid)
        if service is None or service.metadata.namespace != pod.namespace:
            raise Refused(403, "no_service", f"pod {pod.name} belongs to no GPUService")
        if service.spec.suspend:
            return GateReply()
        ready = (one for one in service.status.replicas if self._answers(pod.namespace, one))
        addresses = tuple(one.address for one in ready)
        return GateReply(addresses, service.spec.replicas.cold_start_seconds)

    def _answers(self, namespace: str, replica: ReplicaStatus) -> bool:
        if not replica.address:
            return False
        job = self._gates.job_named(namespace, replica.name)
        if job is None or job.status.placement is None:
            # The status was written before the replica was removed, or replaced under its name.
            return False
        known = self._takes_requests(job)
        return replica.ready if known is None else known


def _read_report(body: bytes) -> GateReport:
    try:
        return GateReport.from_text(body.decode())
    except UnicodeDecodeError as error:
        raise Refused(400, "bad_report", f"report: is not JSON: {error}") from None
    except FieldError as error:
        raise Refused(400, "bad_report", str(error)) from None
