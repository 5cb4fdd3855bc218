"""Writes go on in the background: one object's trouble is its own, and decisions count at once."""

import asyncio
from typing import Any

import pytest

from gpujob_api.gpujob import JobPhase
from gpujob_operator.act.item_runner import LATE_SECONDS
from gpujob_operator.act.slots import BURST_PER_SECOND, PATIENT_BURST
from gpujob_operator.act.writer import WriteResult
from gpujob_operator.client.api_errors import ApiError, Forbidden, Refused, Throttled, Unavailable
from gpujob_operator.client.kube import JOBS, PODS, Manifest, ResourceType
from gpujob_operator.client.retry import ATTEMPTS_MAX
from gpujob_operator.decide.model.lanes import Lanes, LanesLeft
from gpujob_operator.decide.model.plan import WriteStatus
from tests.harness.builders import make_job, make_snapshot, placed, with_status
from tests.harness.executor_bench import ExecutorBench, at_version, create_item, status_item
from tests.harness.fake_kube import Call
from tests.harness.waiting import eventually


@pytest.fixture
def bench() -> ExecutorBench:
    return ExecutorBench()


async def test_a_write_that_is_never_answered_is_asked_after_by_name(bench: ExecutorBench) -> None:
    """I1: the GPUs may be taken already, so the object is read until the API server answers."""
    job = bench.job()
    bench.kube.fail("replace", "gpujobs", times=1, after_effect=True)
    bench.kube.fail("replace", "gpujobs", times=ATTEMPTS_MAX - 1)
    bench.kube.fail("get", "gpujobs", times=20)
    assert await bench.run(status_item(job)) == {WriteResult.CONFLICT: 1}
    assert bench.kube.stored(JOBS, "job", "team")["status"]["phase"] == "Running"
    assert bench.written == [("gpujobs", "job")], "the cache has what happened"
    assert [call.verb for call in bench.kube.calls].count("list") == 0
    assert max(bench.clock.slept) == pytest.approx(10.0), "the pauses grow, and only so far"


async def test_a_status_that_was_not_written_is_looked_for_twice(bench: ExecutorBench) -> None:
    """A request may still be under way when its caller has given up."""
    job = bench.job()
    bench.kube.fail("replace", "gpujobs", times=ATTEMPTS_MAX)
    assert await bench.run(status_item(job)) == {WriteResult.FAILED: 1}
    assert [call.verb for call in bench.kube.calls[-2:]] == ["get", "get"]
    assert bench.clock.slept[-1] == LATE_SECONDS


async def test_an_unanswered_create_is_asked_after_by_name(bench: ExecutorBench) -> None:
    job = bench.job()
    bench.kube.fail("create", "pods", times=1, after_effect=True)
    bench.kube.fail("create", "pods", times=ATTEMPTS_MAX - 1)
    assert await bench.run(create_item(job)) == {WriteResult.DONE: 1}
    assert bench.written == [("pods", "job-1-0")]


async def test_an_unanswered_create_of_which_nothing_is_there_was_not_done(
    bench: ExecutorBench,
) -> None:
    job = bench.job()
    bench.kube.fail("create", "pods", times=ATTEMPTS_MAX)
    assert await bench.run(create_item(job)) == {WriteResult.FAILED: 1}
    assert bench.submit(create_item(job)).backing_off == 1


async def test_doubt_about_one_object_is_nobody_elses(bench: ExecutorBench) -> None:
    lost, other = bench.job("lost"), bench.job("other")
    gate = asyncio.Event()

    async def never_answered(*_: Any, **__: Any) -> Manifest:
        await gate.wait()
        raise Unavailable(0, "TimeoutError", "")

    original = bench.kube.replace

    async def replace(kind: ResourceType, name: str, *args: Any, **options: Any) -> Manifest:
        return await (never_answered if name == "lost" else original)(kind, name, *args, **options)

    bench.kube.replace = replace
    bench.submit(status_item(lost))
    bench.submit(status_item(other))
    await eventually(lambda: bench.executor.lanes == 1)
    assert bench.written == [("gpujobs", "other")]
    assert bench.submit(status_item(lost), create_item(lost)).held_back == 2
    gate.set()
    await bench.executor.drain(5)
    assert bench.executor.lanes == 0


async def test_doubt_ends_with_the_lead(bench: ExecutorBench) -> None:
    job = bench.job()
    bench.kube.fail("replace", "gpujobs", times=99)
    bench.kube.fail("get", "gpujobs", times=99)

    def lose(call: Call) -> None:
        bench.leads = call.verb != "get"

    bench.kube.before = lose
    assert await bench.run(status_item(job)) == {WriteResult.NOT_LEADER: 1}


@pytest.mark.parametrize(
    ("error", "result"),
    [
        (Refused(500, "InternalError", "failed calling webhook"), WriteResult.REFUSED),
        (Forbidden(403, "Forbidden", "exceeded quota"), WriteResult.REFUSED),
        (Throttled("slow down", 1.0), WriteResult.FAILED),
    ],
)
async def test_a_refused_create_backs_off_by_itself(
    bench: ExecutorBench, error: ApiError, result: WriteResult
) -> None:
    job, other = bench.job(), bench.job("other")
    bench.kube.fail("create", "pods", error, times=ATTEMPTS_MAX if result.value == "failed" else 1)
    assert await bench.run(create_item(job)) == {result: 1}
    again = bench.submit(create_item(job), create_item(other))
    assert (again.started, again.backing_off) == (1, 1)
    assert again.retry_seconds == pytest.approx(1.0)
    await bench.executor.drain(5)
    assert bench.kube.names(PODS) == ["other-1-0"]
    bench.clock.advance(1.0)
    await bench.run(create_item(job))
    assert bench.kube.names(PODS) == ["job-1-0", "other-1-0"]
    assert bench.metrics.registry.get_sample_value("gpujob_write_backoffs") == 0


async def test_a_definite_refusal_is_not_repeated_at_once(bench: ExecutorBench) -> None:
    job = bench.job()
    bench.kube.fail("create", "pods", Refused(500, "InternalError", "request is too large"))
    await bench.run(create_item(job))
    assert len(bench.kube.writes()) == 1


async def test_a_refused_pod_does_not_hold_back_the_jobsstatus_item(bench: ExecutorBench) -> None:
    job = bench.job()
    bench.kube.fail("create", "pods", Refused(500, "InternalError", "failed calling webhook"))
    await bench.run(create_item(job))
    submission = bench.submit(status_item(job), create_item(job))
    assert (submission.started, submission.backing_off) == (1, 1)
    await bench.executor.drain(5)
    assert bench.written == [("gpujobs", "job")]


async def test_what_comes_after_a_refused_status_waits_with_it(bench: ExecutorBench) -> None:
    job = bench.job()
    bench.kube.fail("replace", "gpujobs", Forbidden(403, "Forbidden", "no"))
    await bench.run(status_item(job))
    assert bench.submit(status_item(job), create_item(job)).started == 0


async def test_the_pods_of_a_gang_are_created_side_by_side(bench: ExecutorBench) -> None:
    nodes = [(f"n{rank}", (f"GPU-{rank}",)) for rank in range(4)]
    gang = placed(make_job("gang", workers=4), *nodes)
    arrived, gate = 0, asyncio.Event()
    original = bench.kube.create

    async def slow_create(kind: ResourceType, body: Manifest, namespace: str = "") -> Manifest:
        nonlocal arrived
        if kind is PODS:
            arrived += 1
            if arrived == 4:
                gate.set()
            await gate.wait()
        return await original(kind, body, namespace)

    bench.kube.create = slow_create
    assert await bench.run(*(create_item(gang, rank) for rank in range(4))) == {WriteResult.DONE: 4}


async def test_one_refused_pod_of_a_gang_does_not_stop_the_others(bench: ExecutorBench) -> None:
    gang = placed(make_job("gang", workers=2), ("n0", ("GPU-0",)), ("n1", ("GPU-1",)))
    bench.kube.fail("create", "pods", Forbidden(403, "Forbidden", "no"))
    results = await bench.run(create_item(gang, 0), create_item(gang, 1))
    assert results == {WriteResult.DONE: 1, WriteResult.REFUSED: 1}


async def test_what_is_being_written_is_assumed(bench: ExecutorBench) -> None:
    """The GPUs count as held before the API server knows, and no longer than that."""
    pending = at_version(make_job(), bench.job().metadata.resource_version)
    item = WriteStatus(pending, placed(pending).status)
    bench.submit(item)
    snapshot = make_snapshot(pending, make_job("other"))
    assumed = bench.executor.assume(snapshot)
    assert assumed.jobs[0].status == item.status
    assert assumed.jobs[1] is snapshot.jobs[1]
    assert assumed.writing == ("uid-job",)
    assert bench.executor.assume(snapshot).jobs[0] is assumed.jobs[0], "one object, cycle by cycle"
    await bench.executor.drain(5)
    assert bench.executor.assume(snapshot) is snapshot


async def test_an_assumed_job_keeps_what_others_wrote_meanwhile(bench: ExecutorBench) -> None:
    pending = at_version(make_job(), bench.job().metadata.resource_version)
    item = WriteStatus(pending, placed(pending).status)
    bench.submit(item)
    edited = make_job(priority=7)
    shown = bench.executor.assume(make_snapshot(edited)).jobs[0]
    assert (shown.spec.priority, shown.status) == (7, item.status)
    written = with_status(placed(make_job()), phase=JobPhase.RUNNING)
    assert bench.executor.assume(make_snapshot(written)).jobs[0] is written
    await bench.executor.drain(5)


async def test_what_would_free_gpus_is_not_assumed(bench: ExecutorBench) -> None:
    job = bench.job()
    ended = with_status(job, phase=JobPhase.SUCCEEDED)
    bench.submit(WriteStatus(job, ended.status))
    assert bench.executor.assume(make_snapshot(job)).jobs[0] is job
    await bench.executor.drain(5)


async def test_a_lane_that_ends_is_news(bench: ExecutorBench) -> None:
    job, other = bench.job(), bench.job("other")
    await bench.run(status_item(job), status_item(other))
    assert bench.settled == 2


async def test_writes_that_hang_are_given_up_at_the_end(bench: ExecutorBench) -> None:
    job = bench.job()

    async def hang(*_: Any, **__: Any) -> Manifest:
        await asyncio.Event().wait()
        raise AssertionError

    bench.kube.patch = hang
    bench.submit(status_item(job))
    await bench.executor.drain(0.01)
    assert bench.executor.lanes == 0


async def test_whether_all_writes_came_to_their_end_is_told(bench: ExecutorBench) -> None:
    """Only then nothing that this process sent can still arrive."""
    job, other = bench.job(), bench.job("other")
    assert await bench.executor.drain(5), "nothing was sent"
    bench.submit(status_item(job))
    assert await bench.executor.drain(5)
    bench.kube.fail("create", "pods", Forbidden(403, "Forbidden", "no"))
    bench.submit(create_item(job))
    assert await bench.executor.drain(5), "a refusal is an answer"
    original = bench.kube.create

    async def hang_once(kind: ResourceType, body: Manifest, namespace: str = "") -> Manifest:
        bench.kube.create = original
        await asyncio.Event().wait()
        raise AssertionError

    bench.kube.create = hang_once
    bench.submit(create_item(other), status_item(job))
    assert not await bench.executor.drain(0.05)
    assert bench.executor.lanes == 0
    assert bench.written[-1] == ("gpujobs", "job"), "the others came to their end"
    assert await bench.executor.drain(5), "what was abandoned is told once"


async def test_what_only_tells_keeps_no_operator_from_its_end() -> None:
    """More of it than is sent in a second: the Lease is released when all is written."""
    bench = ExecutorBench(lanes_max=200)
    many, count = int(BURST_PER_SECOND) + 1, 2 * int(PATIENT_BURST)
    creates = [create_item(bench.job(f"new-{number}")) for number in range(many)]
    tells = [status_item(bench.job(f"job-{number}")) for number in range(count)]
    bench.submit(*creates, *tells)
    assert await bench.executor.drain(1.0)
    assert bench.executor.take_results() == {WriteResult.DONE: many + count}


async def test_what_only_tells_leaves_half_of_the_lanes(bench: ExecutorBench) -> None:
    """In a burst it waits for seconds, and placements must not wait with it."""
    tells = [status_item(bench.job(f"job-{number}")) for number in range(100)]
    assert bench.submit(*tells).postponed == 50
    creates = [create_item(bench.job(f"new-{number}", "other")) for number in range(60)]
    submission = bench.submit(*creates)
    assert (submission.started, submission.postponed) == (50, 10)
    assert await bench.executor.drain(5)


async def test_what_found_no_lane_is_not_decided_again_before_several_are_free(
    bench: ExecutorBench,
) -> None:
    """Hundreds of statuses that wait would be decided anew whenever one of them is written."""
    jobs = [bench.job(f"job-{number}") for number in range(52)]
    tells = [status_item(job) for job in jobs[:50]]
    late = [status_item(job) for job in jobs[50:]]
    late_uids = {item.job.metadata.uid for item in late}
    bench.submit(*tells)
    assert bench.submit(*late).postponed == 2
    snapshot = bench.executor.assume(make_snapshot())
    assert late_uids < set(snapshot.writing)
    assert snapshot.lanes == Lanes((LanesLeft("team", 17),), tells_left=0)
    while bench.executor.lanes > 43:
        await asyncio.sleep(0)
        free = 50 - bench.executor.lanes
        writing = set(bench.executor.assume(make_snapshot()).writing)
        assert (late_uids <= writing) is (free < 7), free
    assert bench.submit(*late).started == 2
    assert await bench.executor.drain(5)
    assert bench.executor.assume(make_snapshot()).writing == ()


async def test_what_creates_is_decided_again_at_once_although_it_found_no_lane(
    bench: ExecutorBench,
) -> None:
    creates = [create_item(bench.job(f"job-{number}")) for number in range(70)]
    assert bench.submit(*creates).postponed == 3
    assert len(bench.executor.assume(make_snapshot()).writing) == 67
    assert await bench.executor.drain(5)


async def test_after_a_429_what_only_tells_waits_although_slots_are_free() -> None:
    """Whichever write it was that the API server did not take."""
    bench = ExecutorBench(slots=4)
    bench.kube.fail("create", "pods", Throttled("slow down", 3.0), times=ATTEMPTS_MAX)
    job, other = bench.job(), bench.job("other")
    bench.submit(create_item(job))
    await eventually(lambda: bench.executor.lanes == 0)
    bench.submit(status_item(other))
    for _ in range(20):
        await asyncio.sleep(0)
    assert bench.written == []
    bench.clock.advance(4.0)
    await eventually(lambda: bench.written == [("gpujobs", "other")])


async def test_a_namespace_whose_writes_hang_leaves_lanes_to_others() -> None:
    """I15: whatever it creates, and however many jobs it has."""
    bench = ExecutorBench(slots=100)
    original, answered = bench.kube.create, asyncio.Event()

    async def hang(kind: ResourceType, body: Manifest, namespace: str = "") -> Manifest:
        if namespace == "sick":
            await answered.wait()
        return await original(kind, body, namespace)

    bench.kube.create = hang
    sick = [create_item(bench.job(f"sick-{number}", "sick")) for number in range(200)]
    submission = bench.submit(*sick)
    assert (submission.started, submission.postponed) == (67, 133)
    assert bench.submit(create_item(bench.job("well", "well"))).started == 1
    await eventually(lambda: bench.executor.lanes == 67)
    assert bench.kube.names(PODS) == ["well-1-0"]
    assert bench.executor.assume(make_snapshot()).lanes.left == (LanesLeft("sick", 0),)
    answered.set()
    assert await bench.executor.drain(5)
    assert bench.executor.assume(make_snapshot()).lanes == Lanes()
    assert bench.submit(*sick[67:]).started == 67, "lanes that ended are free"
    assert await bench.executor.drain(5)


async def test_jobs_are_written_side_by_side_but_not_all_at_once() -> None:
    bench = ExecutorBench(slots=4)
    jobs = [bench.job(f"job-{number}") for number in range(12)]
    inside, most = 0, 0
    original = bench.kube.create

    async def slow_create(kind: ResourceType, body: Manifest, namespace: str = "") -> Manifest:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        inside -= 1
        return await original(kind, body, namespace)

    bench.kube.create = slow_create
    results = await bench.run(*(create_item(job) for job in jobs))
    assert results == {WriteResult.DONE: 12}
    assert most == 4


async def test_a_huge_plan_is_continued_in_the_next_cycle() -> None:
    bench = ExecutorBench(lanes_max=3)
    jobs = [bench.job(f"job-{number}", f"team-{number}") for number in range(5)]
    submission = bench.submit(*(create_item(job) for job in jobs))
    assert (submission.started, submission.postponed) == (3, 2)
    await bench.executor.drain(5)
    assert len(bench.kube.names(PODS)) == 3


async def test_who_backs_off_is_told_until_it_may_be_tried_again(bench: ExecutorBench) -> None:
    bench.kube.fail("create", "pods", Refused(500, "", "admission plugin"), times=ATTEMPTS_MAX)
    job, other = bench.job(), bench.job("other")
    await bench.run(create_item(job))
    assert bench.executor.assume(make_snapshot()).backing_off == (), "not asked yet"
    bench.submit(create_item(job), create_item(other))
    assert bench.executor.assume(make_snapshot()).backing_off == (job.metadata.uid,)
    assert await bench.executor.drain(5)
    bench.clock.advance(120.0)
    bench.submit(create_item(job))
    assert bench.executor.assume(make_snapshot()).backing_off == ()
    assert await bench.executor.drain(5)
