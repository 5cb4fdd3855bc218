"""The Kubernetes API as raw JSON objects, over the connection of the `kubernetes.aio` client.

The client provides configuration, authentication and the connection pools. Its generated models
take about four times the CPU time of the call itself, so this module reads and writes plain
objects.

Some connections are kept and used in turn. Others are transient: aiohttp closes them after some
idle seconds. Lists and watches use transient ones, because the buffer of a connection that has
carried a large answer stays as large while the connection is open. Calls beyond `CONNECTIONS_KEPT`
at a time also use transient ones, because one burst would otherwise keep a connection for each
call.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio import client

from gpujob_api.manifest import GPUJOB, GPUNODE, GPUPROFILE, GPUQUEUE, GPUSERVICE, Resource
from gpujob_api.meta import GROUP, VERSION
from gpujob_operator.client.api_errors import (
    ApiError,
    Silent,
    TooLarge,
    Unavailable,
    error_of_status,
)
from gpujob_operator.client.list_pages import PAGE_OBJECTS, ListPages
from gpujob_operator.client.streams import TooLong, lines, parsed, read_event, whole, without_bulk

Manifest = dict[str, Any]

MERGE_PATCH = "application/merge-patch+json"
REQUEST_SECONDS_MAX = 5.0
LIST_SECONDS_MAX = 60.0
CHUNK_BYTES = 256 * 1024
# They are used in turn, so none is ever idle for long enough to be closed.
CONNECTIONS_KEPT = 16
# The API server would compress large answers, which costs both sides CPU time.
_HEADERS = {"Accept": "application/json", "Accept-Encoding": "identity"}
# Bookmarks come about once a minute. A longer silence means that the stream is dead.
WATCH_SILENCE_SECONDS_MAX = 70.0


@dataclass(frozen=True, slots=True)
class ResourceType:
    """The group, version and plural name of a kind in the API."""

    group: str
    version: str
    plural: str
    namespaced: bool

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        parts = ["/apis", self.group, self.version] if self.group else ["/api", self.version]
        if namespace and self.namespaced:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        return "/".join([*parts, *(part for part in (name, subresource) if part)])


def _ours(resource: Resource) -> ResourceType:
    return ResourceType(GROUP, VERSION, resource.plural, resource.namespaced)


JOBS = _ours(GPUJOB)
GPU_NODES = _ours(GPUNODE)
QUEUES = _ours(GPUQUEUE)
PROFILES = _ours(GPUPROFILE)
GPU_SERVICES = _ours(GPUSERVICE)
PODS = ResourceType("", "v1", "pods", namespaced=True)
NODES = ResourceType("", "v1", "nodes", namespaced=False)
VOLUMES = ResourceType("", "v1", "persistentvolumes", namespaced=False)
SERVICES = ResourceType("", "v1", "services", namespaced=True)
CLAIMS = ResourceType("", "v1", "persistentvolumeclaims", namespaced=True)
EVENTS = ResourceType("", "v1", "events", namespaced=True)
LEASES = ResourceType("coordination.k8s.io", "v1", "leases", namespaced=True)
ENDPOINT_SLICES = ResourceType("discovery.k8s.io", "v1", "endpointslices", namespaced=True)
TOKEN_REVIEWS = ResourceType("authentication.k8s.io", "v1", "tokenreviews", namespaced=False)


@dataclass(frozen=True, slots=True)
class Listing:
    """A whole list, or what is kept of its objects."""

    items: list[Any]
    resource_version: str


def as_read(manifest: object) -> object:
    return manifest


class Kube:
    """A thin asynchronous client. Every call raises an `ApiError` on failure. Nothing is retried
    here.

    `after_write` is called after every successful write, so that tests can crash there. `heard` is
    called with the API server's time from the header of every answer.
    """

    def __init__(
        self,
        configuration: client.Configuration,
        after_write: Callable[[ResourceType], None] | None = None,
        heard: Callable[[str | None], None] = lambda date: None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._sleep = sleep
        self.configuration = configuration
        self._client = client.ApiClient(configuration)
        self._transient = client.ApiClient(configuration)
        # Calls in flight over the kept connections.
        self._kept_in_use = 0
        self._after_write = after_write
        self._heard = heard

    async def close(self) -> None:
        await self._client.close()
        await self._transient.close()

    async def get(self, kind: ResourceType, name: str, namespace: str = "") -> Manifest:
        return await self._call("GET", kind.path(namespace, name))

    async def list(
        self,
        kind: ResourceType,
        namespace: str = "",
        *,
        field_selector: str = "",
        whole: bool = False,
        condense: Callable[[object], object] = as_read,
        page_objects: int = PAGE_OBJECTS,
    ) -> Listing:
        """Returns all objects as of one resourceVersion, read in pages (`ListPages`).

        The objects are unchecked JSON. Unless `whole`, they lack large parts that are rarely read
        (`without_bulk`). `condense` decides what to keep of each object until the list is complete.
        """
        path = kind.path(namespace)

        def fetch(query: Mapping[str, str]) -> Awaitable[Manifest]:
            return self._call("GET", path, query=query, seconds=LIST_SECONDS_MAX, transient=True)

        def held(manifest: object) -> object:
            return condense(manifest if whole else without_bulk(manifest))

        pages = ListPages(fetch, self._sleep, _selector(field_selector), kind.plural, page_objects)
        items, metadata = await pages.read(held)
        return Listing(items, _version_of_list(kind, metadata))

    async def create(self, kind: ResourceType, body: Manifest, namespace: str = "") -> Manifest:
        return await self._write("POST", kind, kind.path(namespace), body)

    async def try_create(self, kind: ResourceType, body: Manifest, namespace: str = "") -> None:
        """Dry-runs `create`: raises the same errors and stores nothing."""
        await self._call("POST", kind.path(namespace), query={"dryRun": "All"}, body=body)

    async def patch(
        self,
        kind: ResourceType,
        name: str,
        body: Manifest,
        namespace: str = "",
        *,
        subresource: str = "",
    ) -> Manifest:
        """Sends a JSON merge patch. `metadata.resourceVersion` in the body is a precondition."""
        path = kind.path(namespace, name, subresource)
        return await self._write("PATCH", kind, path, body, content_type=MERGE_PATCH)

    async def replace(
        self,
        kind: ResourceType,
        name: str,
        body: Manifest,
        namespace: str = "",
        *,
        subresource: str = "",
    ) -> Manifest:
        """Replaces the whole object, or only the part named by `subresource`.

        `metadata.resourceVersion` in the body is a precondition.
        """
        return await self._write("PUT", kind, kind.path(namespace, name, subresource), body)

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
        """Deletes exactly the object with this UID and, if a `resource_version` is given, in this
        state.

        Raises `Conflict` for another object of the same name, or another state.
        """
        body: Manifest = {"kind": "DeleteOptions", "apiVersion": "v1"}
        body["preconditions"] = {"uid": uid}
        if resource_version:
            body["preconditions"]["resourceVersion"] = resource_version
        if grace_seconds is not None:
            body["gracePeriodSeconds"] = grace_seconds
        return await self._write("DELETE", kind, kind.path(namespace, name), body)

    async def watch(
        self,
        kind: ResourceType,
        resource_version: str,
        *,
        field_selector: str = "",
        seconds: int = 300,
    ) -> AsyncGenerator[Manifest, None]:
        """Yields the events after a resourceVersion until the server ends the stream.

        Bookmarks are included. A line that is not a valid event is yielded with the type
        `UNREADABLE` and its `problem`.
        """
        query = _selector(field_selector) | {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(seconds),
        }
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=REQUEST_SECONDS_MAX, sock_read=WATCH_SILENCE_SECONDS_MAX
        )
        response = await self._send("GET", kind.path(), query, None, "", timeout, transient=True)
        try:
            if response.status != 200:
                raise _error(response.status, response.headers, await response.read())
            with _connection_errors():
                async for line in lines(response.content.iter_chunked(CHUNK_BYTES)):
                    yield _watch_event(line)
        except TooLong as error:
            raise TooLarge(str(error)) from None
        finally:
            response.close()

    async def _write(
        self,
        method: str,
        kind: ResourceType,
        path: str,
        body: Manifest,
        content_type: str = "application/json",
    ) -> Manifest:
        answer = await self._call(method, path, body=body, content_type=content_type)
        if self._after_write is not None:
            self._after_write(kind)
        return answer

    async def _call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Manifest | None = None,
        content_type: str = "application/json",
        seconds: float = REQUEST_SECONDS_MAX,
        transient: bool = False,
    ) -> Manifest:
        limits = aiohttp.ClientTimeout(total=seconds)
        transient = transient or self._kept_in_use >= CONNECTIONS_KEPT
        self._kept_in_use += not transient
        try:
            sent = self._send(
                method, path, query or {}, body, content_type, limits, transient=transient
            )
            status, headers, data = await self._answer(await sent)
        finally:
            self._kept_in_use -= not transient
        if status >= 300:
            raise _error(status, headers, data)
        return _object(data)

    async def _answer(
        self, response: aiohttp.ClientResponse
    ) -> tuple[int, Mapping[str, str], bytes]:
        self._heard(response.headers.get("Date"))
        try:
            with _connection_errors():
                data = await whole(response.content.iter_chunked(CHUNK_BYTES))
        except TooLong as error:
            raise TooLarge(str(error)) from None
        finally:
            response.release()
        return response.status, response.headers, data

    async def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Manifest | None,
        content_type: str,
        limits: aiohttp.ClientTimeout,
        *,
        transient: bool,
    ) -> aiohttp.ClientResponse:
        headers = dict(_HEADERS)
        if content_type:
            headers["Content-Type"] = content_type
        await self._client.update_params_for_auth(headers, [], ["BearerToken"], path, method, body)
        url = f"{self.configuration.host}{path}"
        if query:
            url = f"{url}?{urlencode(query)}"
        connections = (self._transient if transient else self._client).rest_client
        with _connection_errors():
            answer = await connections.request(
                method, url, headers=headers, body=body, _request_timeout=limits
            )
        return answer.response


def _version_of_list(kind: ResourceType, metadata: Mapping[str, Any]) -> str:
    """Returns the list's version, or raises `Unavailable` if it is missing.

    Without it no watch could continue from the list, which would be requested again and again.
    """
    version = metadata.get("resourceVersion")
    if not isinstance(version, str) or not version:
        raise Unavailable(0, "BadAnswer", f"the list of {kind.plural} has no resourceVersion")
    return version


def _selector(fields: str) -> dict[str, str]:
    return {"fieldSelector": fields} if fields else {}


@contextlib.contextmanager
def _connection_errors() -> Any:
    try:
        yield
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raised = Silent if isinstance(error, aiohttp.SocketTimeoutError) else Unavailable
        raise raised(0, type(error).__name__, str(error)) from error


def _object(data: bytes) -> Manifest:
    """Returns the answer as an object, or raises `Unavailable`.

    If the answer is not an object, it is unknown whether the request took effect.
    """
    try:
        answer = parsed(data)
    except ValueError as error:
        raise Unavailable(0, "BadAnswer", f"is not JSON: {error}") from None
    if not isinstance(answer, dict):
        raise Unavailable(0, "BadAnswer", "is not a JSON object")
    return cast("Manifest", answer)


def _watch_event(line: bytes) -> Manifest:
    event = read_event(line)
    if event.get("type") == "ERROR":
        body = event["object"] if isinstance(event["object"], dict) else {}
        code = body.get("code")
        raise error_of_status(code if isinstance(code, int) else 500, body, None)
    return event


def _error(status: int, headers: Mapping[str, str], data: bytes) -> ApiError:
    try:
        body = _object(data)
    except Unavailable:
        body = {"message": data[:200].decode(errors="replace")}
    return error_of_status(status, body, headers.get("Retry-After"))
