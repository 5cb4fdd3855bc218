"""A gate on loopback, between an operator and replicas whose answers the test decides."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from aiohttp import ClientResponse, ClientSession, ClientTimeout, web
from aiohttp.test_utils import TestServer

from gpujob_api.gate import GATE_PATH, GateReply, GateReport
from gpujob_operator.gate.process import GateOptions, run_gate
from gpujob_operator.gate.reporter import Destination

# No test waits for this long. It bounds one that fails.
LIMIT_SECONDS = 60.0


async def until(condition: Callable[[], object]) -> None:
    """Returns once the condition holds."""
    async with asyncio.timeout(LIMIT_SECONDS):
        while not condition():  # noqa: ASYNC110 - what sets it has no event
            await asyncio.sleep(0.01)


@dataclass(frozen=True, slots=True)
class Seen:
    """A request that a replica has read."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    body: bytes


@dataclass(slots=True)
class Replica:
    """A server that answers when `go` is set. `/stream` sends its second half then, `/die` ends the
    connection.
    """

    address: str = ""
    go: asyncio.Event = field(default_factory=asyncio.Event)
    seen: list[Seen] = field(default_factory=list[Seen])
    # Paths of requests whose client left before the answer.
    left: list[str] = field(default_factory=list[str])

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        headers = tuple(request.headers.items())
        self.seen.append(Seen(request.method, request.raw_path, headers, body))
        try:
            if request.path == "/stream":
                return await self._stream(request)
            await self.go.wait()
        except asyncio.CancelledError:
            self.left.append(request.path)
            raise
        if request.path == "/die":
            assert request.transport is not None
            request.transport.abort()
        headers = {"X-Model": "digits", "Keep-Alive": "timeout=5", "Connection": "keep-alive"}
        return web.Response(body=body or b"nothing", status=201, headers=headers)

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"first;")
        await self.go.wait()
        await response.write(b"second")
        if "broken" in request.query:
            assert request.transport is not None
            request.transport.abort()
        return response


@asynccontextmanager
async def serving(replica: Replica) -> AsyncGenerator[Replica]:
    application = web.Application(client_max_size=64 * 1024**2)
    application.router.add_route("*", "/{path:.*}", replica.answer)
    server = TestServer(application)
    await server.start_server(shutdown_timeout=1.0)
    replica.address = f"127.0.0.1:{server.port}"
    try:
        yield replica
    finally:
        replica.go.set()
        await server.close()


@dataclass(slots=True)
class Operator:
    """The report port: keeps the reports, and answers with `reply`."""

    reply: GateReply = field(default_factory=GateReply)
    status: int = 200
    reports: list[GateReport] = field(default_factory=list[GateReport])
    tokens: set[str] = field(default_factory=set[str])

    async def post(self, request: web.Request) -> web.Response:
        self.tokens.add(request.headers["Authorization"])
        self.reports.append(GateReport.from_text(await request.text()))
        return web.Response(text=self.reply.to_text(), status=self.status)

    async def reported(self, held: int) -> GateReport:
        """Returns the next report with this number of held requests."""
        async with asyncio.timeout(LIMIT_SECONDS):
            first = len(self.reports)
            while True:
                found = [one for one in self.reports[first:] if one.held == held]
                if found:
                    return found[0]
                await asyncio.sleep(0.01)


@dataclass(slots=True)
class GateStage:
    """A gate that runs, its operator, and a client."""

    url: str
    operator: Operator
    client: ClientSession
    ends: asyncio.Event
    running: "asyncio.Task[None]"
    report_url: str

    def ready(self, *replicas: Replica, cold_start_seconds: float = LIMIT_SECONDS) -> None:
        """The operator names these replicas from its next reply on."""
        self.operator.reply = GateReply(tuple(one.address for one in replicas), cold_start_seconds)

    async def post(self, path: str = "/infer", body: bytes = b"x") -> tuple[int, bytes]:
        async with self.client.post(self.url + path, data=body) as answer:
            return answer.status, await answer.read()

    def later(self, path: str = "/infer", body: bytes = b"x") -> "asyncio.Task[tuple[int, bytes]]":
        return asyncio.create_task(self.post(path, body))

    async def get(self, path: str) -> ClientResponse:
        return await self.client.get(self.url + path)


@asynccontextmanager
async def gate(
    folder: Path, options: GateOptions | None = None, *, operator_status: int = 200
) -> AsyncGenerator[GateStage]:
    """Runs a gate. The destination in `options` does not count."""
    operator = Operator(GateReply((), LIMIT_SECONDS), operator_status)
    application = web.Application()
    application.router.add_post(f"/{GATE_PATH}", operator.post)
    server = TestServer(application)
    await server.start_server()
    token = folder / "token"
    token.write_text("secret\n")
    destination = Destination(f"http://127.0.0.1:{server.port}/{GATE_PATH}", token)
    ends, url = asyncio.Event(), asyncio.get_running_loop().create_future()
    given = options or GateOptions("127.0.0.1", 0, destination, delay_seconds=0.0)
    given = replace(given, destination=destination)
    running = asyncio.create_task(run_gate(given, ends, url.set_result))
    timeout = ClientTimeout(total=LIMIT_SECONDS)
    try:
        async with ClientSession(timeout=timeout) as client:
            yield GateStage(await url, operator, client, ends, running, destination.url)
    finally:
        ends.set()
        async with asyncio.timeout(LIMIT_SECONDS):
            await running
        await server.close()
