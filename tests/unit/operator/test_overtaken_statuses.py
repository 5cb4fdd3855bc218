"""A status that waits for its slot is not sent when a newer one is there."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from gpujob_api.gpujob import GPUJob, JobPhase
from gpujob_operator.act.writer import WriteResult
from gpujob_operator.client.kube import JOBS, Manifest
from gpujob_operator.decide.model.plan import EventNote, WriteStatus
from gpujob_operator.decide.model.snapshot import Snapshot
from tests.harness.builders import after, placed, with_status
from tests.harness.executor_bench import ExecutorBench, create_item, status_item


class _Bench:
    """One slot, which a write of another job holds until `let_go`."""

    def __init__(self) -> None:
        self.bench = ExecutorBench(slots=1)
        self.gate = asyncio.Event()
        self._replace = self.bench.kube.replace
        self.bench.kube.replace = self._gated

    async def _gated(self, *arguments: Any, **options: Any) -> Manifest:
        await self.gate.wait()
        return await self._replace(*arguments, **options)

    async def occupy(self) -> None:
        self.bench.submit(status_item(self.bench.job("first")))
        await asyncio.sleep(0)

    async def let_go(self) -> dict[WriteResult, int]:
        self.gate.set()
        await self.bench.executor.drain(5)
        assert self.bench.executor.lanes == 0
        return dict(self.bench.executor.take_results())

    def assumed(self, job: GPUJob) -> GPUJob:
        """The job as the next cycle sees it."""
        return self.bench.executor.assume(Snapshot(jobs=(job,))).jobs[0]

    def ended(self, job: GPUJob) -> WriteStatus:
        """The end of the job, as it is decided on what the cycle sees."""
        seen = self.assumed(job)
        status = with_status(seen, phase=JobPhase.SUCCEEDED, finished_at=after(9)).status
        return WriteStatus(seen, status, (EventNote("Succeeded", "it ended"),))

    def overtaken(self) -> float | None:
        return self.bench.metrics.registry.get_sample_value("gpujob_overtaken_writes_total")


@pytest.fixture
def slow() -> _Bench:
    return _Bench()


async def test_an_end_takes_the_place_of_the_start(slow: _Bench) -> None:
    job = slow.bench.job()
    await slow.occupy()
    slow.bench.submit(status_item(job, EventNote("Running", "it runs")))
    await asyncio.sleep(0)
    submission = slow.bench.submit(slow.ended(job))
    assert (submission.overtaking, submission.held_back, submission.started) == (1, 0, 0)
    assert slow.assumed(job) == job, "what an end frees is not assumed"
    assert await slow.let_go() == {WriteResult.DONE: 2}
    assert [name for _, name in slow.bench.verbs()] == ["first", "job"]
    assert slow.bench.kube.stored(JOBS, "job", "team")["status"]["phase"] == "Succeeded"
    assert slow.bench.notes == ["job: Running", "job: Succeeded"]
    assert slow.overtaken() == 1


async def test_an_end_does_not_wait_as_long_as_the_start_would(slow: _Bench) -> None:
    """GPUs are free at the end, and somebody waits for them."""
    job, other = slow.bench.job(), slow.bench.job("other")
    await slow.occupy()
    slow.bench.submit(status_item(job))
    await asyncio.sleep(0)
    slow.bench.submit(slow.ended(job))
    slow.bench.submit(slow.ended(other))
    await asyncio.sleep(0)
    assert await slow.let_go() == {WriteResult.DONE: 3}
    assert [name for _, name in slow.bench.verbs()] == ["first", "job", "other"]


async def test_a_status_that_later_items_wait_for_is_urgent(slow: _Bench) -> None:
    job, other = slow.bench.job(), slow.bench.job("other")
    await slow.occupy()
    slow.bench.submit(status_item(job))
    await asyncio.sleep(0)
    assert slow.bench.submit(slow.ended(job), create_item(job)).held_back == 2
    slow.bench.submit(slow.ended(other))
    await asyncio.sleep(0)
    assert await slow.let_go() == {WriteResult.DONE: 3}
    assert [name for _, name in slow.bench.verbs()] == ["first", "job", "other"]


async def test_the_newest_of_many_is_sent(slow: _Bench) -> None:
    job = slow.bench.job()
    await slow.occupy()
    slow.bench.submit(status_item(job))
    await asyncio.sleep(0)
    for second in range(20):
        seen = slow.assumed(job)
        newer = WriteStatus(seen, replace(seen.status, observed_at=after(second)))
        assert slow.bench.submit(newer).overtaking == 1
        assert slow.assumed(job).status == newer.status
    assert await slow.let_go() == {WriteResult.DONE: 2}
    assert slow.overtaken() == 20


async def test_what_was_sent_is_not_overtaken(slow: _Bench) -> None:
    """Its answer may be lost, and nobody would know what the next one is compared with."""
    job = slow.bench.job()
    slow.bench.submit(status_item(job))
    await asyncio.sleep(0)
    assert slow.bench.submit(slow.ended(job)).held_back == 1
    assert await slow.let_go() == {WriteResult.DONE: 1}
    assert slow.bench.kube.stored(JOBS, "job", "team")["status"]["phase"] == "Running"
    assert slow.overtaken() == 0


async def test_a_lane_of_more_than_a_status_is_left_alone(slow: _Bench) -> None:
    job = slow.bench.job()
    await slow.occupy()
    slow.bench.submit(status_item(job), create_item(job))
    await asyncio.sleep(0)
    assert slow.bench.submit(slow.ended(job)).held_back == 1
    assert await slow.let_go() == {WriteResult.DONE: 3}


async def test_more_than_a_status_waits_for_the_lane(slow: _Bench) -> None:
    job = slow.bench.job()
    await slow.occupy()
    slow.bench.submit(status_item(job))
    await asyncio.sleep(0)
    assert slow.bench.submit(slow.ended(job), create_item(job)).held_back == 2
    await slow.let_go()


async def test_a_conflict_of_the_newer_one_is_a_conflict(slow: _Bench) -> None:
    """Somebody wrote after the older one was decided."""
    job = slow.bench.job()
    await slow.occupy()
    slow.bench.submit(status_item(job))
    await asyncio.sleep(0)
    slow.bench.submit(slow.ended(job))
    slow.bench.kube.put(JOBS, slow.bench.kube.stored(JOBS, "job", "team"))
    assert await slow.let_go() == {WriteResult.DONE: 1, WriteResult.CONFLICT: 1}


def _waits(job: GPUJob) -> WriteStatus:
    status = with_status(job, phase=JobPhase.PENDING, observed_at=after(1)).status
    return WriteStatus(job, status, (EventNote("InsufficientCapacity", "all GPUs are taken"),))


async def test_why_a_job_waits_is_not_written_once_it_is_placed(slow: _Bench) -> None:
    """In a burst, the write would cost as much as the pod that comes next."""
    job = slow.bench.new_job()
    await slow.occupy()
    slow.bench.submit(_waits(job))
    await asyncio.sleep(0)
    start = placed(slow.assumed(job)).status
    assert slow.bench.submit(WriteStatus(slow.assumed(job), start)).held_back == 1
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert slow.assumed(job) == job, "what was not written does not count"
    assert slow.bench.submit(WriteStatus(job, placed(job).status)).started == 1
    results = await slow.let_go()
    assert results == {WriteResult.OVERTAKEN: 1, WriteResult.DONE: 2}
    assert [name for _, name in slow.bench.verbs()] == ["first", "job-1-0", "job"], (
        "a placement comes after a dry run of its pod"
    )
    assert slow.bench.kube.stored(JOBS, "job", "team")["status"]["phase"] == "Starting"
    assert (slow.overtaken(), slow.bench.notes) == (1, [])


async def test_why_a_job_waits_was_sent_and_the_placement_comes_after_it(slow: _Bench) -> None:
    job = slow.bench.new_job()
    slow.bench.submit(_waits(job))
    await asyncio.sleep(0)
    newer = WriteStatus(slow.assumed(job), placed(slow.assumed(job)).status)
    assert slow.bench.submit(newer).held_back == 1
    assert await slow.let_go() == {WriteResult.DONE: 1}
    assert (slow.overtaken(), slow.bench.notes) == (0, ["job: InsufficientCapacity"])


async def test_what_comes_after_why_a_job_waits_is_not_given_up(slow: _Bench) -> None:
    job = slow.bench.new_job()
    await slow.occupy()
    slow.bench.submit(_waits(job), create_item(placed(job)))
    await asyncio.sleep(0)
    newer = WriteStatus(slow.assumed(job), placed(slow.assumed(job)).status)
    assert slow.bench.submit(newer).held_back == 1
    assert await slow.let_go() == {WriteResult.DONE: 3}
