"""Both ends of the way of readings, on real sockets."""

import asyncio
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.typedefs import Handler

from gpujob_api.gpunode import GPU, GPUNodeStatus
from gpujob_api.quantities import GIB
from gpujob_operator.agent.direct import DirectReadings
from gpujob_operator.agent.websocket import WebSocketConnections
from gpujob_operator.port.listener import listening
from gpujob_operator.port.pod_tokens import AgentIdentity, claimed_agent
from gpujob_operator.port.readings import AgentAccount, ReadingReceiver
from gpujob_operator.port.requests import TokenCheckFailed
from gpujob_operator.telemetry.metrics import Metrics
from tests.harness.builders import make_gpu
from tests.harness.clocks import FakeClock
from tests.harness.pod_tokens import agent_token
from tests.harness.waiting import eventually

PATIENT_SECONDS = 60.0
ACCOUNT = AgentAccount("gpujob-system", "gpujob-agent")
IDLE = (make_gpu("GPU-0"), make_gpu("GPU-1", index=1))
USED = (make_gpu("GPU-0", ours=[("pod-a", GIB)]), IDLE[1])


class Tokens:
    """Proves tokens whose signature is `true`, for whom they claim or for the one set here."""

    def __init__(self) -> None:
        self.asked = 0
        self.speaks_for: AgentIdentity | None = None

    async def check_agent(self, token: str, source: str) -> AgentIdentity | None:
        self.asked += 1
        signature = token.rpartition(".")[2]
        if signature == "broken":
            raise TokenCheckFailed("no answer")
        return self.speaks_for or claimed_agent(token, 0) if signature == "true" else None


@dataclass
class Nodes:
    known: set[str] = field(default_factory=lambda: {"n0", "n1"})
    objects: set[str] = field(default_factory=lambda: {"n0", "n1"})
    taken: list[tuple[str, GPUNodeStatus, datetime]] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    listed: bool = True

    def has_listed_nodes(self) -> bool:
        return self.listed

    def has_node(self, name: str) -> bool:
        return name in self.known

    def take_reading(self, name: str, status: GPUNodeStatus, taken_at: datetime) -> bool:
        if name in self.objects:
            self.taken.append((name, status, taken_at))
        return name in self.objects

    def close_readings(self, name: str) -> None:
        self.closed.append(name)


class Operator:
    """As much of an operator as agents see."""

    def __init__(self) -> None:
        self.nodes, self.tokens, self.metrics = Nodes(), Tokens(), Metrics()
        self.clock = FakeClock()
        self.leads = True
        self.receiver = ReadingReceiver(
            self.nodes,
            self.tokens,
            self.metrics,
            account=ACCOUNT,
            clock=self.clock.now,
            monotonic=self.clock.monotonic,
            is_leader=lambda: self.leads,
        )
        self.url = ""
        self._stack = AsyncExitStack()
        self._requests: list[web.Request] = []

    async def start(self, port: int = 0) -> None:
        application = web.Application(middlewares=[self._note])
        self.receiver.add_to(application)
        url = await self._stack.enter_async_context(listening(application, "127.0.0.1", port))
        self.url = f"{url}/readings"

    @web.middleware
    async def _note(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self._requests.append(request)
        return await handler(request)

    def hang_up(self) -> None:
        """Closes the newest connection."""
        transport = self._requests[-1].transport
        assert transport is not None
        transport.close()

    async def stop(self) -> None:
        self.receiver.hang_up_all()
        await self._stack.aclose()

    def begin_to_lead(self) -> None:
        self.leads = True
        self.receiver.look_again()

    def list_nodes(self) -> None:
        self.nodes.listed = True
        self.receiver.look_again()

    @property
    def waiting(self) -> int:
        """How many agents wait for this process to begin."""
        return self.receiver._waiting.waiting

    def stop_leading(self) -> None:
        self.leads = False
        self.receiver.hang_up_all()

    def count(self, result: str) -> float:
        found = self.metrics.registry.get_sample_value("gpujob_readings_total", {"result": result})
        return found or 0.0

    def gpus(self, node: str = "n0") -> tuple[GPU, ...]:
        """As the newest reading says."""
        return next((s.gpus for name, s, _ in reversed(self.nodes.taken) if name == node), ())


def be_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents wait for as long as a busy machine needs."""
    for name in ("CONNECT_SECONDS_MAX", "REPLY_SECONDS_MAX"):
        monkeypatch.setattr(f"gpujob_operator.agent.direct.{name}", PATIENT_SECONDS)


class Agent:
    """The agent's end."""

    def __init__(self, folder: Path, *urls: str, token: str = "") -> None:
        self.token_file = folder / f"token-{id(self)}"
        self.token_file.write_text(token or agent_token("n0"))
        self.connections = WebSocketConnections(self.token_file)
        self.clock = FakeClock()
        self.direct = DirectReadings(urls, self.connections.connect, self.clock.monotonic)
        self.task = asyncio.create_task(self.direct.run())

    async def connected(self) -> None:
        await eventually(lambda: self.direct.connected, what="connected")

    async def deliver(self, *gpus: GPU) -> bool:
        return await self.direct.deliver(GPUNodeStatus(gpus=gpus), self.clock.monotonic())

    async def stop(self) -> None:
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task
        await self.connections.close()
