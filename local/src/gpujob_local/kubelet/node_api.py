"""The Kubernetes API for a process node: asynchronous, with retries and few calls."""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, TypeVar
from urllib.parse import urlencode

import aiohttp

from gpujob_local.control_plane.api_client import ApiError, Json, headers, ssl_context
from gpujob_local.control_plane.identity import Identity

REQUEST_LIMIT_SECONDS = 15.0
RETRY_SECONDS_MIN, RETRY_SECONDS_MAX = 0.1, 2.0
WATCH_SECONDS = 300
# One line of a watch is one object, and the API server stores none above 1.5 MiB.
LINE_BYTES_MAX = 4 * 1024 * 1024

T = TypeVar("T")


class NodeApi:
    """Requests that answer or raise. Use `patiently` for those that must succeed."""

    def __init__(self, identity: Identity) -> None:
        self._server = identity.server
        self._identity = identity
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> "NodeApi":
        connector = aiohttp.TCPConnector(ssl=ssl_context(self._identity), limit=32)
        self._session = aiohttp.ClientSession(connector=connector, read_bufsize=LINE_BYTES_MAX)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def request(
        self, method: str, path: str, body: Json | None = None, content: str = "application/json"
    ) -> Json:
        """Sends a request. Raises `ApiError` on refusal, and `OSError` or `TimeoutError` without an
        answer.
        """
        assert self._session is not None, "use it as a context manager"
        async with self._session.request(
            method,
            self._server + path,
            data=None if body is None else json.dumps(body),
            headers=headers(self._identity, content),
            timeout=aiohttp.ClientTimeout(total=REQUEST_LIMIT_SECONDS),
        ) as response:
            answer = await response.read()
            if response.status >= 400:
                raise ApiError.from_body(response.status, answer)
            return json.loads(answer)

    async def get(self, path: str) -> Json:
        return await self.request("GET", path)

    async def watch(self, path: str, **parameters: str) -> AsyncGenerator[tuple[str, Any]]:
        """Yields ("SYNC", all items) first and after every gap, then (ADDED, item) and so on,
        endlessly.
        """
        delay = RETRY_SECONDS_MIN
        while True:
            try:
                listing = await self.get(f"{path}?{urlencode(parameters)}")
                yield "SYNC", listing["items"]
                delay = RETRY_SECONDS_MIN
                version = listing["metadata"]["resourceVersion"]
                async for kind, item in self._events(path, version, parameters):
                    yield kind, item
            except (OSError, aiohttp.ClientError, TimeoutError, ApiError, ValueError):
                await asyncio.sleep(delay)
                delay = min(RETRY_SECONDS_MAX, delay * 2)

    async def _events(
        self, path: str, version: str, parameters: dict[str, str]
    ) -> AsyncGenerator[tuple[str, Json]]:
        assert self._session is not None
        query = parameters | {
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        limit = aiohttp.ClientTimeout(total=None, sock_connect=REQUEST_LIMIT_SECONDS)
        url = f"{self._server}{path}?{urlencode(query)}"
        async with self._session.get(url, headers=headers(self._identity), timeout=limit) as stream:
            if stream.status != 200:
                raise ApiError.from_body(stream.status, await stream.read())
            async for line in stream.content:
                event = json.loads(line)
                if event["type"] == "ERROR":
                    return
                if event["type"] != "BOOKMARK":
                    yield event["type"], event["object"]


async def patiently(call: Callable[[], Awaitable[T]], *, forbidden_is_later: bool = False) -> T:
    """Repeats a call until it is answered. Waits at most 2 s in between, and ends by cancellation.

    Refusals are raised, except those that mean "later" (429, 5xx). `forbidden_is_later` is for
    calls that a node may always make, because an API server has no roles for a moment after its
    start.
    """
    later = (401, 403, 429) if forbidden_is_later else (429,)
    delay = RETRY_SECONDS_MIN
    while True:
        with suppress(OSError, aiohttp.ClientError, TimeoutError):
            try:
                return await call()
            except ApiError as error:
                if error.code not in later and error.code < 500:
                    raise
        await asyncio.sleep(delay)
        delay = min(RETRY_SECONDS_MAX, delay * 2)
