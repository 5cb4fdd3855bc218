"""The loop: awake when something happens, quiet when nothing does, never dead."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from gpujob_operator.act.executor import Executor, Submission
from gpujob_operator.act.writer import WriteResult
from gpujob_operator.cycle import CycleDumps
from gpujob_operator.decide.model.plan import Plan, WriteStatus
from gpujob_operator.decide.model.snapshot import Snapshot
from gpujob_operator.loop import Pace, SchedulingLoop
from gpujob_operator.observe.dirty import Dirty
from gpujob_operator.telemetry.metrics import Metrics
from tests.harness.builders import make_job
from tests.harness.clocks import FakeClock
from tests.harness.waiting import eventually

# Virtual time: a wait costs nothing, and silence for a minute is tested as such.
pytestmark = pytest.mark.looptime

FAST = Pace(settle=0.001, soft=0.002, resync=30, next_min=0.001, error_pause=0.01)
JOB = make_job()


class _Executor(Executor):
    def __init__(self) -> None:
        self.plans: list[Plan] = []
        self.submission = Submission()
        self.assumed: Snapshot | None = None

    def submit(self, plan: Plan) -> Submission:
        self.plans.append(plan)
        return self.submission

    def assume(self, snapshot: Snapshot) -> Snapshot:
        return self.assumed or snapshot

    def take_results(self) -> Counter[WriteResult]:
        return Counter()


class _Bench:
    def __init__(self, pace: Pace = FAST, **options: Any) -> None:
        self.dirty = Dirty()
        self.metrics = Metrics()
        self.executor = _Executor()
        self.leads = True
        self.next_plan: Plan | Exception = Plan()
        self.plans_made = 0
        self.seen: list[Snapshot] = []
        self.while_planning: Callable[[], None] = lambda: None
        self.loop = SchedulingLoop(
            snapshot=lambda: Snapshot(jobs=(JOB,)),
            plan=self.plan,
            executor=self.executor,
            dirty=self.dirty,
            metrics=self.metrics,
            clock=FakeClock().now,
            may_act=lambda: self.leads,
            pace=pace,
            **options,
        )
        self.task = asyncio.create_task(self.loop.run())

    def plan(self, snapshot: Snapshot, now: datetime) -> Plan:
        self.plans_made += 1
        self.seen.append(snapshot)
        self.while_planning()
        if isinstance(self.next_plan, Exception):
            raise self.next_plan
        return self.next_plan

    async def reached(self, cycles: int) -> None:
        await eventually(lambda: len(self.executor.plans) >= cycles)

    async def stop(self) -> None:
        self.loop.stop()
        await asyncio.wait_for(self.task, 5)


def _files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


async def test_news_makes_a_cycle_and_silence_none() -> None:
    bench = _Bench()
    await bench.reached(1)
    bench.dirty.mark()
    await bench.reached(2)
    await asyncio.sleep(25)
    assert bench.plans_made == 2
    await asyncio.sleep(10)
    assert bench.plans_made == 3, "the resync"
    await bench.stop()


async def test_a_burst_is_one_cycle() -> None:
    bench = _Bench(Pace(settle=0.02, resync=30))
    await bench.reached(1)
    for _ in range(100):
        bench.dirty.mark()
        await asyncio.sleep(0)
    await bench.reached(2)
    await asyncio.sleep(0.05)
    assert bench.plans_made == 2
    await bench.stop()


@pytest.mark.parametrize(("cycle", "settle"), [(0.01, 0.05), (0.1, 0.2), (7.0, 1.0)])
async def test_news_settles_for_twice_as_long_as_a_cycle_takes(cycle: float, settle: float) -> None:
    """Writes that end one after the other would otherwise keep the process deciding."""
    clock = FakeClock()
    bench = _Bench(Pace(settle=0.05, resync=30), monotonic=clock.monotonic)
    bench.while_planning = lambda: clock.advance(cycle)
    await bench.reached(1)
    started = asyncio.get_running_loop().time()
    bench.dirty.mark()
    await bench.reached(2)
    assert asyncio.get_running_loop().time() - started == pytest.approx(settle, abs=0.02)
    await bench.stop()


async def test_measurements_wait_for_something_urgent_but_not_for_ever() -> None:
    bench = _Bench(Pace(settle=0.001, soft=0.1, resync=30))
    await bench.reached(1)
    started = asyncio.get_running_loop().time()
    bench.dirty.mark(urgent=False)
    await bench.reached(2)
    assert asyncio.get_running_loop().time() - started >= 0.09
    bench.dirty.mark(urgent=False)
    bench.dirty.mark()
    started = asyncio.get_running_loop().time()
    await bench.reached(3)
    assert asyncio.get_running_loop().time() - started < 0.09
    await bench.stop()


async def test_looks_again_when_the_plan_says_so() -> None:
    bench = _Bench()
    bench.next_plan = Plan(next_seconds=0.0)
    await bench.reached(4)
    bench.next_plan = Plan()
    await bench.stop()


async def test_what_backs_off_is_tried_again_when_it_may() -> None:
    bench = _Bench()
    bench.executor.submission = Submission(backing_off=1, retry_seconds=4.0)
    await bench.reached(2)
    started = asyncio.get_running_loop().time()
    await bench.reached(3)
    assert asyncio.get_running_loop().time() - started == pytest.approx(4.0, abs=0.1)
    await bench.stop()


async def test_what_is_held_back_does_not_make_the_loop_spin() -> None:
    bench = _Bench(Pace(settle=0.001, next_min=0.001, error_pause=1.0))
    bench.next_plan = Plan((WriteStatus(JOB, JOB.status),), next_seconds=0.0)
    bench.executor.submission = Submission(held_back=1)
    await bench.reached(1)
    await asyncio.sleep(4.5)
    assert bench.plans_made == 5
    await bench.stop()


async def test_the_plan_is_made_of_what_is_being_written() -> None:
    bench = _Bench()
    bench.executor.assumed = Snapshot(jobs=(make_job("assumed"),))
    bench.dirty.mark()
    await bench.reached(2)
    assert bench.seen[-1] is bench.executor.assumed
    await bench.stop()


async def test_nothing_is_decided_without_the_lead() -> None:
    bench = _Bench()
    await bench.reached(1)
    bench.leads = False
    bench.dirty.mark()
    await asyncio.sleep(0.03)
    assert bench.plans_made == 1
    bench.leads = True
    bench.dirty.mark()
    await bench.reached(2)
    await bench.stop()


async def test_an_exception_is_dumped_counted_and_survived(tmp_path: Path) -> None:
    bench = _Bench(dumps=CycleDumps(tmp_path))
    bench.next_plan = RuntimeError("a defect")
    await eventually(lambda: bench.plans_made >= 2)
    bench.next_plan = Plan()
    await bench.reached(1)
    dumps = _files(tmp_path)
    assert json.loads(dumps[0].read_text())["plan"] is None
    assert (bench.metrics.registry.get_sample_value("gpujob_cycle_errors_total") or 0) >= 2
    await bench.stop()


async def test_failures_back_off() -> None:
    bench = _Bench(Pace(settle=0.0, error_pause=0.01, error_pause_max=0.02))
    bench.next_plan = RuntimeError("a defect")
    await asyncio.sleep(0.15)
    assert bench.plans_made == 8
    await bench.stop()


async def test_dump_on_demand(tmp_path: Path) -> None:
    bench = _Bench(dumps=CycleDumps(tmp_path))
    await bench.reached(1)
    assert _files(tmp_path) == []
    bench.loop.dump_next()
    await bench.reached(2)
    assert len(_files(tmp_path)) == 1
    await bench.stop()


async def test_dump_every_cycle_that_writes(tmp_path: Path) -> None:
    bench = _Bench(dumps=CycleDumps(tmp_path), dump_every=True)
    await bench.reached(1)
    bench.next_plan = Plan((WriteStatus(JOB, JOB.status),))
    bench.dirty.mark()
    await bench.reached(2)
    assert len(_files(tmp_path)) == 1
    await bench.stop()


async def test_a_folder_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    bench = _Bench(dumps=CycleDumps(blocked))
    bench.loop.dump_next()
    await bench.reached(1)
    await bench.stop()


async def test_jobs_are_counted_by_phase() -> None:
    bench = _Bench()
    await bench.reached(1)
    await eventually(lambda: 'gpujob_jobs{phase="Pending"} 1.0' in bench.metrics.text().decode())
    await bench.stop()


async def test_the_first_cycle_is_told_once() -> None:
    settled: list[int] = []
    bench = _Bench(settled=lambda: settled.append(bench.plans_made))
    await bench.reached(1)
    bench.dirty.mark()
    await bench.reached(2)
    assert settled == [1]
    await bench.stop()
