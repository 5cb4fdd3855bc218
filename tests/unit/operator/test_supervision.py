"""A part that breaks is started again, with pauses that grow; the other ones never notice."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from gpujob_operator.supervision import PAUSE_SECONDS_MAX, STEADY_SECONDS, Supervisor
from gpujob_operator.telemetry.metrics import Metrics
from tests.harness.waiting import eventually


class _Clock:
    def __init__(self) -> None:
        self.now = 1000.0
        self.pauses: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)


class _Bench:
    def __init__(self) -> None:
        self.clock = _Clock()
        self.metrics = Metrics()
        self.supervisor = Supervisor(
            self.metrics, monotonic=lambda: self.clock.now, sleep=self.clock.sleep
        )

    def restarts(self, part: str) -> float:
        labels = {"part": part}
        found = self.metrics.registry.get_sample_value("gpujob_part_restarts_total", labels)
        return found or 0.0

    @asynccontextmanager
    async def keeping(self, run: Callable[[], Awaitable[object]]) -> AsyncGenerator[None]:
        task = asyncio.create_task(self.supervisor.keep("part", run))
        yield
        assert not task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class _Breaking:
    """Breaks a number of times, each after some time, then runs for ever."""

    def __init__(self, bench: _Bench, times: int, after_seconds: float = 0.0) -> None:
        self._bench = bench
        self._times = times
        self._after_seconds = after_seconds
        self.starts = 0

    async def run(self) -> None:
        self.starts += 1
        self._bench.clock.now += self._after_seconds
        if self.starts <= self._times:
            raise ZeroDivisionError("odd")
        await asyncio.Event().wait()


@pytest.mark.parametrize(
    "error", [ValueError, RecursionError, KeyError, OverflowError, MemoryError]
)
async def test_any_exception_is_a_restart_and_not_an_end(error: type[Exception]) -> None:
    bench = _Bench()
    starts: list[int] = []

    async def run() -> None:
        starts.append(1)
        raise error("odd")

    async with bench.keeping(run):
        await eventually(lambda: len(starts) >= 5)
    assert bench.restarts("part") >= 4


async def test_pauses_grow_up_to_a_limit_and_are_not_in_step() -> None:
    bench = _Bench()
    breaking = _Breaking(bench, 12)
    async with bench.keeping(breaking.run):
        await eventually(lambda: breaking.starts == 13)
    pauses = bench.clock.pauses
    assert pauses[0] <= 0.5
    assert pauses[3] > pauses[0]
    assert max(pauses) <= PAUSE_SECONDS_MAX
    assert len(set(pauses[-4:])) == 4


async def test_failing_lasts_until_the_part_runs_steadily() -> None:
    bench = _Bench()
    breaking = _Breaking(bench, 3)
    async with bench.keeping(breaking.run):
        await eventually(lambda: breaking.starts == 4)
        assert bench.supervisor.failing_seconds()["part"] == pytest.approx(sum(bench.clock.pauses))
        bench.clock.now += STEADY_SECONDS + 1
        assert bench.supervisor.failing_seconds()["part"] == 0


async def test_a_part_that_breaks_now_and_then_is_not_failing_for_long() -> None:
    bench = _Bench()
    breaking = _Breaking(bench, 20, after_seconds=STEADY_SECONDS + 1)
    async with bench.keeping(breaking.run):
        await eventually(lambda: breaking.starts == 21)
    assert max(bench.clock.pauses) <= 0.5


async def test_a_part_that_ends_is_started_again_unless_it_may_end() -> None:
    bench = _Bench()
    ended: list[int] = []

    async def run() -> None:
        ended.append(1)

    await bench.supervisor.keep("part", run, may_end=lambda: len(ended) == 3)
    assert len(ended) == 3
    assert bench.restarts("part") == 2
