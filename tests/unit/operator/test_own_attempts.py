"""I3: which pods may have been created, as the next snapshot tells."""

from dataclasses import replace

import pytest

from gpujob_api.gpujob import GPUJob, JobPhase
from gpujob_operator.act.own_attempts import OwnAttempts
from gpujob_operator.act.writer import WriteResult
from gpujob_operator.client.api_errors import ApiError, Conflict, Unavailable
from gpujob_operator.cycle import snapshot_from_json, snapshot_to_json
from gpujob_operator.decide.model.plan import WriteStatus
from gpujob_operator.decide.model.snapshot import PerhapsCreated, Snapshot
from gpujob_operator.decide.model.workers import with_pod_uids
from tests.harness.builders import make_job, make_pods, placed, with_status
from tests.harness.executor_bench import ExecutorBench, create_item

pytestmark = pytest.mark.promise("I3")

BY_ANOTHER = PerhapsCreated("uid-job", 1, (0,), by_another=True)


@pytest.fixture
def bench() -> ExecutorBench:
    return ExecutorBench()


def told(bench: ExecutorBench, *jobs: GPUJob) -> tuple[PerhapsCreated, ...]:
    return bench.executor.assume(Snapshot(jobs=jobs)).perhaps_created


def placing(job: GPUJob) -> WriteStatus:
    pending = with_status(
        job, phase=JobPhase.PENDING, placement=None, attempt=job.status.attempt - 1
    )
    return WriteStatus(pending, job.status)


async def test_pods_of_an_own_attempt_are_created_once(bench: ExecutorBench) -> None:
    job = bench.job()
    assert told(bench, job) == (BY_ANOTHER,)
    await bench.run(placing(job))
    assert told(bench, job) == ()
    await bench.run(create_item(job))
    assert told(bench, job) == (PerhapsCreated("uid-job", 1, (0,)),)
    known = replace(job, status=with_pod_uids(job.status, make_pods(job)))
    assert told(bench, known) == ()


async def test_an_attempt_whose_placement_is_being_written_is_own(bench: ExecutorBench) -> None:
    job = bench.job()
    bench.submit(placing(job))
    await bench.executor.drain(5)
    assert told(bench, job) == ()
    assert told(bench, with_status(job, attempt=2)) == (
        PerhapsCreated("uid-job", 2, (0,), by_another=True),
    )


@pytest.mark.parametrize("error", [Conflict(409, "Conflict", "x"), Unavailable(503, "x", "y")])
async def test_a_placement_that_did_not_take_effect(bench: ExecutorBench, error: ApiError) -> None:
    job = bench.job()
    bench.kube.fail("replace", "gpujobs", error, times=4)
    results = await bench.run(placing(job))
    assert WriteResult.DONE not in results
    assert told(bench, job) == (BY_ANOTHER,)


async def test_a_conflict_after_a_lost_answer_is_with_the_own_request(bench: ExecutorBench) -> None:
    """The first request took effect, and its repetition is refused."""
    job = bench.job()
    bench.kube.fail("replace", "gpujobs", after_effect=True)
    assert await bench.run(placing(job)) == {WriteResult.CONFLICT: 1}
    assert told(bench, job) == ()


async def test_a_pod_that_was_refused_was_not_created(bench: ExecutorBench) -> None:
    job = bench.job()
    await bench.run(placing(job))
    bench.kube.fail("create", "pods", Unavailable(503, "x", "y"), times=4)
    await bench.run(create_item(job))
    assert told(bench, job) == ()


async def test_what_is_over_is_forgotten(bench: ExecutorBench) -> None:
    job = bench.job()
    await bench.run(placing(job))
    assert told(bench, with_status(job, phase=JobPhase.RUNNING)) == ()
    assert told(bench, job) == (BY_ANOTHER,)


def test_a_dump_has_it() -> None:
    job = placed(make_job())
    snapshot = OwnAttempts().tell(Snapshot(jobs=(job,)))
    assert snapshot.perhaps_created == (BY_ANOTHER,)
    assert snapshot_from_json(snapshot_to_json(snapshot)).perhaps_created == (BY_ANOTHER,)
