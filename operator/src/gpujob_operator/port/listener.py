"""A listening socket that no single client can exhaust.

aiohttp's server waits forever for the rest of a header, and accepts as many connections as there
are descriptors. Here each connection has a deadline whenever no request is being answered.
Connections are counted, in total and by address. Requests that are no HTTP are answered with 400
and not logged, because anybody may send thousands of them a second.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """The limits of one socket.

    The limit per address stops an attacker, who has few addresses. It suffices for a node whose
    pods share an address.
    """

    connections_max: int = 8192
    connections_per_address_max: int = 256
    # From the first byte of a request, or from the connection's start, to the end of its headers.
    headers_seconds_max: float = 5.0
    # Between two requests of a connection.
    idle_seconds_max: float = 60.0
    # Of a body, before it is asked for. Twice as much may be read, and one chunk of 256 KiB beyond.
    read_ahead_bytes: int = 2**18


class Connections:
    """The open connections of one socket, within the limits."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self._guards: dict[asyncio.BaseTransport, _Guard] = {}
        self._by_address: Counter[str] = Counter()

    def admit(self, transport: asyncio.BaseTransport, guard: "_Guard") -> bool:
        """Counts the connection. Returns False if there are too many."""
        address = _address(transport)
        limits = self.limits
        if (
            len(self._guards) >= limits.connections_max
            or self._by_address[address] >= limits.connections_per_address_max
        ):
            return False
        self._guards[transport] = guard
        self._by_address[address] += 1
        return True

    def release(self, transport: asyncio.BaseTransport) -> None:
        if self._guards.pop(transport, None) is None:
            return
        address = _address(transport)
        self._by_address[address] -= 1
        if self._by_address[address] <= 0:
            del self._by_address[address]

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Stops the timer of the request's connection while the request is answered."""
        transport = request.transport
        guard = self._guards.get(transport) if transport is not None else None
        if guard is None:
            return await handler(request)
        guard.answering()
        try:
            return await handler(request)
        finally:
            guard.answered()


class _Guard(asyncio.Protocol):
    """Wraps aiohttp's protocol of one connection, and closes the connection in time."""

    def __init__(self, inner: asyncio.Protocol, connections: Connections) -> None:
        self._inner = inner
        self._connections = connections
        self._transport: asyncio.BaseTransport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._admitted = False
        # Whether it waits for the first byte of the next request.
        self._idle = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._admitted = self._connections.admit(transport, self)
        if not self._admitted:
            _abort(transport)
            return
        self._inner.connection_made(transport)
        self._close_in(self._connections.limits.headers_seconds_max)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        if self._admitted and self._transport is not None:
            self._connections.release(self._transport)
            self._inner.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self._admitted:
            return
        if self._idle:
            self._idle = False
            self._close_in(self._connections.limits.headers_seconds_max)
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received() if self._admitted else None

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def answering(self) -> None:
        self._idle = False
        self._stop_timer()

    def answered(self) -> None:
        self._idle = True
        self._close_in(self._connections.limits.idle_seconds_max)

    def _close_in(self, seconds: float) -> None:
        self._stop_timer()
        transport = self._transport
        if transport is not None and not transport.is_closing():
            self._timer = asyncio.get_running_loop().call_later(seconds, _abort, transport)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _is_fault(record: logging.LogRecord) -> bool:
    """Returns False for an error of a client."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


_faults = logging.getLogger(f"{__name__}.faults")
_faults.addFilter(_is_fault)


@asynccontextmanager
async def listening(
    application: web.Application,
    host: str,
    port: int,
    limits: ConnectionLimits | None = None,
    *,
    cancels: bool = False,
) -> AsyncGenerator[str]:
    """Serves an application within the limits. Yields its URL with the actual port.

    With `cancels`, a request ends when its client leaves.
    """
    limits = limits or ConnectionLimits()
    connections = Connections(limits)
    application.middlewares.append(connections.middleware)
    runner = web.AppRunner(
        application,
        access_log=None,
        shutdown_timeout=1.0,
        handler_cancellation=cancels,
        read_bufsize=limits.read_ahead_bytes,
        logger=_faults,
    )
    await runner.setup()
    try:
        handlers = runner.server
        assert handlers is not None, "set up"
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: _Guard(handlers(), connections), host, port)
        try:
            taken_host, taken_port = server.sockets[0].getsockname()[:2]
            yield f"http://{taken_host}:{taken_port}"
        finally:
            server.close()
    finally:
        await runner.cleanup()


def _address(transport: asyncio.BaseTransport) -> str:
    name = transport.get_extra_info("peername")
    return str(name[0]) if isinstance(name, tuple) and name else ""


def _abort(transport: asyncio.BaseTransport) -> None:
    if isinstance(transport, asyncio.Transport):
        transport.abort()
    else:
        transport.close()
