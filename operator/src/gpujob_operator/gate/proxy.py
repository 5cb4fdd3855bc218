"""Forwards requests over HTTP/1.1, each to one replica.

Bodies are streamed in both directions and never stored. A request is sent again only if a replica
refused the connection: then none of it was sent. A client that leaves ends its request at the
replica, too.
"""

import asyncio
import math
from collections.abc import AsyncGenerator, Callable, Mapping

from aiohttp import (
    ClientConnectorError,
    ClientError,
    ClientResponse,
    ClientSession,
    ClientTimeout,
    ConnectionTimeoutError,
    DummyCookieJar,
    TCPConnector,
    web,
)
from multidict import CIMultiDict
from yarl import URL

from gpujob_api.gate import GATE_READY_PATH
from gpujob_operator.gate.replicas import NoReplica, Replicas
from gpujob_operator.gate.traffic import Traffic

CONNECT_SECONDS_MAX = 2.0
RETRY_AFTER_SECONDS = 1.0
# RFC 9110, 7.6.1: they concern one connection. `Expect` was answered by this server.
_OF_A_CONNECTION = frozenset(
    {
        "connection",
        "expect",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
# Headers that the client would add.
_NOT_ADDED = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")


def client_session() -> ClientSession:
    """Returns a session for replicas.

    Each request has a connection of its own: on a kept one, the end of a replica cannot be told
    from a request that it has read.
    """
    return ClientSession(
        connector=TCPConnector(limit=0, force_close=True),
        timeout=ClientTimeout(total=None, sock_connect=CONNECT_SECONDS_MAX),
        cookie_jar=DummyCookieJar(),
        auto_decompress=False,
        skip_auto_headers=_NOT_ADDED,
    )


class Proxy:
    """Answers every path but that of its own readiness from a replica."""

    def __init__(
        self,
        traffic: Traffic,
        replicas: Replicas,
        session: ClientSession,
        monotonic: Callable[[], float],
    ) -> None:
        self._traffic = traffic
        self._replicas = replicas
        self._session = session
        self._monotonic = monotonic
        # The process ends soon, so that no connection may be kept.
        self.ends = False
        # No new request is taken.
        self.refuses = False

    def application(self) -> web.Application:
        application = web.Application()
        application.router.add_get(GATE_READY_PATH, self._ready)
        application.router.add_route("*", "/{path:.*}", self._answer)
        return application

    async def _ready(self, request: web.Request) -> web.Response:
        del request
        ready = self._replicas.known and not self.ends
        return web.json_response({"ready": ready}, status=200 if ready else 503)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if self.refuses:
            return self._problem(503, "this gate ends; send the request again")
        with self._traffic.request():
            try:
                return await self._forward(request)
            except NoReplica as error:
                return self._problem(503, str(error))

    def _problem(self, status: int, text: str) -> web.Response:
        headers = {"Retry-After": str(math.ceil(RETRY_AFTER_SECONDS))} if status == 503 else None
        response = web.json_response({"error": text}, status=status, headers=headers)
        # The rest of the body would be taken for the next request.
        response.force_close()
        return response

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        arrived_at = self._monotonic()
        while True:
            address = await self._replicas.next(arrived_at, request.content_length)
            with self._replicas.use(address):
                try:
                    answer = await self._send(request, address)
                except (ClientConnectorError, ConnectionTimeoutError):
                    self._replicas.refused(address)
                    continue
                except (ClientError, ConnectionError) as error:
                    if request.content.exception() is not None:
                        return self._problem(400, "the body of the request ended early")
                    return self._problem(502, _lost(address, error))
                async with answer:
                    return await self._pass_on(request, answer)

    async def _send(self, request: web.Request, address: str) -> ClientResponse:
        has_body = request.can_read_body
        return await self._session.request(
            request.method,
            URL(f"http://{address}{_target(request)}", encoded=True),
            headers=_passed(request.headers),
            data=_chunks(request) if has_body else None,
            allow_redirects=False,
        )

    async def _pass_on(self, request: web.Request, answer: ClientResponse) -> web.StreamResponse:
        headers = _passed(answer.headers)
        response = web.StreamResponse(status=answer.status, reason=answer.reason, headers=headers)
        if self.ends:
            response.force_close()
        await response.prepare(request)
        try:
            async for chunk in answer.content.iter_any():
                await response.write(chunk)
            await response.write_eof()
        except (ClientError, ConnectionError, asyncio.IncompleteReadError):
            # The head is sent. Only the end of the connection shows that the rest is missing.
            if request.transport is not None:
                request.transport.abort()
        return response


def _target(request: web.Request) -> str:
    """Returns the path and query as they were sent.

    A client may name a server before them, as to a proxy (RFC 9112, 3.2.2). It is not asked.
    """
    sent = request.raw_path
    return sent if sent.startswith("/") else request.rel_url.raw_path_qs


async def _chunks(request: web.Request) -> AsyncGenerator[bytes]:
    async for chunk in request.content.iter_any():
        yield chunk


def _passed(headers: Mapping[str, str]) -> CIMultiDict[str]:
    """Returns the headers that are not of one connection alone, in their order."""
    named = headers.get("Connection", "")
    dropped = _OF_A_CONNECTION | {one.strip().lower() for one in named.split(",")}
    return CIMultiDict(
        [(name, text) for name, text in headers.items() if name.lower() not in dropped]
    )


def _lost(address: str, error: Exception) -> str:
    return (
        f"the replica at {address} ended the connection before its answer, and the request may "
        f"have been executed: {type(error).__name__}: {error}"
    )
