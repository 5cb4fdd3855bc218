"""Agents and operators on real sockets: who may speak for a node, who is heard, what happens when
either side goes (I14)."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from gpujob_api.gpunode import GPU, GPUNodeStatus
from gpujob_api.quantities import GIB
from gpujob_api.reading import READING_BYTES_MAX, ReadingReply
from gpujob_operator.agent.direct import Connection, ConnectionLost, DirectReadings
from gpujob_operator.agent.websocket import WebSocketConnections
from gpujob_operator.metrics import Metrics
from gpujob_operator.observe import readings
from gpujob_operator.observe.listener import listening
from gpujob_operator.observe.pod_tokens import AgentIdentity, claimed_agent
from gpujob_operator.observe.port import TokenCheckFailed
from gpujob_operator.observe.reading_session import ReadingSession
from gpujob_operator.observe.readings import AgentAccount, ReadingReceiver
from tests.harness.builders import make_gpu
from tests.harness.clocks import FakeClock
from tests.harness.pod_tokens import agent_token
from tests.harness.waiting import eventually

ACCOUNT = AgentAccount("gpujob-system", "gpujob-agent")
IDLE = (make_gpu("GPU-0"), make_gpu("GPU-1", index=1))
USED = (make_gpu("GPU-0", ours=[("pod-a", GIB)]), IDLE[1])


class _Tokens:
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
class _Nodes:
    known: set[str] = field(default_factory=lambda: {"n0", "n1"})
    objects: set[str] = field(default_factory=lambda: {"n0", "n1"})
    taken: list[tuple[str, GPUNodeStatus, datetime]] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)

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
        self.nodes, self.tokens, self.metrics = _Nodes(), _Tokens(), Metrics()
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
        self.address = ""
        self._stack = AsyncExitStack()

    async def start(self, port: int = 0) -> None:
        application = web.Application()
        self.receiver.add_to(application)
        url = await self._stack.enter_async_context(listening(application, "127.0.0.1", port))
        self.address = f"{url}/readings"

    async def stop(self) -> None:
        self.receiver.hang_up_all()
        await self._stack.aclose()

    def stop_leading(self) -> None:
        self.leads = False
        self.receiver.hang_up_all()

    def count(self, result: str) -> float:
        found = self.metrics.registry.get_sample_value("gpujob_readings_total", {"result": result})
        return found or 0.0

    def gpus(self, node: str = "n0") -> tuple[GPU, ...]:
        """As the newest reading says."""
        return next((s.gpus for name, s, _ in reversed(self.nodes.taken) if name == node), ())


class Agent:
    """The agent's end."""

    def __init__(self, folder: Path, *addresses: str, token: str = "") -> None:
        self.token_file = folder / f"token-{id(self)}"
        self.token_file.write_text(token or agent_token("n0"))
        self.connections = WebSocketConnections(self.token_file)
        self.clock = FakeClock()
        self.direct = DirectReadings(addresses, self.connections.connect, self.clock.monotonic)
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


Start = Callable[..., Agent]


@pytest.fixture
async def operator() -> AsyncGenerator[Operator]:
    operator = Operator()
    await operator.start()
    yield operator
    await operator.stop()


@pytest.fixture
async def start(tmp_path: Path, operator: Operator) -> AsyncGenerator[Start]:
    agents: list[Agent] = []

    def start(*addresses: str, token: str = "") -> Agent:
        agents.append(Agent(tmp_path, *(addresses or (operator.address,)), token=token))
        return agents[-1]

    yield start
    for agent in agents:
        await agent.stop()


async def test_a_reading_arrives_and_later_ones_are_small(operator: Operator, start: Start) -> None:
    agent = start()
    await agent.connected()
    assert await agent.deliver(*IDLE)
    assert await agent.deliver(*USED)
    assert operator.gpus() == USED
    assert operator.count("accepted") == 2
    assert operator.count("wanted_full") == 0
    assert operator.metrics.registry.get_sample_value("gpujob_agent_connections") == 1.0
    name, _, taken_at = operator.nodes.taken[-1]
    assert (name, taken_at) == ("n0", operator.clock.now())


async def test_what_was_read_before_the_connection_goes_first(
    operator: Operator, start: Start
) -> None:
    """A new leader has the reading without waiting for the next one, and it is as old as it is."""
    operator.leads = False
    agent = start()
    await eventually(lambda: operator.count("not_leader") > 0)
    assert not await agent.deliver(*USED), "kept, and the caller uses the other way"
    agent.clock.advance(8.0)
    operator.leads = True
    await eventually(lambda: operator.gpus() == USED)
    assert (operator.clock.now() - operator.nodes.taken[-1][2]).total_seconds() == 8.0


@pytest.mark.parametrize(
    ("token", "result"),
    [
        ("garbage", "bad_token"),
        (agent_token("n0", audience="https://kubernetes.default.svc"), "bad_token"),
        (agent_token("n0", expires=1), "bad_token"),
        (agent_token("n0", signature="forged"), "bad_token"),
        (agent_token("n0", signature="broken"), "check_failed"),
        (agent_token("n0", account="default"), "no_agent"),
        (agent_token("n0", namespace="team"), "no_agent"),
        (agent_token("n9"), "no_node"),
    ],
)
async def test_who_is_no_agent_of_a_known_node_is_refused(
    operator: Operator, start: Start, token: str, result: str
) -> None:
    agent = start(token=token)
    await eventually(lambda: operator.count(result) > 0, what=result)
    assert not await agent.deliver(*IDLE)
    assert operator.nodes.taken == []
    unasked = result in ("no_agent", "no_node") or not token.endswith((".forged", ".broken"))
    assert operator.tokens.asked == (0 if unasked else 1)


async def test_an_agent_cannot_speak_for_another_node(operator: Operator, start: Start) -> None:
    """Its token is genuine, and of another node than it claims."""
    operator.tokens.speaks_for = AgentIdentity("gpujob-system", "gpujob-agent", "n1", "")
    start(token=agent_token("n0"))
    await eventually(lambda: operator.count("wrong_node") > 0)
    assert operator.nodes.taken == []


async def test_without_an_account_nobody_is_an_agent(operator: Operator, start: Start) -> None:
    operator.receiver._account = None
    start()
    await eventually(lambda: operator.count("no_agent") > 0)


async def test_of_two_agents_of_a_node_the_first_is_heard(operator: Operator, start: Start) -> None:
    first = start()
    await first.connected()
    assert await first.deliver(*IDLE)
    second = start(token=agent_token("n0", pod_uid="another"))
    await eventually(lambda: operator.count("second_agent") > 0)
    assert not await second.deliver(*USED)
    assert await first.deliver(*IDLE)
    assert operator.gpus() == IDLE
    await first.stop()
    await eventually(lambda: operator.gpus() == USED, what="the second one's turn")


async def test_an_agent_that_began_anew_takes_its_own_place(
    operator: Operator, start: Start
) -> None:
    """The container was started again, and the operator has not noticed the end of the first."""
    token = agent_token("n0", pod_uid="pod-uid")
    first = start(token=token)
    await first.connected()
    again = start(token=token)
    await again.connected()
    assert await again.deliver(*USED)
    assert "n0" in operator.nodes.closed


async def test_nodes_do_not_get_in_each_others_way(operator: Operator, start: Start) -> None:
    agents = [start(), start(token=agent_token("n1"))]
    for agent, gpus in zip(agents, (IDLE, USED), strict=True):
        await agent.connected()
        assert await agent.deliver(*gpus)
    assert (operator.gpus("n0"), operator.gpus("n1")) == (IDLE, USED)


async def test_an_operator_that_began_anew_has_the_readings(
    operator: Operator, start: Start
) -> None:
    agent = start()
    await agent.connected()
    assert await agent.deliver(*USED)
    port = int(operator.address.split(":")[2].partition("/")[0])
    await operator.stop()
    await eventually(lambda: not agent.direct.connected)
    again = Operator()
    await again.start(port)
    try:
        await eventually(lambda: again.gpus() == USED)
    finally:
        await again.stop()


async def test_agents_find_the_replica_that_leads_now(operator: Operator, start: Start) -> None:
    other = Operator()
    other.leads = False
    await other.start()
    try:
        agent = start(operator.address, other.address)
        await agent.connected()
        assert await agent.deliver(*USED)
        other.leads = True
        operator.stop_leading()
        await eventually(lambda: other.gpus() == USED)
        assert operator.nodes.closed == ["n0"]
        assert await agent.deliver(*IDLE)
        assert other.gpus() == IDLE
    finally:
        await other.stop()


async def test_who_leads_no_more_takes_nothing(operator: Operator, start: Start) -> None:
    """Even before it has noticed."""
    agent = start()
    await agent.connected()
    operator.leads = False
    assert not await agent.deliver(*USED)
    assert operator.nodes.taken == []


async def test_an_operator_that_does_not_know_the_gpu_node_says_so(
    operator: Operator, start: Start
) -> None:
    """The agent then writes the status, and so makes the object."""
    operator.nodes.objects = set()
    agent = start()
    await agent.connected()
    assert not await agent.deliver(*IDLE)
    operator.nodes.objects = {"n0"}
    assert await agent.deliver(*USED)
    assert operator.gpus() == USED


async def test_an_operator_that_answers_something_else_is_left(
    operator: Operator, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = operator.receiver.take
    agent = start()
    await agent.connected()
    assert await agent.deliver(*IDLE)

    def wrong(session: ReadingSession, text: str) -> ReadingReply:
        return ReadingReply(99)

    monkeypatch.setattr(operator.receiver, "take", wrong)
    assert not await agent.deliver(*USED), "an answer to another question"
    monkeypatch.setattr(operator.receiver, "take", take)
    await eventually(lambda: operator.gpus() == USED)


async def test_an_operator_that_is_frozen_is_left(
    operator: Operator, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = start()
    await agent.connected()
    assert await agent.deliver(*IDLE)
    monkeypatch.setattr("gpujob_operator.agent.direct.REPLY_SECONDS_MAX", 0.2)
    loop = asyncio.get_running_loop()
    frozen = loop.create_future()

    async def listen(socket: web.WebSocketResponse, session: ReadingSession) -> None:
        await frozen

    monkeypatch.setattr(operator.receiver, "_listen", listen)
    assert await agent.deliver(*USED), "the connection that there is works on"
    operator.receiver.hang_up_all()
    await eventually(lambda: agent.direct._said == "status")
    assert not await agent.deliver(*IDLE)
    frozen.cancel()


async def test_a_reading_that_is_too_large_is_not_sent(operator: Operator, start: Start) -> None:
    agent = start()
    await agent.connected()
    used = [(f"pod-{number:060}", 1) for number in range(250)]
    huge = tuple(make_gpu(f"GPU-{n}", index=n, ours=used) for n in range(64))
    assert not await agent.deliver(*huge)
    assert operator.nodes.taken == []


async def test_a_message_that_is_too_large_ends_the_connection(operator: Operator) -> None:
    headers = {"Authorization": f"Bearer {agent_token('n0')}"}
    async with (
        aiohttp.ClientSession() as client,
        client.ws_connect(operator.address, headers=headers) as socket,
    ):
        await socket.receive()
        await socket.send_str("x" * (READING_BYTES_MAX + 1))
        assert (await socket.receive()).type is not aiohttp.WSMsgType.TEXT
    await eventually(lambda: operator.nodes.closed == ["n0"])


@pytest.mark.parametrize("text", ["", "null", "[]", "{}", '{"sequence":7}'])
async def test_a_message_that_is_no_reading_ends_the_connection(
    operator: Operator, text: str
) -> None:
    headers = {"Authorization": f"Bearer {agent_token('n0')}"}
    async with (
        aiohttp.ClientSession() as client,
        client.ws_connect(operator.address, headers=headers) as socket,
    ):
        await socket.receive()
        await socket.send_str(text)
        assert (await socket.receive()).type is not aiohttp.WSMsgType.TEXT
    assert operator.count("bad_reading") == 1
    await eventually(lambda: operator.nodes.closed == ["n0"])


async def test_a_plain_request_is_refused(operator: Operator) -> None:
    async with aiohttp.ClientSession() as client, client.get(operator.address) as response:
        assert response.status == 400
    assert operator.count("no_websocket") == 1


async def test_a_silent_agent_is_given_up(
    operator: Operator, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpujob_operator.observe.reading_session.SILENT_SECONDS_MIN", 0.05)
    agent = start()
    await eventually(lambda: "n0" in operator.nodes.closed)
    await eventually(lambda: not agent.direct.connected)


async def test_an_old_connection_has_to_show_its_token_again(
    operator: Operator, start: Start
) -> None:
    agent = start()
    await agent.connected()
    assert await agent.deliver(*IDLE)
    operator.clock.advance(readings.CONNECTION_SECONDS_MAX + 1)
    assert await agent.deliver(*IDLE)
    await eventually(lambda: operator.tokens.asked == 2)


async def test_there_are_no_more_connections_than_nodes_could_have(
    operator: Operator, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readings, "AGENTS_MAX", 1)
    first = start()
    await first.connected()
    start(token=agent_token("n1"))
    await eventually(lambda: operator.count("too_many") > 0)


async def test_the_way_is_said_once(
    operator: Operator,
    start: Start,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However often it is tried without a token."""
    monkeypatch.setattr("gpujob_operator.agent.direct.RETRY_REFUSED_SECONDS", 0.01)
    caplog.set_level("INFO")
    tries = 0

    async def connect(address: str) -> Connection:
        nonlocal tries
        tries += 1
        if tries < 5:
            raise ConnectionLost("no token", refused=True)
        return await agent.connections.connect(address)

    agent = start()
    agent.direct._connect = connect
    await eventually(lambda: agent.direct.connected)
    assert await agent.deliver(*IDLE)
    said = [record.getMessage() for record in caplog.records]
    ways = [one for one in said if one.startswith("readings go")]
    assert ways == ["readings go by the status of the GPUNode", "readings go to the operator"]
