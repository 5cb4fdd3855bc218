"""One process's connection to the simulated API server, below the operator's own client.

Takes HTTP requests and answers them after a virtual while: with a status, headers and bytes, with a
stream that breaks or falls silent, or not at all. A request is on its way, or being served,
whatever becomes of the process that sent it. Faults of the seed and troubles of one namespace or
object come in between.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from datetime import datetime
from email.utils import format_datetime
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qs, urlsplit

import aiohttp

from gpujob_operator.client.api_errors import ApiError, Throttled
from gpujob_operator.client.kube import (
    CLAIMS,
    EVENTS,
    GPU_NODES,
    GPU_SERVICES,
    JOBS,
    LEASES,
    NODES,
    PODS,
    PROFILES,
    QUEUES,
    SERVICES,
    TOKEN_REVIEWS,
    VOLUMES,
    Manifest,
    ResourceType,
)
from gpujob_operator.observe.cache import Kind
from tests.simulation.api_server import AnyKind, ApiServer, OtherKind
from tests.simulation.clock import Clock
from tests.simulation.event_loop import VirtualLoop
from tests.simulation.faults import Faults
from tests.simulation.quotas import PodQuotas
from tests.simulation.streams import Stream
from tests.simulation.troubles import Request, Troubles

KINDS: dict[ResourceType, AnyKind] = {
    JOBS: Kind.JOB,
    GPU_NODES: Kind.GPU_NODE,
    QUEUES: Kind.QUEUE,
    PROFILES: Kind.PROFILE,
    GPU_SERVICES: Kind.SERVICE,
    PODS: Kind.POD,
    NODES: Kind.NODE,
    VOLUMES: Kind.VOLUME,
    SERVICES: OtherKind.SERVICE,
    EVENTS: OtherKind.EVENT,
    LEASES: OtherKind.LEASE,
    TOKEN_REVIEWS: OtherKind.TOKEN_REVIEW,
    CLAIMS: OtherKind.CLAIM,
}
_BY_PLURAL = {resource.plural: kind for resource, kind in KINDS.items()}
_VERBS = {"GET": "get", "POST": "create", "PATCH": "patch", "PUT": "replace", "DELETE": "delete"}
# A full list is read, sent and parsed; nothing is decided on the cache meanwhile.
LIST_SECONDS = 0.15
# A server may give fewer objects than a page could have.
PAGE_OBJECTS = 10
# Neither changes what a job is: no fault and no trouble of a seed meets them.
_QUIET = frozenset({OtherKind.LEASE, OtherKind.TOKEN_REVIEW})
_WITH_STATUS = frozenset({Kind.JOB, Kind.GPU_NODE, Kind.QUEUE, Kind.PROFILE, Kind.SERVICE})


@lru_cache(maxsize=4096)
def request_of(method: str, path: str, *, dry_run: bool = False) -> tuple[Request, str]:
    """What a request asks for, and the subresource."""
    parts = path.strip("/").split("/")
    parts = parts[2:] if parts[0] == "api" else parts[3:]
    namespace = ""
    if parts[0] == "namespaces":
        namespace, parts = parts[1], parts[2:]
    plural, name, subresource = (*parts, "", "")[:3]
    verb = "list" if method == "GET" and not name else _VERBS[method]
    verb = "try" if verb == "create" and dry_run else verb
    return Request(verb, _BY_PLURAL[plural], namespace, name), subresource


@lru_cache(maxsize=4096)
def _address(url: str) -> tuple[str, Mapping[str, str]]:
    address = urlsplit(url)
    return address.path, {name: values[0] for name, values in parse_qs(address.query).items()}


@lru_cache(maxsize=64)
def _date(second: datetime) -> str:
    return format_datetime(second)


class Answer:
    """As much of `aiohttp.ClientResponse` as the client uses."""

    def __init__(
        self, status: int, headers: Mapping[str, str], chunks: AsyncIterator[bytes], close: Any
    ) -> None:
        self.status = status
        self.headers = headers
        self.content = self
        self.response = self
        self._chunks = chunks
        self._close = close

    def iter_chunked(self, _: int) -> AsyncIterator[bytes]:
        return self._chunks

    async def read(self) -> bytes:
        return b"".join([chunk async for chunk in self._chunks])

    def release(self) -> None:
        self._close()

    def close(self) -> None:
        self._close()


class Connection:
    """Has the methods of `kubernetes.aio.client.ApiClient` that the operator's client calls.

    `requests` counts requests by verb and kind; `written` is called after each write.
    """

    def __init__(
        self,
        name: str,
        clock: Clock,
        api: ApiServer,
        loop: VirtualLoop,
        faults: Faults,
        troubles: Troubles,
        quotas: PodQuotas,
        written: Callable[[], None],
    ) -> None:
        self.rest_client = self
        self.requests: Counter[tuple[str, str]] = Counter()
        self.api = api
        self._name = name
        self._clock = clock
        self._loop = loop
        self._faults = faults
        self._troubles = troubles
        self._quotas = quotas
        self._written = written
        self._streams: set[Stream] = set()
        self._pages: dict[str, list[Manifest]] = {}

    async def update_params_for_auth(self, *_: Any) -> None:
        return None

    async def close(self) -> None:
        self.cut()

    def cut(self) -> None:
        """The process is gone: its streams are."""
        for stream in list(self._streams):
            stream.close()
        self._streams.clear()

    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        body: Manifest | None,
        _request_timeout: aiohttp.ClientTimeout,
    ) -> Answer:
        """The answer. It comes after the effect; an error may come before, or instead of it."""
        path, query = _address(url)
        request, subresource = request_of(method, path, dry_run="dryRun" in query)
        if request.verb in ("create", "try") and body is not None:
            request = replace(request, name=body.get("metadata", {}).get("name", ""))
        if "watch" in query:
            return await self._watch(request.kind, query)
        if "continue" not in query:
            self.requests[request.verb, request.kind.value] += 1
        text, sent_at = json.dumps(body), self._clock.now
        if (request.verb, request.kind) == ("create", Kind.POD):
            asked_at = self._loop.awake_seconds
            self.api.asked_for_pod(
                request.namespace,
                request.name,
                self._name,
                lambda: self._loop.awake_seconds - asked_at,
            )

        def effect() -> Manifest:
            return self._effect(request, subresource, query, json.loads(text), sent_at)

        result = await self._ask(request, effect, _request_timeout.total or 0.0)
        return self._answer(result)

    # -- requests

    async def _ask(self, request: Request, effect: Callable[[], Any], limit: float) -> Any:
        answer = self._loop.create_future()

        def say(result: Any) -> None:
            if not answer.done():
                answer.set_result(result)

        def late() -> None:
            if not answer.done():
                answer.set_exception(TimeoutError(f"no answer within {limit:.0f} s"))

        seconds = self._seconds(request)
        if seconds > limit:
            # It happens all the same, when its client does not wait for it any more.
            self._loop.call_later(limit, late)
        self._clock.after(seconds, lambda: self._loop.call_soon(say, self._serve(request, effect)))
        return await answer

    def _seconds(self, request: Request) -> float:
        random = self._clock.random
        if request.verb == "list":
            return LIST_SECONDS * random.uniform(0.8, 1.2)
        if request.kind in _QUIET or request.verb == "get":
            return random.uniform(0.001, 0.02)
        if (request.verb, request.kind) == ("create", Kind.POD) and self._faults.late_pods:
            return self._faults.late_pods.pop(0)
        return self._faults.write_delay(random) + self._troubles.delay_seconds(request)

    def _serve(self, request: Request, effect: Callable[[], Any]) -> Any:
        """What the server answers: an object, or an error; None: nothing."""
        writes = request.verb not in ("get", "list") and request.kind not in _QUIET
        try:
            self._troubles.check(request)
            self._quotas.check(request)
            if writes:
                self._faults.before_write(self._clock.random)
            result = effect()
        except ApiError as error:
            return error
        if writes:
            if request.verb != "try":
                self._written()
            if (error := self._troubles.after_effect(request)) is not None:
                return error
            if self._faults.loses_answer(self._clock.random):
                return None
        return result

    def _effect(
        self,
        request: Request,
        subresource: str,
        query: Mapping[str, str],
        body: Any,
        sent_at: float,
    ) -> Manifest:
        kind, key = request.kind, (request.namespace, request.name)
        match request.verb:
            case "get" if kind is OtherKind.CLAIM:
                return {"metadata": {"namespace": request.namespace, "name": request.name}}
            case "get":
                return self.api.get(kind, *key)
            case "list":
                return self._page(kind, query)
            case "create":
                return self._create(request, body, sent_at)
            case "try":
                self.api.require_free_name(kind, *key)
                return body
            case "patch":
                spec = subresource != "status"
                return self.api.patch(kind, *key, body, self._name, spec=spec, parsed=True)
            case "replace":
                if subresource == "status":
                    return self.api.replace_status(kind, *key, body, self._name)
                return self.api.replace(kind, *key, body, self._name)
            case _:
                return self._delete(request, body)

    def _page(self, kind: AnyKind, query: Mapping[str, str]) -> Manifest:
        """A list is of one moment, however many pages it has."""
        version, _, start = query.get("continue", f"{self.api.version}/0").partition("/")
        key = f"{kind.value}/{version}"
        items = self._pages.setdefault(key, self.api.list(kind))
        end = int(start) + min(PAGE_OBJECTS, int(query["limit"]))
        metadata = {"resourceVersion": version}
        if end < len(items):
            metadata["continue"] = f"{version}/{end}"
        else:
            del self._pages[key]
        return {"items": items[int(start) : end], "metadata": metadata}

    def _create(self, request: Request, body: Manifest, sent_at: float) -> Manifest:
        if request.kind is OtherKind.TOKEN_REVIEW:
            return self.api.review(body)
        if request.kind is OtherKind.EVENT:
            return body
        if request.namespace:
            body["metadata"]["namespace"] = request.namespace
        if request.kind in _WITH_STATUS:
            body.pop("status", None)
        return self.api.create(request.kind, body, self._name, sent_at)

    def _delete(self, request: Request, options: Manifest) -> Manifest:
        """Where the object stays for a while it is the answer, as on a real server."""
        wanted: Manifest = options["preconditions"]
        answer = self.api.delete(
            request.kind,
            request.namespace,
            request.name,
            self._name,
            uid=wanted["uid"],
            version=wanted.get("resourceVersion", ""),
            grace=options.get("gracePeriodSeconds"),
        )
        if self.api.find(request.kind, wanted["uid"]) is None:
            return {"kind": "Status", "status": "Success"}
        return {"kind": request.kind.value, **answer}

    def _answer(self, result: Any) -> Answer:
        status, headers, body = (
            200,
            {"Date": _date(self._clock.moment.replace(microsecond=0))},
            result,
        )
        if result is None or (isinstance(result, ApiError) and result.status == 0):
            raise aiohttp.ServerDisconnectedError("no answer")
        if isinstance(result, ApiError):
            status = result.status
            body = {"kind": "Status", "reason": result.reason, "message": result.message}
            if isinstance(result, Throttled) and result.retry_after_seconds is not None:
                headers["Retry-After"] = f"{result.retry_after_seconds:.0f}"
        return Answer(status, headers, _once(json.dumps(body).encode()), lambda: None)

    # -- streams

    async def _watch(self, kind: AnyKind, query: Mapping[str, str]) -> Answer:
        await asyncio.sleep(self._clock.random.uniform(0.001, 0.02))
        version = int(query["resourceVersion"])
        if self._faults.refuses_watch(self._clock.now):
            return self._answer(ApiError(503, "ServiceUnavailable", "the server is overloaded"))
        if version < self.api.oldest_version(kind):
            return self._answer(ApiError(410, "Expired", "too old resource version"))
        stream = Stream(self._clock, self.api, self._loop, self._faults, kind, version)
        stream.ends_after(float(query["timeoutSeconds"]))
        self._streams.add(stream)

        def close() -> None:
            stream.close()
            self._streams.discard(stream)

        return Answer(200, {}, stream.chunks(), close)


async def _once(data: bytes) -> AsyncIterator[bytes]:
    yield data
