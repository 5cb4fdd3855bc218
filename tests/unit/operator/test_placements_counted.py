"""`gpujob_placements_total` has every attempt that was placed once, whatever recorded it."""

from dataclasses import replace

import pytest

from gpujob_api.gpujob import GPUJob, JobPhase
from gpujob_operator.client.api_errors import ApiError, Conflict, Forbidden, Unavailable
from gpujob_operator.client.kube import JOBS, PODS
from gpujob_operator.client.retry import ATTEMPTS_MAX
from gpujob_operator.decide.model.plan import WriteStatus
from gpujob_operator.decide.model.workers import with_pod_uids
from tests.harness.builders import make_job, make_pods, placed, with_status
from tests.harness.executor_bench import (
    ExecutorBench,
    PlacingBench,
    at_version,
    create_item,
    placement,
)
from tests.harness.manifests import job_manifest


@pytest.fixture
def bench() -> PlacingBench:
    return PlacingBench()


def count(bench: ExecutorBench) -> float:
    return bench.metrics.placements._value.get()


def stored(bench: ExecutorBench, job: GPUJob) -> GPUJob:
    manifest = bench.kube.put(JOBS, job_manifest(job))
    return at_version(job, manifest["metadata"]["resourceVersion"])


def first_status(bench: ExecutorBench, job: GPUJob) -> WriteStatus:
    """The status that places the job, without a pod that records it."""
    return WriteStatus(stored(bench, job), placed(job).status)


async def test_a_pod_that_records_its_placement_counts(bench: PlacingBench) -> None:
    await bench.run(placement(bench))
    assert count(bench) == 1
    assert b"gpujob_placements_total 1.0" in bench.metrics.text()


async def test_a_status_counts_where_it_records_the_placement() -> None:
    bench = ExecutorBench()
    await bench.run(first_status(bench, make_job()))
    assert count(bench) == 1


async def test_a_status_in_place_of_a_refused_pod_counts_once(bench: PlacingBench) -> None:
    bench.kube.fail("create", "pods", Forbidden(403, "Forbidden", "exceeded quota"))
    await bench.run(placement(bench))
    assert bench.kube.stored(JOBS, "job", "team")["status"]["attempt"] == 1
    assert count(bench) == 1


async def test_a_pod_found_after_a_lost_answer_counts_once(bench: PlacingBench) -> None:
    bench.kube.fail("create", "pods", after_effect=True)
    bench.kube.fail("create", "pods", times=ATTEMPTS_MAX - 1)
    await bench.run(placement(bench))
    assert count(bench) == 1


async def test_a_gang_counts_once() -> None:
    bench = ExecutorBench()
    gang, places = make_job(workers=4), ((f"n{rank}", (f"GPU-{rank}",)) for rank in range(4))
    item = WriteStatus(stored(bench, gang), placed(gang, *places).status)
    job = replace(item.job, status=item.status)
    await bench.run(item, *(create_item(job, rank) for rank in range(4)))
    assert len(bench.kube.names(PODS)) == 4
    assert count(bench) == 1


async def test_what_comes_later_of_the_attempt_does_not_count(bench: PlacingBench) -> None:
    """Neither the pod of a status that was written, nor the status of a pod, nor the end."""
    job = bench.job()
    known = with_pod_uids(job.status, make_pods(job))
    ended = replace(known, phase=JobPhase.SUCCEEDED)
    await bench.run(create_item(job))
    await bench.run(WriteStatus(job, known))
    await bench.run(WriteStatus(stored(bench, replace(job, status=known)), ended))
    assert bench.kube.stored(JOBS, "job", "team")["status"]["phase"] == "Succeeded"
    assert count(bench) == 0


async def test_the_next_attempt_counts_again(bench: PlacingBench) -> None:
    await bench.run(first_status(bench, make_job()))
    again = with_status(placed(make_job()), placement=None, phase=JobPhase.PENDING)
    job = stored(bench, again)
    await bench.run(WriteStatus(job, replace(placed(job).status, attempt=2)))
    assert bench.kube.stored(JOBS, "job", "team")["status"]["attempt"] == 2
    assert count(bench) == 2


@pytest.mark.parametrize(
    "error",
    [
        Conflict(409, "Conflict", "changed"),
        Forbidden(403, "Forbidden", "no"),
        ApiError(422, "Invalid", "no"),
    ],
    ids=["conflict", "forbidden", "invalid"],
)
async def test_what_was_not_written_does_not_count(error: ApiError) -> None:
    bench = ExecutorBench()
    item = first_status(bench, make_job())
    bench.kube.fail("replace", JOBS.plural, error)
    await bench.run(item)
    assert count(bench) == 0


async def test_a_pod_without_an_answer_and_a_status_in_conflict_do_not_count(
    bench: PlacingBench,
) -> None:
    item = placement(bench)
    bench.kube.fail("create", "pods", Unavailable(503, "x", "y"), times=ATTEMPTS_MAX)
    bench.kube.fail("replace", JOBS.plural, Conflict(409, "Conflict", "changed"))
    await bench.run(item)
    assert count(bench) == 0


async def test_a_refused_template_and_a_lost_lead_do_not_count(bench: PlacingBench) -> None:
    bench.kube.fail("try", "pods", ApiError(422, "Invalid", "spec.volumes[1].name: Duplicate"))
    await bench.run(placement(bench))
    bench.leads = False
    await bench.run(placement(bench))
    assert count(bench) == 0
