"""What an agent may send to the operator, how much of it, and for how long."""

from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import aiohttp
import pytest

from gpujob_api.reading import READING_BYTES_MAX
from gpujob_operator.port import readings
from gpujob_operator.port.requests import BURST_MAX, Refused
from tests.harness.builders import make_gpu
from tests.harness.pod_tokens import agent_token
from tests.harness.reading_ends import IDLE, Agent, Operator, be_patient
from tests.harness.waiting import eventually

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
        client.ws_connect(operator.url, headers=headers) as socket,
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
        client.ws_connect(operator.url, headers=headers) as socket,
    ):
        await socket.receive()
        await socket.send_str(text)
        assert (await socket.receive()).type is not aiohttp.WSMsgType.TEXT
    assert operator.count("bad_reading") == 1
    await eventually(lambda: operator.nodes.closed == ["n0"])


async def test_an_agent_that_connects_again_and_again_is_refused(operator: Operator) -> None:
    """It has one allowance for its messages and its connections together."""
    bearer = f"Bearer {agent_token('n0')}"
    for _ in range(int(BURST_MAX)):
        await operator.receiver.admit(bearer, "")
    with pytest.raises(Refused, match="more than 10 readings and connections a second"):
        await operator.receiver.admit(bearer, "")
    await operator.receiver.admit(f"Bearer {agent_token('n1')}", "")
    operator.clock.advance(1.0)
    await operator.receiver.admit(bearer, "")


async def test_a_plain_request_is_refused(operator: Operator) -> None:
    async with aiohttp.ClientSession() as client, client.get(operator.url) as response:
        assert response.status == 400
    assert operator.count("no_websocket") == 1


async def test_a_silent_agent_is_given_up(
    operator: Operator, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpujob_operator.port.reading_session.SILENT_SECONDS_MIN", 0.05)
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
