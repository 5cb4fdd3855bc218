"""The agent's end of direct readings when the operator is slow or something unforeseen breaks."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress

import pytest

from gpujob_api.gpunode import GPUNodeStatus
from gpujob_api.reading import ReadingReply
from gpujob_operator.agent.direct import (
    REPLY_SECONDS_MAX,
    RETRY_REFUSED_SECONDS,
    WAIT_SECONDS,
    Connect,
    Connection,
    DirectReadings,
)
from gpujob_operator.agent.publish import HEARTBEAT_SECONDS_MAX
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.port.readings import WAIT_SECONDS_MAX
from tests.harness.builders import make_gpu
from tests.harness.waiting import eventually

# Virtual time: an answer that comes late costs nothing.
pytestmark = pytest.mark.looptime

STATUS = GPUNodeStatus(gpus=(make_gpu(),))
URL = "ws://operator/readings"


class _Slow:
    """A connection to an operator that takes each reading after a while. It asks for all GPUs as
    often as said."""

    def __init__(self, seconds: float = 0.0, asks: int = 0) -> None:
        self.seconds = seconds
        self.asks = asks
        self.sent = 0
        self._replies: asyncio.Queue[str] = asyncio.Queue()
        self._replies.put_nowait(ReadingReply(0).to_text())

    async def send(self, text: str) -> None:
        self.sent += 1
        reply = ReadingReply(self.sent, full=self.sent <= self.asks).to_text()
        asyncio.get_running_loop().call_later(self.seconds, self._replies.put_nowait, reply)

    async def receive(self) -> str:
        return await self._replies.get()

    async def close(self) -> None:
        pass


class _Bench:
    """Runs direct readings, and keeps after which waits they tried again."""

    def __init__(self) -> None:
        self.waits: list[float] = []
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, connect: Connect, *urls: str) -> DirectReadings:
        now = asyncio.get_running_loop().time
        direct = DirectReadings(urls or (URL,), connect, now, self._longest)
        self._tasks.append(asyncio.create_task(direct.run()))
        return direct

    def _longest(self, low: float, high: float) -> float:
        self.waits.append(high)
        return high

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


@pytest.fixture
async def bench() -> AsyncGenerator[_Bench]:
    bench = _Bench()
    yield bench
    await bench.stop()


@pytest.mark.parametrize(("share", "taken"), [(0.45, True), (0.8, False)])
async def test_a_reading_and_its_repetition_share_one_limit(
    bench: _Bench, share: float, taken: bool
) -> None:
    """Each answer is in time; where both together are not, the status is the way."""
    connection = _Slow(share * REPLY_SECONDS_MAX, asks=1)

    async def connect(url: str, wait_seconds: float) -> Connection:
        return connection

    direct = bench.start(connect)
    await eventually(lambda: direct.connected)
    loop = asyncio.get_running_loop()
    started = loop.time()
    assert await direct.deliver(STATUS, started) is taken
    assert connection.sent == 2
    assert loop.time() - started <= REPLY_SECONDS_MAX + 0.01


async def test_an_agent_waits_longer_to_be_let_in_than_for_an_answer(bench: _Bench) -> None:
    """A new leader has a thousand tokens reviewed at once."""
    tries = 0

    async def connect(url: str, wait_seconds: float) -> Connection:
        nonlocal tries
        tries += 1
        await asyncio.sleep(2 * REPLY_SECONDS_MAX)
        return _Slow()

    direct = bench.start(connect)
    await eventually(lambda: direct.connected)
    assert tries == 1


async def test_an_operator_that_lets_nobody_in_is_left_for_the_next(bench: _Bench) -> None:
    """It is frozen. No reading may become stale before the next one has it."""
    frozen, leader = "ws://frozen/readings", "ws://leader/readings"

    async def connect(url: str, wait_seconds: float) -> Connection:
        if url == frozen:
            await asyncio.Event().wait()
        return _Slow()

    loop = asyncio.get_running_loop()
    started = loop.time()
    direct = bench.start(connect, frozen, leader)
    await eventually(lambda: direct.connected)
    left_seconds = Configuration().telemetry_stale_seconds - HEARTBEAT_SECONDS_MAX
    assert loop.time() - started <= left_seconds / 2


async def test_who_has_one_operator_to_ask_leaves_it_soon_enough(bench: _Bench) -> None:
    """One address may lead to another operator the next time. Only there an agent asks to wait."""
    waits: list[float] = []

    async def connect(url: str, wait_seconds: float) -> Connection:
        waits.append(wait_seconds)
        if len(waits) == 1:
            await asyncio.Event().wait()
        return _Slow()

    loop = asyncio.get_running_loop()
    started = loop.time()
    direct = bench.start(connect)
    await eventually(lambda: direct.connected)
    left_seconds = Configuration().telemetry_stale_seconds - HEARTBEAT_SECONDS_MAX
    assert loop.time() - started <= left_seconds / 2
    assert waits == [WAIT_SECONDS, WAIT_SECONDS]
    assert 0 < WAIT_SECONDS <= WAIT_SECONDS_MAX


async def test_an_unforeseen_fault_is_logged_and_does_not_end_the_way(
    bench: _Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """However soon it would be tried again for another reason."""
    connection = _Slow()

    async def connect(url: str, wait_seconds: float) -> Connection:
        if not bench.waits:
            raise KeyError("sequence")
        return connection

    direct = bench.start(connect)
    await eventually(lambda: direct.connected)
    assert bench.waits == [RETRY_REFUSED_SECONDS]
    assert await direct.deliver(STATUS, 0.0)
    (fault,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert fault.exc_info is not None
    keys = fault.__dict__["gpujob_keys"]
    assert keys == {"url": URL, "problem": "KeyError: 'sequence'"}
    assert direct._said == "directly"


async def test_a_fault_at_one_url_leaves_the_others(bench: _Bench) -> None:
    async def connect(url: str, wait_seconds: float) -> Connection:
        if url == "ws://broken":
            raise KeyError("sequence")
        return _Slow()

    direct = bench.start(connect, "ws://broken", URL)
    await eventually(lambda: direct.connected)
    assert await direct.deliver(STATUS, 0.0)
