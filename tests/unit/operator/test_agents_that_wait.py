"""An operator that has just begun lets agents wait. Those that it turns away try again each second,
and a thousand of them take the time in which it would take the Lease and list the nodes."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from gpujob_operator.port.readings import WAIT_SECONDS_MAX, preferred_wait_seconds
from tests.harness.pod_tokens import agent_token
from tests.harness.reading_ends import IDLE, PATIENT_SECONDS, USED, Agent, Operator, be_patient
from tests.harness.waiting import eventually

REFUSALS = ("not_leader", "no_node", "too_many", "check_failed", "too_often")


@pytest.fixture
async def operator() -> AsyncGenerator[Operator]:
    """It has not begun yet."""
    operator = Operator()
    operator.leads, operator.nodes.listed = False, False
    await operator.start()
    yield operator
    await operator.stop()


@pytest.fixture
async def agents(
    tmp_path: Path, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[list[Agent]]:
    be_patient(monkeypatch)
    # No test passes because a wait was over.
    for name in ("agent.direct.WAIT_SECONDS", "port.readings.WAIT_SECONDS_MAX"):
        monkeypatch.setattr(f"gpujob_operator.{name}", PATIENT_SECONDS)
    agents = [Agent(tmp_path, operator.url, token=agent_token(node)) for node in ("n0", "n1")]
    yield agents
    for agent in agents:
        await agent.stop()


def refusals(operator: Operator) -> float:
    return sum(operator.count(result) for result in REFUSALS)


async def test_agents_are_heard_once_it_leads_and_has_listed_the_nodes(
    operator: Operator, agents: list[Agent]
) -> None:
    await eventually(lambda: operator.waiting == 2)
    operator.begin_to_lead()
    assert operator.waiting == 2
    assert operator.tokens.asked == 0, "nobody is asked of before their turn"
    operator.list_nodes()
    for agent, gpus in zip(agents, (IDLE, USED), strict=True):
        await agent.connected()
        assert await agent.deliver(*gpus)
    assert (operator.gpus("n0"), operator.gpus("n1")) == (IDLE, USED)
    assert (operator.waiting, operator.tokens.asked, refusals(operator)) == (0, 2, 0.0)


async def test_who_waits_for_a_node_that_is_not_there_is_refused(
    operator: Operator, agents: list[Agent]
) -> None:
    await eventually(lambda: operator.waiting == 2)
    operator.nodes.known = {"n1"}
    operator.begin_to_lead()
    operator.list_nodes()
    await agents[1].connected()
    await eventually(lambda: operator.count("no_node") > 0)
    assert not agents[0].direct.connected


async def test_nobody_waits_for_one_that_leads_no_more(
    operator: Operator, agents: list[Agent]
) -> None:
    """Another one leads, and is to be found."""
    operator.begin_to_lead()
    operator.list_nodes()
    for agent in agents:
        await agent.connected()
    operator.stop_leading()
    await eventually(lambda: operator.count("not_leader") >= 2 or operator.waiting > 0)
    assert operator.waiting == 0


async def test_the_wait_is_bounded(
    operator: Operator, agents: list[Agent], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpujob_operator.port.readings.WAIT_SECONDS_MAX", 0.05)
    await eventually(lambda: operator.waiting == 2)
    for agent in agents:
        await agent.stop()
    again = Agent(agents[0].token_file.parent, operator.url)
    try:
        await eventually(lambda: operator.count("not_leader") > 0)
    finally:
        await again.stop()


async def test_no_more_wait_than_agents_may_connect(
    operator: Operator, agents: list[Agent], monkeypatch: pytest.MonkeyPatch
) -> None:
    await eventually(lambda: operator.waiting == 2)
    monkeypatch.setattr("gpujob_operator.port.readings.AGENTS_MAX", 2)
    third = Agent(agents[0].token_file.parent, operator.url)
    try:
        await eventually(lambda: operator.count("not_leader") > 0)
        assert operator.waiting == 2
    finally:
        await third.stop()


async def test_who_has_another_operator_to_ask_does_not_wait(
    operator: Operator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    be_patient(monkeypatch)
    leader = Operator()
    await leader.start()
    agent = Agent(tmp_path, operator.url, leader.url)
    try:
        await agent.connected()
        assert await agent.deliver(*USED)
        assert leader.gpus() == USED
        assert operator.count("not_leader") == 1.0
    finally:
        await agent.stop()
        await leader.stop()


async def test_who_is_no_agent_does_not_wait(operator: Operator, tmp_path: Path) -> None:
    agent = Agent(tmp_path, operator.url, token=agent_token("n0", account="default"))
    try:
        await eventually(lambda: operator.count("no_agent") > 0)
        assert operator.waiting == 0
    finally:
        await agent.stop()


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("", 0.0),
        ("wait=3", 3.0),
        ("respond-async, wait=3", 3.0),
        ("wait=3;q=1", 3.0),
        ("wait=999999999", WAIT_SECONDS_MAX),
        ("wait=9999999999", 0.0),
        ("wait=-1", 0.0),
        ("wait=nan", 0.0),
        ("await=3", 0.0),
    ],
)
def test_what_an_agent_may_ask_for(header: str, seconds: float) -> None:
    assert preferred_wait_seconds(header) == seconds
