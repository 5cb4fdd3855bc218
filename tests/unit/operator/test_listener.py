"""No client holds a connection for nothing, and none takes all of them."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
import pytest
from aiohttp import web

from gpujob_operator.port.listener import ConnectionLimits, listening

SOON = ConnectionLimits(headers_seconds_max=0.2, idle_seconds_max=0.2)
HEADER = b"POST /report HTTP/1.1\r\nHost: x\r\n"
EMPTY = HEADER + b"Content-Length: 0\r\n\r\n"
PATIENCE_SECONDS = 20.0


@dataclass
class Server:
    port: int
    slow: asyncio.Event = field(default_factory=asyncio.Event)
    connections: list["Connection"] = field(default_factory=list["Connection"])

    async def connect(self, data: bytes = b"") -> "Connection":
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(data)
        connection = Connection(reader, writer)
        self.connections.append(connection)
        return connection


@dataclass
class Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()

    async def ended(self) -> bool:
        """True once the server has closed it; reads and drops what is sent until then."""
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while await self.reader.read(1000):
                    pass
        except ConnectionError:
            pass
        except TimeoutError:
            return False
        return True

    async def answer(self) -> bytes:
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self.reader.readuntil(b"done")


@asynccontextmanager
async def serving(limits: ConnectionLimits) -> AsyncGenerator[Server]:
    application = web.Application()
    server = Server(0)

    async def report(request: web.Request) -> web.Response:
        await request.read()
        if "slow" in request.query:
            await server.slow.wait()
        return web.Response(text="done")

    application.router.add_post("/report", report)
    async with listening(application, "127.0.0.1", 0, limits) as url:
        server.port = int(url.rpartition(":")[2])
        try:
            yield server
        finally:
            for connection in server.connections:
                await connection.close()


@pytest.mark.parametrize("sent", [b"", HEADER, b"P", b"\x00" * 100])
async def test_who_does_not_finish_a_header_is_cut_off(sent: bytes) -> None:
    async with serving(SOON) as server:
        connection = await server.connect(sent)
        assert await connection.ended()


async def test_bytes_that_trickle_in_do_not_extend_the_time() -> None:
    async with serving(SOON) as server:
        connection = await server.connect(HEADER)
        started, ended = time.monotonic(), asyncio.ensure_future(connection.ended())
        while not ended.done() and time.monotonic() - started < PATIENCE_SECONDS:
            connection.writer.write(b"X")
            await asyncio.sleep(0.02)
        assert await ended


async def test_a_connection_serves_many_requests_and_ends_when_idle() -> None:
    async with serving(SOON) as server:
        connection = await server.connect()
        for _ in range(5):
            connection.writer.write(EMPTY)
            assert (await connection.answer()).startswith(b"HTTP/1.1 200")
        assert await connection.ended()


async def test_the_next_header_of_a_connection_has_its_time_too() -> None:
    limits = ConnectionLimits(headers_seconds_max=0.2, idle_seconds_max=3600)
    async with serving(limits) as server:
        connection = await server.connect(EMPTY)
        await connection.answer()
        connection.writer.write(HEADER)
        assert await connection.ended()


async def test_the_clock_stands_still_while_a_request_is_answered() -> None:
    async with serving(SOON) as server:
        connection = await server.connect(EMPTY.replace(b"/report", b"/report?slow"))
        other = await server.connect()
        assert await other.ended(), "its time is over"
        server.slow.set()
        assert (await connection.answer()).startswith(b"HTTP/1.1 200")


async def test_one_address_cannot_take_all_connections() -> None:
    limits = ConnectionLimits(connections_per_address_max=3, headers_seconds_max=3600)
    async with serving(limits) as server:
        held = [await server.connect(HEADER) for _ in range(3)]
        assert await (await server.connect(EMPTY)).ended(), "one more than three"
        await held[0].close()
        # The server may hear of the end a moment later.
        assert any([await _is_answered(server) for _ in range(100)])


async def test_connections_are_bounded_in_all() -> None:
    limits = ConnectionLimits(connections_max=2, headers_seconds_max=3600)
    async with serving(limits) as server:
        for _ in range(2):
            await server.connect(HEADER)
        assert await (await server.connect(EMPTY)).ended()


async def _is_answered(server: Server) -> bool:
    try:
        async with aiohttp.ClientSession() as session:
            url = f"http://127.0.0.1:{server.port}/report"
            async with session.post(url) as answer:
                return answer.status == 200
    except aiohttp.ClientError:
        return False


@pytest.mark.parametrize(
    "sent",
    [
        b"GET @x HTTP/1.1\r\nHost: x\r\n\r\n",
        b"nonsense\r\n\r\n",
        HEADER + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n",
        HEADER + b"A: " + b"a" * 20_000 + b"\r\n\r\n",
    ],
)
async def test_what_is_no_request_is_answered_and_not_logged(
    sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Thousands of them a second would fill the log."""
    async with serving(ConnectionLimits()) as server:
        connection = await server.connect(sent)
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert b" 400 " in await connection.reader.readline()
        assert await connection.ended()
    assert caplog.records == []


async def test_a_fault_of_the_program_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    application = web.Application()

    async def fail(request: web.Request) -> web.Response:
        raise ValueError(request.path)

    application.router.add_get("/fails", fail)
    async with (
        listening(application, "127.0.0.1", 0) as url,
        aiohttp.ClientSession() as client,
        client.get(f"{url}/fails") as answer,
    ):
        assert answer.status == 500
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "ValueError: /fails" in caplog.text
