"""The operator's client, answered by the simulated API server after a virtual while.

A request is on its way, or being served, whatever becomes of the process that sent it. Faults of
the seed and troubles of one namespace or object come in between.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

from gpujob_operator.act.kube import (
    GPU_NODES,
    JOBS,
    LEASES,
    NODES,
    PODS,
    PROFILES,
    QUEUES,
    REQUEST_SECONDS_MAX,
    SERVICES,
    ApiError,
    Kube,
    Listing,
    Manifest,
    ResourceType,
    Unavailable,
)
from gpujob_operator.observe.cache import Kind
from tests.simulation.api_server import AnyKind, ApiServer, OtherKind
from tests.simulation.clock import Clock
from tests.simulation.event_loop import VirtualLoop
from tests.simulation.faults import Faults
from tests.simulation.troubles import Request, Troubles

KINDS: dict[ResourceType, AnyKind] = {
    JOBS: Kind.JOB,
    GPU_NODES: Kind.GPU_NODE,
    QUEUES: Kind.QUEUE,
    PROFILES: Kind.PROFILE,
    PODS: Kind.POD,
    NODES: Kind.NODE,
    SERVICES: OtherKind.SERVICE,
    LEASES: OtherKind.LEASE,
}
# A full list is read, sent and parsed; nothing is decided on the cache meanwhile.
LIST_SECONDS = 0.15
_WITH_STATUS = frozenset({Kind.JOB, Kind.GPU_NODE, Kind.QUEUE, Kind.PROFILE})


class SimulatedKube(Kube):
    """Has the public methods of `Kube` but for watches. `requests` counts them by verb and kind."""

    def __init__(
        self,
        name: str,
        clock: Clock,
        api: ApiServer,
        loop: VirtualLoop,
        faults: Faults,
        troubles: Troubles,
        written: Callable[[], None],
    ) -> None:
        self._name = name
        self._clock = clock
        self._api = api
        self._loop = loop
        self._faults = faults
        self._troubles = troubles
        self._written = written
        self.requests: Counter[tuple[str, str]] = Counter()

    def known(self, kind: Kind) -> list[Manifest]:
        """What the server has, without asking it."""
        return self._api.list(kind)

    async def close(self) -> None:
        return None

    async def get(self, kind: ResourceType, name: str, namespace: str = "") -> Manifest:
        request = Request("get", KINDS[kind], namespace, name)
        return await self._ask(request, lambda: self._api.get(KINDS[kind], namespace, name))

    async def list(
        self,
        kind: ResourceType,
        namespace: str = "",
        *,
        label_selector: str = "",
        field_selector: str = "",
        whole: bool = False,
    ) -> Listing:
        def answer() -> Listing:
            return Listing(self._api.list(KINDS[kind]), str(self._api.version))

        return await self._ask(Request("list", KINDS[kind], "", ""), answer)

    async def create(self, kind: ResourceType, body: Manifest, namespace: str = "") -> Manifest:
        stored = {**body, "metadata": dict(body["metadata"])}
        if namespace:
            stored["metadata"]["namespace"] = namespace
        if KINDS[kind] in _WITH_STATUS:
            stored.pop("status", None)
        request = Request("create", KINDS[kind], namespace, body["metadata"]["name"])
        return await self._ask(request, lambda: self._api.create(KINDS[kind], stored, self._name))

    async def patch(
        self,
        kind: ResourceType,
        name: str,
        body: Manifest,
        namespace: str = "",
        *,
        subresource: str = "",
    ) -> Manifest:
        def effect() -> Manifest:
            spec = subresource != "status"
            return self._api.patch(KINDS[kind], namespace, name, body, self._name, spec=spec)

        return await self._ask(Request("patch", KINDS[kind], namespace, name), effect)

    async def replace(
        self, kind: ResourceType, name: str, body: Manifest, namespace: str = ""
    ) -> Manifest:
        def effect() -> Manifest:
            return self._api.replace(KINDS[kind], namespace, name, body, self._name)

        return await self._ask(Request("replace", KINDS[kind], namespace, name), effect)

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
        def effect() -> Manifest:
            answer = self._api.delete(
                KINDS[kind],
                namespace,
                name,
                self._name,
                uid=uid,
                version=resource_version,
                grace=grace_seconds,
            )
            return {"kind": KINDS[kind].value, **answer}

        return await self._ask(Request("delete", KINDS[kind], namespace, name), effect)

    async def _ask(self, request: Request, effect: Callable[[], Any]) -> Any:
        """The answer. It comes after the effect; an error may come before, or instead of it."""
        self.requests[request.verb, request.kind.value] += 1
        answer = self._loop.create_future()

        def say(result: Any) -> None:
            if answer.done():
                return
            if isinstance(result, ApiError):
                answer.set_exception(result)
            else:
                answer.set_result(result)

        def serve() -> None:
            result = self._serve(request, effect)
            self._loop.call_soon(say, result)

        seconds = self._seconds(request)
        limit = REQUEST_SECONDS_MAX
        if seconds > limit:
            # It happens all the same, when its client does not wait for it any more.
            late = Unavailable(0, "TimeoutError", f"no answer within {limit:.0f} s")
            self._loop.call_later(limit, say, late)
        self._clock.after(seconds, serve)
        return await answer

    def _seconds(self, request: Request) -> float:
        random = self._clock.random
        if request.verb == "list":
            return LIST_SECONDS * random.uniform(0.8, 1.2)
        if request.kind is OtherKind.LEASE or request.verb == "get":
            return random.uniform(0.001, 0.02)
        return self._faults.write_delay(random) + self._troubles.delay_seconds(request)

    def _serve(self, request: Request, effect: Callable[[], Any]) -> Any:
        """What the server answers: a result, or the error to raise."""
        writes = request.verb not in ("get", "list") and request.kind is not OtherKind.LEASE
        try:
            self._troubles.check(request)
            if writes:
                self._faults.before_write(self._clock.random)
            result = effect()
        except ApiError as error:
            return error
        if writes:
            self._written()
            if (error := self._troubles.after_effect(request)) is not None:
                return error
            if self._faults.loses_answer(self._clock.random):
                return Unavailable(0, "ServerDisconnectedError", "no answer")
        return result
