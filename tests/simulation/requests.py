"""Requests of clients, and their way through a Service: addresses, endpoints, kube-proxy's lag."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from gpujob_api.meta import LABEL_SERVICE
from gpujob_operator.observe.cache import Kind
from tests.simulation.api_server import AnyKind, ApiServer, Manifest, OtherKind
from tests.simulation.clock import Clock
from tests.simulation.machines import Machine
from tests.simulation.pods import FINAL, is_ready

# The longest time until every node's kube-proxy has a change.
LAG_SECONDS_MAX = 0.5
PORT = 8000


class End(Enum):
    """The end of a client's request."""

    ANSWERED = "answered"
    # 503 of a replica that drains, or a closed port.
    REFUSED = "refused"
    # 503 of a gate: no replica came in time.
    WAITED = "waited"
    # A process accepted the request, and is gone.
    LOST = "lost"
    # The Service has no address.
    NOWHERE = "nowhere"


@dataclass(slots=True, eq=False)
class Request:
    """One request for a service, by namespace/name. `ended` is called once."""

    service: str
    sent_at: float
    ended: Callable[[End], None]


class Process(Protocol):
    """A process that listens at the address of a pod."""

    machine: Machine
    ended: bool

    def accept(self, request: Request) -> bool:
        """Returns False if it refuses the request, or if nothing listens yet."""
        ...


def address_of(pod: Manifest) -> str:
    """Returns the pod's own IP address."""
    number = int(pod["metadata"]["uid"].removeprefix("uid-"))
    return f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"


class Network:
    """`listening` has the newest process of each address."""

    def __init__(self, clock: Clock, api: ApiServer) -> None:
        self._clock = clock
        self._api = api
        self.listening: dict[str, Process] = {}
        # Addresses behind each Service, by namespace/name.
        self._endpoints: dict[str, list[str]] = {}
        api.watchers.append(self._watch)
        api.restored.append(self._restored)

    def endpoints(self, service: str) -> list[str]:
        return self._endpoints.get(service, [])

    def reach(self, address: str) -> Process | None:
        """Returns the process at the address, or None if its machine does not run."""
        process = self.listening.get(address)
        if process is None or process.machine.gone or not process.machine.powered:
            return None
        return process

    def _restored(self) -> None:
        for service in set(self._endpoints):
            self._later(service)

    def _watch(self, kind: AnyKind, event_type: str, manifest: Manifest) -> None:
        del event_type
        name = manifest["metadata"].get("labels", {}).get(LABEL_SERVICE)
        if name is not None and kind in (Kind.POD, OtherKind.SERVICE):
            self._later(f"{manifest['metadata']['namespace']}/{name}")

    def _later(self, service: str) -> None:
        seconds = self._clock.random.uniform(0.05, LAG_SECONDS_MAX)
        self._clock.after(seconds, lambda: self._update(service))

    def _update(self, service: str) -> None:
        namespace, _, name = service.partition("/")
        front = next(
            (
                one["spec"]["selector"]
                for one in self._api.list(OtherKind.SERVICE)
                if (one["metadata"]["namespace"], one["metadata"]["name"]) == (namespace, name)
            ),
            None,
        )
        self._endpoints[service] = [
            address_of(pod)
            for pod in self._api.list(Kind.POD)
            if front is not None
            and pod["metadata"]["namespace"] == namespace
            and front.items() <= pod["metadata"].get("labels", {}).items()
            and takes_requests(pod)
        ]


def takes_requests(pod: Manifest) -> bool:
    """Returns whether a Service sends requests to the pod."""
    leaves = "deletionTimestamp" in pod["metadata"]
    return is_ready(pod) and not leaves and pod["status"]["phase"] not in FINAL
