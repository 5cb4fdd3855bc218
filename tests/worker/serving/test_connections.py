"""Idle and slow connections cost a server nothing but their own end. Real sockets on loopback."""

import asyncio
import json
import resource
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from gpujob_api.serving import ServingReport
from gpujob_worker.serving.connections import (
    CONNECTIONS_MAX,
    DESCRIPTORS_KEPT,
    Connection,
    ConnectionLimits,
    Connections,
    connections_max,
)
from gpujob_worker.serving.front import Ending, Front
from gpujob_worker.serving.intake import Limits
from gpujob_worker.serving.lifecycle import Lifecycle
from gpujob_worker.serving.listening import bound_socket
from gpujob_worker.serving.server import Server, Service
from tests.worker.serving.served import SIGNATURE, FakeQueue, request_of

# Limits that no test reaches, unless it sets them.
NEVER = 3600.0
SHORT = 0.5
SECONDS_MAX = 60.0
HEAD = b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n"
WHOLE = HEAD + b"\r\n"
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass
class Listening:
    server: Server
    port: int
    writers: list[asyncio.StreamWriter] = field(default_factory=list[asyncio.StreamWriter])

    @property
    def connections(self) -> Connections:
        return self.server.connections

    async def connect(self, *parts: bytes) -> Stream:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.writers.append(writer)
        for part in parts:
            writer.write(part)
        return reader, writer

    async def connected(self, count: int) -> list[Stream]:
        """Connects without a request, and waits until the server has noticed."""
        found = [await self.connect() for _ in range(count)]
        await until(lambda: len(self.connections.open) == count)
        return found


@asynccontextmanager
async def listening(
    limits: ConnectionLimits, queue: FakeQueue | None = None, intake: Limits | None = None
) -> AsyncGenerator[Listening]:
    submit = (queue or FakeQueue()).submit
    service = Service("m", SIGNATURE, submit, ServingReport, lambda: True)
    lifecycle = Lifecycle()
    server = Server(service, lifecycle, intake, limits)
    stops = asyncio.Event()
    ending = Ending(
        requested=stops.is_set,
        remaining_seconds=lambda: SECONDS_MAX,
        drain=lambda seconds: True,
        abandon=lambda: None,
        begins=lambda: None,
        delay_seconds=lambda: 0.0,
    )
    started = asyncio.Event()
    listener = bound_socket("127.0.0.1", 0)
    found = Listening(server, listener.getsockname()[1])
    running = asyncio.create_task(Front(server, lifecycle, ending).run(listener, started.set))
    await asyncio.wait_for(started.wait(), SECONDS_MAX)
    try:
        yield found
    finally:
        for writer in found.writers:
            writer.transport.abort()
        stops.set()
        assert await asyncio.wait_for(running, SECONDS_MAX)
    assert not found.connections.open
    assert not found.connections.idle


def limits(connections: int = 100, **seconds: float) -> ConnectionLimits:
    known = {"head_seconds": NEVER, "idle_seconds": NEVER, "settled_seconds": 0.0}
    return ConnectionLimits(connections, **{**known, **seconds})


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS_MAX):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def rest(stream: Stream) -> bytes:
    """Returns what the server sends until it closes the connection."""
    return await asyncio.wait_for(stream[0].read(), SECONDS_MAX)


async def answer(stream: Stream, request: bytes = WHOLE) -> bytes:
    """Sends a request, and returns the response."""
    reader, writer = stream
    writer.write(request)
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), SECONDS_MAX)
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    return head + await asyncio.wait_for(reader.readexactly(length), SECONDS_MAX)


def post(value: float) -> bytes:
    body = json.dumps(request_of([value, value])).encode()
    head = f"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def test_a_head_that_does_not_end_is_answered_with_408() -> None:
    async with listening(limits(head_seconds=SHORT)) as found:
        slow = await found.connect(HEAD)
        text = await rest(slow)
        assert text.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
        error = json.loads(text.split(b"\r\n\r\n")[1])["error"]
        assert error == "the request line and headers must arrive within 0.5 s"


async def test_a_head_in_drops_does_not_extend_its_time() -> None:
    """Slowloris: each byte comes in time, and the head never ends."""
    async with listening(limits(head_seconds=SHORT)) as found:
        reader, writer = await found.connect(HEAD)

        async def drip() -> None:
            while not reader.at_eof():
                writer.write(b"X-Drop: 1\r\n")
                await asyncio.sleep(0.01)

        dripping = asyncio.create_task(drip())
        text = await asyncio.wait_for(reader.readline(), SECONDS_MAX)
        dripping.cancel()
        assert b" 408 " in text


async def test_others_are_answered_beside_slow_heads() -> None:
    async with listening(limits()) as found:
        slow = [await found.connect(HEAD[:-2]) for _ in range(50)]
        assert b" 200 " in await answer(await found.connect())
        # A head that ends after all is a request like any other.
        assert b" 200 " in await answer(slow[0], b"\r\n\r\n")


async def test_a_connection_without_requests_is_closed() -> None:
    async with listening(limits(idle_seconds=SHORT)) as found:
        assert await rest(await found.connect()) == b""


async def test_a_connection_is_kept_for_the_next_request_and_then_closed() -> None:
    async with listening(limits(idle_seconds=SHORT)) as found:
        stream = await found.connect()
        assert b" 200 " in await answer(stream)
        assert await rest(stream) == b""
    async with listening(limits()) as found:
        stream = await found.connect()
        for _ in range(3):
            assert b" 200 " in await answer(stream)
        assert len(found.connections.open) == 1


async def test_a_request_that_takes_long_is_not_idle() -> None:
    queue = FakeQueue(answers_at_once=False)
    short = limits(head_seconds=SHORT, idle_seconds=SHORT)
    async with listening(short, queue) as found:
        stream = await found.connect(post(4.0))
        await until(lambda: bool(queue.waiting))
        # Another connection outlives both limits meanwhile.
        assert await rest(await found.connect()) == b""
        assert b" 408 " in await rest(await found.connect(HEAD))
        queue.answer()
        assert b"8.0" in await rest(stream)


async def test_beyond_the_limit_the_oldest_idle_connection_makes_room() -> None:
    async with listening(limits(3)) as found:
        first, second, third = await found.connected(3)
        assert b" 200 " in await answer(first), "it is the newest one now"
        fourth = await found.connect()
        assert b" 200 " in await answer(fourth)
        assert await rest(second) == b""
        assert (found.connections.closed, found.connections.refused) == (1, 0)
        for stream in (first, third, fourth):
            assert b" 200 " in await answer(stream)


class IdleTransport(asyncio.Transport):
    """Reports its end later, as every transport does."""

    _closed = False

    def close(self) -> None:
        self._closed = True

    def is_closing(self) -> bool:
        return self._closed

    def get_write_buffer_size(self) -> int:
        return 0


async def test_an_idle_connection_makes_room_for_one_other_only() -> None:
    """The server accepts several at once, before the end of a closed one reaches it."""
    owner = Connections(limits(1))
    transports = [IdleTransport() for _ in range(3)]
    for transport in transports:
        Connection(owner, asyncio.Protocol()).connection_made(transport)
    assert [one.is_closing() for one in transports] == [True, True, False]
    assert (owner.closed, owner.refused) == (2, 0)


@pytest.mark.parametrize("state", ["busy", "head", "new"])
async def test_beyond_the_limit_a_connection_in_use_is_never_closed(state: str) -> None:
    queue = FakeQueue(answers_at_once=False)
    settled_seconds = NEVER if state == "new" else 0.0
    async with listening(limits(2, settled_seconds=settled_seconds), queue) as found:
        streams = await found.connected(2)
        parts = {"busy": post(2.0), "head": HEAD, "new": b""}
        for _, writer in streams:
            writer.write(parts[state])
        if state != "new":
            await until(lambda: not found.connections.idle)
        refused = await rest(await found.connect(WHOLE))
        assert refused.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
        assert b"Retry-After: 1\r\n" in refused
        assert b"2 connections are in use, which is the limit" in refused
        assert found.connections.refused == 1
        if state == "busy":
            await until(lambda: len(queue.waiting) == 2)
            queue.answer()
            for reader, _ in streams:
                assert b" 200 " in await asyncio.wait_for(reader.readline(), SECONDS_MAX)


async def test_connections_that_leave_make_room() -> None:
    async with listening(limits(2, settled_seconds=NEVER)) as found:
        for _ in range(5):
            for _, writer in await found.connected(2):
                writer.close()
            await until(lambda: not found.connections.open)
        assert found.connections.refused == 0


async def test_an_answer_that_is_not_taken_ends_with_its_connection() -> None:
    """The client sends requests and reads nothing, until the server cannot write any more."""
    async with listening(limits(idle_seconds=SHORT, head_seconds=SHORT)) as found:
        _, writer = await found.connect()
        writer.transport.pause_reading()  # pyright: ignore[reportAttributeAccessIssue]
        metrics = b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"
        for _ in range(200):
            writer.write(metrics * 50)
        await until(lambda: not found.connections.open)


async def test_the_rest_of_a_refused_body_gets_no_second_answer() -> None:
    short = limits(head_seconds=SHORT)
    async with listening(short, intake=Limits(requests=0)) as found:
        reader, writer = await found.connect(post(1.0))
        first = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), SECONDS_MAX)
        assert b" 503 " in first
        writer.write(b"{")
        assert b"HTTP/1.1" not in await rest((reader, writer))


@pytest.mark.parametrize("sent", [b"GET @x HTTP/1.1\r\n\r\n", b"nonsense\r\n\r\n"])
async def test_what_is_no_request_is_answered_and_not_logged(
    sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with listening(limits()) as found:
        assert b" 400 " in await rest(await found.connect(sent))
    assert caplog.records == []


@pytest.mark.parametrize(
    ("soft", "number"),
    [
        (1024, 1024 - DESCRIPTORS_KEPT),
        (10**6, CONNECTIONS_MAX),
        (resource.RLIM_INFINITY, CONNECTIONS_MAX),
        (64, 16),
    ],
)
def test_the_number_follows_the_limit_of_open_files(
    monkeypatch: pytest.MonkeyPatch, soft: int, number: int
) -> None:
    def known(_: int) -> tuple[int, int]:
        return soft, resource.RLIM_INFINITY

    monkeypatch.setattr(resource, "getrlimit", known)
    assert connections_max() == number
