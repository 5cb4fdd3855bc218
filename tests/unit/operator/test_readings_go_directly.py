"""Agents and operators on real sockets: who may speak for a node, who is heard, what happens when
either side goes (I14)."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import pytest
from aiohttp import web

from gpujob_api.reading import ReadingReply
from gpujob_operator.agent.direct import Connection, ConnectionLost
from gpujob_operator.port.pod_tokens import AgentIdentity
from gpujob_operator.port.reading_session import ReadingSession
from tests.harness.pod_tokens import agent_token
from tests.harness.reading_ends import IDLE, USED, Agent, Operator, be_patient
from tests.harness.waiting import eventually

pytestmark = pytest.mark.promise("I14")

Start = Callable[..., Agent]


@pytest.fixture
async def operator() -> AsyncGenerator[Operator]:
    operator = Operator()
    await operator.start()
    yield operator
    await operator.stop()


@pytest.fixture
async def start(
    tmp_path: Path, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[Start]:
    be_patient(monkeypatch)
    agents: list[Agent] = []

    def start(*urls: str, token: str = "") -> Agent:
        agents.append(Agent(tmp_path, *(urls or (operator.url,)), token=token))
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
    await eventually(lambda: operator.waiting == 1)
    assert not await agent.deliver(*USED), "kept, and the caller uses the other way"
    agent.clock.advance(8.0)
    operator.begin_to_lead()
    await eventually(lambda: operator.gpus() == USED)
    assert (operator.clock.now() - operator.nodes.taken[-1][2]).total_seconds() == 8.0


async def test_an_agent_that_leaves_before_it_is_admitted_is_no_error(
    operator: Operator, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """As a thousand do where the operator is slow to answer."""
    check = operator.tokens.check_agent

    async def leave_first(token: str, source: str) -> AgentIdentity | None:
        found = await check(token, source)
        # What the end of the agent's stream does to the operator's.
        if operator.tokens.asked == 1:
            operator.hang_up()
        return found

    operator.tokens.check_agent = leave_first
    agent = start()
    await agent.connected()
    assert operator.tokens.asked == 2
    errors = [one.getMessage() for one in caplog.records if one.levelname == "ERROR"]
    assert errors == []


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
    port = int(operator.url.split(":")[2].partition("/")[0])
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
        agent = start(operator.url, other.url)
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
    frozen = asyncio.get_running_loop().create_future()

    async def listen(socket: web.WebSocketResponse, session: ReadingSession) -> None:
        await frozen

    monkeypatch.setattr(operator.receiver, "_listen", listen)
    assert await agent.deliver(*USED), "the connection that there is works on"
    monkeypatch.setattr("gpujob_operator.agent.direct.REPLY_SECONDS_MAX", 0.2)
    operator.receiver.hang_up_all()
    await eventually(lambda: agent.direct._said == "status")
    assert not await agent.deliver(*IDLE)
    frozen.cancel()


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

    async def connect(url: str, wait_seconds: float) -> Connection:
        nonlocal tries
        tries += 1
        if tries < 5:
            raise ConnectionLost("no token", refused=True)
        return await agent.connections.connect(url, wait_seconds)

    agent = start()
    agent.direct._connect = connect
    await eventually(lambda: agent.direct.connected)
    assert await agent.deliver(*IDLE)
    said = [record.getMessage() for record in caplog.records]
    ways = [one for one in said if one.startswith("readings go")]
    assert ways == ["readings go by the status of the GPUNode", "readings go to the operator"]
