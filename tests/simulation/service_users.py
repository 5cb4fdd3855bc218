"""Users of GPUServices, who create, edit, suspend and delete them, and the clients that send them
requests.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum

from gpujob_api.meta import API_VERSION
from gpujob_operator.client.api_errors import NotFound
from gpujob_operator.observe.cache import Kind
from tests.simulation.api_server import ApiServer, Manifest
from tests.simulation.clock import Clock
from tests.simulation.pods import is_gate
from tests.simulation.requests import End, Network, Process, Request
from tests.simulation.service_worlds import ServicePlan, Spec
from tests.simulation.users import LOOK_SECONDS_MAX

# Somebody reads what statuses say, and helps.
READ_SECONDS = 60.0
IN_THE_WAY = "exists and is not of this GPUService"
Ended = Callable[[Request, End, Process | None], None]


class Want(Enum):
    """What becomes of all services."""

    AS_PLANNED = "as planned"
    # Suspended, and with a gate, whatever the plan has.
    SUSPENDED = "suspended"
    NONE = "none"


class ServiceUsers:
    """Brings each service to what is wanted of it at a time, again after a restore."""

    def __init__(self, clock: Clock, api: ApiServer, plans: Sequence[ServicePlan]) -> None:
        self._clock = clock
        self._api = api
        self._plans = plans
        self._want = Want.AS_PLANNED
        api.restored.append(self._restored)

    def begin(self) -> None:
        for plan in self._plans:
            for at, _ in plan.specs:
                self._clock.after(at, lambda plan=plan: self._bring_about(plan))
        self._clock.every(READ_SECONDS, self._help)

    def want(self, what: Want) -> None:
        """Brings all services to this, from now on."""
        self._want = what
        for plan in self._plans:
            self._bring_about(plan)

    def _wanted(self, plan: ServicePlan) -> Spec | None:
        spec = plan.wanted(self._clock.now)
        if spec is None or self._want is Want.AS_PLANNED:
            return spec
        if self._want is Want.NONE:
            return None
        replicas = {"stopAfterSeconds": 60, "coldStartSeconds": 120, **spec["replicas"]}
        return {**spec, "replicas": {**replicas, "minimum": 0}, "suspend": True}

    def _bring_about(self, plan: ServicePlan) -> None:
        spec, key = self._wanted(plan), (plan.namespace, plan.name)
        try:
            stored = self._api.get(Kind.SERVICE, *key)
        except NotFound:
            if spec is not None:
                self._api.create(Kind.SERVICE, _manifest(plan, spec), "user")
            return
        if spec is None:
            self._api.delete(Kind.SERVICE, *key, "user")
        elif stored["spec"] != spec:
            self._api.patch(Kind.SERVICE, *key, {"spec": spec}, "user", spec=True)

    def _restored(self) -> None:
        seconds = self._clock.random.uniform(1.0, LOOK_SECONDS_MAX)
        for plan in self._plans:
            self._clock.after(seconds, lambda plan=plan: self._bring_about(plan))

    def _help(self) -> bool:
        """Deletes gates that lost the reference to their owner, if a status asks for it."""
        said = str([one.get("status") for one in self._api.list(Kind.SERVICE)])
        for pod in self._api.list(Kind.POD) if IN_THE_WAY in said else ():
            if is_gate(pod) and not pod["metadata"].get("ownerReferences"):
                with suppress(NotFound):
                    metadata = pod["metadata"]
                    key = metadata["namespace"], metadata["name"]
                    self._api.delete(Kind.POD, *key, "user")
        return True


def _manifest(plan: ServicePlan, spec: Spec) -> Manifest:
    metadata = {"name": plan.name, "namespace": plan.namespace}
    return {"apiVersion": API_VERSION, "kind": "GPUService", "metadata": metadata, "spec": spec}


class Clients:
    """Sends requests as kube-proxy would. `ended` gets each with what became of it, and the process
    that the request was sent to.
    """

    def __init__(
        self,
        clock: Clock,
        network: Network,
        plans: Sequence[ServicePlan],
        ended: Ended,
    ) -> None:
        self._clock = clock
        self._network = network
        self._plans = plans
        self._ended = ended
        self.pause = False

    def begin(self) -> None:
        for plan in self._plans:
            self._clock.every(plan.period_seconds, lambda plan=plan: self._send_now(plan))

    def _send_now(self, plan: ServicePlan) -> bool:
        now = self._clock.now
        if not (self.pause or plan.is_quiet(now) or plan.wanted(now) is None):
            self.send(plan)
        return True

    def send(self, plan: ServicePlan) -> None:
        addresses = self._network.endpoints(plan.key)
        process: Process | None = None

        def note(end: End) -> None:
            self._ended(request, end, process)

        request = Request(plan.key, self._clock.now, note)
        if not addresses:
            note(End.NOWHERE)
            return
        process = self._network.reach(self._clock.random.choice(addresses))
        if process is None:
            note(End.LOST)
        elif not process.accept(request):
            note(End.REFUSED)
