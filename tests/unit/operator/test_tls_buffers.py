"""What TLS connections hold, over real ones."""

import asyncio
import ssl
import tracemalloc
from asyncio import sslproto
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path

import pytest

from gpujob_local.control_plane.credentials import Authority
from gpujob_operator.client.connection import READ_BYTES, BadConnection, limit_read_buffers
from gpujob_operator.decide.planner import plan
from gpujob_operator.decide.services.plan import plan_services
from gpujob_operator.options import parse_arguments, run_options
from gpujob_operator.run import Operator

CONNECTIONS = 16
ANSWER = bytes(range(256)) * 16 * 1024

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture(autouse=True)
def as_python_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the test, the limit is what it was before."""
    monkeypatch.setattr(sslproto.SSLProtocol, "max_size", sslproto.SSLProtocol.max_size)


class _Server:
    """Answers a byte with `ANSWER`."""

    def __init__(self, folder: Path) -> None:
        self._authority = Authority(folder)
        self._files = self._authority.issue("server", "server")

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[int]:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*self._files)
        async with await asyncio.start_server(self._answer, "127.0.0.1", 0, ssl=context) as server:
            yield server.sockets[0].getsockname()[1]

    async def connect(self, port: int) -> Connection:
        context = ssl.create_default_context(cafile=self._authority.path)
        return await asyncio.open_connection("127.0.0.1", port, ssl=context)

    @staticmethod
    async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer):
            while await reader.read(1):
                writer.write(ANSWER)
                await writer.drain()


async def _held_bytes(server: _Server) -> float:
    """By both ends of a connection that stays open."""
    async with server.running() as port, AsyncExitStack() as stack:
        tracemalloc.start()
        stack.callback(tracemalloc.stop)
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(CONNECTIONS):
            _, writer = await server.connect(port)
            stack.enter_context(closing(writer))
        after, _ = tracemalloc.get_traced_memory()
        return (after - before) / CONNECTIONS


async def test_a_connection_holds_a_few_records(tmp_path: Path) -> None:
    limit_read_buffers()
    assert 2 * READ_BYTES < await _held_bytes(_Server(tmp_path)) < 3 * READ_BYTES


async def test_an_answer_larger_than_the_buffer_arrives_whole(tmp_path: Path) -> None:
    limit_read_buffers()
    server = _Server(tmp_path)
    async with server.running() as port:
        reader, writer = await server.connect(port)
        with closing(writer):
            writer.write(b"?")
            assert await reader.readexactly(len(ANSWER)) == ANSWER


async def test_the_operator_limits_its_buffers_before_it_connects(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text("no kubeconfig")
    options = run_options(parse_arguments(["run", "--kubeconfig", str(path)]), "me")
    with pytest.raises(BadConnection):
        await Operator(options, plan, plan_services).run()
    assert sslproto.SSLProtocol.max_size == READ_BYTES
