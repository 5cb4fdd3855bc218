"""Where readings go directly to the operator, the status is for people: little is written, and a
lost way is made up for by the status (I14)."""

import itertools
from dataclasses import replace

import pytest

from gpujob_api.gpunode import GPU, STATUS_SECONDS_MAX, GPUNodeStatus
from gpujob_api.quantities import GIB, MIB
from gpujob_operator.agent.direct import Connection, ConnectionLost, DirectReadings
from gpujob_operator.agent.publish import (
    SHOWN_SECONDS_MIN,
    SILENT_SECONDS_MAX,
    Publisher,
    Readiness,
)
from gpujob_operator.client.kube import NODES
from tests.harness.builders import make_gpu
from tests.harness.clocks import FakeClock
from tests.harness.fake_kube import FakeKube
from tests.harness.publisher_bench import A_GPU, READY, PublisherBench, with_more


class _Direct(DirectReadings):
    """An operator that takes what it is sent while it is up."""

    def __init__(self) -> None:
        super().__init__(["ws://operator"], self._no_connection, lambda: 0.0)
        self.up = True
        self.took: list[tuple[GPUNodeStatus, float]] = []

    async def _no_connection(self, url: str, _wait_seconds: float) -> Connection:
        raise ConnectionLost(url)

    async def deliver(self, status: GPUNodeStatus, read_at: float) -> bool:
        if self.up:
            self.took.append((status, read_at))
        return self.up


@pytest.fixture
def direct() -> _Direct:
    return _Direct()


@pytest.fixture
async def directly(direct: _Direct) -> PublisherBench:
    """The first reading was told, and written."""
    bench = PublisherBench(direct=direct)
    await bench.publish(A_GPU)
    bench.kube.calls.clear()
    direct.took.clear()
    return bench


async def test_readings_that_go_directly_are_not_written(
    directly: PublisherBench, direct: _Direct
) -> None:
    """Ten minutes of a busy GPU: a heartbeat in ten seconds to the operator, a write in minutes."""
    for reading in range(300):
        directly.clock.advance(2.0)
        await directly.publish(replace(A_GPU, utilization_percent=reading % 100))
    assert len(direct.took) == 60
    assert len(directly.kube.writes()) == 2
    for before, now in itertools.pairwise(at for _, at in direct.took):
        assert now - before == 10.0


@pytest.mark.parametrize(
    "changed",
    [
        (replace(A_GPU, healthy=False, health_message="XID 79"),),
        (replace(A_GPU, memory_reserved_bytes=GIB),),
        (A_GPU, make_gpu("GPU-1")),
        (),
    ],
)
async def test_what_people_must_know_is_written_at_once(
    directly: PublisherBench, direct: _Direct, changed: tuple[GPU, ...]
) -> None:
    directly.clock.advance(2.0)
    await directly.publish(*changed)
    assert [status.gpus for status, _ in direct.took] == [changed]
    assert directly.node.status.gpus == changed


@pytest.mark.parametrize(
    "changed",
    [
        replace(A_GPU, processes=()),
        replace(A_GPU, memory_used_bytes=A_GPU.memory_used_bytes + 4 * GIB),
    ],
)
async def test_changes_of_use_are_told_at_once_and_written_now_and_then(
    directly: PublisherBench, direct: _Direct, changed: GPU
) -> None:
    directly.clock.advance(2.0)
    await directly.publish(changed)
    assert [status.gpus for status, _ in direct.took] == [(changed,)]
    assert directly.kube.writes() == []
    directly.clock.advance(SHOWN_SECONDS_MIN)
    await directly.publish(changed)
    assert directly.node.status.gpus == (changed,)
    assert len(directly.kube.writes()) == 1


@pytest.mark.promise("I14")
async def test_without_the_operator_the_status_is_the_way(
    directly: PublisherBench, direct: _Direct
) -> None:
    """As if there were no other (I14): what matters at once, the first reading without news after
    a while, and then one in ten seconds."""
    direct.up = False
    directly.clock.advance(2.0)
    await directly.publish(with_more(A_GPU, 300 * MIB))
    assert directly.node.status.gpus == (with_more(A_GPU, 300 * MIB),)
    ages: list[float] = []
    for _ in range(60):
        directly.clock.advance(2.0)
        observed_at = directly.node.status.observed_at
        assert observed_at is not None
        ages.append((directly.clock.now() - observed_at).total_seconds())
        await directly.publish(with_more(A_GPU, 300 * MIB))
    assert max(ages) <= SILENT_SECONDS_MAX
    assert max(ages[13:]) <= 10.0
    direct.up = True
    directly.kube.calls.clear()
    for _ in range(60):
        directly.clock.advance(2.0)
        await directly.publish(with_more(A_GPU, 300 * MIB))
    assert directly.kube.writes() == [], "and back"


async def fleet(seconds: int) -> tuple[list[int], list[float]]:
    """40 nodes without news whose operator is away for so long: how many seconds after that they
    wrote first, and how old the newest reading got that an operator could have."""
    wrote: list[int] = []
    ages: list[float] = []
    for number in range(40):
        direct = _Direct()
        bench = PublisherBench(direct=direct, node=f"n{number}")
        for _ in range(20 + number % 5):
            bench.clock.advance(2.0)
            await bench.publish(A_GPU)
        direct.up = False
        known_at, away_at = direct.took[-1][1], bench.clock.monotonic()
        first = 0
        while (away := int(bench.clock.monotonic() - away_at)) < seconds:
            bench.kube.calls.clear()
            bench.clock.advance(2.0)
            ages.append(bench.clock.monotonic() - known_at)
            await bench.publish(A_GPU)
            if bench.kube.writes():
                known_at, first = bench.clock.monotonic(), first or away + 2
        wrote += [first] if first else []
    return wrote, ages


async def test_a_change_of_the_leader_makes_few_agents_write() -> None:
    """The API server has enough to do then, and whoever leads next asks each agent for its reading.
    Of 40, those whose last reading was old already."""
    wrote, _ = await fleet(12)
    assert len(wrote) <= 12
    wrote, _ = await fleet(16)
    assert len(wrote) <= 24


@pytest.mark.promise("I14")
async def test_no_reading_gets_stale_while_the_operator_is_away() -> None:
    """I14: 30 s is stale. They do not write at the same time."""
    wrote, ages = await fleet(40)
    assert len(wrote) == 40
    assert max(ages) <= SILENT_SECONDS_MAX + 2.0
    assert max(map(wrote.count, wrote)) <= 15


async def test_a_failed_reading_is_told_with_the_age_of_its_figures(
    directly: PublisherBench, direct: _Direct
) -> None:
    read_at = directly.clock.monotonic()
    directly.clock.advance(60.0)
    await directly.publisher.publish_failure(Readiness(False, "NVMLFailed", "driver is restarting"))
    ((status, at),) = direct.took
    assert (at, status.gpus[0].healthy) == (read_at, False)
    assert not directly.node.status.gpus[0].healthy


async def test_figures_of_an_earlier_agent_are_not_told_directly(
    directly: PublisherBench, direct: _Direct
) -> None:
    """Nobody knows by this agent's clock when they were read."""
    again = PublisherBench(direct=direct)
    again.kube = directly.kube
    again.publisher = Publisher(
        again.kube,
        "n0",
        interval_seconds=2.0,
        agent_version="1",
        clock=again.clock.now,
        monotonic=again.clock.monotonic,
        direct=direct,
    )
    await again.publisher.recall()
    await again.publisher.publish_failure(Readiness(False, "NVMLFailed", "no driver"))
    assert direct.took == []
    assert not again.node.status.gpus[0].healthy


async def test_nodes_that_joined_together_do_not_write_together() -> None:
    moments: set[float] = set()
    for number in range(20):
        clock = FakeClock()
        kube = FakeKube()
        kube.put(NODES, {"metadata": {"name": f"n{number}"}})
        publisher = Publisher(
            kube,
            f"n{number}",
            interval_seconds=2.0,
            agent_version="1",
            clock=clock.now,
            monotonic=clock.monotonic,
            direct=_Direct(),
        )
        await publisher.publish((A_GPU,), "580", READY)
        kube.calls.clear()
        while not kube.writes():
            clock.advance(2.0)
            await publisher.publish((A_GPU,), "580", READY)
        moments.add(clock.monotonic())
    assert len(moments) >= 10
    assert max(moments) - min(moments) >= STATUS_SECONDS_MAX / 3, "1,000 nodes write 4 a second"
    assert max(moments) - 1000.0 <= STATUS_SECONDS_MAX + 2.0
